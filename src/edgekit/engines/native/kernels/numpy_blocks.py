"""Plain numbers, blocks of 32 weights and super-blocks of 256, unpacked with numpy.

Every function turns blocks [n, bytes] into floats [n, weights], bit for bit as gguf-py's reference. What a block holds
is in formats/dtype.py. The caller passes at most SLICE_ELEMENTS weights, so that the arrays made here stay small and
their number does not matter. Codes of weights may be negative: they are computed modulo 256 and read as int8 at the
end. Products of a half and codes are exact in float32, so only a last subtraction rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.kernels.types import BlockError, Floats

U8 = NDArray[np.uint8]
Int32s = NDArray[np.int32]
Number = TypeVar("Number", bound=np.generic)
Unsigned = TypeVar("Unsigned", np.uint8, np.uint16, np.uint32)

SLICE_ELEMENTS = 16384  # floats that are unpacked together: 64 blocks of 256, 512 blocks of 32
PART_FLOATS = 8192  # processed at a time, so that temporary arrays do not grow with the text
Part = tuple[slice, slice]  # rows and columns


# --- also used by the other numpy kernels


def refuse(wrong: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    if wrong:
        raise ValueError(what)


def first_of(buffer: NDArray[Number], *shape: int) -> NDArray[Number]:
    """The start of a buffer, in this shape."""
    return buffer[: math.prod(shape)].reshape(shape)


def row_parts(rows: int, most: int) -> Iterator[slice]:
    for first in range(0, rows, most):
        yield slice(first, min(first + most, rows))


def parts(rows: int, columns: int) -> Iterator[Part]:
    """Pieces of at most PART_FLOATS numbers: several rows, or a part of one."""
    for some_rows in row_parts(rows, max(1, PART_FLOATS // max(1, columns))):
        for first in range(0, columns, PART_FLOATS):
            yield some_rows, slice(first, first + PART_FLOATS)


# --- pieces of a block


def refuse_blocks(wrong: NDArray[np.bool_], *, per_block: int = 1) -> None:
    """Raises BlockError for the first block that has a True. Each block has `per_block` flags."""
    if wrong.any():
        raise BlockError(int(wrong.argmax()) // per_block)


def block_scales(blocks: U8, first: int, count: int = 1) -> Floats:
    """The `count` halves from byte `first` of every block, as floats [n, count]. Raises BlockError."""
    return finite_halves(words_of(blocks[:, first : first + 2 * count]))


def finite_halves(words: NDArray[np.uint16]) -> Floats:
    """The bits of halves [n, count] as floats. Raises BlockError for infinity and NaN, whose exponent is all ones."""
    refuse_blocks(words & 0x7C00 == 0x7C00, per_block=words.shape[1])
    return words.view(np.float16).astype(np.float32)


def words_of(packed: U8) -> NDArray[np.uint16]:
    """Every two bytes of a row as one number."""
    return packed.copy().view(np.uint16)


def bit_fields(packed: NDArray[Unsigned], shifts: Sequence[int], mask: int) -> NDArray[Unsigned]:
    """[..., k] -> [..., shifts, k]: the bits of every number that `mask` keeps after each shift to the right."""
    fields = packed[..., None, :] >> np.array(shifts, packed.dtype)[:, None]
    fields &= packed.dtype.type(mask)
    return fields


def bit_fields_of_each(
    packed: NDArray[Unsigned], shifts: Sequence[int], mask: int
) -> NDArray[Unsigned]:
    """[n, k] -> [n, k * shifts]: like `bit_fields`, but the fields of one number are next to each other."""
    return bit_fields(packed[:, :, None], shifts, mask).reshape(len(packed), -1)


def scale_codes(codes: U8, scales: Floats, out: Floats) -> None:
    """Writes scale * code. The codes are the bits of int8. Block i has the scales in row i, each for an equal part."""
    rows, count = scales.shape
    scaled_parts = out.reshape(rows, count, -1)
    np.copyto(scaled_parts, codes.view(np.int8).reshape(scaled_parts.shape))
    scaled_parts *= scales[:, :, None]


def _nibbles(packed: U8) -> U8:
    """[n, 16] -> [n, 32]: first all lower halves, then all upper ones."""
    return bit_fields(packed, (0, 4), 15).reshape(len(packed), -1)


# --- plain numbers


def f32(blocks: U8, out: Floats) -> None:
    np.copyto(out.view(np.uint8), blocks)
    refuse_blocks(~np.isfinite(out))


def f16(blocks: U8, out: Floats) -> None:
    widen_halves(_words_of_halves(blocks, out), out)
    if max(out.max(initial=0), -out.min(initial=0)) >= NOT_A_HALF:
        refuse_blocks(np.abs(out) >= NOT_A_HALF)


def bf16(blocks: U8, out: Floats) -> None:
    """The upper half of a float32."""
    words = _words_of_halves(blocks, out)
    words <<= 16
    refuse_blocks(~np.isfinite(out))


def _words_of_halves(blocks: U8, out: Floats) -> Int32s:
    """The two bytes of each block as a number of four bytes with the sign on top; in the memory of `out`."""
    words = out.view(np.int32)
    np.copyto(words, words_of(blocks).view(np.int16))
    return words


HALF_BITS = np.int32(0x8FFFE000 - 2**32)  # sign, exponent and fraction, thirteen places higher
HALF_TO_FLOAT = np.float32(2.0**112)
NOT_A_HALF = 65536.0


def widen_halves(words: Int32s, out: Floats) -> None:
    """Turns the bits of halves, which are in the memory of `out`, into floats.

    A half's bits, thirteen places higher, are a float32 that is 2 ** 112 times too small. This is exact, for subnormal
    halves too, and many times faster than numpy's own conversion. An infinite half or NaN comes out as NOT_A_HALF or
    more, which no finite half is.
    """
    words <<= 13
    words &= HALF_BITS
    out *= HALF_TO_FLOAT


# --- blocks of 32

LAST_EXPONENT = 252  # MXFP4: 12 * 2 ** (253 - 128) overflows float32; 255 is NaN
POWERS = np.ldexp(np.float32(1), np.arange(-128, LAST_EXPONENT - 127)).astype(np.float32)


def code_table(values: Sequence[int]) -> bytes:
    """A table for bytes.translate, which needs no array of indices: codes to the bits of int8."""
    return np.array(values, np.int8).tobytes().ljust(256, b"\0")


FOUR_BIT_FLOATS = code_table((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12))
# ggml-common.h, kvalues_iq4nl @ b21e4de
UNEVEN = code_table((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))


def translated(codes: U8, table: bytes) -> U8:
    """The entry of every code."""
    return np.frombuffer(codes.tobytes().translate(table), np.uint8)


def q4_0(blocks: U8, out: Floats) -> None:
    d = block_scales(blocks, 0)
    scale_codes(_nibbles(blocks[:, 2:18]) - np.uint8(8), d, out)


def q4_1(blocks: U8, out: Floats) -> None:
    d_m = block_scales(blocks, 0, 2)
    scale_codes(_nibbles(blocks[:, 4:20]), d_m[:, :1], out)
    out += d_m[:, 1:]


def q5_0(blocks: U8, out: Floats) -> None:
    d = block_scales(blocks, 0)
    scale_codes(_five_bits(blocks[:, 2:6], blocks[:, 6:22]) - np.uint8(16), d, out)


def q5_1(blocks: U8, out: Floats) -> None:
    d_m = block_scales(blocks, 0, 2)
    scale_codes(_five_bits(blocks[:, 4:8], blocks[:, 8:24]), d_m[:, :1], out)
    out += d_m[:, 1:]


def _five_bits(fifth: U8, packed: U8) -> U8:
    """The nibbles with their fifth bits, which are in four separate bytes."""
    codes = _nibbles(packed)
    codes |= bit_fields_of_each(fifth, range(8), 1) << 4
    return codes


def q8_0(blocks: U8, out: Floats) -> None:
    scale_codes(blocks[:, 2:], block_scales(blocks, 0), out)


def mxfp4(blocks: U8, out: Floats) -> None:
    """A byte e is the scale 2 ** (e - 128): half of OCP's, because the codes are doubled."""
    exponents = blocks[:, :1]
    refuse_blocks(exponents > LAST_EXPONENT)
    codes = translated(_nibbles(blocks[:, 1:17]), FOUR_BIT_FLOATS)
    scale_codes(codes, POWERS[exponents], out)


