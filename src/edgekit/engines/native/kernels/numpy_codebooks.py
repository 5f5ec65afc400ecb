"""Super-blocks whose codes are points of a codebook (the IQ types), unpacked with numpy.

Every function turns blocks [n, bytes] into floats [n, 256], bit for bit as gguf-py's reference. A point is 4 or 8
signed bytes; eight signs, as +1 and -1, are looked up like a point.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.kernels.codebooks import (
    CODEBOOKS,
    SIGN_CODES,
    read_codebooks,
    sign_bits,
)
from edgekit.engines.native.kernels.numpy_blocks import (
    BIT,
    U8,
    U16,
    U32,
    UNEVEN,
    Places,
    Workspace,
    first_of,
    look_up,
    scale_codes,
)
from edgekit.engines.native.kernels.types import Floats

NIBBLES = np.array((0, 4), np.uint8)
TWO_BITS = np.array((0, 2, 4, 6), np.uint8)
THREE_BITS = np.array((0, 3, 6, 9), np.uint16)
SEVEN_BITS = np.array((0, 7, 14, 21), np.uint32)
DELTA = 0.125


def iq1_s(blocks: U8, out: Floats, work: Workspace) -> None:
    """2 d, 32 bytes of codes, 8 words: four times three bits of codes, a scale, the delta's sign."""
    rows = len(blocks)
    d = work.block_scales(blocks, 0)
    words = _words(blocks[:, 34:50], work)
    places = first_of(work.words, rows, 8, 4)
    np.right_shift(words[:, :, None], THREE_BITS, out=places)
    np.bitwise_and(places, 7, out=places)
    _add_codes(places.reshape(rows, 32), blocks[:, 2:34])
    codes = _points("IQ1_S", places, work)
    deltas = _deltas(words, 0x8000, work)
    scales = first_of(work.scales, rows, 8)
    np.right_shift(words, 12, out=words)
    np.bitwise_and(words, 7, out=words)
    _odd_scales(words, d, scales)
    _shift_and_scale(codes, deltas, scales, out)


def iq1_m(blocks: U8, out: Floats, work: Workspace) -> None:
    """32 bytes of codes, 16 with nibbles of three bits of a code and the delta's sign, 8 of scales.

    A word of scales has four of three bits, and four bits of d on top.
    """
    rows = len(blocks)
    words = _words(blocks[:, 48:56], work)
    d = _scattered_scale(words, work)
    nibbles = first_of(work.parts, rows, 16, 2)
    np.right_shift(blocks[:, 32:48, None], NIBBLES, out=nibbles)
    places = first_of(work.words, rows, 32)
    np.bitwise_and(nibbles.reshape(rows, 32), 7, out=first_of(work.small, rows, 32))
    np.copyto(places, first_of(work.small, rows, 32))
    _add_codes(places, blocks[:, :32])
    codes = _points("IQ1_S", places, work)
    three = first_of(work.words, rows, 4, 4)
    np.right_shift(words[:, :, None], THREE_BITS, out=three)
    np.bitwise_and(three, 7, out=three)
    scales = first_of(work.scales, rows, 16)
    _odd_scales(three.reshape(rows, 16), d, scales)
    signs = first_of(work.words, rows, 32)
    np.copyto(signs, nibbles.reshape(rows, 32))
    _shift_and_scale(codes, _deltas(signs, 8, work), scales, out)


def iq2_xxs(blocks: U8, out: Floats, work: Workspace) -> None:
    """2 d, 8 times: 4 bytes of codes, a word of four times seven signs and a scale."""
    rows = len(blocks)
    d = work.block_scales(blocks, 0)
    pairs = blocks[:, 2:66].reshape(rows, 8, 2, 4)
    codes = _points("IQ2_XXS", pairs[:, :, 0], work)
    _packed_signs(pairs[:, :, 1], codes, work)
    scales = first_of(work.scales, rows, 8)
    _half_scales(_top_nibbles(pairs[:, :, 1, 3], work), d, scales, 0.25)
    scale_codes(codes, scales, out)


def iq2_xs(blocks: U8, out: Floats, work: Workspace) -> None:
    """2 d, 32 words of nine bits of code and seven signs, 8 bytes of two scales."""
    rows = len(blocks)
    d = work.block_scales(blocks, 0)
    words = _words(blocks[:, 2:66], work)
    places = first_of(work.words, rows, 32)
    np.bitwise_and(words, 511, out=places)
    codes = _points("IQ2_XS", places, work)
    np.right_shift(words, 9, out=words)
    _sign(codes, _packed_sign_table(), words, work)
    scales = first_of(work.scales, rows, 16)
    _half_scales(_both_nibbles(blocks[:, 66:74], work), d, scales, 0.25)
    scale_codes(codes, scales, out)


