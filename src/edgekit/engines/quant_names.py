"""What `--quant NAME` means to each engine: the option it sets, and the names that the engine has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from edgekit.errors import UsageError
from edgekit.sources.naming import SHORT_MIXES

# The option of each engine that says how weights are quantised, as rows of a batch name it.
OPTIONS: Mapping[str, str] = {"llama.cpp": "mix", "vllm": "quantization", "mlx": "quantization"}
MLX_NAMES = ("8bit", "6bit", "5bit", "4bit", "3bit", "2bit", "mxfp4", "nvfp4", "mxfp8", "bf16")
_BITS = re.compile(r"(?:q|int)?([2-8])[-_ ]?(?:bits?)?", re.IGNORECASE)


def read_quant(engine: str, name: str) -> str:
    """The name as the engine's own option has it: 'q4_k' -> 'Q4_K_M' for llama.cpp, '4bit' -> 'q4' for MLX.

    Raises UsageError with the names that the engine has.
    """
    found = _known(engine, name)
    if found is not None:
        return found
    if engine not in OPTIONS:
        raise UsageError(
            f"--quant {name[:40]}: the built-in engine runs a GGUF file as it is; name a file or a repository "
            "with that quantisation"
        )
    others = [one for one in OPTIONS if takes(one, name)]
    hint = f" ({name[:40]} is for {' and '.join(others)})" if others else ""
    raise UsageError(
        f"{_title(engine)} has no quantisation {name[:40]!r}{hint}; it has {', '.join(quant_names(engine))}"
    )


def takes(engine: str, name: str) -> bool:
    """Whether the engine has a quantisation of this name."""
    return _known(engine, name) is not None


def quant_names(engine: str) -> tuple[str, ...]:
    """The names to show to somebody who typed another."""
    if engine == "mlx":
        return MLX_NAMES
    if engine == "vllm":
        from edgekit.engines.vllm.schemes import METHODS

        return tuple(sorted(METHODS))
    from edgekit.engines.llamacpp.quantize.table import BY_NAME

    return tuple(BY_NAME)


def with_quant(engine: str, options: Mapping[str, Any], quant: str | None) -> Mapping[str, Any]:
    """Options of a row with the quantisation as the engine's own option, in place of `quant`. Raises UsageError."""
    own = OPTIONS.get(engine, "")
    if "quant" in options and own not in options:  # recorded rows of MLX have both
        options = {key: value for key, value in options.items() if key != "quant"}
    if quant is None:
        return options
    value = read_quant(engine, quant)
    if options.get(own, value) != value:
        raise UsageError(f"{quant[:40]} and {own} {options[own]!r:.40} differ: give one")
    return {**options, own: value}


def _known(engine: str, name: str) -> str | None:
    match engine:
        case "llama.cpp":
            from edgekit.engines.llamacpp.quantize.table import BY_NAME

            upper = re.sub(r"^FP(?=16$|32$)", "F", name.upper())
            mix = SHORT_MIXES.get(upper, upper)
            return mix if mix in BY_NAME else None
        case "mlx":
            from edgekit.engines.mlx.rows import read_quantize

            bits = _BITS.fullmatch(name)
            own = f"q{bits[1]}" if bits else name
            try:
                read_quantize(own)
            except UsageError:
                return None
            return own
        case "vllm":
            from edgekit.engines.vllm.schemes import METHODS

            lower = name.lower()
            return lower if lower in METHODS or lower.startswith("fp8") else None
    return None


def _title(engine: str) -> str:
    return {"vllm": "vLLM", "mlx": "MLX"}.get(engine, engine)
