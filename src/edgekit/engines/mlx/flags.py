"""mlx-lm's flags: the table of everything that can be set -> a load and a setup, and back."""

# ruff: noqa: E501 - a table: one row, one line
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgekit.engines import flags as common
from edgekit.engines.flags import (
    CacheFlags,
    Control,
    Flag,
    Meaning,
    Page,
    field_values,
    number,
    read_options,
    whole,
)

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.engines.mlx.types import AsStored, MlxSetup, Quantize

TITLE = "MLX"


def _quantize_field(named: str | Quantize | AsStored) -> Quantize | AsStored | None:
    from edgekit.engines.mlx.quantization import read_quantize

    return (read_quantize(named) if named else None) if isinstance(named, str) else named


def _quantize_value(wanted: Quantize | AsStored) -> str:
    from edgekit.engines.mlx.quantization import quantize_name

    return quantize_name(wanted)


_QUANTIZE = Meaning(_quantize_field, _quantize_value)
_WEIGHTS = ("bf16", "q8", "q6", "q5", "q4", "q3", "q2", "mxfp4")
_KV_BITS = ("8", "6", "5", "4", "3", "2")

CONTEXT = common.CONTEXT._replace(option="prompt_tokens")
FLAGS: tuple[Flag, ...] = (
    Flag(("--kv-bits",), "kv_bits", "bits per number in the KV cache: 8, 4 ... (default 16, not quantised)", "N", whole(1, 16), group="cache",
         row=number, control=Control("KV cache bits", _KV_BITS, "16")),
    Flag(("--kv-group-size",), "kv_group_size", "numbers of the KV cache that share a scale (default 64)", "N", whole(1, 4096), group="cache",
         row=number, control=Control("KV cache group size", ("32", "64", "128"), "64")),
    Flag(("--quantized-kv-start",), "quantized_kv_start", "token from which the KV cache is quantised (default 5000)", "N", whole(), group="cache",
         row=number, control=Control("Quantize KV cache from token", default=5000)),
    Flag(("--max-kv-size",), "max_kv_size", "size of a rotating KV cache in tokens", "N", whole(1), row=number),
    Flag(("--prefill-step-size",), "prefill_step_size", "prompt tokens computed at once (default 2048)", "N", whole(1),
         row=number, control=Control("Prefill step (tokens)", fact="chunk_tokens")),
    Flag(("--max-tokens",), "max_tokens", "tokens to generate (the rest of -c is the prompt)", "N", whole(),
         row=number, option="new_tokens", control=Control("Max new tokens", fact="new_tokens")),
    Flag(("--quantize",), "quantize", "same as --quant, for MLX: 4bit, q8_g32, mxfp4 ...", "NAME", ours=True, group="weights",
         meaning=_QUANTIZE, option="quantization", control=Control("Quantization", _WEIGHTS, "as stored, else 4-bit", need="mixable", is_wide=True, place=0)),
)  # fmt: skip
ROW_ONLY = (Flag((), "sequences", "", "N", row=number),)
TABLE = (CONTEXT, *FLAGS, *ROW_ONLY)
PAGE = Page(
    "MLX",
    "mlx-lm",
    CacheFlags(("kv_bits",), "16", unit=" bit", also=(("quantized_kv_start", "0"),)),
)
UNUSED_OPTIONS = frozenset(
    {"batch_size", "bits", "context_tokens", "group_size", "max_tokens", "mode", "quant"}
)
QUANT_KEY = "quantize"


def default_setup() -> MlxSetup:
    from edgekit.engines.mlx.types import MlxSetup

    return MlxSetup()


def read_quant(name: str) -> str | None:
    """The quantisation of `--quant NAME` as --quantize has it; None where MLX has no such."""
    from edgekit.engines.mlx.quantization import quantize_word

    return quantize_word(name)


def quant_names() -> tuple[str, ...]:
    from edgekit.engines.mlx.quantization import NAMES

    return NAMES


def read_row(options: Mapping[str, Any], _backend: str | None = None) -> tuple[Load, MlxSetup]:
    """A row of a batch, in the names of mlx-lm's own flags and of recorded rows. Raises UsageError."""
    from edgekit.bill.types import Load
    from edgekit.engines.mlx.types import MlxSetup

    given = read_options(TABLE, options)
    for key, other in (("max_tokens", "max_tokens"), ("sequences", "batch_size")):
        if key not in given and options.get(other) is not None:
            given[key] = number(other, options[other])
    if "context" in given:  # a prompt, to which the new tokens are added
        given["context"] += given.get("max_tokens", 0)
    elif options.get("context_tokens") is not None:
        given["context"] = number("context_tokens", options["context_tokens"])
    if (quantize := _row_quantize(options)) is not None:
        given["quantize"] = quantize
    load = Load(**field_values(TABLE, given, Load))
    return load, MlxSetup(**field_values(TABLE, given, MlxSetup))


def _row_quantize(options: Mapping[str, Any]) -> Quantize | AsStored | None:
    from edgekit.engines.mlx.quantization import read_quantize

    named = options.get("quantization") or options.get("quant")
    bits, group = (
        None if options.get(name) is None else number(name, options[name])
        for name in ("bits", "group_size")
    )
    if named is None:
        if bits is None and group is None and options.get("mode") is None:
            return None
        named = options.get("mode") or "affine"
    return read_quantize(str(named), bits=bits, group_size=group)


def describe(load: Load, estimate: MemoryEstimate) -> str:
    """What was asked for, as mlx-lm resolved it."""
    facts: dict[str, Any] = dict(estimate.facts)
    several = f" for {load.sequences} sequences" if load.sequences and load.sequences > 1 else ""
    new = f" and {facts['new_tokens']:,} new" if facts["new_tokens"] else ""
    return f"{facts['prompt_tokens']:,} tokens of prompt{new}{several}, {facts['chunk_tokens']:,} at once"
