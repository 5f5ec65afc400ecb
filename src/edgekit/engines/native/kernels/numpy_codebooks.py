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
    U8,
    UNEVEN,
    bit_fields,
    bit_fields_of_each,
    block_scales,
    finite_halves,
    scale_codes,
    translated,
    words_of,
)
from edgekit.engines.native.kernels.types import Floats

U16 = NDArray[np.uint16]
NIBBLES = (0, 4)
TWO_BITS = (0, 2, 4, 6)
THREE_BITS = (0, 3, 6, 9)
SEVEN_BITS = (0, 7, 14, 21)
DELTA = np.float32(0.125)


def iq1_s(blocks: U8, out: Floats) -> None:
    """2 d, 32 bytes of codes, 8 words: four times three bits of codes, a scale, the delta's sign."""
    d = block_scales(blocks, 0)
    words = words_of(blocks[:, 34:50])
    points = _points("IQ1_S", _join(blocks[:, 2:34], bit_fields_of_each(words, THREE_BITS, 7)))
    _shift_and_scale(points, words & 0x8000, _odd_scales(words >> 12 & 7, d), out)


def iq1_m(blocks: U8, out: Floats) -> None:
    """32 bytes of codes, 16 with nibbles of three bits of a code and the delta's sign, 8 of scales.

    A word of scales has four of three bits, and four bits of d on top: the first word has the lowest four.
    """
    words = words_of(blocks[:, 48:56])
    d_parts = words >> 12 << np.array((0, 4, 8, 12), np.uint16)
    d = finite_halves(np.bitwise_or.reduce(d_parts, axis=1, keepdims=True))
    nibbles = bit_fields_of_each(blocks[:, 32:48], NIBBLES, 15)
    points = _points("IQ1_S", _join(blocks[:, :32], nibbles & 7))
    scales = _odd_scales(bit_fields_of_each(words, THREE_BITS, 7), d)
    _shift_and_scale(points, nibbles & 8, scales, out)


def iq2_xxs(blocks: U8, out: Floats) -> None:
    """2 d, 8 times: 4 bytes of codes, a word of four times seven signs and a scale."""
    d = block_scales(blocks, 0)
    pairs = blocks[:, 2:66].reshape(-1, 8, 2, 4)
    points = _points("IQ2_XXS", pairs[:, :, 0])
    points *= _packed_signs(pairs[:, :, 1])
    scale_codes(points, _half_scales(pairs[:, :, 1, 3] >> 4, d, 0.25), out)


def iq2_xs(blocks: U8, out: Floats) -> None:
    """2 d, 32 words of nine bits of code and seven signs, 8 bytes of two scales."""
    d = block_scales(blocks, 0)
    words = words_of(blocks[:, 2:66])
    points = _points("IQ2_XS", words & 511)
    points *= _look_up(_packed_sign_table(), words >> 9)
    scales = bit_fields_of_each(blocks[:, 66:74], NIBBLES, 15)
    scale_codes(points, _half_scales(scales, d, 0.25), out)


def iq2_s(blocks: U8, out: Floats) -> None:
    """2 d, 32 bytes of codes, 32 of signs, 8 of two bits more of the codes, 8 of two scales."""
    d = block_scales(blocks, 0)
    upper = bit_fields_of_each(blocks[:, 66:74], TWO_BITS, 3)
    points = _points("IQ2_S", _join(blocks[:, 2:34], upper))
    points *= _look_up(_sign_table(), blocks[:, 34:66])
    scales = bit_fields_of_each(blocks[:, 74:82], NIBBLES, 15)
    scale_codes(points, _half_scales(scales, d, 0.25), out)


def iq3_xxs(blocks: U8, out: Floats) -> None:
    """2 d, 64 bytes of codes, 8 words of four times seven signs and a scale."""
    d = block_scales(blocks, 0)
    points = _points("IQ3_XXS", blocks[:, 2:66])
    words = blocks[:, 66:98].reshape(-1, 8, 4)
    points *= _packed_signs(words)
    scale_codes(points, _half_scales(words[:, :, 3] >> 4, d, 0.5), out)


