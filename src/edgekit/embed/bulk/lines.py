"""A file, a gzip file or a pipe -> lines of a bounded length, each with the byte where the next one begins."""

from __future__ import annotations

import os
import stat
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from edgekit.embed.bulk.types import RowLimit
from edgekit.errors import NotFoundError, SourceError, UsageError

if TYPE_CHECKING:
    from gzip import GzipFile

STDIN = "-"

_BOM = b"\xef\xbb\xbf"
_PIECE_BYTES = 64 * 1024


class Line(NamedTuple):
    data: bytes | None  # without a BOM; None: longer than the limit
    end: int
    quoted: bool = False  # of one that is too long: whether there is a quote in it


class Lines:
    """A seekable input. Offsets are those of the text: in a gzip file, of what it unpacks to."""

    def __init__(self, path: Path, limit: RowLimit, *, packed: bool) -> None:
        self.limit = limit
        self.name = str(path)
        self._raw = open_input(path)
        self._before = os.fstat(self._raw.fileno())
        self._stream: IO[bytes] | GzipFile = self._raw
        if packed:
            import gzip

            self._stream = gzip.GzipFile(fileobj=self._raw, mode="rb")

    @property
    def identity(self) -> dict[str, Any]:
        return file_identity(self._before)

    def from_position(self, position: int) -> Iterator[Line]:
        """Lines from there on. SourceError when the disk or the packing ends it."""
        try:
            self._stream.seek(position)
            yield from _lines(self._stream, position, self.limit.row_bytes, lambda _: None)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SourceError(f"reading {self.name} failed: {reason}") from error

    def later(self, lines: Iterator[Line], position: int) -> Iterator[Line]:  # noqa: ARG002 - a file seeks
        """What follows at `position`, some `lines` after the ones already taken."""
        return self.from_position(position)

    def digest(self, position: int) -> str | None:  # noqa: ARG002 - a file is known by its inode and times
        return None

    def share(self, position: int) -> float | None:
        if self._stream is not self._raw:  # what it unpacks to is known at its end alone
            position = self._raw.tell()
        return position / self._before.st_size if self._before.st_size else 1.0

    def check_unchanged(self) -> None:
        check_same(self.name, self._before, self._raw.fileno())

    def close(self) -> None:
        self._stream.close()
        self._raw.close()


class PipeLines:
    """Standard input. It cannot go back: a job that goes on reads the beginning again and compares its hash."""

    name = "standard input"

    def __init__(self, stream: IO[bytes], limit: RowLimit) -> None:
        import hashlib  # not needed by a job that reads a file: 3 MiB with OpenSSL

        self.limit = limit
        self._stream = stream
        self._hash = hashlib.sha256()  # of the hashes of the lines before the last mark
        self._unmarked: deque[tuple[int, bytes]] = deque()

    @property
    def identity(self) -> dict[str, Any]:
        return {"pipe": True}

    def from_position(self, position: int) -> Iterator[Line]:
        return self.later(self._lines(), position)

    def later(self, lines: Iterator[Line], position: int) -> Iterator[Line]:
        reached = 0
        for line in lines if position else ():
            reached = line.end
            self.digest(reached)
            if reached >= position:
                break
        if reached < position:
            raise SourceError(
                f"standard input ends after {reached:,} bytes, but the unfinished job had "
                f"read {position:,}: give it the same input again, or --overwrite"
            )
        return lines

    def _lines(self) -> Iterator[Line]:
        for line, hashed in _hashed_lines(self._stream, self.limit.row_bytes):
            self._unmarked.append((line.end, hashed))
            yield line

    def digest(self, position: int) -> str:
        while self._unmarked and self._unmarked[0][0] <= position:
            self._hash.update(self._unmarked.popleft()[1])
        return self._hash.hexdigest()

    def share(self, position: int) -> None:  # noqa: ARG002 - nobody knows how much will come
        return None

    def check_unchanged(self) -> None:
        """What came through a pipe cannot change."""

    def close(self) -> None:
        """The stream is not ours."""


def open_lines(reference: str, limit: RowLimit, *, packed: bool) -> Lines | PipeLines:
    if reference != STDIN:
        return Lines(Path(reference), limit, packed=packed)
    if sys.stdin is None:
        raise UsageError("standard input is closed")
    return PipeLines(sys.stdin.buffer, limit)


def file_identity(status: os.stat_result) -> dict[str, Any]:
    return {
        "size_bytes": status.st_size,
        "modified_ns": status.st_mtime_ns,
        "inode": status.st_ino,
    }


def check_same(name: str, before: os.stat_result, descriptor: int) -> None:
    now = os.fstat(descriptor)
    if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise SourceError(
            f"{name} changed while it was being read, so the vectors do not match any one "
            "version of it: start again with --overwrite when nothing writes to it"
        )


def open_input(path: Path) -> IO[bytes]:
    try:
        if path.is_fifo():  # without a writer, opening it would not end
            raise UsageError(f"{path} is a pipe: pipe it in with --input -")
        file = path.open("rb")
    except IsADirectoryError as error:
        raise UsageError(f"{path} is a folder: name a file") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise NotFoundError(f"{path} cannot be read: {reason}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UsageError(f"{path} is not a regular file: pipe it in with --input -")
    return file


def _lines(
    stream: IO[bytes] | GzipFile, position: int, row_bytes: int, tell: Callable[[bytes], None]
) -> Iterator[Line]:
    """`tell` is told every piece that was read before its line is handed out."""
    while raw := stream.readline(row_bytes + 1):
        tell(raw)
        first, position = position == 0, position + len(raw)
        if len(raw) <= row_bytes or raw.endswith(b"\n"):
            yield Line(raw.removeprefix(_BOM) if first else raw, position)
            continue
        quoted = b'"' in raw
        del raw  # what follows may take its place
        while more := stream.readline(_PIECE_BYTES):
            tell(more)
            position += len(more)
            quoted = quoted or b'"' in more
            if more.endswith(b"\n"):
                break
        yield Line(None, position, quoted)


def _hashed_lines(stream: IO[bytes], row_bytes: int) -> Iterator[tuple[Line, bytes]]:
    """With the hash of each, so that of a line nothing else has to be kept."""
    import hashlib

    pieces = hashlib.sha256()

    def tell(piece: bytes) -> None:
        pieces.update(piece)

    for line in _lines(stream, 0, row_bytes, tell):
        yield line, pieces.digest()
        pieces = hashlib.sha256()
