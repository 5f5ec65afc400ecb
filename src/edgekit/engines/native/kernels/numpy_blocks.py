"""Plain numbers and blocks of 32 weights, unpacked with numpy.

Every function turns blocks [n, bytes] into floats [n, weights], as gguf-py's reference does, bit
for bit. What a block holds is in formats/dtype.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.kernels.types import Floats
from edgekit.engines.native.kernels.workspace import (
    PLACES,
    SLICE_ELEMENTS,
    U8,
    Number,
    Workspace,
    first_of,
    refuse_false,
    refuse_not_finite,
)

BIT = np.arange(8, dtype=np.uint8)
HALVES = SLICE_ELEMENTS // 2  # that find room in a workspace
HALF_BITS = np.int32(0x8FFFE000 - 2**32)  # sign, exponent and fraction, thirteen places higher
HALF_TO_FLOAT = np.float32(2.0**112)
NOT_A_HALF = 65536.0
LAST_EXPONENT = 252  # MXFP4: 12 * 2 ** (253 - 128) is no float32 any more; 255 means "no number"
POWERS = np.ldexp(np.float32(1), np.arange(-128, LAST_EXPONENT - 127)).astype(np.float32)
FOUR_BIT_FLOATS = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.int8)
# ggml-common.h, kvalues_iq4nl @ b21e4de
UNEVEN = np.array(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int8
)


def f32(blocks: U8, out: Floats, work: Workspace) -> None:
    np.copyto(out.view(np.uint8), blocks)
    refuse_not_finite(out, work.high)


def f16(blocks: U8, out: Floats, work: Workspace) -> None:
    """A half's bits, thirteen places higher, are a float32 that is 2 ** 112 times too small.

    This is exact, for subnormal halves too, and many times faster than numpy's own conversion. An
    infinite half or NaN comes out as 65536 or more, which no finite half is.
    """
    words = out.reshape(-1).view(np.int32)
    for first in range(0, len(blocks), HALVES):
        part = blocks[first : first + HALVES]
        aligned = work.codes[: 2 * len(part)]
        np.copyto(aligned.reshape(part.shape), part)
        np.copyto(words[first : first + HALVES], aligned.view(np.int16))  # keeps the sign on top
    np.left_shift(words, 13, out=words)
    np.bitwise_and(words, HALF_BITS, out=words)
    np.multiply(out, HALF_TO_FLOAT, out=out)
    if max(out.max(initial=0), -out.min(initial=0)) >= NOT_A_HALF:
        fine = first_of(work.high, *out.shape).view(np.bool_)
        np.less(np.abs(out, out=out), NOT_A_HALF, out=fine)
        refuse_false(fine)


def bf16(blocks: U8, out: Floats, work: Workspace) -> None:
    """The upper half of a float32."""
    words = out.reshape(-1).view(np.uint32)
    for first in range(0, len(blocks), HALVES):
        part = blocks[first : first + HALVES]
        aligned = work.codes[: 2 * len(part)]
        np.copyto(aligned.reshape(part.shape), part)
        np.copyto(words[first : first + HALVES], aligned.view(np.uint16))
    np.left_shift(words, 16, out=words)
    refuse_not_finite(out, work.high)


def q4_0(blocks: U8, out: Floats, work: Workspace) -> None:
    d = work.block_scales(blocks, 0)
    codes = _nibbles(blocks[:, 2:18], work)
    np.subtract(codes, 8, out=codes)
    np.copyto(out, codes.view(np.int8))
    np.multiply(out, d, out=out)


def q4_1(blocks: U8, out: Floats, work: Workspace) -> None:
    d_m = work.block_scales(blocks, 0, 2)
    np.copyto(out, _nibbles(blocks[:, 4:20], work))
    np.multiply(out, d_m[:, :1], out=out)
    np.add(out, d_m[:, 1:], out=out)


def q5_0(blocks: U8, out: Floats, work: Workspace) -> None:
    d = work.block_scales(blocks, 0)
    codes = _five_bits(blocks[:, 2:6], blocks[:, 6:22], work)
    np.subtract(codes, 16, out=codes)
    np.copyto(out, codes.view(np.int8))
    np.multiply(out, d, out=out)


def q5_1(blocks: U8, out: Floats, work: Workspace) -> None:
    d_m = work.block_scales(blocks, 0, 2)
    np.copyto(out, _five_bits(blocks[:, 4:8], blocks[:, 8:24], work))
    np.multiply(out, d_m[:, :1], out=out)
    np.add(out, d_m[:, 1:], out=out)


def q8_0(blocks: U8, out: Floats, work: Workspace) -> None:
    d = work.block_scales(blocks, 0)
    np.copyto(out, blocks[:, 2:].view(np.int8))
    np.multiply(out, d, out=out)


def mxfp4(blocks: U8, out: Floats, work: Workspace) -> None:
    """A byte e is the scale 2 ** (e - 128): half of OCP's, because the codes are doubled."""
    rows = len(blocks)
    exponents = work.small[:rows]
    np.copyto(exponents, blocks[:, 0])
    fine = work.high[:rows].view(np.bool_)
    np.less_equal(exponents, LAST_EXPONENT, out=fine)
    refuse_false(fine)
    d = work.values[:rows]
    look_up(POWERS, exponents, d, work)
    codes = _nibbles(blocks[:, 1:17], work)
    look_up(FOUR_BIT_FLOATS, codes, codes.view(np.int8), work)
    np.copyto(out, codes.view(np.int8))
    np.multiply(out, d[:, None], out=out)


def iq4_nl(blocks: U8, out: Floats, work: Workspace) -> None:
    d = work.block_scales(blocks, 0)
    codes = _nibbles(blocks[:, 2:18], work)
    look_up(UNEVEN, codes, codes.view(np.int8), work)
    np.copyto(out, codes.view(np.int8))
    np.multiply(out, d, out=out)


def look_up(table: NDArray[Number], codes: U8, found: NDArray[Number], work: Workspace) -> None:
    """The entry of every code, into an array that may lie on the codes."""
    flat, into = codes.reshape(-1), found.reshape(-1)
    for first in range(0, flat.size, PLACES):
        part = flat[first : first + PLACES]
        places = work.places[: part.size]
        np.copyto(places, part)
        np.take(table, places, out=into[first : first + PLACES], mode="clip")


def _nibbles(packed: U8, work: Workspace) -> U8:
    """[n, 16] -> [n, 32]: first all lower halves, then all upper ones."""
    codes = first_of(work.codes, len(packed), 32)
    np.bitwise_and(packed, 15, out=codes[:, :16])
    np.right_shift(packed, 4, out=codes[:, 16:])
    return codes


def _five_bits(fifth: U8, packed: U8, work: Workspace) -> U8:
    """The nibbles with their fifth bits, which lie in four bytes of their own."""
    codes = _nibbles(packed, work)
    bits = first_of(work.high, len(packed), 4, 8)
    np.right_shift(fifth[:, :, None], BIT, out=bits)
    np.bitwise_and(bits, 1, out=bits)
    np.left_shift(bits, 4, out=bits)
    np.bitwise_or(codes, bits.reshape(codes.shape), out=codes)
    return codes
