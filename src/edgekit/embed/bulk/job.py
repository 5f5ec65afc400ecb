"""An input, an embedder and an output -> all its vectors, in order, nothing twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from edgekit.embed.bulk.output import Output
from edgekit.embed.bulk.rows import (
    MOST_ROW_BYTES,
    BadRow,
    Batch,
    BulkStatus,
    Embeds,
    InputRow,
    ReadPosition,
    ResumeMark,
    RowLimit,
    RowSource,
)
from edgekit.errors import (
    CancelledError,
    EngineError,
    MemoryPressureError,
    SourceError,
    TextError,
)

if TYPE_CHECKING:
    from edgekit.engines.native.types import Floats


Embedded = Iterator[tuple[Batch, "Floats"]]
Stage = Callable[[ResumeMark], Embedded]
"""From a mark on: batches with their vectors, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How rows become vectors, wherever that happens."""

    name: str  # of the input, for messages
    rule: BatchRule
    prefix: str = ""
    skip_bad: bool = False
    limit: RowLimit = field(default_factory=RowLimit)

    def pass_over(self, row: BadRow) -> None:
        """TextError unless bad rows are to be skipped."""
        if not self.skip_bad:
            raise TextError(
                f"{self.name}, row {row.number:,}: {row.reason} (--skip-bad skips such rows)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    mark: ResumeMark
    begun: (
        ResumeMark  # where this run began: more than nothing where it went on with another's work
    )
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A job that is done, for a report."""

    model: str
    source: str
    output: str
    skipped: str | None  # where the rows that were passed over are listed
    dimensions: int
    done: Done


def run_job(
    source: RowSource,
    stage: Stage,
    output: Output,
    tell: Callable[[BulkStatus], None] | None = None,
) -> Done:
    """Embeds what is left of the input, and finishes the output.

    TextError ends it at the first bad row, CancelledError at Ctrl-C, OutputError when the disk is full. In every case
    the same job can be run again, and goes on.
    """
    begun, started_s = output.mark, time.monotonic()
    try:
        with closing(_answers(stage, begun)) as answers:  # the stage ends before an error is told
            for batch, vectors in answers:
                output.add(batch, vectors)
                output.save(source.digest)
                if tell is not None:
                    seconds = time.monotonic() - started_s
                    tell(_status(source, output.mark, begun, seconds))
        source.check_unchanged()
        output.finish()
    except KeyboardInterrupt as error:
        output.save(source.digest, now=True)
        raise CancelledError(f"interrupted{output.kept_words}") from error
    except (TextError, EngineError, MemoryPressureError) as error:
        output.save(source.digest, now=True)
        raise type(error)(f"{error}{output.kept_words}") from error
    return Done(mark=output.mark, begun=begun, seconds=time.monotonic() - started_s)


def _answers(stage: Stage, begun: ResumeMark) -> Generator[tuple[Batch, Floats], None, None]:
    if not begun.done:
        yield from stage(begun)


def _status(source: RowSource, mark: ResumeMark, begun: ResumeMark, seconds: float) -> BulkStatus:
    return BulkStatus(
        mark=mark,
        begun=begun,
        seconds=seconds,
        share=source.share(mark.position),
        share_begun=source.share(begun.position),
    )


def embed_here(embedder: Embeds, source: RowSource, terms: Terms) -> Stage:
    """The stage of one process."""

    def stage(begun: ResumeMark) -> Embedded:
        for batch in batches_of(source, begun, embedder, terms):
            yield embedded(embedder, batch, terms)

    return stage


def batches_of(
    source: RowSource, begun: ResumeMark, embedder: Embeds, terms: Terms
) -> Iterator[Batch]:
    return batches(
        _rows(source, begun),
        lambda text: embedder.count_tokens(text, prefix=terms.prefix),
        terms.rule,
        skip_bad=terms.pass_over,
    )


def embedded(embedder: Embeds, batch: Batch, terms: Terms) -> tuple[Batch, Floats]:
    """A text that only the pass itself finds wanting is passed over like any bad row."""
    while True:
        try:
            texts = [row.text for row in batch.rows]
            return batch, embedder.embed(texts, prefix=terms.prefix)
        except TextError as error:
            if error.index is None:
                raise
            row = batch.rows[error.index]
            bad = BadRow(number=row.number, reason=error.what, end=row.end)
            terms.pass_over(bad)
            batch = _without(batch, row, bad)


def _without(batch: Batch, row: InputRow, bad: BadRow) -> Batch:
    return replace(
        batch,
        rows=tuple(one for one in batch.rows if one is not row),
        skipped=tuple(sorted((*batch.skipped, bad), key=lambda one: one.number)),
    )


def _rows(source: RowSource, begun: ResumeMark) -> Iterable[InputRow | BadRow]:
    """A pipe is what it was only if its beginning is."""
    rows = source.rows(begun.place)
    first = next(rows, None)
    if begun.digest is not None and source.digest(begun.position) != begun.digest:
        raise SourceError(
            f"the start of {source.name} differs from the input of the unfinished job: "
            "give it the same input again, or --overwrite"
        )
    return rows if first is None else chain([first], rows)


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
