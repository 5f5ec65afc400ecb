"""The setup of mlx-lm, in the names of its own flags, and how values of flags are read into it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgekit.bill.types import Load, MemoryEstimate, Setup
from edgekit.engines.flags import field_values, number, read_options
from edgekit.engines.mlx.flags import TABLE
from edgekit.engines.mlx.quantization import NAMES, AsStored, Quantize, read_quantize
from edgekit.errors import UsageError

DEFAULT_PREFILL_STEP = 2048  # generate.py:323, mlx-lm 0.32.2, as are all sources below
DEFAULT_QUANTIZED_KV_START = 5000  # generate.py: DEFAULT_QUANTIZED_KV_START
DEFAULT_KV_GROUP = 64
MAX_KV_SIZE_KEEP = 4  # cache.py:36: the first tokens, which a --max-kv-size cache never drops
_BITS = re.compile(r"(?:q|int)?([2-8])[-_ ]?(?:bits?)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxSetup(Setup):
    """The flags of mlx_lm.generate, and how the weights are stored.

    `max_tokens` are the last ones of the load's context: a context of 4096 with 96 new tokens is a prompt of 4000. With
    `quantize` None an unquantised repository is estimated as it would be after conversion to 4 bits, group 64.
    """

    max_tokens: int = 0
    max_kv_size: int | None = None
    kv_bits: int | None = None
    kv_group_size: int = DEFAULT_KV_GROUP
    quantized_kv_start: int = DEFAULT_QUANTIZED_KV_START
    prefill_step_size: int = DEFAULT_PREFILL_STEP
    quantize: Quantize | AsStored | None = None


def default_setup() -> MlxSetup:
    return MlxSetup()


def read_row(options: Mapping[str, Any], _backend: str | None = None) -> tuple[Load, MlxSetup]:
    """A row of a batch, in the names of mlx-lm's own flags and of recorded rows. Raises UsageError."""
    flags = read_options(TABLE, options)
    for key, other_name in (("max_tokens", "max_tokens"), ("sequences", "batch_size")):
        if key not in flags and options.get(other_name) is not None:
            flags[key] = number(other_name, options[other_name])
    if "context" in flags:  # the prompt only: new tokens are added
        flags["context"] += flags.get("max_tokens", 0)
    elif options.get("context_tokens") is not None:
        flags["context"] = number("context_tokens", options["context_tokens"])
    quantization = options.get("quantization") or options.get("quant")
    bits, group = (
        None if options.get(name) is None else number(name, options[name])
        for name in ("bits", "group_size")
    )
    if quantization is None and (bits, group, options.get("mode")) != (None, None, None):
        quantization = options.get("mode") or "affine"
    if quantization is not None:
        flags["quantize"] = read_quantize(str(quantization), bits=bits, group_size=group)
    load = Load(**field_values(TABLE, flags, Load))
    return load, MlxSetup(**field_values(TABLE, flags, MlxSetup))


def read_quant(name: str) -> str | None:
    """The name of `--quant NAME` in --quantize: 4bit -> q4. None if MLX does not have it."""
    bits = _BITS.fullmatch(name)
    word = f"q{bits[1]}" if bits else name
    try:
        read_quantize(word)
    except UsageError:
        return None
    return word


def quant_names() -> tuple[str, ...]:
    return NAMES


def describe(load: Load, estimate: MemoryEstimate) -> str:
    """The load as mlx-lm resolves it, in words."""
    facts: dict[str, Any] = dict(estimate.facts)
    several = f" for {load.sequences} sequences" if load.sequences and load.sequences > 1 else ""
    new = f" and {facts['new_tokens']:,} new" if facts["new_tokens"] else ""
    return f"{facts['prompt_tokens']:,} tokens of prompt{new}{several}, {facts['chunk_tokens']:,} at once"
