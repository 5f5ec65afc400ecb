"""mlx-lm's flags: the table of everything that can be set."""

# ruff: noqa: E501 - a table: one row, one line
from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.engines import flags as common
from edgekit.engines.flags import (
    CacheFlags,
    Control,
    Flag,
    Meaning,
    Page,
    Whole,
    number,
)

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.engines.mlx.quantization import AsStored, Quantize

TITLE = "MLX"


def _quantize_field(value: str | Quantize | AsStored) -> Quantize | AsStored | None:
    from edgekit.engines.mlx.quantization import read_quantize

    if not isinstance(value, str):
        return value
    return read_quantize(value) if value else None


def _quantize_value(quantize: Quantize | AsStored) -> str:
    from edgekit.engines.mlx.quantization import quantize_name

    return quantize_name(quantize)


_QUANTIZE = Meaning(_quantize_field, _quantize_value)
_WEIGHTS = ("bf16", "q8", "q6", "q5", "q4", "q3", "q2", "mxfp4")
_KV_BITS = ("8", "6", "5", "4", "3", "2")

CONTEXT = common.CONTEXT._replace(option="prompt_tokens")
FLAGS: tuple[Flag, ...] = (
    Flag(("--kv-bits",), "kv_bits", "bits per number in the KV cache: 8, 4 ... (default 16, not quantised)", "N", Whole(1, 16), group="cache",
         row=number, control=Control("KV cache bits", _KV_BITS, "16")),
    Flag(("--kv-group-size",), "kv_group_size", "numbers of the KV cache that share a scale (default 64)", "N", Whole(1, 4096), group="cache",
         row=number, control=Control("KV cache group size", ("32", "64", "128"), "64")),
    Flag(("--quantized-kv-start",), "quantized_kv_start", "token from which the KV cache is quantised (default 5000)", "N", Whole(), group="cache",
         row=number, control=Control("Quantize KV cache from token", default=5000)),
    Flag(("--max-kv-size",), "max_kv_size", "size of a rotating KV cache in tokens", "N", Whole(1), row=number),
    Flag(("--prefill-step-size",), "prefill_step_size", "prompt tokens computed at once (default 2048)", "N", Whole(1),
         row=number, control=Control("Prefill step (tokens)", fact="chunk_tokens")),
    Flag(("--max-tokens",), "max_tokens", "tokens to generate (the rest of -c is the prompt)", "N", Whole(),
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
