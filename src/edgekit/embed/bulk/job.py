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


MOST_SKIPPED = 4096  # skipped rows that end a batch, to bound its memory

EmbeddedBatches = Generator[tuple[Batch, "Floats"], None, None]
Stage = Callable[[Iterator[Batch]], EmbeddedBatches]
"""Embeds batches: yields each with its vectors, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How rows become batches and vectors, in this process or in a worker."""

    texts: int  # most texts in a batch
    tokens: int | None = None  # most tokens in a batch, as many as fit in a pass; None: no limit
    name: str = ""  # the input's name, for messages
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
    skipped: str | None  # path of the list of skipped rows
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
    start, started_s = output.mark, time.monotonic()

    def status() -> BulkStatus:
        return BulkStatus(
            mark=output.mark,
            begun=start,
            seconds=time.monotonic() - started_s,
            share=source.share(output.mark.position),
            share_begun=source.share(start.position),
        )

    try:
        if not start.done:
            batches = remaining_batches(source, start, embedder, terms)
            embedded = (embed_batch(embedder, batch, terms) for batch in batches)
            if stage is not None:
                embedded = stage(batches)
            with closing(embedded):  # a stage shuts down before an error is reported
                for batch, vectors in embedded:
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


def remaining_batches(
    source: RowSource, start: ResumeMark, embedder: Embedder, terms: Terms
) -> Iterator[Batch]:
    """The batches after a mark. Raises SourceError if a pipe does not begin with the same lines as before."""
    rows: Iterator[InputRow | BadRow] = source.rows(start)
    first_row = next(rows, None)  # also reads everything before it, for the digest
    if start.digest is not None and source.digest(start.position) != start.digest:
        raise SourceError(
            f"the start of {source.name} differs from the input of the unfinished job: "
            "give it the same input again, or --overwrite"
        )
    return cut_batches(
        rows if first_row is None else chain([first_row], rows),
        lambda text: embedder.count_tokens(text, prefix=terms.prefix),
        terms,
    )


def cut_batches(
    rows: Iterable[InputRow | BadRow],
    count: Callable[[str], int],
    terms: Terms,
) -> Iterator[Batch]:
    """Cuts rows into batches. `count` returns the tokens of a text; if it raises TextError, the row is bad."""
    good: list[InputRow] = []
    skipped: list[BadRow] = []
    tokens = characters = 0
    last_row: InputRow | BadRow | None = None

    def flush() -> Iterator[Batch]:
        """The batch of the rows collected so far; nothing if there are none."""
        nonlocal tokens, characters, last_row
        if last_row is not None:
            yield Batch(
                rows=tuple(good),
                skipped=tuple(skipped),
                tokens=tokens,
                number=last_row.number,
                position=last_row.end,
            )
            good.clear()
            skipped.clear()
            tokens, characters, last_row = 0, 0, None

    for source_row in rows:
        row, row_tokens = source_row, 0
        if isinstance(row, InputRow):
            try:
                row_tokens = count(row.text)
            except TextError as error:
                row = BadRow(number=row.number, reason=error.what, end=row.end)
        if isinstance(row, BadRow):
            terms.check_skippable(row)
            skipped.append(row)
            last_row = row
            if len(skipped) >= MOST_SKIPPED:
                yield from flush()
            continue
        is_full = (
            len(good) >= terms.texts
            or (terms.tokens is not None and tokens + row_tokens > terms.tokens)
            or characters + len(row.text) > terms.limit.held_characters
        )
        if good and is_full:
            yield from flush()
        good.append(row)
        tokens += row_tokens
        characters += len(row.text)
        last_row = row
    yield from flush()


def embed_batch(embedder: Embedder, batch: Batch, terms: Terms) -> tuple[Batch, Floats]:
    """The batch with its vectors. A text that the encoder refuses is skipped like any other bad row."""
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
                rows=tuple(other for other in batch.rows if other is not row),
                skipped=tuple(sorted((*batch.skipped, bad), key=lambda skipped: skipped.number)),
            )
