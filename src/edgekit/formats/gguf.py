"""Turns the bytes of one GGUF file into its keys and its tensor directory.

Format: docs/formats.md, and https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
Where that leaves a choice, ours is that of ggml/src/gguf.cpp, llama.cpp @ b21e4de.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from edgekit.formats import limits
from edgekit.formats.cursor import BeyondReachError, Cursor
from edgekit.formats.directory import ENTRY_BYTES, LEAST_ENTRY_BYTES, read_directory
from edgekit.formats.lookalikes import LOOK_BYTES, describe
from edgekit.formats.quoting import quoted
from edgekit.formats.types import ArrayFact, Depth, Tensor, Value
from edgekit.formats.values import LEAST_KEY_BYTES, Shelf, read_key, read_value
from edgekit.sources.types import ByteSource

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
