"""The fixed buffers that a thread needs to unpack blocks with numpy, and how they are used.

numpy allocates where it is not told where to write, and where a loop has to change the type of
what it reads. So every step here writes into a buffer, and types change only in a plain copy.
"""

from __future__ import annotations

import math
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

SLICE_ELEMENTS = 16384  # floats that are unpacked in one go: 64 blocks of 256, 512 blocks of 32
SMALLEST_BLOCK = 32
CODEBOOK_SLICE_ELEMENTS = SLICE_ELEMENTS // 2  # where points are looked up: places take room
PLACES = CODEBOOK_SLICE_ELEMENTS // 4  # looked up in one go: IQ3 has a point for four floats


class Workspace:
    """Made once for a thread, never grown: about 60 KiB, and 24 more for types with a codebook."""

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
        """Where to look; numpy looks up by this type only, and copies every other."""
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


def refuse_not_finite(values: Floats, flags: U8, *, per_block: int = 1) -> None:
    """BlockError for the first value that is infinite or no number; `flags` is written over."""
    finite = first_of(flags, *values.shape).view(np.bool_)
    np.isfinite(values, out=finite)
    refuse_false(finite, per_block=per_block)


def refuse_false(fine: NDArray[np.bool_], *, per_block: int = 1) -> None:
    if not fine.all():
        raise BlockError(int(fine.argmin()) // per_block)


def first_of(buffer: NDArray[Number], *shape: int) -> NDArray[Number]:
    """The start of a buffer, in that shape."""
    return buffer[: math.prod(shape)].reshape(shape)