def iq3_s(blocks: U8, out: Floats) -> None:
    """2 d, 64 bytes of codes, 8 of ninth bits, 32 of signs, 4 of two scales."""
    d = block_scales(blocks, 0)
    ninth = bit_fields_of_each(blocks[:, 66:74], range(8), 1)
    points = _points("IQ3_S", _join(blocks[:, 2:66], ninth))
    points *= _look_up(_sign_table(), blocks[:, 74:106])
    scales = bit_fields_of_each(blocks[:, 106:110], NIBBLES, 15)
    scale_codes(points, _odd_scales(scales, d), out)


def iq4_xs(blocks: U8, out: Floats) -> None:
    """Block: d (2 bytes), high 2 bits of 8 scales (2), low 4 bits of 8 scales (4), 4-bit codes (128)."""
    d = block_scales(blocks, 0)
    scales = bit_fields_of_each(blocks[:, 4:8], NIBBLES, 15)
    scales |= bit_fields_of_each(blocks[:, 2:4], TWO_BITS, 3) << 4
    scales -= 32
    codes = bit_fields(blocks[:, 8:136].reshape(-1, 8, 16), NIBBLES, 15)
    scale_codes(translated(codes, UNEVEN), scales.view(np.int8) * d, out)


@cache
def _points_table(name: str) -> NDArray[Any]:
    """The points of a codebook, each as one number of 4 or 8 bytes."""
    book = CODEBOOKS[name]
    dtype = np.uint64 if book.width == 8 else np.uint32
    return np.frombuffer(read_codebooks(), dtype, count=book.points, offset=book.offset)


@cache
def _sign_table() -> NDArray[np.uint64]:
    """Eight bits to eight signed bytes: +1 for a 0, -1 for a 1."""
    bits = bit_fields_of_each(np.arange(256, dtype=np.uint8)[:, None], range(8), 1)
    return (1 - 2 * bits.view(np.int8)).astype(np.int8).view(np.uint64).reshape(256)


@cache
def _packed_sign_table() -> NDArray[np.uint64]:
    return _sign_table()[[sign_bits(code) for code in range(SIGN_CODES)]]


def _look_up(table: NDArray[Any], codes: NDArray[Any]) -> U8:
    """The bytes of the entries, one entry after another."""
    return np.take(table, codes.reshape(-1)).view(np.uint8)


def _points(name: str, codes: NDArray[Any]) -> U8:
    return _look_up(_points_table(name), codes)


def _packed_signs(words: U8) -> U8:
    """Eight signs for each seven bits of the lower 28 in each word, which is given as its four bytes."""
    numbers = words.copy().view(np.uint32)
    return _look_up(_packed_sign_table(), bit_fields(numbers, SEVEN_BITS, 127))


def _join(lower: U8, upper: NDArray[Any]) -> U16:
    """Codes of more than eight bits."""
    joined: U16 = np.left_shift(upper, 8, dtype=np.uint16)
    joined |= lower
    return joined


def _half_scales(codes: NDArray[Any], d: Floats, times: float) -> Floats:
    """The scales d * (code + 1/2) * times."""
    return (codes + np.float32(0.5)) * d * np.float32(times)


def _odd_scales(codes: NDArray[Any], d: Floats) -> Floats:
    """The scales d * (2 * code + 1)."""
    return (2 * codes + 1) * d


def _shift_and_scale(points: U8, is_negative: NDArray[Any], scales: Floats, out: Floats) -> None:
    """Writes scale * (point + delta), where delta is -1/8 or 1/8. A scale may belong to several deltas."""
    deltas = np.where(is_negative, -DELTA, DELTA)
    rows, count = deltas.shape
    shifted = out.reshape(rows, count, -1)
    np.copyto(shifted, points.view(np.int8).reshape(shifted.shape))
    shifted += deltas[:, :, None]
    scaled = out.reshape(rows, scales.shape[1], -1)
    scaled *= scales[:, :, None]
