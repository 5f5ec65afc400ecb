"""The keys of a rotary embedding -> Rope.

As llama.cpp computes it: llama-model.cpp (load_hparams), llama-context.cpp:150-215,
ggml-cpu/ops.cpp (rope_yarn) and ggml.c (ggml_rope_yarn_corr_dims) @ b21e4de.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from edgekit.engines.native.keys import Keys
from edgekit.engines.native.types import NativeRope
from edgekit.terminal import quoted

_BASE = 10_000.0
_BETA_FAST, _BETA_SLOW = 32.0, 1.0
# Of these llama.cpp takes its own numbers for our families, whatever the file says.
_FIXED: Mapping[str, float] = {
    "yarn_ext_factor": 1.0,
    "yarn_attn_factor": 1.0,
    "yarn_beta_fast": _BETA_FAST,
    "yarn_beta_slow": _BETA_SLOW,
}


def read_rope(keys: Keys, *, rotary: int, context_tokens: int) -> NativeRope:
    base = _base(keys, "rope.freq_base")
    scaling = keys.get("rope.scaling.type")
    if scaling not in {None, "none", "linear", "yarn"}:
        raise keys.error(
            f"rope scaling {quoted(scaling)} is not supported by {keys.use.engine} (only "
            "none, linear and yarn): use engine llama.cpp, or add it to "
            "engines/native/rope.py"
        )
    factor = keys.number(
        "rope.scaling.factor", otherwise=keys.number("rope.scale_linear", otherwise=0)
    )
    factor = 1.0 if scaling == "none" or factor == 0 else factor
    magnitude = keys.number("rope.scaling.attn_factor", otherwise=1.0)
    if scaling != "yarn":
        return NativeRope(
            base=base, interpolate=1 / factor, yarn_from=None, yarn_to=0.0, magnitude=magnitude
        )
    _refuse_other_yarn(keys)
    trained = keys.whole(
        "rope.scaling.original_context_length", most=2**31, otherwise=context_tokens
    )
    first, last = _yarn_pairs(rotary, trained, base)
    return NativeRope(
        base=base,
        interpolate=1 / factor,
        yarn_from=first,
        yarn_to=last,
        magnitude=magnitude * (1 + 0.1 * math.log(max(factor, 1.0))),
    )


def read_local_rope(keys: Keys) -> NativeRope:
    """Of layers with a window: nothing is interpolated. llama-model.cpp:2081-2087 @ b21e4de."""
    if keys.get("rope.scaling.type") == "yarn":
        raise keys.error(
            f"yarn in sliding-window layers is not supported by {keys.use.engine}: use "
            "engine llama.cpp, or add it to engines/native/rope.py"
        )
    base = _base(keys, "rope.freq_base_swa")
    magnitude = keys.number("rope.scaling.attn_factor", otherwise=1.0)
    return NativeRope(base=base, interpolate=1.0, yarn_from=None, yarn_to=0.0, magnitude=magnitude)


def _base(keys: Keys, name: str) -> float:
    base = keys.number(name, otherwise=_BASE)
    if base <= 1:
        raise keys.error(f"{keys.architecture}.{name} is {base}, but must be more than 1")
    return base


def _yarn_pairs(rotary: int, trained_tokens: int, base: float) -> tuple[float, float]:
    def pair(turns: float) -> float:
        """The pair that turns so often within the trained context."""
        return rotary * math.log(trained_tokens / (turns * 2 * math.pi)) / (2 * math.log(base))

    return (
        max(0.0, math.floor(pair(_BETA_FAST))),
        min(rotary - 1.0, math.ceil(pair(_BETA_SLOW))),
    )


def _refuse_other_yarn(keys: Keys) -> None:
    for name, value in _FIXED.items():
        told = keys.get(f"rope.scaling.{name}")
        if told is not None and told != value:
            raise keys.error(
                f"{keys.architecture}.rope.scaling.{name} is {quoted(told)}, which "
                f"llama.cpp ignores (it uses {value}) and other engines do not; "
                f"{keys.use.engine} refuses to guess"
            )
