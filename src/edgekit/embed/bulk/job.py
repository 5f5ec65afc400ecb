"""A bulk job: rows of an input are cut into batches, embedded in order, and written to an output.

A job that was interrupted resumes at the output's last mark: no row is embedded twice and none is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from edgekit.embed.bulk.output import Output
from edgekit.embed.bulk.rows import (
    BadRow,
    Batch,
    BulkStatus,
    InputRow,
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
    from edgekit.embed.embedder import Embedder
    from edgekit.engines.native.kernels.types import Floats


MOST_SKIPPED = 4096  # skipped rows in a batch: then it ends, so that they need not be held

Embedded = Generator[tuple[Batch, "Floats"], None, None]
Stage = Callable[[Iterator[Batch]], Embedded]
"""Embeds batches: yields each with its vectors, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How rows become batches and vectors, in this process or in a worker."""

    texts: int  # of a batch
    tokens: int | None = None  # of a batch: those of one pass; None: no limit
    name: str = ""  # of the input, for messages
    prefix: str = ""
    skip_bad: bool = False
    limit: RowLimit = field(default_factory=RowLimit)

    def check_skippable(self, row: BadRow) -> None:
        """Raises TextError unless bad rows are to be skipped."""
        if not self.skip_bad:
            raise TextError(
                f"{self.name}, row {row.number:,}: {row.reason} (--skip-bad skips such rows)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A job that is done, for a report."""

    model: str
    source: str
    output: str
    skipped: str | None  # the file that lists the skipped rows
    dimensions: int
    done: BulkStatus


def run_job(
    source: RowSource,
    embedder: Embedder,
    terms: Terms,
    output: Output,
    *,
    stage: Stage | None = None,
    report: Callable[[BulkStatus], None] | None = None,
) -> BulkStatus:
    """Embeds the rest of the input, in this process unless there is a `stage`, and finishes the output.

    Raises TextError at the first bad row, CancelledError at Ctrl-C and OutputError when the disk is full. In each case
    the same job can be run again, and resumes.
    """
    begun, started_s = output.mark, time.monotonic()

    def status() -> BulkStatus:
        return BulkStatus(
            mark=output.mark,
            begun=begun,
            seconds=time.monotonic() - started_s,
            share=source.share(output.mark.position),
            share_begun=source.share(begun.position),
        )

    try:
        if not begun.done:
            rest = batches_of(source, begun, embedder, terms)
            here = (embedded(embedder, batch, terms) for batch in rest)
            # The stage ends before an error is reported.
            with closing(here if stage is None else stage(rest)) as answers:
                for batch, vectors in answers:
                    output.add(batch, vectors)
                    output.save(source.digest)
                    if report is not None:
                        report(status())
        source.check_unchanged()
        output.finish()
    except KeyboardInterrupt as error:
        output.save(source.digest, now=True)
        raise CancelledError(f"interrupted{output.saved_note}") from error
    except (TextError, EngineError, MemoryPressureError) as error:
        output.save(source.digest, now=True)
        raise type(error)(f"{error}{output.saved_note}") from error
    return status()


def batches_of(
    source: RowSource, begun: ResumeMark, embedder: Embedder, terms: Terms
) -> Iterator[Batch]:
    """The batches from a mark on. Raises SourceError if the input is a pipe that began differently before."""
    rows: Iterator[InputRow | BadRow] = source.rows(begun)
    first = next(rows, None)  # reads what lies before it, for the digest
    if begun.digest is not None and source.digest(begun.position) != begun.digest:
        raise SourceError(
            f"the start of {source.name} differs from the input of the unfinished job: "
            "give it the same input again, or --overwrite"
        )
    return batches(
        rows if first is None else chain([first], rows),
        lambda text: embedder.count_tokens(text, prefix=terms.prefix),
        terms,
    )


def batches(
    rows: Iterable[InputRow | BadRow],
    count: Callable[[str], int],
    terms: Terms,
) -> Iterator[Batch]:
    """Cuts rows into batches. `count` gives the tokens of a text; its TextError makes the row a bad one."""
    good: list[InputRow] = []
    skipped: list[BadRow] = []
    tokens = characters = 0
    last: InputRow | BadRow | None = None

    def take() -> Iterator[Batch]:
        nonlocal tokens, characters, last
        if last is not None:
            yield Batch(
                rows=tuple(good),
                skipped=tuple(skipped),
                tokens=tokens,
                number=last.number,
                position=last.end,
            )
            good.clear()
            skipped.clear()
            tokens, characters, last = 0, 0, None

    for found in rows:
        row, row_tokens = found, 0
        if isinstance(row, InputRow):
            try:
                row_tokens = count(row.text)
            except TextError as error:
                row = BadRow(number=row.number, reason=error.what, end=row.end)
        if isinstance(row, BadRow):
            terms.check_skippable(row)
            skipped.append(row)
            last = row
            if len(skipped) >= MOST_SKIPPED:
                yield from take()
            continue
        if good and (
            len(good) >= terms.texts
            or (terms.tokens is not None and tokens + row_tokens > terms.tokens)
            or characters + len(row.text) > terms.limit.held_characters
        ):
            yield from take()
        good.append(row)
        tokens += row_tokens
        characters += len(row.text)
        last = row
    yield from take()


def embedded(embedder: Embedder, batch: Batch, terms: Terms) -> tuple[Batch, Floats]:
    """The batch with its vectors. A text that fails only in the pass is skipped like any other bad row."""
    while True:
        try:
            texts = [row.text for row in batch.rows]
            return batch, embedder.embed(texts, prefix=terms.prefix)
        except TextError as error:
            if error.index is None:
                raise
            row = batch.rows[error.index]
            bad = BadRow(number=row.number, reason=error.what, end=row.end)
            terms.check_skippable(bad)
            batch = replace(
                batch,
                rows=tuple(one for one in batch.rows if one is not row),
                skipped=tuple(sorted((*batch.skipped, bad), key=lambda one: one.number)),
            )
