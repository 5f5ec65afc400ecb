"""The rows of a bulk job: their limits, the batches they form, the marks of a job, and the lines they are read from.

`Lines` reads a file and `PipeLines` reads standard input, both with a limit on the length of a line. readers.py makes
rows of lines.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import sys
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from edgekit.errors import NotFoundError, SourceError, UsageError
from edgekit.units import KIB, MB, format_bytes

if TYPE_CHECKING:
    from edgekit.engines.native.kernels.types import Floats


Id = str | int

STDIN = "-"
MOST_ROW_BYTES = 8 * MB  # a text at its limit of 4 MB, and as much again for the other fields
LEAST_ROW_BYTES = 256 * KIB

# The longest row may take 1/128 of the budget, because up to 16 times its length is in memory while it is read: its
# bytes, its text with 4 bytes per character, its tokens and its parsed fields.
_ROWS_IN_BUDGET = 128
_COPIES = 16
_BOM = b"\xef\xbb\xbf"
_PIECE_BYTES = 64 * 1024


def row_bytes_for(budget_bytes: int | None) -> int:
    """The limit on the length of a row, so that all copies of it are a small part of the budget."""
    if budget_bytes is None:
        return MOST_ROW_BYTES
    return min(max(budget_bytes // _ROWS_IN_BUDGET, LEAST_ROW_BYTES), MOST_ROW_BYTES)


def input_bytes_for(budget_bytes: int | None) -> int:
    """An upper bound on the memory for reading the input; 0 without a budget."""
    return 0 if budget_bytes is None else _COPIES * row_bytes_for(budget_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimit:
    """How long a row may be, and the budget that sets this limit."""

    row_bytes: int = MOST_ROW_BYTES
    budget_bytes: int | None = None

    @classmethod
    def of(cls, budget_bytes: int | None) -> RowLimit:
        return cls(row_bytes=row_bytes_for(budget_bytes), budget_bytes=budget_bytes)

    @property
    def held_characters(self) -> int:
        """Limit on the characters of all texts in a batch. A longer text is a batch by itself."""
        return self.row_bytes // 2

    def __str__(self) -> str:
        """'1,187,840 bytes, the row limit for a budget of 145.00 MiB'."""
        if self.budget_bytes is None:
            return f"{self.row_bytes:,} bytes"
        return (
            f"{self.row_bytes:,} bytes, the row limit for a budget of "
            f"{format_bytes(self.budget_bytes)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRow:
    """A text of the input. `number` counts from 1; `end` is the position of the next row."""

    number: int
    text: str
    end: int
    id: Id | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A row that cannot be embedded."""

    number: int
    reason: str
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows that are embedded in one call, the rows skipped between them, and the position after both."""

    rows: tuple[InputRow, ...]
    skipped: tuple[BadRow, ...]
    tokens: int
    number: int  # of the last row
    position: int  # where the next row begins


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeMark:
    """Everything a job needs to resume: up to here all its work is on the disk."""

    number: int = 0  # rows read
    position: int = 0  # where the next row begins: a byte, or a Parquet row
    kept: int = 0  # vectors written
    skipped: int = 0
    tokens: int = 0
    output_bytes: int = 0
    skipped_bytes: int = 0
    digest: str | None = None  # of the input so far, if it is a pipe
    done: bool = False  # all of the input was read


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkStatus:
    """How far a job is, for a progress line and for the report at its end."""

    mark: ResumeMark
    begun: ResumeMark  # where this run began: not at the start if it resumed a job
    seconds: float
    share: float | None = None  # of the input that was read; None if its length is unknown
    share_begun: float | None = None


class RowSource(ABC):
    """An input that is read row by row. It holds one row in memory, or a few of Parquet."""

    name: str
    identity: Mapping[str, Any]  # a job resumes only if this has not changed
    integer_ids = False  # whether every id is known to be a 64-bit integer

    @abstractmethod
    def rows(self, start: ResumeMark) -> Iterator[InputRow | BadRow]:
        """The rows from the mark's number and position on."""

    def digest(self, position: int) -> str | None:  # noqa: ARG002 - for pipes
        """A hash of all bytes before `position`, if `identity` cannot tell inputs apart. Positions only increase."""
        return None

    @abstractmethod
    def share(self, position: int) -> float | None:
        """The share of the input before `position`; None if its length is unknown."""

    def check_unchanged(self) -> None:  # noqa: B027 - for files
        """Raises SourceError if the input was written to while it was read."""

    def close(self) -> None:  # noqa: B027 - for files
        """Idempotent."""


