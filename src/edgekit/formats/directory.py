"""Turns the tensor directory of a GGUF file into tensors, each checked against the file."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import NamedTuple

from edgekit.errors import HeaderError, UnknownDtypeError
from edgekit.formats import limits
from edgekit.formats.cursor import Cursor
from edgekit.formats.dtype import TensorType, by_ggml_id
from edgekit.formats.quoting import quoted
from edgekit.formats.types import Tensor

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
