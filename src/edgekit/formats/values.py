"""Turns the key-value block of a GGUF file into values, counts of arrays, and what was left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edgekit.formats import limits
from edgekit.formats.cursor import Cursor
from edgekit.formats.quoting import quoted
from edgekit.formats.types import ArrayFact, Scalar, Value

LEAST_KEY_BYTES = 8 + 1 + 4 + 1  # length, key, type, value
_STRING, _ARRAY, _BOOL = 8, 9, 7

# enum gguf_type in ggml/include/gguf.h: id -> (name, struct code, bytes); 8 and 9 have no size
_NUMBERS: dict[int, tuple[str, str, int]] = {
    0: ("uint8", "B", 1),
    1: ("int8", "b", 1),
    2: ("uint16", "H", 2),
    3: ("int16", "h", 2),
    4: ("uint32", "I", 4),
    5: ("int32", "i", 4),
    6: ("float32", "f", 4),
    7: ("bool", "B", 1),
    10: ("uint64", "Q", 8),
    11: ("int64", "q", 8),
    12: ("float64", "d", 8),
}
_NUMBER_COST_BYTES = 40  # a Python number and its place in a tuple


@dataclass(slots=True)
class Shelf:
    """Where the values of one file are put while it is read, and how much there is room for.

    A key that is not `wanted` is read like any other, and leaves nothing behind.
    """

    wanted: Callable[[str], bool] = lambda _: True
    room_bytes: int = limits.KEPT_BYTES
    string_bytes: int = limits.KEPT_STRING_BYTES
    numbers: int = limits.KEPT_NUMBERS
    keys: dict[str, Value] = field(default_factory=dict)
    arrays: dict[str, ArrayFact] = field(default_factory=dict)
    long_strings: dict[str, int] = field(default_factory=dict)
    reading: str | None = None  # the key whose value comes next; None outside the keys
    keeps: bool = True  # whether its value is wanted
    kept_bytes: int = 0
    strings_walked: int = 0

    def __contains__(self, key: str) -> bool:
        return key in self.keys or key in self.arrays or key in self.long_strings

    def begin(self, key: str) -> None:
        self.reading = key
        self.keeps = self.wanted(key)

    def has_room(self, size_bytes: int) -> bool:
        """Whether a value of this size may still be kept; what may not is skipped, and noted."""
        if self.keeps:
            self.kept_bytes += size_bytes
        return self.keeps and self.kept_bytes <= self.room_bytes

    def keep(self, key: str, value: Value) -> None:
        if self.keeps:
            self.keys[key] = value

    def note_string(self, key: str, length: int) -> None:
        if self.keeps:
            self.long_strings[key] = length

    def note_array(
        self, key: str, element: str, count: int, *, offset: int = 0, end: int = 0
    ) -> None:
        if self.keeps:
            self.arrays[key] = ArrayFact(element=element, count=count, offset=offset, end=end)


def read_key(cursor: Cursor) -> str:
    offset = cursor.position
    length = cursor.u64()
    cursor.check_limit("length of a key", length, limits.KEY_BYTES)
    key = cursor.take(length)
    if not key:
        raise cursor.error("a key is empty", offset=offset)
    try:
        return key.decode()
    except UnicodeDecodeError as error:  # a key is looked up, so it must be right
        raise cursor.error(f"key {quoted(key)} is not UTF-8", offset=offset) from error


def read_value(cursor: Cursor, key: str, shelf: Shelf) -> None:
    """Puts the value that follows `key` on the shelf, or the fact that it was left out."""
    value_type = cursor.u32()
    if value_type == _STRING:
        _read_string(cursor, key, shelf)
    elif value_type == _ARRAY:
        _read_array(cursor, key, shelf)
    else:
        shelf.keep(key, _read_numbers(cursor, key, value_type, 1)[0])


def _read_string(cursor: Cursor, key: str, shelf: Shelf) -> None:
    length = cursor.u64()
    if length > shelf.string_bytes or not shelf.has_room(length):
        cursor.skip(length)
        shelf.note_string(key, length)
    else:
        value = _text(cursor.take(length))
        if not value.isascii():
            shelf.has_room(3 * length)  # one wide letter, and every letter takes four bytes
        shelf.keep(key, value)


def _text(raw: bytes) -> str:
    """Values are shown, not looked up: a broken letter in an author's name is no reason to stop."""
    return raw.decode(errors="replace")


def _read_numbers(cursor: Cursor, key: str, value_type: int, count: int) -> tuple[Scalar, ...]:
    offset = cursor.position
    _, code, _ = _number(cursor, key, value_type)
    values = cursor.numbers(f"{count}{code}")
    if value_type != _BOOL:
        return values
    for value in values:
        if value not in (0, 1):
            raise cursor.error(f"{quoted(key)}: {value} is not a bool", offset=offset)
    return tuple(bool(value) for value in values)


def _number(cursor: Cursor, key: str, value_type: int) -> tuple[str, str, int]:
    row = _NUMBERS.get(value_type)
    if row is None:
        raise cursor.error(
            f"{quoted(key)}: value type {value_type} is not one of the 13 that GGUF has",
            offset=cursor.position,
        )
    return row


def _read_array(cursor: Cursor, key: str, shelf: Shelf) -> None:
    offset = cursor.position
    value_type, count = cursor.u32(), cursor.u64()
    if value_type == _ARRAY:
        raise cursor.error(f"{quoted(key)}: arrays of arrays are not supported", offset=offset)
    if value_type == _STRING:
        _read_string_array(cursor, key, count, shelf)
        return
    name, _, size = _number(cursor, key, value_type)
    small = count <= shelf.numbers and not key.startswith("tokenizer.")
    if small and shelf.has_room(count * _NUMBER_COST_BYTES):
        shelf.keep(key, _read_numbers(cursor, key, value_type, count))
    else:
        begin = cursor.position
        shelf.note_array(key, name, count, offset=begin, end=begin + count * size)
        cursor.skip(count * size)


def _read_string_array(cursor: Cursor, key: str, count: int, shelf: Shelf) -> None:
    shelf.strings_walked += count
    cursor.check_limit(f"{quoted(key)}: array length", shelf.strings_walked, limits.STRINGS_WALKED)
    small = count <= limits.KEPT_STRINGS and not key.startswith("tokenizer.")
    if small and shelf.has_room(count * _NUMBER_COST_BYTES):
        _read_short_strings(cursor, key, count, shelf)
    else:
        # First the count, then the walk: a walk that stops half-way has still counted.
        begin = cursor.position
        shelf.note_array(key, "string", count, offset=begin)
        cursor.skip_strings(count)
        shelf.note_array(key, "string", count, offset=begin, end=cursor.position)


def _read_short_strings(cursor: Cursor, key: str, count: int, shelf: Shelf) -> None:
    """Keeps an array such as general.tags, unless one of its strings turns out to be long."""
    texts: list[str] = []
    begin = cursor.position
    for _ in range(count):
        length = cursor.u64()
        if length <= limits.KEPT_ENTRY_BYTES and shelf.has_room(length):
            texts.append(_text(cursor.take(length)))
        else:
            cursor.skip(length)
    if len(texts) == count:
        shelf.keep(key, tuple(texts))
    else:
        shelf.note_array(key, "string", count, offset=begin, end=cursor.position)
