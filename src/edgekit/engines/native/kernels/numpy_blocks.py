"""Plain numbers, blocks of 32 weights and super-blocks of 256, unpacked with numpy.

Every function turns blocks [n, bytes] into floats [n, weights], bit for bit as gguf-py's reference. What a block holds
is in formats/dtype.py. numpy allocates unless it is told where to write, and where a loop changes the type of what it
reads; so every step writes into a buffer of the Workspace, and types only change in a plain copy. Products of a half
and codes are exact in float32, so only a last subtraction rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.kernels.types import BlockError, Floats

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]
Halves = NDArray[np.float16]
Places = NDArray[np.intp]
Number = TypeVar("Number", bound=np.generic)

SLICE_ELEMENTS = 16384  # floats that are unpacked together: 64 blocks of 256, 512 blocks of 32
SMALLEST_BLOCK = 32
CODEBOOK_SLICE_ELEMENTS = (
    SLICE_ELEMENTS // 2
)  # for types whose points are looked up: their indices take memory, too
PLACES = CODEBOOK_SLICE_ELEMENTS // 4  # looked up together: IQ3 has a point for four floats
PART_FLOATS = 8192  # processed at a time, so that buffers do not grow with the text
Part = tuple[slice, slice]  # rows and columns


class Workspace:
    """The fixed buffers of a thread: about 60 KiB, and 24 more for types with a codebook."""

    def __init__(self) -> None:
        self.codes = np.empty(SLICE_ELEMENTS, np.uint8)  # one code for each float
        self.high = np.empty(SLICE_ELEMENTS, np.uint8)  # their upper bits, or flags
        self.halves = np.empty(2 * SLICE_ELEMENTS // SMALLEST_BLOCK, np.float16)  # aligned
        self.values = np.empty(2 * SLICE_ELEMENTS // SMALLEST_BLOCK, np.float32)  # d, or d and m
        self.more = np.empty(SLICE_ELEMENTS // 2, np.uint8)  # a third byte for each pair of codes
        self.small = np.empty(SLICE_ELEMENTS // 8, np.uint8)  # scales of parts of a block, as codes
        self.parts = np.empty(SLICE_ELEMENTS // 8, np.uint8)
        self.scales = np.empty(SLICE_ELEMENTS // 8, np.float32)  # and as floats

    @cached_property
    def places(self) -> Places:
        """Indices: numpy looks up by this type only, and copies any other."""
        return np.empty(PLACES, np.intp)

    @cached_property
    def words(self) -> U16:
        return np.empty(PLACES, np.uint16)

    @cached_property
    def long_words(self) -> U32:
        return np.empty(CODEBOOK_SLICE_ELEMENTS // 8, np.uint32)

    def block_scales(self, blocks: U8, at: int, count: int = 1) -> Floats:
        """The `count` halves at byte `at` of every block, as floats [n, count]; all finite."""
        halves = first_of(self.halves, len(blocks), count)
        np.copyto(halves.view(np.uint8), blocks[:, at : at + 2 * count])
        return self.checked(halves)

    def checked(self, halves: Halves) -> Floats:
        """As floats, all finite: no exponent is all ones."""
        values = first_of(self.values, *halves.shape)
        exponents = values.reshape(-1).view(np.uint16)[: halves.size]
        np.bitwise_and(halves.reshape(-1).view(np.uint16), 0x7C00, out=exponents)
        if exponents.max(initial=0) == 0x7C00:
            refuse_false(exponents < 0x7C00, per_block=halves.shape[1])
        np.copyto(values, halves)
        return values


def refuse(wrong: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    if wrong:
        raise ValueError(what)


def refuse_not_finite(values: Floats, flags: U8, *, per_block: int = 1) -> None:
    """Raises BlockError for the first value that is not finite. Overwrites `flags`."""
    finite = first_of(flags, *values.shape).view(np.bool_)
    np.isfinite(values, out=finite)
    refuse_false(finite, per_block=per_block)


def refuse_false(fine: NDArray[np.bool_], *, per_block: int = 1) -> None:
    if not fine.all():
        raise BlockError(int(fine.argmin()) // per_block)


def first_of(buffer: NDArray[Number], *shape: int) -> NDArray[Number]:
    """The start of a buffer, in this shape."""
    return buffer[: math.prod(shape)].reshape(shape)


def row_parts(rows: int, most: int) -> Iterator[slice]:
    for first in range(0, rows, most):
        yield slice(first, min(first + most, rows))


def parts(rows: int, columns: int) -> Iterator[Part]:
    """Pieces of at most PART_FLOATS numbers: several rows, or a part of one."""
    for some in row_parts(rows, max(1, PART_FLOATS // max(1, columns))):
        for first in range(0, columns, PART_FLOATS):
            yield some, slice(first, first + PART_FLOATS)


BIT = np.arange(8, dtype=np.uint8)
HALVES = SLICE_ELEMENTS // 2  # that fit in a workspace
HALF_BITS = np.int32(0x8FFFE000 - 2**32)  # sign, exponent and fraction, thirteen places higher
HALF_TO_FLOAT = np.float32(2.0**112)
NOT_A_HALF = 65536.0
LAST_EXPONENT = 252  # MXFP4: 12 * 2 ** (253 - 128) overflows float32; 255 is NaN
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
    words = _words_of_halves(blocks, out, work)
    np.left_shift(words, 13, out=words)
    np.bitwise_and(words, HALF_BITS, out=words)
    np.multiply(out, HALF_TO_FLOAT, out=out)
    if max(out.max(initial=0), -out.min(initial=0)) >= NOT_A_HALF:
        fine = first_of(work.high, *out.shape).view(np.bool_)
        np.less(np.abs(out, out=out), NOT_A_HALF, out=fine)
        refuse_false(fine)


def bf16(blocks: U8, out: Floats, work: Workspace) -> None:
    """The upper half of a float32."""
    words = _words_of_halves(blocks, out, work)
    np.left_shift(words, 16, out=words)
    refuse_not_finite(out, work.high)


def _words_of_halves(blocks: U8, out: Floats, work: Workspace) -> NDArray[np.int32]:
    """Two bytes of each block, as a number of four with the sign on top; in the memory of `out`."""
    words = out.reshape(-1).view(np.int32)
    for first in range(0, len(blocks), HALVES):
        part = blocks[first : first + HALVES]
        aligned = work.codes[: 2 * len(part)]
        np.copyto(aligned.reshape(part.shape), part)
        np.copyto(words[first : first + HALVES], aligned.view(np.int16))
    return words


def q4_0(blocks: U8, out: Floats, work: Workspace) -> None:
    d = work.block_scales(blocks, 0)
    codes = _nibbles(blocks[:, 2:18], work)
    np.subtract(codes, 8, out=codes)
    scale_codes(codes, d, out)


def q4_1(blocks: U8, out: Floats, work: Workspace) -> None:
    d_m = work.block_scales(blocks, 0, 2)
    np.copyto(out, _nibbles(blocks[:, 4:20], work))
    np.multiply(out, d_m[:, :1], out=out)
    np.add(out, d_m[:, 1:], out=out)


def q5_0(blocks: U8, out: Floats, work: Workspace) -> None:
    d = work.block_scales(blocks, 0)
    codes = _five_bits(blocks[:, 2:6], blocks[:, 6:22], work)
    np.subtract(codes, 16, out=codes)
    scale_codes(codes, d, out)


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
    d = first_of(work.values, rows, 1)
    look_up(POWERS, exponents, d, work)
    codes = _nibbles(blocks[:, 1:17], work)
    look_up(FOUR_BIT_FLOATS, codes, codes.view(np.int8), work)
    scale_codes(codes, d, out)


def iq4_nl(blocks: U8, out: Floats, work: Workspace) -> None:
    d = work.block_scales(blocks, 0)
    codes = _nibbles(blocks[:, 2:18], work)
    look_up(UNEVEN, codes, codes.view(np.int8), work)
    scale_codes(codes, d, out)


def scale_codes(codes: U8, scales: Floats, out: Floats) -> None:
    """As floats: scale * code, where codes are the bits of int8. A row of `scales` [n, parts] belongs to a block."""
    rows, count = scales.shape
    parts = out.reshape(rows, count, -1)
    np.copyto(parts, codes.view(np.int8).reshape(parts.shape))
    np.multiply(parts, scales[:, :, None], out=parts)


def look_up(table: NDArray[Number], codes: U8, found: NDArray[Number], work: Workspace) -> None:
    """The entry of every code, into an array that may overlap the codes."""
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
    """The nibbles with their fifth bits, which are in four separate bytes."""
    codes = _nibbles(packed, work)
    bits = first_of(work.high, len(packed), 4, 8)
    np.right_shift(fifth[:, :, None], BIT, out=bits)
    np.bitwise_and(bits, 1, out=bits)
    np.left_shift(bits, 4, out=bits)
    np.bitwise_or(codes, bits.reshape(codes.shape), out=codes)
    return codes


TWO_BITS = np.array((0, 2, 4, 6), np.uint8)[:, None]
ONE_BIT = np.arange(8, dtype=np.uint8)[:, None]
FOUR_BITS = 0x0F0F0F0F0F0F0F0F
THREES = np.array((1, 3, 9, 27, 81), np.uint8)[:, None]


def q2_k(blocks: U8, out: Floats, work: Workspace) -> None:
    """16 bytes with a scale and a minimum each, 64 of two-bit codes, 2 d, 2 dmin."""
    rows = len(blocks)
    d_dmin = work.block_scales(blocks, 80, 2)
    packed = first_of(work.small, rows, 2, 16)
    np.bitwise_and(blocks[:, :16], 15, out=packed[:, 0])
    np.right_shift(blocks[:, :16], 4, out=packed[:, 1])
    scales = first_of(work.scales, rows, 2, 16)
    np.copyto(scales, packed)
    np.multiply(scales, d_dmin[:, :, None], out=scales)
    parts = out.reshape(rows, 16, 16)
    np.copyto(parts, _two_bits(blocks[:, 16:80], work).reshape(parts.shape))
    np.multiply(parts, scales[:, 0, :, None], out=parts)
    np.subtract(parts, scales[:, 1, :, None], out=parts)


def q3_k(blocks: U8, out: Floats, work: Workspace) -> None:
    """32 bytes of third bits, 64 of two-bit codes, 12 of scales, 2 d. A third bit of 0 means -4."""
    rows = len(blocks)
    scales = _six_bit_scales(blocks, work)
    codes = _two_bits(blocks[:, 32:96], work)
    third = first_of(work.high, rows, 8, 32)
    np.right_shift(blocks[:, None, :32], ONE_BIT, out=third)
    np.bitwise_and(third, 1, out=third)
    np.bitwise_xor(third, 1, out=third)
    np.left_shift(third, 2, out=third)
    np.subtract(codes, third.reshape(codes.shape), out=codes)
    scale_codes(codes, scales, out)


def q4_k(blocks: U8, out: Floats, work: Workspace) -> None:
    """2 d, 2 dmin, 12 bytes of scales, 128 of codes: pairs of 32 weights share their bytes."""
    scales = _scales_and_minima(blocks, work)
    lower, upper = _split_nibbles(blocks[:, 16:144], work)
    _scale_pairs(lower, upper, scales, out)


def q5_k(blocks: U8, out: Floats, work: Workspace) -> None:
    """As Q4_K, with 32 bytes of fifth bits before the codes: one bit for each of eight parts."""
    rows = len(blocks)
    scales = _scales_and_minima(blocks, work)
    lower, upper = _split_nibbles(blocks[:, 48:176], work)
    fifth = first_of(work.more, rows, 4, 32)
    for codes, bit in ((lower, 0), (upper, 1)):
        np.right_shift(blocks[:, None, 16:48], TWO_BITS + bit, out=fifth)
        words = fifth.reshape(-1).view(np.uint64)
        np.bitwise_and(words, 0x0101010101010101, out=words)
        np.left_shift(words, 4, out=words)
        np.bitwise_or(codes.view(np.uint64), words, out=codes.view(np.uint64))
    _scale_pairs(lower, upper, scales, out)


def q6_k(blocks: U8, out: Floats, work: Workspace) -> None:
    """128 bytes of lower halves, 64 of two upper bits, 16 scales, 2 d."""
    rows = len(blocks)
    d = work.block_scales(blocks, 208)
    scales = first_of(work.scales, rows, 16)
    np.copyto(scales, blocks[:, 192:208].view(np.int8))
    np.multiply(scales, d, out=scales)
    lower, upper = _split_nibbles(blocks[:, :128], work)
    bits = first_of(work.more, rows, 2, 2, 32)
    for index, codes in enumerate((lower, upper)):
        np.right_shift(
            blocks[:, 128:192].reshape(rows, 2, 1, 32), TWO_BITS[2 * index :][:2], out=bits
        )
        words = bits.reshape(-1).view(np.uint64)
        np.bitwise_and(words, 0x0303030303030303, out=words)
        np.left_shift(words, 4, out=words)
        np.bitwise_or(codes.view(np.uint64), words, out=codes.view(np.uint64))
        np.subtract(codes, 32, out=codes)
        np.copyto(
            out.reshape(rows, 2, 2, 2, 32)[:, :, index], codes.view(np.int8).reshape(rows, 2, 2, 32)
        )
    parts = out.reshape(rows, 16, 16)
    np.multiply(parts, scales[:, :, None], out=parts)


def tq1_0(blocks: U8, out: Floats, work: Workspace) -> None:
    """48 bytes of five digits in base three, 4 of four, 2 d. Byte * 3 ** i (mod 256) has digit i on top."""
    rows = len(blocks)
    d = work.block_scales(blocks, 52)
    digits = first_of(work.codes, rows, 256)
    for at, width, count, into in ((0, 32, 5, 0), (32, 16, 5, 160), (48, 4, 4, 240)):
        packed = blocks[:, None, at : at + width]
        part = digits[:, into : into + width * count].reshape(rows, count, width)
        np.multiply(packed, THREES[:count], out=part)
    above = first_of(work.high, rows, 256)
    np.greater_equal(digits, 171, out=above.view(np.bool_))  # 3 * 171 = 2 * 256 + 1
    np.greater_equal(digits, 86, out=digits.view(np.bool_))  # 3 * 86 = 256 + 2
    np.add(digits, above, out=digits)
    np.subtract(digits, 1, out=digits)
    scale_codes(digits, d, out)


def tq2_0(blocks: U8, out: Floats, work: Workspace) -> None:
    """64 bytes of two-bit codes, 2 d."""
    d = work.block_scales(blocks, 64)
    codes = _two_bits(blocks[:, :64], work)
    np.subtract(codes, 1, out=codes)
    scale_codes(codes, d, out)


def _two_bits(packed: U8, work: Workspace) -> U8:
    """[n, 64] -> [n, 2, 4, 32]: 32 bytes hold four times 32 codes."""
    rows = len(packed)
    codes = first_of(work.codes, rows, 2, 4, 32)
    np.right_shift(packed.reshape(rows, 2, 1, 32), TWO_BITS, out=codes)
    np.bitwise_and(codes, 3, out=codes)
    return codes


def _split_nibbles(packed: U8, work: Workspace) -> tuple[U8, U8]:
    """All lower halves, then all upper ones, each flat; eight bytes at a time."""
    lower, upper = work.codes[: packed.size], work.high[: packed.size]
    np.copyto(upper.reshape(packed.shape), packed)
    words = upper.view(np.uint64)
    np.bitwise_and(words, FOUR_BITS, out=lower.view(np.uint64))
    np.right_shift(words, 4, out=words)
    np.bitwise_and(words, FOUR_BITS, out=words)
    return lower, upper


def _scale_pairs(lower: U8, upper: U8, scales: Floats, out: Floats) -> None:
    """As floats: d * code - m, for parts of 32 weights that come from lower and upper in turn."""
    rows = len(out)
    pairs = out.reshape(rows, 4, 2, 32)
    np.copyto(pairs[:, :, 0], lower.reshape(rows, 4, 32))
    np.copyto(pairs[:, :, 1], upper.reshape(rows, 4, 32))
    parts = out.reshape(rows, 8, 32)
    np.multiply(parts, scales[0, :, :, None], out=parts)
    np.subtract(parts, scales[1, :, :, None], out=parts)


def _six_bit_scales(blocks: U8, work: Workspace) -> Floats:
    """Sixteen scales of six bits in Q3_K's twelve bytes, less 32, times d.

    Lower nibbles of bytes 0..7 are scales 0..7, upper ones 8..15; bytes 8..11 hold two bits more of
    scales i, i + 4, i + 8 and i + 12.
    """
    rows = len(blocks)
    d = work.block_scales(blocks, 108)
    codes = first_of(work.small, rows, 2, 8)
    np.bitwise_and(blocks[:, 96:104], 15, out=codes[:, 0])
    np.right_shift(blocks[:, 96:104], 4, out=codes[:, 1])
    upper = first_of(work.parts, rows, 4, 4)
    np.right_shift(blocks[:, None, 104:108], TWO_BITS, out=upper)
    np.bitwise_and(upper, 3, out=upper)
    np.left_shift(upper, 4, out=upper)
    np.bitwise_or(codes, upper.reshape(codes.shape), out=codes)
    np.subtract(codes, 32, out=codes)
    scales = first_of(work.scales, rows, 16)
    np.copyto(scales, codes.view(np.int8).reshape(rows, 16))
    np.multiply(scales, d, out=scales)
    return scales


def _scales_and_minima(blocks: U8, work: Workspace) -> Floats:
    """Eight scales and eight minima of six bits in twelve bytes, times d and dmin: [2, n, 8].

    Bytes 0..3 hold scales 0..3, bytes 4..7 minima 0..3; their two upper bits, and the nibbles of
    bytes 8..11 (scale below, minimum above), make scales and minima 4..7. Four bytes go at a time.
    """
    rows = len(blocks)
    d_dmin = work.block_scales(blocks, 0, 2)
    packed = first_of(work.small.view(np.uint32), 3, rows)
    np.copyto(
        packed.view(np.uint8).reshape(3, rows, 4),
        blocks[:, 4:16].reshape(rows, 3, 4).swapaxes(0, 1),
    )
    early = first_of(work.parts.view(np.uint32), 2, rows)
    np.bitwise_and(packed[:2], 0x3F3F3F3F, out=early)
    scales = first_of(work.scales, 2, rows, 8)
    np.copyto(scales[:, :, :4], early.view(np.uint8).reshape(2, rows, 4))
    np.right_shift(packed[:2], 2, out=early)
    np.bitwise_and(early, 0x30303030, out=early)
    nibbles = packed[1:]
    np.right_shift(packed[2], 4, out=packed[1])
    np.bitwise_and(nibbles, 0x0F0F0F0F, out=nibbles)
    np.bitwise_or(early, nibbles[::-1], out=early)
    np.copyto(scales[:, :, 4:], early.view(np.uint8).reshape(2, rows, 4))
    np.multiply(scales, d_dmin.T[:, :, None], out=scales)
    return scales
