"""Rows -> batches. Where a batch ends depends on nothing but its own rows.

The last bits of a vector may depend on the texts beside it. So a job that goes on after a kill must make the same
batches as one that was never interrupted: each begins where the last one that was saved ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from edgekit.embed.bulk.types import MOST_ROW_BYTES, BadRow, Batch, InputRow, ReadPosition
from edgekit.errors import TextError

MOST_SKIPPED = 4096  # rows passed over in a batch: more are not remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRule:
    """When a batch is full."""

    texts: int
    tokens: int | None = None  # as many as one pass holds; None: `texts` alone counts
    characters: int = MOST_ROW_BYTES // 2  # texts of a batch together, or one that is longer alone


class _Counted(NamedTuple):
    row: InputRow
    tokens: int


def batches(
    rows: Iterable[InputRow | BadRow],
    count: Callable[[str], int],
    rule: BatchRule,
    *,
    skip_bad: Callable[[BadRow], None],
) -> Iterator[Batch]:
    """`count` is asked for the tokens of each text; what it raises makes the row a bad one.

    `skip_bad` is told of every bad row and may raise.
    """
    held = _Held(rule)
    for row in rows:
        found = _counted(row, count)
        if isinstance(found, BadRow):
            skip_bad(found)
            held.skip(found)
            if held.is_all_bad():
                yield held.take()
            continue
        if held.is_full_for(found):
            yield held.take()
        held.keep(found)
    if held.place != ReadPosition():
        yield held.take()


def _counted(row: InputRow | BadRow, count: Callable[[str], int]) -> _Counted | BadRow:
    if isinstance(row, BadRow):
        return row
    try:
        return _Counted(row, count(row.text))
    except TextError as error:
        return BadRow(number=row.number, reason=error.what, end=row.end)


class _Held:
    """The batch that is being filled."""

    def __init__(self, rule: BatchRule) -> None:
        self._rule = rule
        self._clear()

    def skip(self, row: BadRow) -> None:
        self._skipped.append(row)
        self.place = ReadPosition(number=row.number, position=row.end)

    def keep(self, counted: _Counted) -> None:
        row, tokens = counted
        self._rows.append(row)
        self._tokens += tokens
        self._characters += len(row.text)
        self.place = ReadPosition(number=row.number, position=row.end)

    def is_full_for(self, counted: _Counted) -> bool:
        rule = self._rule
        return bool(self._rows) and (
            len(self._rows) >= rule.texts
            or (rule.tokens is not None and self._tokens + counted.tokens > rule.tokens)
            or self._characters + len(counted.row.text) > rule.characters
        )

    def is_all_bad(self) -> bool:
        return len(self._skipped) >= MOST_SKIPPED

    def take(self) -> Batch:
        taken = Batch(
            rows=tuple(self._rows),
            skipped=tuple(self._skipped),
            tokens=self._tokens,
            place=self.place,
        )
        self._clear()
        return taken

    def _clear(self) -> None:
        self._rows: list[InputRow] = []
        self._skipped: list[BadRow] = []
        self._tokens = self._characters = 0
        self.place = ReadPosition()
