"""Nouns of a bulk job: rows come in, batches of them go through the embedder, marks say how far it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from edgekit.units import KIB, MB, format_bytes

if TYPE_CHECKING:
    from pathlib import Path

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
