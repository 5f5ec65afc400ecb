"""GGUF: the keys and the tensor directory of a model in one file or many.

Format: docs/formats.md, and https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
Where the specification leaves a choice, this follows ggml/src/gguf.cpp, llama.cpp @ b21e4de.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

from edgekit.errors import HeaderError, UnknownDtypeError, check_limit, quoted
from edgekit.formats import limits
from edgekit.formats.cursor import (
    LOOK_BYTES,
    BeyondReachError,
    Cursor,
    describe,
    listed_bytes,
    read_shards,
)
from edgekit.formats.dtype import TensorType, by_ggml_id
from edgekit.formats.types import ArrayFact, Depth, ModelHeader, Scalar, Tensor, Value
from edgekit.sources.types import ByteSource, Container, ModelFiles

MAGIC = b"GGUF"
NEWEST_VERSION = 3
DEFAULT_ALIGNMENT = 32

# Minimum and typical sizes of the entries that are still to be read.
LEAST_KEY_BYTES = 8 + 1 + 4 + 1  # length, key, type, value
LEAST_ENTRY_BYTES = 8 + 0 + 4 + 0 + 4 + 8  # length, name, dimensions, shape, type, offset
ENTRY_BYTES = 64  # 57 to 60 in real files

# Keys that tools/gguf-split writes: the shard's number from 0, the number of shards and of all tensors.
SHARD_NUMBER, SHARD_COUNT, ALL_TENSORS = "split.no", "split.count", "split.tensors.count"


def read_gguf_model(files: ModelFiles, depth: Depth) -> ModelHeader:
    """All shards as one header. Depth.ARCHITECTURE reads only the first shard of a remote model."""
    if not files.weights:
        raise HeaderError("there is no GGUF file to read", file=files.label)

    def read(source: ByteSource, _: int) -> ModelHeader:
        return read_gguf(source, depth)

    (first,) = read_shards(files, [0], read)
    other_shards = range(1, len(files.weights))
    if other_shards and depth is Depth.ARCHITECTURE and files.origin.is_remote:
        _check_shard_count(first, len(files.weights))
        stated = first.keys.get(ALL_TENSORS)
        header = replace(
            first,
            tensors=None,
            tensor_count=stated if isinstance(stated, int) else None,
            tensor_bytes=None,
            file_bytes=listed_bytes(files),
            header_bytes=None,
        )
    else:
        header = _join_shards([first, *read_shards(files, other_shards, read)])
    return replace(header, name=files.label)


def read_gguf(source: ByteSource, depth: Depth = Depth.TENSORS) -> ModelHeader:
    """The header of one file.

    Depth.ARCHITECTURE on a remote source stops before the next request once the architecture is
    known. A local file is always read to the end of its header, which takes milliseconds.
    """
    cursor = Cursor(source)
    start = read_start(cursor, source)
    store = KeyStore()
    if depth is Depth.ARCHITECTURE:
        cursor.may_fetch = lambda: not _knows_architecture(store)
    complete, tensors, header_bytes = False, None, None
    try:
        read_keys(cursor, start, store)
        complete = True
        tensors, header_bytes = read_directory(
            cursor,
            start.tensor_count,
            alignment=alignment_of(cursor, store),
            file_bytes=source.size_bytes,
        )
    except BeyondReachError:
        pass  # the architecture is known
    return ModelHeader(
        name=source.name,
        container=Container.GGUF,
        version=start.version,
        big_endian=start.big_endian,
        keys=store.keys,
        arrays=store.arrays,
        long_strings=store.long_strings,
        tensors=tensors,
        tensor_count=start.tensor_count,
        tensor_bytes=None if tensors is None else sum(tensor.size_bytes for tensor in tensors),
        file_bytes=source.size_bytes,
        header_bytes=header_bytes,
        complete=complete,
    )


# -- the first 24 bytes


class GgufStart(NamedTuple):
    version: int
    big_endian: bool
    tensor_count: int
    key_count: int


def read_start(cursor: Cursor, source: ByteSource) -> GgufStart:
    """Checks the magic and the version, and reads the counts. Switches the cursor to big-endian if the file is."""
    magic = cursor.take(min(len(MAGIC), source.size_bytes))
    if not magic:
        raise cursor.error("the file is empty")
    if not MAGIC.startswith(magic):
        what = describe(source.read(0, min(LOOK_BYTES, source.size_bytes)))
        raise cursor.error(f"not a GGUF file: {what}")
    version = cursor.u32()
    big_endian = version != 0 and version & 0xFFFF == 0  # a small number with its bytes swapped
    if big_endian:
        cursor.set_byte_order(">")
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
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
    tensor_count = cursor.u64()
    cursor.check_limit("number of tensors", tensor_count, limits.TENSORS_PER_FILE)
    key_count = cursor.u64()
    cursor.check_limit("number of keys", key_count, limits.KEYS)
    return GgufStart(version, big_endian, tensor_count, key_count)


# -- keys and values


@dataclass(slots=True)
class KeyStore:
    """The values of one file while it is read, within limits.

    A key that is not `wanted` is read like any other but not stored. Values that would exceed a
    limit are skipped and noted in `arrays` or `long_strings`.
    """

    wanted: Callable[[str], bool] = lambda _: True
    max_bytes: int = limits.STORED_BYTES
    max_string_bytes: int = limits.STORED_STRING_BYTES
    max_numbers: int = limits.STORED_NUMBERS
    keys: dict[str, Value] = field(default_factory=dict)
    arrays: dict[str, ArrayFact] = field(default_factory=dict)
    long_strings: dict[str, int] = field(default_factory=dict)
    reading: str | None = None  # the key whose value comes next; None outside the keys
    is_wanted: bool = True  # whether that key is wanted
    stored_bytes: int = 0
    strings_walked: int = 0

    def __contains__(self, key: str) -> bool:
        return key in self.keys or key in self.arrays or key in self.long_strings

    def begin(self, key: str) -> None:
        """Called before the value of `key` is read."""
        self.reading = key
        self.is_wanted = self.wanted(key)

    def reserve(self, size_bytes: int) -> bool:
        """Counts these bytes of the value being read; False if it is not wanted or would exceed the limit."""
        if self.is_wanted:
            self.stored_bytes += size_bytes
        return self.is_wanted and self.stored_bytes <= self.max_bytes

    def store(self, key: str, value: Value) -> None:
        if self.is_wanted:
            self.keys[key] = value

    def note_string(self, key: str, length: int) -> None:
        if self.is_wanted:
            self.long_strings[key] = length

    def note_array(self, key: str, element: str, count: int, *, offset: int, end: int = 0) -> None:
        if self.is_wanted:
            self.arrays[key] = ArrayFact(element=element, count=count, offset=offset, end=end)


_STRING, _ARRAY, _BOOL = 8, 9, 7

# enum gguf_type in ggml/include/gguf.h: id -> (name, struct code, bytes); 8 and 9 have no fixed size
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


def read_keys(cursor: Cursor, start: GgufStart, store: KeyStore) -> None:
    """Every key with its value, into the store."""
    cursor.likely_left_bytes = start.tensor_count * ENTRY_BYTES
    for left in reversed(range(start.key_count)):
        cursor.min_left_bytes = left * LEAST_KEY_BYTES + start.tensor_count * LEAST_ENTRY_BYTES
        offset = cursor.position
        key = _read_name(cursor, "key", "length of a key", limits.KEY_BYTES)
        if not key:
            raise cursor.error("a key is empty", offset=offset)
        if key in store:
            raise cursor.error(f"key {quoted(key)} occurs twice", offset=offset)
        store.begin(key)
        value_type = cursor.u32()
        if value_type == _STRING:
            _read_string(cursor, key, store)
        elif value_type == _ARRAY:
            _read_array(cursor, key, store)
        else:
            store.store(key, _read_numbers(cursor, key, value_type, 1)[0])
    store.reading = None


def _knows_architecture(store: KeyStore) -> bool:
    """Whether all keys of the architecture were read: converters write them together, then the vocabulary."""
    architecture = store.keys.get("general.architecture")
    has_layer_count = (
        f"{architecture}.block_count" in store.keys or "llama.block_count" in store.keys
    )
    is_past_architecture = store.reading is None or store.reading.startswith("tokenizer.")
    return architecture is not None and has_layer_count and is_past_architecture


def alignment_of(cursor: Cursor, store: KeyStore) -> int:
    """general.alignment, on whose multiples tensors start."""
    value = store.keys.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(value) is not int or value <= 0 or value & (value - 1):
        raise cursor.error(f"general.alignment is {quoted(value)}, not a power of two")
    return value


def _read_name(cursor: Cursor, what: str, what_length: str, limit: int) -> str:
    """A key or the name of a tensor. Invalid UTF-8 is an error, because these are looked up."""
    offset = cursor.position
    length = cursor.u64()
    cursor.check_limit(what_length, length, limit)
    name = cursor.take(length)
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise cursor.error(f"{what} {quoted(name)} is not UTF-8", offset=offset) from error


def _read_string(cursor: Cursor, key: str, store: KeyStore) -> None:
    """Stores a string value; one that is too long is skipped and noted."""
    length = cursor.u64()
    if length > store.max_string_bytes or not store.reserve(length):
        cursor.skip(length)
        store.note_string(key, length)
    else:
        # Invalid UTF-8 is replaced, because values are displayed and not looked up.
        value = cursor.take(length).decode(errors="replace")
        if not value.isascii():
            # A single wide character makes Python use four bytes for every character.
            store.reserve(3 * length)
        store.store(key, value)


def _read_numbers(cursor: Cursor, key: str, value_type: int, count: int) -> tuple[Scalar, ...]:
    """The next `count` numbers of one type; HeaderError for a type or a bool that GGUF does not have."""
    offset = cursor.position
    _, code, _ = _number_type(cursor, key, value_type)
    values = cursor.numbers(f"{count}{code}")
    if value_type != _BOOL:
        return values
    for value in values:
        if value not in (0, 1):
            raise cursor.error(f"{quoted(key)}: {value} is not a bool", offset=offset)
    return tuple(bool(value) for value in values)


def _number_type(cursor: Cursor, key: str, value_type: int) -> tuple[str, str, int]:
    """The name, struct code and size of a number; HeaderError for an unknown type."""
    row = _NUMBERS.get(value_type)
    if row is None:
        raise cursor.error(
            f"{quoted(key)}: value type {value_type} is not one of the 13 that GGUF has",
            offset=cursor.position,
        )
    return row


def _read_array(cursor: Cursor, key: str, store: KeyStore) -> None:
    """Stores a short array of numbers; a long one, or one of the vocabulary, is skipped and noted."""
    offset = cursor.position
    value_type, count = cursor.u32(), cursor.u64()
    if value_type == _ARRAY:
        raise cursor.error(f"{quoted(key)}: arrays of arrays are not supported", offset=offset)
    if value_type == _STRING:
        _read_string_array(cursor, key, count, store)
        return
    name, _, size = _number_type(cursor, key, value_type)
    is_small = count <= store.max_numbers and not key.startswith("tokenizer.")
    if is_small and store.reserve(count * _NUMBER_COST_BYTES):
        store.store(key, _read_numbers(cursor, key, value_type, count))
    else:
        begin = cursor.position
        store.note_array(key, name, count, offset=begin, end=begin + count * size)
        cursor.skip(count * size)


def _read_string_array(cursor: Cursor, key: str, count: int, store: KeyStore) -> None:
    """Stores a short array such as general.tags, unless one of its strings is long."""
    store.strings_walked += count
    cursor.check_limit(f"{quoted(key)}: array length", store.strings_walked, limits.STRINGS_WALKED)
    begin = cursor.position
    is_small = count <= limits.STORED_STRINGS and not key.startswith("tokenizer.")
    if not is_small or not store.reserve(count * _NUMBER_COST_BYTES):
        # The count is noted first: it is known even if the walk stops half-way.
        store.note_array(key, "string", count, offset=begin)
        cursor.skip_strings(count)
        store.note_array(key, "string", count, offset=begin, end=cursor.position)
        return
    texts: list[str] = []
    for _ in range(count):
        length = cursor.u64()
        if length <= limits.STORED_ENTRY_BYTES and store.reserve(length):
            texts.append(cursor.take(length).decode(errors="replace"))
        else:
            cursor.skip(length)
    if len(texts) == count:
        store.store(key, tuple(texts))
    else:
        store.note_array(key, "string", count, offset=begin, end=cursor.position)


# -- the tensor directory


class _Entry(NamedTuple):
    """A tensor whose position in the file is only known after the last entry."""

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
    """The wanted tensors in file order, and the offset of the data. Every tensor must be inside the file."""
    entries: dict[str, _Entry] = {}
    last_end, last_name = -1, ""
    for left in reversed(range(count)):
        cursor.min_left_bytes = left * LEAST_ENTRY_BYTES
        cursor.likely_left_bytes = left * ENTRY_BYTES
        offset = cursor.position
        name = _read_name(cursor, "tensor name", "length of a tensor's name", limits.NAME_BYTES)
        if name in entries:
            raise cursor.error(f"tensor {quoted(name)} occurs twice", offset=offset)
        entry = _read_entry(cursor, name)
        if entry.offset % alignment:
            raise cursor.error(
                f"tensor {quoted(name)} does not start on a multiple of {alignment}", offset=offset
            )
        end = entry.offset + entry.size_bytes
        if end > last_end:
            last_end, last_name = end, name
        if wanted(name):
            entries[name] = entry
    # A file without tensors (a vocabulary) need not be padded: gguf.cpp does not require it either.
    data_offset = cursor.position
    if count:
        data_offset = -(-data_offset // alignment) * alignment  # rounded up
    tensors = tuple(
        Tensor(name=name, type=kind, shape=shape, size_bytes=size, offset=data_offset + offset)
        for name, (kind, shape, size, offset) in entries.items()
    )
    _check_layout(cursor, tensors, file_bytes)
    # The tensor that ends last may be one that is not wanted, and so not in `tensors`.
    _check_end(cursor, last_name, data_offset + last_end, file_bytes)
    return tensors, data_offset


def _read_entry(cursor: Cursor, name: str) -> _Entry:
    """The directory entry of one tensor, after its name."""
    offset = cursor.position
    dimensions = cursor.u32()
    if dimensions > limits.DIMENSIONS:  # building the message for up to 49,152 tensors is slow
        cursor.check_limit(f"tensor {quoted(name)}: dimensions", dimensions, limits.DIMENSIONS)
    *shape, type_id, data_offset = cast("tuple[int, ...]", cursor.numbers(f"{dimensions}QIQ"))
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
    """Bytes of a tensor; in a GGUF shape the innermost dimension, the row, comes first."""
    rows = math.prod(shape[1:])
    row = shape[0] if shape else 1
    if max(row, 1) * rows > limits.ELEMENTS or max(shape, default=0) > limits.ELEMENTS:
        raise HeaderError(f"{' x '.join(map(str, shape))} elements overflow an int64")
    return kind.row_bytes(row) * rows


def _check_layout(cursor: Cursor, tensors: tuple[Tensor, ...], file_bytes: int) -> None:
    """Raises HeaderError if tensors overlap or extend beyond the file."""
    end, previous = 0, ""
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.size_bytes)):
        if tensor.offset < end:
            raise cursor.error(
                f"tensor {quoted(tensor.name)} overlaps tensor {quoted(previous)}",
                offset=tensor.offset,
            )
        end, previous = tensor.offset + tensor.size_bytes, tensor.name
        _check_end(cursor, previous, end, file_bytes)


def _check_end(cursor: Cursor, name: str, end: int, file_bytes: int) -> None:
    """Raises HeaderError if the tensor ends beyond the file."""
    if end > file_bytes:
        raise cursor.error(
            f"file is truncated: tensor {quoted(name)} ends at byte {end:,}, but the file "
            f"has {file_bytes:,} bytes (an interrupted download?)"
        )


# -- shards


def _join_shards(shards: Sequence[ModelHeader]) -> ModelHeader:
    """The keys of the first shard and the tensors of all, in order. HeaderError if they do not belong together."""
    first = shards[0]
    _check_shard_count(first, len(shards))
    if len(shards) == 1:
        return first
    for index, shard in enumerate(shards):
        _check_shard(first, shard, index)
    tensors = tuple(
        replace(tensor, shard=index)
        for index, shard in enumerate(shards)
        for tensor in shard.tensors or ()
    )
    _check_tensors(first, [tensor.name for tensor in tensors])
    return replace(
        first,
        tensors=tensors,
        tensor_count=len(tensors),
        tensor_bytes=sum(tensor.size_bytes for tensor in tensors),
        file_bytes=sum(shard.file_bytes or 0 for shard in shards),
        header_bytes=sum(shard.header_bytes or 0 for shard in shards),
    )


def _check_shard_count(first: ModelHeader, file_count: int) -> None:
    """Raises HeaderError if the first shard states another number of shards than there are files."""
    # split.count is the last key, so a header that was not read to its end may not have it.
    count = first.keys.get(SHARD_COUNT, 1 if first.complete else file_count) or 1
    if count != file_count:
        number = first.keys.get(SHARD_NUMBER)
        which = f"shard {number + 1}" if isinstance(number, int) else "a file"
        raise HeaderError(
            f"this is {which} of {quoted(count)}, but {file_count} were found; put all shards "
            "in one folder and name the first",
            file=first.name,
        )


def _check_shard(first: ModelHeader, shard: ModelHeader, index: int) -> None:
    """Raises HeaderError if a shard has another number than `index`, or belongs to another model than the first."""
    number = shard.keys.get(SHARD_NUMBER)
    if number != index:
        kind = f"shard {number + 1}" if isinstance(number, int) else "not a shard"
        raise HeaderError(
            f"shard {index + 1} was expected here, but the file is {kind}; was one shard "
            "given twice?",
            file=shard.name,
        )
    for key in (SHARD_COUNT, ALL_TENSORS, "general.architecture", "general.name"):
        expected, actual = first.keys.get(key), shard.keys.get(key)
        if actual is not None and actual != expected:
            raise HeaderError(
                f"belongs to another model: {key} is {quoted(actual)}, but {quoted(expected)} "
                "in the first shard",
                file=shard.name,
            )


def _check_tensors(first: ModelHeader, names: list[str]) -> None:
    """Raises HeaderError if a tensor is in two shards, or if the first shard states another number of tensors."""
    check_limit("tensors in all shards", len(names), limits.TENSORS, file=first.name)
    known: set[str] = set()
    for name in names:
        if name in known:
            raise HeaderError(f"tensor {quoted(name)} is in two shards", file=first.name)
        known.add(name)
    stated = first.keys.get(ALL_TENSORS, len(names))
    if stated != len(names):
        raise HeaderError(
            f"the shards have {len(names):,} tensors, but the first shard lists {quoted(stated)}",
            file=first.name,
        )