def iq2_s(blocks: U8, out: Floats, work: Workspace) -> None:
    """2 d, 32 bytes of codes, 32 of signs, 8 of two bits more of the codes, 8 of two scales."""
    rows = len(blocks)
    d = work.block_scales(blocks, 0)
    places = first_of(work.words, rows, 8, 4)
    upper = first_of(work.small, rows, 8, 4)
    np.right_shift(blocks[:, 66:74, None], TWO_BITS, out=upper)
    np.bitwise_and(upper, 3, out=upper)
    np.copyto(places, upper)
    _add_codes(places.reshape(rows, 32), blocks[:, 2:34])
    codes = _points("IQ2_S", places, work)
    _sign(codes, _sign_table(), blocks[:, 34:66], work)
    scales = first_of(work.scales, rows, 16)
    _half_scales(_both_nibbles(blocks[:, 74:82], work), d, scales, 0.25)
    scale_codes(codes, scales, out)


def iq3_xxs(blocks: U8, out: Floats, work: Workspace) -> None:
    """2 d, 64 bytes of codes, 8 words of four times seven signs and a scale."""
    rows = len(blocks)
    d = work.block_scales(blocks, 0)
    codes = _points("IQ3_XXS", blocks[:, 2:66], work)
    packed = blocks[:, 66:98].reshape(rows, 8, 4)
    _packed_signs(packed, codes, work)
    scales = first_of(work.scales, rows, 8)
    _half_scales(_top_nibbles(packed[:, :, 3], work), d, scales, 0.5)
    scale_codes(codes, scales, out)


def iq3_s(blocks: U8, out: Floats, work: Workspace) -> None:
    """2 d, 64 bytes of codes, 8 of ninth bits, 32 of signs, 4 of two scales."""
    rows = len(blocks)
    d = work.block_scales(blocks, 0)
    ninth = first_of(work.codes, rows, 8, 8)
    np.right_shift(blocks[:, 66:74, None], BIT, out=ninth)
    np.bitwise_and(ninth, 1, out=ninth)
    places = first_of(work.words, rows, 8, 8)
    np.copyto(places, ninth)
    _add_codes(places.reshape(rows, 64), blocks[:, 2:66])
    codes = _points("IQ3_S", places, work)
    _sign(codes, _sign_table(), blocks[:, 74:106], work)
    nibbles = _both_nibbles(blocks[:, 106:110], work)
    words = first_of(work.words, rows, 8)
    np.copyto(words, nibbles)
    scales = first_of(work.scales, rows, 8)
    _odd_scales(words, d, scales)
    scale_codes(codes, scales, out)


def iq4_xs(blocks: U8, out: Floats, work: Workspace) -> None:
    """Block: d (2 bytes), high 2 bits of 8 scales (2), low 4 bits of 8 scales (4), 4-bit codes (128)."""
    rows = len(blocks)
    d = work.block_scales(blocks, 0)
    packed = _both_nibbles(blocks[:, 4:8], work)
    upper = first_of(work.parts, rows, 2, 4)
    np.right_shift(blocks[:, 2:4, None], TWO_BITS, out=upper)
    np.bitwise_and(upper, 3, out=upper)
    np.left_shift(upper, 4, out=upper)
    np.bitwise_or(packed, upper.reshape(rows, 8), out=packed)
    np.subtract(packed, 32, out=packed)
    scales = first_of(work.scales, rows, 8)
    np.copyto(scales, packed.view(np.int8))
    np.multiply(scales, d, out=scales)
    codes = first_of(work.codes, rows, 8, 2, 16)
    pairs = blocks[:, 8:136].reshape(rows, 8, 16)
    np.bitwise_and(pairs, 15, out=codes[:, :, 0])
    np.right_shift(pairs, 4, out=codes[:, :, 1])
    look_up(UNEVEN, codes, codes.view(np.int8), work)
    scale_codes(codes, scales, out)


@cache
def _points_table(name: str) -> NDArray[Any]:
    book = CODEBOOKS[name]
    dtype = np.uint64 if book.width == 8 else np.uint32
    return np.frombuffer(read_codebooks(), dtype, count=book.points, offset=book.offset)


@cache
def _sign_table() -> NDArray[np.uint64]:
    """Eight bits to eight signed bytes: +1 for a 0, -1 for a 1."""
    codes = np.arange(256, dtype=np.uint8)[:, None]
    signs = 1 - 2 * (codes >> BIT & 1).astype(np.int8)
    return signs.astype(np.int8).view(np.uint64).reshape(256)


@cache
def _packed_sign_table() -> NDArray[np.uint64]:
    return _sign_table()[[sign_bits(code) for code in range(SIGN_CODES)]]


