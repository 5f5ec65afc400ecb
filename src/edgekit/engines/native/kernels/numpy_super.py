"""Super-blocks of 256 weights (K-quants and ternary), unpacked with numpy.

Every function turns blocks [n, bytes] into floats [n, 256], as gguf-py's reference does, bit for
bit. Products of a half and codes are exact in float32, so only a last subtraction rounds.
"""

from __future__ import annotations

import numpy as np

from edgekit.engines.native.kernels.types import Floats
from edgekit.engines.native.kernels.workspace import U8, Workspace, first_of

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
    _scale_and_shift(_two_bits(blocks[:, 16:80], work), scales, out.reshape(rows, 16, 16))


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
    _scale_signed(codes, scales, out.reshape(rows, 16, 16))


def q4_k(blocks: U8, out: Floats, work: Workspace) -> None:
    """2 d, 2 dmin, 12 bytes of scales, 128 of codes: pairs of 32 weights share their bytes."""
    scales = _scales_and_minima(blocks, work)
    lower, upper = _nibbles(blocks[:, 16:144], work)
    _scale_pairs(lower, upper, scales, out)


def q5_k(blocks: U8, out: Floats, work: Workspace) -> None:
    """As Q4_K, with 32 bytes of fifth bits before the codes: one bit for each of eight parts."""
    rows = len(blocks)
    scales = _scales_and_minima(blocks, work)
    lower, upper = _nibbles(blocks[:, 48:176], work)
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
    lower, upper = _nibbles(blocks[:, :128], work)
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
    _scale_signed(digits, d, out.reshape(rows, 1, 256))


def tq2_0(blocks: U8, out: Floats, work: Workspace) -> None:
    """64 bytes of two-bit codes, 2 d."""
    d = work.block_scales(blocks, 64)
    codes = _two_bits(blocks[:, :64], work)
    np.subtract(codes, 1, out=codes)
    _scale_signed(codes, d, out.reshape(-1, 1, 256))


def _scale_signed(codes: U8, scales: Floats, parts: Floats) -> None:
    """As floats: scale * code, where codes are the bits of int8."""
    np.copyto(parts, codes.view(np.int8).reshape(parts.shape))
    np.multiply(parts, scales[:, :, None], out=parts)


def _scale_and_shift(codes: U8, scales: Floats, parts: Floats) -> None:
    """As floats: d * code - m, where `scales` holds d and m as [n, 2, parts]."""
    np.copyto(parts, codes.reshape(parts.shape))
    np.multiply(parts, scales[:, 0, :, None], out=parts)
    np.subtract(parts, scales[:, 1, :, None], out=parts)


def _two_bits(packed: U8, work: Workspace) -> U8:
    """[n, 64] -> [n, 2, 4, 32]: 32 bytes hold four times 32 codes."""
    rows = len(packed)
    codes = first_of(work.codes, rows, 2, 4, 32)
    np.right_shift(packed.reshape(rows, 2, 1, 32), TWO_BITS, out=codes)
    np.bitwise_and(codes, 3, out=codes)
    return codes


def _nibbles(packed: U8, work: Workspace) -> tuple[U8, U8]:
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
