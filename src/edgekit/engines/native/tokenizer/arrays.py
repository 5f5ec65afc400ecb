"""The arrays of a vocabulary, from their places in a file through one small window."""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Protocol

from edgekit.engines.native.file import WeightFile
from edgekit.engines.native.tokenizer.types import Strings
from edgekit.engines.native.walk import ArrayPlace
from edgekit.errors import HeaderError, HeaderLimitError
from edgekit.units import KIB

WINDOW_BYTES = 32 * KIB
_LENGTH = struct.Struct("<Q")
_CODES = {"float32": "f", "int32": "i", "int8": "b", "uint8": "B"}


class Taker(Protocol):
    """Takes one entry after another; what it keeps of them is its own matter."""

    def append(self, text: memoryview, /) -> None: ...

    def __len__(self) -> int: ...


def read_strings(
    file: WeightFile, place: ArrayPlace, what: str, *, entry_bytes: int, total_bytes: int
) -> Strings:
    """All entries. HeaderLimitError for one longer than `entry_bytes`, or for more than `total_bytes`."""
    strings = Strings(what, file=file.name)
    walk_strings(file, place, what, strings, entry_bytes=entry_bytes, total_bytes=total_bytes)
    return strings


def walk_strings(
    file: WeightFile,
    place: ArrayPlace,
    what: str,
    strings: Taker,
    *,
    entry_bytes: int,
    total_bytes: int,
) -> None:
    """The same, handed over one by one."""
    if place.element != "string":
        raise HeaderError(f"{what} holds {place.element}, not strings", file=file.name)
    _check_limit(file, f"{what}: length in bytes", place.end - place.offset, total_bytes)
    buffer = bytearray(WINDOW_BYTES)
    start = place.offset
    while len(strings) < place.count:
        window = memoryview(buffer)[: min(WINDOW_BYTES, place.end - start)]
        file.read_into(start, window, what=what)
        read, longer = _take_strings(window, strings, place.count, entry_bytes)
        if longer:
            _check_limit(file, f"{what}[{len(strings)}]: length in bytes", longer, entry_bytes)
        if not read:
            raise HeaderError(f"{what} continues beyond its end", file=file.name, offset=start)
        start += read


def _take_strings(
    window: memoryview, strings: Taker, count: int, entry_bytes: int
) -> tuple[int, int]:
    """Adds the strings that lie whole in the window: their bytes, and the length of one too long."""
    unpack, append, length = _LENGTH.unpack_from, strings.append, len(window)
    at = 0
    for _ in range(len(strings), count):
        if at + 8 > length:
            break
        (size,) = unpack(window, at)
        if size > entry_bytes:
            return at, size
        end = at + 8 + size
        if end > length:
            break
        append(window[at + 8 : end])
        at = end
    return at, 0


def read_numbers(
    file: WeightFile, place: ArrayPlace, what: str, *, elements: tuple[str, ...], count: int
) -> array[int] | array[float]:
    """The first `count` numbers; HeaderError where there are fewer, or of another type."""
    if place.element not in elements:
        raise HeaderError(
            f"{what} holds {place.element}, not {' or '.join(elements)}", file=file.name
        )
    if place.count < count:
        raise HeaderError(
            f"{what} has {place.count:,} entries, but there are {count:,} tokens", file=file.name
        )
    code = _CODES[place.element]
    numbers: array[int] | array[float] = array(code)
    numbers.frombytes(bytes(count * numbers.itemsize))
    file.read_into(place.offset, memoryview(numbers).cast("B"), what=what)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _check_limit(file: WeightFile, what: str, value: int, limit: int) -> None:
    if value > limit:
        raise HeaderLimitError(what, value=value, limit=limit, file=file.name)
