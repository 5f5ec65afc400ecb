"""Nouns of a bulk job: rows come in, batches of them go through the embedder, marks say how far it is."""

from __future__ import annotations

import os
import stat
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol

from edgekit.errors import NotFoundError, SourceError, UsageError
from edgekit.units import KIB, MB, format_bytes

if TYPE_CHECKING:
    from gzip import GzipFile

    from edgekit.engines.native.types import Floats


Id = str | int

MOST_ROW_BYTES = 8 * MB  # a text at its limit of 4 MB, and as much for what stands beside it
LEAST_ROW_BYTES = 256 * KIB
# A row is held some times over: its bytes, its text in 4 bytes a character, its tokens.
_ROWS_IN_BUDGET = 128
_COPIES = 16  # of the longest row: bytes, text of four bytes a character, tokens, what a parser makes of it


def row_bytes_for(budget_bytes: int | None) -> int:
    """How long a row of the input may be, so that all that is made of it stays a part of the budget."""
    if budget_bytes is None:
        return MOST_ROW_BYTES
    return min(max(budget_bytes // _ROWS_IN_BUDGET, LEAST_ROW_BYTES), MOST_ROW_BYTES)


def input_bytes_for(budget_bytes: int | None) -> int:
    """What reading takes at most, for a plan; nothing is planned for where there is no budget."""
    return 0 if budget_bytes is None else _COPIES * row_bytes_for(budget_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimit:
    """How long a row may be, and because of which budget."""

    row_bytes: int = MOST_ROW_BYTES
    budget_bytes: int | None = None

    @classmethod
    def of(cls, budget_bytes: int | None) -> RowLimit:
        return cls(row_bytes=row_bytes_for(budget_bytes), budget_bytes=budget_bytes)

    @property
    def held_characters(self) -> int:
        """Texts of a batch together, or one that is longer alone."""
        return self.row_bytes // 2

    def __str__(self) -> str:
        """'1,187,840 bytes, the limit of a row with a budget of 145.00 MiB'."""
        if self.budget_bytes is None:
            return f"{self.row_bytes:,} bytes"
        return (
            f"{self.row_bytes:,} bytes, the row limit for a budget of "
            f"{format_bytes(self.budget_bytes)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRow:
    """A text of the input. `number` counts from 1, `end` is where the next row begins."""

    number: int
    text: str
    end: int
    id: Id | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    number: int
    reason: str
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPosition:
    """How far an input was read: so many rows, and where the next one begins (a byte, or a row of Parquet)."""

    number: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows that are embedded in one call, those passed over among them, and the place after both."""

    rows: tuple[InputRow, ...]
    skipped: tuple[BadRow, ...]
    tokens: int
    place: ReadPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeMark:
    """All that a job needs to know to go on: up to here everything is on the disk."""

    number: int = 0  # rows read
    position: int = 0  # where the next one begins
    kept: int = 0  # vectors written
    skipped: int = 0
    tokens: int = 0
    output_bytes: int = 0
    skipped_bytes: int = 0
    digest: str | None = None  # of what was read, where the input cannot be asked who it is
    done: bool = False  # the input is at its end

    @property
    def place(self) -> ReadPosition:
        return ReadPosition(number=self.number, position=self.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkStatus:
    """For a progress line."""

    mark: ResumeMark
    begun: ResumeMark  # where this run began
    seconds: float
    share: float | None  # of the input; None where nobody knows how long it is
    share_begun: float | None


class RowSource(Protocol):
    """An input, row by row. Memory is that of one row, or of a few for Parquet."""

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """What must be the same when a job goes on."""
        ...

    @property
    def integer_ids(self) -> bool:
        """Whether every id is known to be a whole number of 64 bits."""
        ...

    def rows(self, start: ReadPosition) -> Iterator[InputRow | BadRow]: ...

    def digest(self, position: int) -> str | None:
        """Of all bytes before `position`, where `identity` cannot tell inputs apart. Never goes back."""
        ...

    def share(self, position: int) -> float | None:
        """How much of it lies before `position`; None where nobody knows."""
        ...

    def check_unchanged(self) -> None:
        """SourceError when the input was written to while it was read."""
        ...

    def close(self) -> None: ...


class VectorForm(Protocol):
    """How vectors lie in a file that only grows: a head, then batch after batch."""

    def head(self) -> bytes: ...

    def encode(self, rows: Sequence[InputRow], vectors: Floats) -> bytes: ...

    def finish(self, partial: Path, kept: int) -> Path:
        """The grown file made final; the path of what is to be renamed. May be called again after a kill."""
        ...


class Embeds(Protocol):
    """What a job needs of an embedder."""

    @property
    def dimensions(self) -> int: ...

    def count_tokens(self, text: str, *, prefix: str = "") -> int: ...

    def embed(self, texts: Sequence[str], *, prefix: str = "") -> Floats: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Where in a row the text is, and the id if there is one."""

    text: str = "text"
    id: str | None = None


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
