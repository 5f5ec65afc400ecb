"""Names of quantisations <-> what mlx_lm.convert would be told."""

from __future__ import annotations

import re
from dataclasses import replace

from edgekit.engines.mlx.packing import DEFAULTS, GROUP_SIZES, WEIGHT_BITS
from edgekit.engines.mlx.stated import MXFP4
from edgekit.engines.mlx.types import (
    AS_STORED,
    PLAIN,
    AsStored,
    BitsRecipe,
    Packing,
    PackingMode,
    Quantize,
)
from edgekit.errors import UsageError

_PLAIN = frozenset({"bf16", "fp16", "f16", "none"})
_STORED = frozenset({"as stored", "as_stored", "stored"})
_MODES = {mode.value: mode for mode in PackingMode}
_RECIPES = {recipe.value: recipe for recipe in BitsRecipe}
_AFFINE = re.compile(r"q(\d)(?:_g(\d{1,4}))?")  # q4_g64
_PACKED_EXPERTS = re.compile(r"mxfp4-q(\d)(?:_g(\d{1,4}))?")  # MXFP4-Q8_g64: gpt-oss on the hub
_BITS = re.compile(r"(?:q|int)?([2-8])[-_ ]?(?:bits?)?", re.IGNORECASE)
NAMES = ("8bit", "6bit", "5bit", "4bit", "3bit", "2bit", "mxfp4", "nvfp4", "mxfp8", "bf16")
_NATIVE = frozenset({"native_mxfp4_experts_rest_bf16", "mxfp4_experts"})


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


def quantize_name(wanted: Quantize | AsStored) -> str:
    """And back: the shortest name that `read_quantize` reads as this."""
    if isinstance(wanted, AsStored):
        return "stored"
    packing = wanted.packing
    if not wanted.rest:
        return "bf16" if wanted.experts is None else "mxfp4_experts"
    if wanted.recipe is not None:
        return str(wanted.recipe.value)
    if packing.mode is not PackingMode.AFFINE:
        return str(packing.mode.value)
    group = (
        "" if packing.group_size == DEFAULTS[PackingMode.AFFINE][0] else f"_g{packing.group_size}"
    )
    return f"{'' if wanted.experts is None else 'mxfp4-'}q{packing.bits}{group}"


def quantize_word(name: str) -> str | None:
    """The quantisation of `--quant NAME` as --quantize has it: 4bit -> q4. None where MLX has no such."""
    bits = _BITS.fullmatch(name)
    own = f"q{bits[1]}" if bits else name
    try:
        read_quantize(own)
    except UsageError:
        return None
    return own