class VectorForm(ABC):
    """An output format that can be appended to: a head, then one batch after another."""

    def head(self) -> bytes:
        return b""

    @abstractmethod
    def encode(self, rows: Sequence[InputRow], vectors: Floats) -> bytes: ...

    def finish(self, partial: Path, vector_count: int) -> Path:  # noqa: ARG002 - for formats with a count
        """Completes the file and returns the path to be renamed. May run again after a kill."""
        return partial


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The fields of a row that hold its text and its id."""

    text: str = "text"
    id: str | None = None


class Line(NamedTuple):
    data: bytes | None  # without a byte order mark; None: longer than the limit
    end: int
    has_quote: bool = False  # whether a line over the limit contains a double quote


class LineSource(RowSource):
    """An input made of lines; `reader` makes rows of them."""

    def __init__(self, limit: RowLimit, reader: Reader) -> None:
        self.limit, self._reader = limit, reader

    def rows(self, start: ResumeMark) -> Iterator[InputRow | BadRow]:
        return self._reader(self, start)

    @abstractmethod
    def from_position(self, position: int) -> Iterator[Line]:
        """The lines from `position` on. Raises SourceError if the input cannot be read or unpacked."""

    @abstractmethod
    def skip_to(self, lines: Iterator[Line], position: int) -> Iterator[Line]:
        """The lines from `position` on, when some have been read. `lines` yields the others."""


Reader = Callable[[LineSource, ResumeMark], Iterator[InputRow | BadRow]]


class Lines(LineSource):
    """Lines of a file. Positions in a gzip file are those of the unpacked text."""

    def __init__(self, path: Path, limit: RowLimit, reader: Reader, *, packed: bool) -> None:
        super().__init__(limit, reader)
        self.name = str(path)
        self._raw = open_input(path)
        self._before = os.fstat(self._raw.fileno())
        self.identity = file_identity(self._before)
        self._stream: IO[bytes] | gzip.GzipFile = self._raw
        if packed:
            self._stream = gzip.GzipFile(fileobj=self._raw, mode="rb")

    def from_position(self, position: int) -> Iterator[Line]:
        try:
            self._stream.seek(position)
            yield from bounded_lines(self._stream, position, self.limit.row_bytes)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SourceError(f"reading {self.name} failed: {reason}") from error

    def skip_to(self, lines: Iterator[Line], position: int) -> Iterator[Line]:  # noqa: ARG002 - a file seeks
        return self.from_position(position)

    def share(self, position: int) -> float | None:
        if self._stream is not self._raw:  # the unpacked size is not known in advance
            position = self._raw.tell()
        return position / self._before.st_size if self._before.st_size else 1.0

    def check_unchanged(self) -> None:
        check_same(self.name, self._before, self._raw.fileno())

    def close(self) -> None:
        self._stream.close()
        self._raw.close()


class PipeLines(LineSource):
    """Lines of standard input. A job that resumes reads the beginning once more and compares its hash.

    The hash of each line is stored until a mark covers the line: then it is added to the hash of everything before.
    """

    name = "standard input"

    def __init__(self, stream: IO[bytes], limit: RowLimit, reader: Reader) -> None:
        super().__init__(limit, reader)
        self.identity = {"pipe": True}
        self._stream = stream
        self._hash = hashlib.sha256()  # of the hashes of the lines before the last mark
        self._unmarked: deque[tuple[int, bytes]] = deque()  # end and hash of later lines

    def from_position(self, position: int) -> Iterator[Line]:
        return self.skip_to(self._lines(), position)

    def skip_to(self, lines: Iterator[Line], position: int) -> Iterator[Line]:
        """The lines from `position` on. Those before it are read too, because the digest covers them."""
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
        """All lines."""
        line_hash = hashlib.sha256()  # replaced after every line

        def update(piece: bytes) -> None:
            line_hash.update(piece)

        for line in bounded_lines(self._stream, 0, self.limit.row_bytes, update):
            self._unmarked.append((line.end, line_hash.digest()))
            line_hash = hashlib.sha256()
            yield line

    def digest(self, position: int) -> str:
        while self._unmarked and self._unmarked[0][0] <= position:
            self._hash.update(self._unmarked.popleft()[1])
        return self._hash.hexdigest()

    def share(self, position: int) -> None:  # noqa: ARG002 - the length of a pipe is unknown
        return None


def open_lines(
    reference: str, limit: RowLimit, reader: Reader, *, packed: bool
) -> Lines | PipeLines:
    """The lines of a file, or of standard input if the reference is "-"."""
    if reference != STDIN:
        return Lines(Path(reference), limit, reader, packed=packed)
    if sys.stdin is None:
        raise UsageError("standard input is closed")
    return PipeLines(sys.stdin.buffer, limit, reader)


def file_identity(status: os.stat_result) -> dict[str, Any]:
    """Figures that change if the file is modified or replaced."""
    return {
        "size_bytes": status.st_size,
        "modified_ns": status.st_mtime_ns,
        "inode": status.st_ino,
    }


def check_same(name: str, before: os.stat_result, descriptor: int) -> None:
    """Raises SourceError if an open file has changed since `before`."""
    now = os.fstat(descriptor)
    if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise SourceError(
            f"{name} changed while it was being read, so the vectors do not match any one "
            "version of it: start again with --overwrite when nothing writes to it"
        )


def open_input(path: Path) -> IO[bytes]:
    """Opens a regular file. Raises UsageError for anything else, and NotFoundError if it cannot be read."""
    try:
        if path.is_fifo():  # opening one without a writer would block forever
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


def bounded_lines(
    stream: IO[bytes] | gzip.GzipFile,
    position: int,
    row_bytes: int,
    on_read: Callable[[bytes], object] = lambda _: None,
) -> Iterator[Line]:
    """The lines of a stream that is at `position`. Lines over the limit are skipped: their `data` is None.

    `on_read` is called with all bytes of a line, in pieces, before the line is yielded.
    """
    while raw := stream.readline(row_bytes + 1):
        on_read(raw)
        is_first = position == 0
        position += len(raw)
        if len(raw) <= row_bytes or raw.endswith(b"\n"):
            yield Line(raw.removeprefix(_BOM) if is_first else raw, position)
            continue
        has_quote = b'"' in raw
        del raw  # frees it before more is read
        while more := stream.readline(_PIECE_BYTES):
            on_read(more)
            position += len(more)
            has_quote = has_quote or b'"' in more
            if more.endswith(b"\n"):
                break
        yield Line(None, position, has_quote)