def _look_up(table: NDArray[Any], at: NDArray[Any], into: U8, work: Workspace) -> None:
    places: Places = first_of(work.places, *at.shape)
    np.copyto(places, at)
    np.take(table, places.reshape(-1), out=into.view(table.dtype), mode="clip")


def _points(name: str, at: NDArray[Any], work: Workspace) -> U8:
    codes = work.codes[: at.size * CODEBOOKS[name].width]
    _look_up(_points_table(name), at, codes, work)
    return codes


def _sign(codes: U8, table: NDArray[np.uint64], at: NDArray[Any], work: Workspace) -> None:
    signs = work.high[: codes.size]
    _look_up(table, at, signs, work)
    np.multiply(codes, signs, out=codes)  # bits of int8, so -1 is 255: right modulo 256


def _packed_signs(packed: U8, codes: U8, work: Workspace) -> None:
    """Four times seven signs from each word of four bytes."""
    rows, count = packed.shape[:2]
    shifted: U32 = first_of(work.long_words, rows, count, 4)
    words = first_of(work.words.view(np.uint32), rows, count, 1)
    np.copyto(words.view(np.uint8), packed)
    np.right_shift(words, SEVEN_BITS, out=shifted)
    np.bitwise_and(shifted, 127, out=shifted)
    _sign(codes, _packed_sign_table(), shifted, work)


def _words(packed: U8, work: Workspace) -> U16:
    """Two bytes make a word. The result is at the end of a buffer whose start is used for places."""
    rows, size = packed.shape
    words = work.words[-rows * size // 2 :].reshape(rows, size // 2)
    np.copyto(words.view(np.uint8), packed)
    return words


def _add_codes(places: U16, lower: U8) -> None:
    """Moves the upper bits, which are there already, above the eight bits of each code."""
    np.left_shift(places, 8, out=places)
    np.copyto(places.view(np.uint8)[:, ::2], lower)


def _top_nibbles(packed: U8, work: Workspace) -> U8:
    codes = first_of(work.small, *packed.shape)
    np.right_shift(packed, 4, out=codes)
    return codes


def _both_nibbles(packed: U8, work: Workspace) -> U8:
    rows, size = packed.shape
    codes = first_of(work.small, rows, size, 2)
    np.right_shift(packed[:, :, None], NIBBLES, out=codes)
    np.bitwise_and(codes, 15, out=codes)
    return codes.reshape(rows, 2 * size)


def _half_scales(codes: U8, d: Floats, scales: Floats, times: float) -> None:
    """As floats: d * (code + 1/2) * times."""
    np.copyto(scales, codes)
    np.add(scales, 0.5, out=scales)
    np.multiply(scales, d, out=scales)
    np.multiply(scales, times, out=scales)


def _odd_scales(codes: U16, d: Floats, scales: Floats) -> None:
    """As floats: d * (2 * code + 1)."""
    np.copyto(scales, codes)
    np.multiply(scales, 2, out=scales)
    np.add(scales, 1, out=scales)
    np.multiply(scales, d, out=scales)


def _deltas(words: U16, bit: int, work: Workspace) -> Floats:
    """+1/8, or -1/8 where the bit is set."""
    flags = first_of(work.high, *words.shape).view(np.bool_)
    chosen = first_of(work.long_words.view(np.uint16), *words.shape)
    np.bitwise_and(words, bit, out=chosen)
    np.not_equal(chosen, 0, out=flags)
    deltas = first_of(work.places.view(np.float32), *words.shape)  # the points are found already
    np.copyto(deltas, flags)
    np.multiply(deltas, -2 * DELTA, out=deltas)
    np.add(deltas, DELTA, out=deltas)
    return deltas


def _scattered_scale(words: U16, work: Workspace) -> Floats:
    """Four bits of each of four words make the half d, the first word's at the bottom."""
    rows = len(words)
    bits = first_of(work.halves, rows, 1)
    whole = bits.view(np.uint16)
    part = first_of(work.long_words.view(np.uint16), rows, 1)
    whole.fill(0)
    for index in range(4):
        np.right_shift(words[:, index : index + 1], 12, out=part)
        np.left_shift(part, 4 * index, out=part)
        np.bitwise_or(whole, part, out=whole)
    return work.checked(bits)


def _shift_and_scale(codes: U8, deltas: Floats, scales: Floats, out: Floats) -> None:
    """As floats: scale * (point + delta). There may be several deltas to a scale."""
    rows, count = deltas.shape
    parts = out.reshape(rows, count, 256 // count)
    np.copyto(parts, codes.view(np.int8).reshape(parts.shape))
    np.add(parts, deltas[:, :, None], out=parts)
    whole = out.reshape(rows, scales.shape[1], 256 // scales.shape[1])
    np.multiply(whole, scales[:, :, None], out=whole)
