"""Verdicts on many models, or of all engines on one -> a table, and one line that counts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from edgekit.errors import HardwareError, RefusedError
from edgekit.plan.types import Status
from edgekit.report.bars import BLOCKS, Glyphs
from edgekit.report.check import Check, Unanswered
from edgekit.report.check_words import VERDICTS, is_beyond, is_blocked, share_words, sizes_words
from edgekit.report.lines import printable
from edgekit.report.screen import LEAST_WIDTH, folded, hanging, joined, within

Found = Check | Unanswered

# Outcome -> how one of it and several are counted, in the order in which they are told.
_COUNTED = {
    "fits": ("fits", "fit"),
    "tight": ("is tight", "are tight"),
    "does not fit": ("does not fit", "do not fit"),
    "cannot run": ("cannot run", "cannot run"),
    "not read": ("could not be read", "could not be read"),
}
FIRST_ROWS = 25  # a table of up to this many rows is written at once
NAMES_TOLD = 3  # beside a reason they share
LEAST_NAME = 16  # columns; where fewer are left for it, a row takes several lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table of verdicts, in words."""

    outcome: str
    name: str = ""  # "": told above
    engine: str = ""
    memory: str = "-"
    share: str = ""
    context: str = "-"
    because: str = ""  # where the figures do not say it


def check_table(rows: Sequence[Found], *, width: int = 100, glyphs: Glyphs = BLOCKS) -> str:
    return "".join(table_pieces(rows, width=width, glyphs=glyphs))


def table_pieces(
    rows: Iterable[Found], *, width: int = 100, glyphs: Glyphs = BLOCKS
) -> Iterator[str]:
    """The table, piece by piece: the first FIRST_ROWS rows lay it out, each later row is written as it becomes known.

    What all rows share is above them; reasons for missing answers are below.
    """
    width = max(width, LEAST_WIDTH)
    coming = iter(rows)
    found = list(islice(coming, FIRST_ROWS))
    told = list(rows_of(found))
    layout = _layout(told, width)
    above = joined(_above(found), width, glyphs.between)
    lines = [*above, *([""] if above and told else []), *layout.head]
    lines += [line for row in told for line in layout.lines(row)]
    if lines:
        yield "\n".join(lines) + "\n"
    first = tuple(found)
    for row in coming:
        found.append(row)
        told.append(_later_row(row, first))
        yield "\n".join(layout.lines(told[-1])) + "\n"
    reasons = [line for reason in reasons_of(told) for line in hanging(reason, within(width))]
    below = [*([""] if reasons else []), *reasons, "", *folded(summary(found), width)]
    yield "\n".join(below if lines else below[1:]) + "\n"


def summary(rows: Sequence[Found]) -> str:
    """'3 fit, 1 is tight, 2 do not fit, 1 could not be read'."""
    found = counts(rows).items()
    parts = [f"{count} {_COUNTED[outcome][count > 1]}" for outcome, count in found if count]
    return ", ".join(parts) or "no models"


def counts(rows: Sequence[Found]) -> dict[str, int]:
    """Outcome -> how many; those that did not happen too."""
    found = [outcome_of(row) for row in rows]
    return {outcome: found.count(outcome) for outcome in _COUNTED}


def outcome_of(found: Found) -> str:
    """'fits', 'tight', 'does not fit'; without a verdict 'cannot run' or 'not read'."""
    if isinstance(found, Check):
        return VERDICTS[found.result.status].lower()
    return "cannot run" if isinstance(found.error, HardwareError | RefusedError) else "not read"


def _one_model(rows: Sequence[Found]) -> bool:
    names = {row.bill.reference if isinstance(row, Check) else row.reference for row in rows}
    return len(rows) > 1 and len(names) == 1


def _one_engine(rows: Sequence[Found]) -> bool:
    """A file that was not read has none yet."""
    engines = {row.result.engine if isinstance(row, Check) else row.engine for row in rows}
    return len(engines - {None}) <= 1


def _above(rows: Sequence[Found]) -> Iterator[str]:
    """The machine, and the model or the engine where there is only one."""
    checks = [row for row in rows if isinstance(row, Check)]
    if not checks:
        return
    if _one_model(rows):
        yield checks[0].bill.label
    if _one_engine(rows):
        yield checks[0].bill.engine_title
    yield checks[0].result.machine.name


def rows_of(rows: Sequence[Found]) -> Iterator[Row]:
    labels = {row.bill.reference: row.bill.label for row in rows if isinstance(row, Check)}
    one_model, one_engine = _one_model(rows), _one_engine(rows)
    for row in rows:
        told = _judged(row) if isinstance(row, Check) else _unanswered(row, labels)
        yield replace(
            told, name="" if one_model else told.name, engine="" if one_engine else told.engine
        )


