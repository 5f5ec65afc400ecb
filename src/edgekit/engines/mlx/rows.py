"""Options as mlx-lm's own flags and the recorded rows name them -> a load and a setup."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgekit.bill.types import Load
from edgekit.engines.mlx.packing import DEFAULTS, GROUP_SIZES, WEIGHT_BITS
from edgekit.engines.mlx.stated import MXFP4
from edgekit.engines.mlx.types import (
    AS_STORED,
    DEFAULT_KV_GROUP,
    DEFAULT_PREFILL_STEP,
    DEFAULT_QUANTIZED_KV_START,
    PLAIN,
    AsStored,
    BitsRecipe,
    MlxSetup,
    Packing,
    PackingMode,
    Quantize,
)
from edgekit.engines.row_options import whole
from edgekit.errors import UsageError

_PLAIN = frozenset({"bf16", "fp16", "f16", "none"})
_STORED = frozenset({"as stored", "as_stored", "stored"})
_MODES = {mode.value: mode for mode in PackingMode}
_RECIPES = {recipe.value: recipe for recipe in BitsRecipe}
_AFFINE = re.compile(r"q(\d)(?:_g(\d{1,4}))?")  # q4_g64
_PACKED_EXPERTS = re.compile(r"mxfp4-q(\d)(?:_g(\d{1,4}))?")  # MXFP4-Q8_g64: gpt-oss on the hub
_NATIVE = frozenset({"native_mxfp4_experts_rest_bf16", "mxfp4_experts"})


def read_row(options: Mapping[str, Any]) -> tuple[Load, MlxSetup]:
    prompt, new = whole(options, "prompt_tokens"), whole(options, "new_tokens")
    if new is None:
        new = whole(options, "max_tokens") or 0
    context = whole(options, "context_tokens") if prompt is None else prompt + new
    sequences = whole(options, "sequences")
    if sequences is None:
        sequences = whole(options, "batch_size")
    load = Load(context_tokens=context, sequences=sequences)
    return load, _setup(options, new)


def _setup(options: Mapping[str, Any], new: int) -> MlxSetup:
    group = whole(options, "kv_group_size")
    start = whole(options, "quantized_kv_start")
    step = whole(options, "prefill_step_size")
    return MlxSetup(
        max_tokens=new,
        max_kv_size=whole(options, "max_kv_size"),
        kv_bits=whole(options, "kv_bits"),
        kv_group_size=DEFAULT_KV_GROUP if group is None else group,
        quantized_kv_start=DEFAULT_QUANTIZED_KV_START if start is None else start,
        prefill_step_size=DEFAULT_PREFILL_STEP if step is None else step,
        quantize=_quantize(options),
    )


def _quantize(options: Mapping[str, Any]) -> Quantize | AsStored | None:
    named = options.get("quantization") or options.get("quant")
    if named is None:
        bits, group = whole(options, "bits"), whole(options, "group_size")
        if bits is None and group is None and options.get("mode") is None:
            return None
        named = str(options.get("mode") or PackingMode.AFFINE.value)
    return read_quantize(
        str(named), bits=whole(options, "bits"), group_size=whole(options, "group_size")
    )


def read_quantize(
    named: str, *, bits: int | None = None, group_size: int | None = None
) -> Quantize | AsStored:
    """q4_g64, mxfp4, mixed_3_6, MXFP4-Q8_g64, bf16 -> what mlx_lm.convert would be told."""
    name = named.lower()
    if name in _STORED:
        return AS_STORED
    if name in _PLAIN:
        return PLAIN
    if name in _NATIVE:
        return Quantize(experts=MXFP4, rest=False)
    if found := _PACKED_EXPERTS.fullmatch(name):
        return Quantize(packing=_affine(found[1], found[2]), experts=MXFP4)
    if found := _AFFINE.fullmatch(name):
        return Quantize(packing=_affine(found[1], found[2] or group_size))
    if name in _RECIPES:
        packing = replace(_affine("4", group_size), bits=4)
        return Quantize(packing=packing, recipe=_RECIPES[name])
    if name in _MODES:
        return Quantize(packing=_mode(_MODES[name], bits, group_size))
    known = ", ".join(["bf16", "q4_g64", *_MODES, *_RECIPES])
    raise UsageError(f"unknown quantisation {named[:40]!r}; choose one of {known}")


def _affine(bits: str | int, group_size: str | int | None) -> Packing:
    return _mode(PackingMode.AFFINE, int(bits), None if group_size is None else int(group_size))


def _mode(mode: PackingMode, bits: int | None, group_size: int | None) -> Packing:
    usual_group, usual_bits = DEFAULTS[mode]
    group, wide = group_size or usual_group, bits or usual_bits
    widths = WEIGHT_BITS if mode is PackingMode.AFFINE else (usual_bits,)
    if group not in GROUP_SIZES[mode] or wide not in widths:
        raise UsageError(
            f"MLX does not support {wide} bits in groups of {group} with mode {mode.value}"
        )
    return Packing(bits=wide, group_size=group, mode=mode)