def iq4_nl(blocks: U8, out: Floats) -> None:
    d = block_scales(blocks, 0)
    scale_codes(translated(_nibbles(blocks[:, 2:18]), UNEVEN), d, out)


# --- super-blocks of 256


def q2_k(blocks: U8, out: Floats) -> None:
    """16 bytes with a scale and a minimum each, 64 of two-bit codes, 2 d, 2 dmin."""
    d_dmin = block_scales(blocks, 80, 2)
    scales, minima = (bit_fields(blocks[:, :16], (0, 4), 15) * d_dmin[:, :, None]).swapaxes(0, 1)
    scale_codes(_two_bits(blocks[:, 16:80]), scales, out)
    _subtract_minima(out, minima)


def q3_k(blocks: U8, out: Floats) -> None:
    """32 bytes of third bits, 64 of two-bit codes, 12 of scales, 2 d. A third bit of 0 means -4."""
    codes = _two_bits(blocks[:, 32:96])
    codes |= bit_fields(blocks[:, :32], range(8), 1).reshape(codes.shape) << 2
    codes -= 4
    scale_codes(codes, _six_bit_scales(blocks), out)


def q4_k(blocks: U8, out: Floats) -> None:
    """2 d, 2 dmin, 12 bytes of scales, 128 of codes: two parts of 32 weights share 32 bytes."""
    scales, minima = _scales_and_minima(blocks)
    codes = bit_fields(blocks[:, 16:144].reshape(-1, 4, 32), (0, 4), 15)
    scale_codes(codes, scales, out)
    _subtract_minima(out, minima)