def _unanswered(found: Unanswered, labels: Mapping[str, str]) -> Row:
    return Row(
        outcome=outcome_of(found),
        name=printable(labels.get(found.reference, found.reference)),
        engine=found.engine or "",
        because=str(found.error),
    )


def _judged(check: Check) -> Row:
    result = check.result
    longest = result.context_tokens if is_beyond(result) else result.max_context
    plain = result.can_load or (result.tightest.status is Status.FAILED and not is_blocked(result))
    return Row(
        outcome=outcome_of(check),
        name=printable(check.bill.label),
        engine=result.engine,
        memory=sizes_words(result.required_bytes, result.available_bytes),
        share=share_words(result.tightest),
        context=f"{longest:,}" if longest else "-",
        because="" if plain else "; ".join(result.reasons),
    )


def reasons_of(rows: Sequence[Row]) -> Iterator[str]:
    """What is to be said of several models once."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.because:
            found.setdefault((row.engine, row.because), []).append(row.name)
    for (engine, because), names in found.items():
        who = f"{len(names)} models" if len(names) > NAMES_TOLD else ", ".join(filter(None, names))
        told = " on ".join(filter(None, (who, engine)))
        yield because if told and because.startswith(f"{told}:") else f"{told}: {because}"


def _later_row(found: Found, first: Sequence[Found]) -> Row:
    """A row of a table that is laid out already: an engine that has no column is named next to the model."""
    row = _judged(found) if isinstance(found, Check) else _unanswered(found, {})
    if not _one_engine(first):
        return row
    is_other = bool(row.engine) and not _one_engine([*first, found])
    return replace(row, name=f"{row.name} ({row.engine})" if is_other else row.name, engine="")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """How the rows of one table are written; without columns, a row takes two lines."""

    width: int
    columns: Mapping[str, int]  # head -> width

    @property
    def head(self) -> list[str]:
        return [self._line({head: head for head in self.columns})] if self.columns else []

    def lines(self, row: Row) -> list[str]:
        if not self.columns:
            return _stacked(row, self.width)
        cells = {head: printable(cell) for head, cell in _cells(row).items()}
        over = len(self._line(cells)) - self.width
        if over > 0:
            room = len(cells["model"]) - over
            if room < LEAST_NAME:
                return _stacked(row, self.width)
            cells["model"] = shortened(cells["model"], room)
        return [self._line(cells)]

    def _line(self, cells: Mapping[str, str]) -> str:
        """Words to the left, numbers to the right."""
        return "  ".join(
            f"{cells[head]:<{width}}" if head in _WORDS else f"{cells[head]:>{width}}"
            for head, width in self.columns.items()
        ).rstrip()


def _layout(rows: Sequence[Row], width: int) -> _Layout:
    """Names are shortened to fit the width; where too little of them is left there are no columns.

    Empty columns are left out; of a table that goes on, only the engine's is.
    """
    every = [_cells(row) for row in rows]
    goes_on = len(rows) >= FIRST_ROWS
    widths = {
        head: max(len(head), *(len(printable(cells[head])) for cells in every))
        for head in _cells(Row(outcome=""))
        if any(cells[head] for cells in every) or (goes_on and head != "engine")
    }
    over = sum(widths.values()) + 2 * (len(widths) - 1) - width
    room = widths.get("model", 0) - over
    if over > 0 and room < LEAST_NAME:
        return _Layout(width=width, columns={})
    return _Layout(width=width, columns={**widths, "model": room} if over > 0 else widths)


def _cells(row: Row) -> dict[str, str]:
    return {
        "": row.outcome,
        "model": row.name,
        "engine": row.engine,
        "memory": row.memory,
        "used": row.share,
        "max context": row.context,
    }


_WORDS = frozenset({"", "model", "engine"})


def shortened(name: str, room: int) -> str:
    """The end tells quantisations apart, the beginning models."""
    if len(name) <= room:
        return name
    head = (room - 3) // 2
    return f"{name[:head]}...{name[head + 3 - room :]}"


def _stacked(row: Row, width: int) -> list[str]:
    first = folded("  ".join(filter(None, (row.outcome, row.name, row.engine))), width)
    if row.memory == "-":
        return first
    context = f"up to {row.context}" if row.context != "-" else "no context"
    figures_told = ", ".join(filter(None, (row.memory, row.share, context)))
    return [*first, *(f"  {line}" for line in folded(figures_told, width - 2))]
