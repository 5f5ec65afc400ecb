"""The pages of a Parquet column -> how many bytes the largest unpacks to, before any is unpacked.

A page is unpacked whole, and a few kilobytes may unpack to gigabytes. Its head says how many, in Thrift's compact form:
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from typing import IO

HEAD_BYTES = (
    64 * 1024
)  # real ones have some dozen bytes, or a few KB with the least and the greatest value
MOST_DEEP = 16

_UNPACKED, _PACKED = 2, 3  # fields of a page's head
_BOOLEANS, _INTEGERS = (1, 2), (4, 5, 6)
_BYTE, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = 3, 7, 8, (9, 10), 11, 12


class PageError(Exception):
    """What is no head of a page."""


def largest_page_bytes(file: IO[bytes], begin: int, end: int) -> int:
    """Of the pages that lie between the two offsets, packed or unpacked. PageError, OSError."""
    largest = 0
    while begin < end:
        file.seek(begin)
        head = _Head(file.read(min(HEAD_BYTES, end - begin)))
        unpacked, packed = head.sizes()
        largest = max(largest, unpacked, packed)
        begin += head.at + packed
    return largest


class _Head:
    """A struct, read once from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def sizes(self) -> tuple[int, int]:
        """Unpacked and packed, without the head itself."""
        try:
            found = self._struct(0)
        except IndexError as error:
            raise PageError("the head of a page is cut off") from error
        unpacked, packed = found.get(_UNPACKED, -1), found.get(_PACKED, -1)
        if min(unpacked, packed) < 0:
            raise PageError("a page without a size")
        return unpacked, packed

    def _struct(self, deep: int) -> dict[int, int]:
        """Its whole numbers, by the number of the field."""
        found: dict[int, int] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            if kind in _INTEGERS:
                found[field] = self._integer()
            elif kind not in _BOOLEANS:
                self._pass_over(kind, deep + 1)
        return found

    def _pass_over(self, kind: int, deep: int) -> None:
        if deep > MOST_DEEP:
            raise PageError("the head of a page is nested too deeply")
        if kind in _INTEGERS:
            self._integer()
        elif kind == _STRUCT:
            self._struct(deep)
        elif kind in _LISTS:
            head = self._byte()
            count = self._natural() if head >> 4 == 15 else head >> 4
            self._pass_over_all(count, (head & 15,), deep)
        elif kind == _MAP:
            if count := self._natural():
                kinds = self._byte()
                self._pass_over_all(count, (kinds >> 4, kinds & 15), deep)
        else:
            self._skip(self._length(kind))

    def _pass_over_all(self, count: int, kinds: tuple[int, ...], deep: int) -> None:
        if count > len(self._data):  # each has a byte at least
            raise PageError("the head of a page has more entries than bytes")
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
        raise PageError(f"the head of a page has a field of the unknown kind {kind}")

    def _skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self._data):
            raise PageError("the head of a page is cut off, or too long")

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
                raise PageError("a number that does not end")

    def _integer(self) -> int:
        value = self._natural()
        return (value >> 1) ^ -(value & 1)
