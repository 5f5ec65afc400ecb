"""A Parquet file's directory, and the sizes of its pages, before any page is unpacked.

A page is unpacked whole, and a few kilobytes may unpack to gigabytes; its head says how many. pyarrow shows the
directory too, but ends the process (std::terminate) on some that are damaged. Both are in Thrift's compact form:
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md, with the fields of
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from edgekit.units import MIB

HEAD_BYTES = (
    64 * 1024
)  # real ones have some dozen bytes, or a few KB with the least and the greatest value
DIRECTORY_BYTES = 64 * MIB  # 100,000 column chunks with statistics have about 20
MOST_ENTRIES = (
    2_000_000  # of lists that are held: row groups, their columns, and parts of columns' names
)
MOST_DEEP = 16

_UNPACKED, _PACKED = 2, 3  # fields of a page's head
_BOOLEANS, _INTEGERS = (1, 2), (4, 5, 6)
_BYTE, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = 3, 7, 8, (9, 10), 11, 12

Wanted = Mapping[int, "Wanted"]
"""Fields of a struct that are not whole numbers, and are to be read; of a list, the fields of its entries."""
_ROW_GROUPS, _COLUMNS, _ROWS = 4, 1, 3
_META_DATA, _PATH, _SIZE, _DATA_OFFSET, _DICTIONARY_OFFSET = 3, 3, 7, 9, 11
_DIRECTORY: Wanted = {_ROW_GROUPS: {_COLUMNS: {_META_DATA: {_PATH: {}}}}}
_MAGIC = b"PAR1"


class PageError(Exception):
    """The head of a page, or the directory of a file, is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    rows: int
    extents: Mapping[
        str, tuple[int, int]
    ]  # of each column that was asked for: where its pages begin and end


def read_directory(file: IO[bytes], columns: frozenset[str]) -> tuple[RowGroup, ...]:
    """The row groups of a file, each with these columns. PageError, OSError."""
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(size_bytes - 8, 0))
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != _MAGIC or length > size_bytes - 8:
        raise PageError("it has no footer")
    if length > DIRECTORY_BYTES:
        raise PageError(f"a footer of {length:,} bytes is over the limit of {DIRECTORY_BYTES:,}")
    file.seek(size_bytes - 8 - length)
    found = Compact(file.read(length)).read(_DIRECTORY)
    return tuple(_row_group(one, columns) for one in _list(found, _ROW_GROUPS))


def _row_group(stated: object, columns: frozenset[str]) -> RowGroup:
    extents = {}
    for chunk in _list(stated, _COLUMNS):
        known = chunk.get(_META_DATA) if isinstance(chunk, dict) else None
        path = ".".join(
            part.decode(errors="replace") for part in _list(known, _PATH) if isinstance(part, bytes)
        )
        if isinstance(known, dict) and path in columns:
            begin = known.get(_DATA_OFFSET, -1)
            if (dictionary := known.get(_DICTIONARY_OFFSET, 0)) > 0:  # its page is the first
                begin = min(begin, dictionary)
            extents[path] = (begin, begin + known.get(_SIZE, -1))
    for name in columns:
        if name not in extents:
            raise PageError(f"a row group has no column {name!r}")
        begin, end = extents[name]
        if not 0 <= begin <= end:
            raise PageError(f"the column {name!r} ends before it starts")
    rows = stated.get(_ROWS, -1) if isinstance(stated, dict) else -1
    if rows < 0:
        raise PageError("a row group without a row count")
    return RowGroup(rows=rows, extents=extents)


def _list(struct: object, field: int) -> list[Any]:
    found = struct.get(field) if isinstance(struct, dict) else None
    return found if isinstance(found, list) else []


def largest_page_bytes(file: IO[bytes], begin: int, end: int) -> int:
    """Of the pages between the two offsets, packed or unpacked. PageError, OSError."""
    largest = 0
    while begin < end:
        file.seek(begin)
        head = Compact(file.read(min(HEAD_BYTES, end - begin)))
        found = head.read({})
        unpacked, packed = found.get(_UNPACKED, -1), found.get(_PACKED, -1)
        if min(unpacked, packed) < 0:
            raise PageError("a page without a size")
        largest = max(largest, unpacked, packed)
        begin += head.at + packed
    return largest


class Compact:
    """A struct in Thrift's compact form, read once from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._entries = 0
        self.at = 0

    def read(self, wanted: Wanted) -> dict[int, Any]:
        """Its whole numbers and what is wanted of the rest, by the number of the field."""
        try:
            return self._struct(0, wanted)
        except IndexError as error:
            raise PageError("it is cut off") from error

    def _struct(self, deep: int, wanted: Wanted) -> dict[int, Any]:
        found: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            if kind in _INTEGERS:
                found[field] = self._integer()
            elif field in wanted:
                found[field] = self._value(kind, deep + 1, wanted[field])
            elif kind not in _BOOLEANS:
                self._pass_over(kind, deep + 1)
        return found

    def _value(self, kind: int, deep: int, wanted: Wanted) -> Any:
        if kind == _STRUCT and deep <= MOST_DEEP:
            return self._struct(deep, wanted)
        if kind == _BINARY:
            length = self._natural()
            self._skip(length)
            return self._data[self.at - length : self.at]
        if kind in _LISTS and deep <= MOST_DEEP:
            count, inner = self._list_head()
            self._entries += count
            if self._entries > MOST_ENTRIES:
                raise PageError(f"it has more than {MOST_ENTRIES:,} entries")
            return [self._value(inner, deep + 1, wanted) for _ in range(count)]
        if kind not in _BOOLEANS:
            self._pass_over(kind, deep)
        return None

    def _list_head(self) -> tuple[int, int]:
        """How many, and of which kind."""
        head = self._byte()
        count = self._natural() if head >> 4 == 15 else head >> 4
        if count > len(self._data):  # each has a byte at least
            raise PageError("it has more entries than bytes")
        return count, head & 15

    def _pass_over(self, kind: int, deep: int) -> None:
        if deep > MOST_DEEP:
            raise PageError("it is nested too deeply")
        if kind in _INTEGERS:
            self._integer()
        elif kind == _STRUCT:
            self._struct(deep, {})
        elif kind in _LISTS:
            count, inner = self._list_head()
            self._pass_over_all(count, (inner,), deep)
        elif kind == _MAP:
            if count := self._natural():
                kinds = self._byte()
                self._pass_over_all(count, (kinds >> 4, kinds & 15), deep)
        else:
            self._skip(self._length(kind))

    def _pass_over_all(self, count: int, kinds: tuple[int, ...], deep: int) -> None:
        if count > len(self._data):  # each has a byte at least
            raise PageError("it has more entries than bytes")
        for _ in range(count):
            for kind in kinds:
                self._pass_over(kind, deep + 1)

    def _length(self, kind: int) -> int:
        if kind == _BINARY:
            return self._natural()
        if kind in (*_BOOLEANS, _BYTE):
            return 1
        if kind == _DOUBLE:
            return 8
        raise PageError(f"it has a field of unknown type {kind}")

    def _skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self._data):
            raise PageError("it is cut off, or too long")

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _natural(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise PageError("an unterminated number")

    def _integer(self) -> int:
        value = self._natural()
        return (value >> 1) ^ -(value & 1)