def q5_k(blocks: U8, out: Floats) -> None:
    """As Q4_K, with 32 bytes of fifth bits before the codes: one bit for each of eight parts."""
    scales, minima = _scales_and_minima(blocks)
    codes = bit_fields(blocks[:, 48:176].reshape(-1, 4, 32), (0, 4), 15)
    codes |= bit_fields(blocks[:, 16:48], range(8), 1).reshape(codes.shape) << 4
    scale_codes(codes, scales, out)
    _subtract_minima(out, minima)


def q6_k(blocks: U8, out: Floats) -> None:
    """128 bytes of lower halves, 64 of two upper bits, 16 scales, 2 d."""
    d = block_scales(blocks, 208)
    codes = bit_fields(blocks[:, :128].reshape(-1, 2, 64), (0, 4), 15)
    codes |= _two_bits(blocks[:, 128:192]).reshape(codes.shape) << 4
    codes -= 32
    scale_codes(codes, blocks[:, 192:208].view(np.int8) * d, out)


THREES = np.array((1, 3, 9, 27, 81), np.uint8)[:, None]


def tq1_0(blocks: U8, out: Floats) -> None:
    """48 bytes of five digits in base three, 4 of four, 2 d. Byte * 3 ** i (mod 256) has digit i on top."""
    digits = np.concatenate(
        [
            (blocks[:, None, first:last] * THREES[:count]).reshape(len(blocks), -1)
            for first, last, count in ((0, 32, 5), (32, 48, 5), (48, 52, 4))
        ],
        axis=1,
    )
    codes = (digits >= 86).view(np.uint8)  # the digit is 1 or 2: 3 * 86 = 256 + 2
    codes += digits >= 171  # it is 2: 3 * 171 = 2 * 256 + 1
    codes -= 1
    scale_codes(codes, block_scales(blocks, 52), out)


def tq2_0(blocks: U8, out: Floats) -> None:
    """64 bytes of two-bit codes, 2 d."""
    scale_codes(_two_bits(blocks[:, :64]) - np.uint8(1), block_scales(blocks, 64), out)


def _two_bits(packed: U8) -> U8:
    """[n, 64] -> [n, 2, 4, 32]: 32 bytes hold four times 32 codes."""
    return bit_fields(packed.reshape(-1, 2, 32), (0, 2, 4, 6), 3)


def _subtract_minima(out: Floats, minima: Floats) -> None:
    """Each minimum belongs to an equal part of its block."""
    rows, count = minima.shape
    parts_of_blocks = out.reshape(rows, count, -1)
    parts_of_blocks -= minima[:, :, None]


def _six_bit_scales(blocks: U8) -> Floats:
    """Sixteen scales of six bits in Q3_K's twelve bytes, less 32, times d.

    Lower nibbles of bytes 0..7 are scales 0..7, upper ones 8..15; bytes 8..11 hold two bits more of
    scales i, i + 4, i + 8 and i + 12.
    """
    codes = _nibbles(blocks[:, 96:104])
    codes |= bit_fields(blocks[:, 104:108], (0, 2, 4, 6), 3).reshape(codes.shape) << 4
    codes -= 32
    return codes.view(np.int8) * block_scales(blocks, 108)


def _scales_and_minima(blocks: U8) -> tuple[Floats, Floats]:
    """Eight scales and eight minima of six bits in twelve bytes, times d and dmin.

    Bytes 0..3 hold scales 0..3, bytes 4..7 minima 0..3; their two upper bits, and the nibbles of
    bytes 8..11 (scale below, minimum above), make scales and minima 4..7.
    """
    d_dmin = block_scales(blocks, 0, 2)
    scales, minima, nibbles = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    late_scales = scales >> 2 & 0x30 | nibbles & 15
    late_minima = minima >> 2 & 0x30 | nibbles >> 4
    return (
        np.concatenate((scales & 63, late_scales), axis=1) * d_dmin[:, :1],
        np.concatenate((minima & 63, late_minima), axis=1) * d_dmin[:, 1:],
    )
