"""How many bytes a matrix takes once it is packed (mx.quantize of MLX 0.32.4)."""

from __future__ import annotations

from edgekit.engines.mlx.types import Packing, PackingMode

# utils.py:1038, defaults_for_mode: group size and bits of a mode that is named alone.
DEFAULTS = {
    PackingMode.AFFINE: (64, 4),
    PackingMode.MXFP4: (32, 4),
    PackingMode.NVFP4: (16, 4),
    PackingMode.MXFP8: (32, 8),
}
WEIGHT_BITS = (1, 2, 3, 4, 5, 6, 8)
GROUP_SIZES = {
    PackingMode.AFFINE: (32, 64, 128),
    PackingMode.MXFP4: (32,),
    PackingMode.NVFP4: (16,),
    PackingMode.MXFP8: (32,),
}


def packed_bytes(elements: int, packing: Packing, item_bytes: int) -> int:
    """Bits and what each group holds beside them: affine a scale and a bias, the others one byte."""
    beside = 2 * item_bytes if packing.mode is PackingMode.AFFINE else 1
    return elements * packing.bits // 8 + elements // packing.group_size * beside


def packing_words(packing: Packing) -> str:
    if packing.mode is PackingMode.AFFINE:
        return f"{packing.bits} bits, group {packing.group_size}"
    return str(packing.mode.value)
