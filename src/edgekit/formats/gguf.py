"""Turns the bytes of one GGUF file into its keys and its tensor directory.

Format: docs/formats.md, and https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
Where that leaves a choice, ours is that of ggml/src/gguf.cpp, llama.cpp @ b21e4de.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from edgekit.errors import HeaderError, UnknownDtypeError
from edgekit.formats import limits
from edgekit.formats.cursor import BeyondReachError, Cursor
from edgekit.formats.dtype import TensorType, by_ggml_id
from edgekit.formats.lookalikes import LOOK_BYTES, describe
from edgekit.formats.types import ArrayFact, Depth, Scalar, Tensor, Value
from edgekit.sources.types import ByteSource
from edgekit.terminal import quoted

MAGIC = b"GGUF"
NEWEST_VERSION = 3
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """What one GGUF file says."""

    name: str
    version: int
    big_endian: bool
    tensor_count: int | None  # None: of all shards together, and the file does not say
    keys: Mapping[str, Value]
    arrays: Mapping[str, ArrayFact]
    long_strings: Mapping[str, int]
    tensors: tuple[Tensor, ...] | None  # None: reading stopped before the end of the directory
    header_bytes: int | None
    complete: bool  # all keys were read


def read_gguf(source: ByteSource, depth: Depth = Depth.TENSORS) -> GgufFile:
    """The whole header.

    Depth.ARCHITECTURE on a remote source stops where the next request would begin, once the
    architecture is known. A local file is always read whole: its last keys cost milliseconds.
    """
    cursor = Cursor(source)
    start = read_start(cursor, source)
    shelf = Shelf()
    if depth is Depth.ARCHITECTURE:
        cursor.may_fetch = lambda: not _knows_architecture(shelf)
    complete, tensors, header_bytes = False, None, None
    try:
        read_keys(cursor, start, shelf)
        complete = True
        tensors, header_bytes = read_directory(
            cursor,
            start.tensor_count,
            alignment=alignment_of(cursor, shelf),
            file_bytes=source.size_bytes,
        )
    except BeyondReachError:
        pass  # what was asked for is known
    return GgufFile(
        name=source.name,
        version=start.version,
        big_endian=start.big_endian,
        tensor_count=start.tensor_count,
        keys=shelf.keys,
        arrays=shelf.arrays,
        long_strings=shelf.long_strings,
        tensors=tensors,
        header_bytes=header_bytes,
        complete=complete,
    )


class GgufStart(NamedTuple):
    """The first 24 bytes."""

    version: int
    big_endian: bool
    tensor_count: int
    key_count: int


def read_start(cursor: Cursor, source: ByteSource) -> GgufStart:
    version, big_endian = _read_version(cursor, source)
    tensor_count = cursor.u64()
    cursor.check_limit("number of tensors", tensor_count, limits.TENSORS_PER_FILE)
    key_count = cursor.u64()
    cursor.check_limit("number of keys", key_count, limits.KEYS)
    return GgufStart(version, big_endian, tensor_count, key_count)


def _read_version(cursor: Cursor, source: ByteSource) -> tuple[int, bool]:
    first = cursor.take(min(len(MAGIC), source.size_bytes))
    if not first:
        raise cursor.error("the file is empty")
    if not MAGIC.startswith(first):
        what = describe(source.read(0, min(LOOK_BYTES, source.size_bytes)))
        raise cursor.error(f"not a GGUF file: {what}")
    version = cursor.u32()
    big_endian = version != 0 and version & 0xFFFF == 0  # a small number seen from its other end
    if big_endian:
        cursor.read_big_endian()
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    _check_version(cursor, version, big_endian=big_endian)
    return version, big_endian


def _check_version(cursor: Cursor, version: int, *, big_endian: bool) -> None:
    if version > NEWEST_VERSION:
        raise cursor.error(
            f"GGUF version {version} is newer than the newest version that edgekit knows "
            f"({NEWEST_VERSION}); upgrade edgekit"
        )
    if version < 2:
        raise cursor.error(
            f"GGUF version {version} is no longer supported, not even by llama.cpp; "
            "convert the model again"
        )
    if big_endian and version < 3:
        raise cursor.error("big-endian GGUF needs version 3 or newer, but this file is version 2")


def read_keys(cursor: Cursor, start: GgufStart, shelf: Shelf) -> None:
    """Every key with its value, onto the shelf."""
    cursor.likely_bytes = start.tensor_count * ENTRY_BYTES
    for left in reversed(range(start.key_count)):
        cursor.sure_bytes = left * LEAST_KEY_BYTES + start.tensor_count * LEAST_ENTRY_BYTES
        offset = cursor.position
        key = read_key(cursor)
        if key in shelf:
            raise cursor.error(f"key {quoted(key)} occurs twice", offset=offset)
        shelf.begin(key)
        read_value(cursor, key, shelf)
    shelf.reading = None


def _knows_architecture(shelf: Shelf) -> bool:
    """Whether its keys lie behind us: converters write them together, and the vocabulary after them."""
    architecture = shelf.keys.get("general.architecture")
    stated = f"{architecture}.block_count" in shelf.keys or "llama.block_count" in shelf.keys
    past = shelf.reading is None or shelf.reading.startswith("tokenizer.")
    return architecture is not None and stated and past


def alignment_of(cursor: Cursor, shelf: Shelf) -> int:
    value = shelf.keys.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(value) is not int or value <= 0 or value & (value - 1):
        raise cursor.error(f"general.alignment is {quoted(value)}, not a power of two")
    return value


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


ENTRY_BYTES = 64  # 57 to 60 in real files
LEAST_ENTRY_BYTES = 8 + 0 + 4 + 0 + 4 + 8  # length, name, dimensions, shape, type, offset


class _Entry(NamedTuple):
    """A line of the directory: a tensor whose place is not known before the last line."""

    type: TensorType
    shape: tuple[int, ...]
    size_bytes: int
    offset: int  # from where the data begins


def read_directory(
    cursor: Cursor,
    count: int,
    *,
    alignment: int,
    file_bytes: int,
    wanted: Callable[[str], bool] = lambda _: True,
) -> tuple[tuple[Tensor, ...], int]:
    """The wanted tensors in file order, and where the data begins. Every one must lie in the file."""
    entries: dict[str, _Entry] = {}
    furthest, furthest_name = -1, ""
    for name, entry in _entries(cursor, count, alignment, entries):
        if entry.offset + entry.size_bytes > furthest:
            furthest, furthest_name = entry.offset + entry.size_bytes, name
        if wanted(name):
            entries[name] = entry
    # A file without tensors (a vocabulary) need not be padded: gguf.cpp does not ask for it either.
    data_offset = _align(cursor.position, alignment) if count else cursor.position
    tensors = tuple(
        Tensor(name=name, type=kind, shape=shape, size_bytes=size, offset=data_offset + offset)
        for name, (kind, shape, size, offset) in entries.items()
    )
    _check_layout(cursor, tensors, file_bytes)
    _check_end(cursor, furthest_name, data_offset + furthest, file_bytes)
    return tensors, data_offset


def _entries(
    cursor: Cursor, count: int, alignment: int, taken: Container[str]
) -> Iterator[tuple[str, _Entry]]:
    """One line of the directory after another; none is held here."""
    for left in reversed(range(count)):
        cursor.sure_bytes = left * LEAST_ENTRY_BYTES
        cursor.likely_bytes = left * ENTRY_BYTES
        offset = cursor.position
        name = _read_name(cursor, offset)
        if name in taken:
            raise cursor.error(f"tensor {quoted(name)} occurs twice", offset=offset)
        entry = _read_entry(cursor, name)
        if entry.offset % alignment:
            raise cursor.error(
                f"tensor {quoted(name)} does not start on a multiple of {alignment}", offset=offset
            )
        yield name, entry


def _read_name(cursor: Cursor, offset: int) -> str:
    length = cursor.u64()
    cursor.check_limit("length of a tensor's name", length, limits.NAME_BYTES)
    name = cursor.take(length)
    try:
        return name.decode()
    except UnicodeDecodeError as error:  # names are looked up, so they must be right
        raise cursor.error(f"tensor name {quoted(name)} is not UTF-8", offset=offset) from error


def _read_entry(cursor: Cursor, name: str) -> _Entry:
    offset = cursor.position
    dimensions = cursor.u32()
    if dimensions > limits.DIMENSIONS:  # the words cost more than the check: 49,152 times
        cursor.check_limit(f"tensor {quoted(name)}: dimensions", dimensions, limits.DIMENSIONS)
    *shape, type_id, data_offset = cursor.whole_numbers(f"{dimensions}QIQ")
    try:
        kind = by_ggml_id(type_id)
        size_bytes = _size_bytes(kind, shape)
    except UnknownDtypeError as error:
        what = f"tensor {quoted(name)}: {error.what}"
        raise UnknownDtypeError(what, file=cursor.name, offset=offset) from error
    except HeaderError as error:
        raise cursor.error(f"tensor {quoted(name)}: {error.what}", offset=offset) from error
    return _Entry(kind, tuple(reversed(shape)), size_bytes, data_offset)


def _size_bytes(kind: TensorType, shape: list[int]) -> int:
    """GGUF writes the innermost dimension first: that is the row."""
    rows = 1
    for dimension in shape[1:]:
        rows *= dimension
    row = shape[0] if shape else 1
    if max(row, 1) * rows > limits.ELEMENTS or max(shape, default=0) > limits.ELEMENTS:
        raise HeaderError(f"{' x '.join(map(str, shape))} elements overflow an int64")
    return kind.row_bytes(row) * rows


def _align(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _check_layout(cursor: Cursor, tensors: tuple[Tensor, ...], file_bytes: int) -> None:
    """No tensor lies on another, or beyond the file."""
    end, before = 0, ""
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.size_bytes)):
        if tensor.offset < end:
            raise cursor.error(
                f"tensor {quoted(tensor.name)} overlaps tensor {quoted(before)}",
                offset=tensor.offset,
            )
        end, before = tensor.offset + tensor.size_bytes, tensor.name
        _check_end(cursor, before, end, file_bytes)


def _check_end(cursor: Cursor, name: str, end: int, file_bytes: int) -> None:
    if end > file_bytes:
        raise cursor.error(
            f"file is truncated: tensor {quoted(name)} ends at byte {end:,}, but the file "
            f"has {file_bytes:,} bytes (an interrupted download?)"
        )
