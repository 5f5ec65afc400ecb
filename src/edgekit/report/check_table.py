"""Verdicts on many models, or of all engines on one -> a table, and one line that counts them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edgekit.errors import HardwareError, RefusedError
from edgekit.plan.types import Status
from edgekit.report.bars import BLOCKS, Glyphs
from edgekit.report.check import Check, Unanswered
from edgekit.report.check_words import VERDICTS, is_beyond, is_blocked, share_words, sizes_words
from edgekit.report.lines import figures, printable
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
    """What is the same in all rows stands above them; why there is no answer, below."""
    width = max(width, LEAST_WIDTH)
    told = list(rows_of(rows))
    lines = joined(_above(rows), width, glyphs.between)
    lines += ["", *_table_lines(told, width)] if told else []
    reasons = [line for reason in reasons_of(told) for line in hanging(reason, within(width))]
    lines += ["", *reasons] if reasons else []
    return "\n".join([*lines, "", *folded(summary(rows), width)]).lstrip("\n") + "\n"


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


def _table_lines(rows: Sequence[Row], width: int) -> list[str]:
    """Names give way to the width; where too little is left of them, every row takes two lines."""
    table = _table(rows)
    over = max(map(len, table)) - width
    room = max(len(row.name) for row in rows) - over
    if over <= 0:
        return table
    if room < LEAST_NAME:
        return [line for row in rows for line in _stacked(row, width)]
    return _table([replace(row, name=shortened(row.name, room)) for row in rows])


def _table(rows: Sequence[Row]) -> list[str]:
    """Columns in which nothing stands are left out."""
    columns = {
        "": [row.outcome for row in rows],
        "model": [row.name for row in rows],
        "engine": [row.engine for row in rows],
        "memory": [row.memory for row in rows],
        "used": [row.share for row in rows],
        "context": [row.context for row in rows],
    }
    kept = {head: cells for head, cells in columns.items() if any(cells)}
    words = sum(head in kept for head in ("", "model", "engine"))
    return figures(tuple(kept), list(zip(*kept.values(), strict=True)), words)


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
