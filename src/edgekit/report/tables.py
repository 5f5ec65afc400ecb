"""Verdicts on many models, or of all engines on one -> a table, and one line that counts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from edgekit.app.answers import (
    Answer,
    Check,
    EstimateAnswer,
    Unanswered,
)
from edgekit.bill.verdict import Status, Verdict
from edgekit.engines.choices import AS_NAMED
from edgekit.errors import HardwareError, RefusedError
from edgekit.model.inspect import count_parameters
from edgekit.report.bars import (
    BLOCKS,
    Glyphs,
    memories,
    sizes_words,
)
from edgekit.report.check import check_json
from edgekit.report.headline import (
    VERDICTS,
    cache_words,
    context_words,
    embeds,
    is_beyond,
    is_blocked,
    is_divided,
    rounded_context_words,
    typical_figure,
)
from edgekit.report.json import SCHEMA
from edgekit.report.text import (
    LEAST_WIDTH,
    folded,
    hanging,
    joined,
    within,
)
from edgekit.terminal import printable
from edgekit.units import GIB, short_count

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
LEAST_NAME = 12  # columns; where fewer are left for it, a row takes several lines


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One line of a table of verdicts, in words."""

    outcome: str
    name: str = ""  # "": told above
    engine: str = ""
    weights: str = ""  # how many, and their quantisation
    gib: str = ""  # of the weights
    context: str = "-"
    longest: str = "-"
    memory: str = "-"
    speed: str = "-"  # tokens per second
    because: str = ""  # where the figures do not say it


def check_table(
    rows: Sequence[Found], *, width: int = 100, glyphs: Glyphs = BLOCKS, sizes: bool = False
) -> str:
    return "".join(table_pieces(rows, width=width, glyphs=glyphs, sizes=sizes))


def table_pieces(
    rows: Iterable[Found], *, width: int = 100, glyphs: Glyphs = BLOCKS, sizes: bool = False
) -> Iterator[str]:
    """The table, piece by piece: the first FIRST_ROWS rows lay it out, each later row is written as it becomes known.

    What all rows share is above them; reasons for missing answers are below. `sizes` adds the parameters and the
    size of the weights.
    """
    width = max(width, LEAST_WIDTH)
    coming = iter(rows)
    found = list(islice(coming, FIRST_ROWS))
    told = list(rows_of(found, sizes=sizes))
    layout = _layout(told, width)
    above = joined(_above(found), width, glyphs.between)
    lines = [*above, *([""] if above and told else []), *layout.head]
    lines += [line for row in told for line in layout.lines(row)]
    if lines:
        yield "\n".join(lines) + "\n"
    first = tuple(found)
    for row in coming:
        found.append(row)
        told.append(_later_row(row, first, sizes=sizes))
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


def rows_of(rows: Sequence[Found], *, sizes: bool = False) -> Iterator[TableRow]:
    labels = {row.bill.reference: row.bill.label for row in rows if isinstance(row, Check)}
    one_model, one_engine = _one_model(rows), _one_engine(rows)
    for row in rows:
        told = _judged(row, sizes=sizes) if isinstance(row, Check) else _unanswered(row, labels)
        yield replace(
            told, name="" if one_model else told.name, engine="" if one_engine else told.engine
        )


def _unanswered(found: Unanswered, labels: Mapping[str, str]) -> TableRow:
    return TableRow(
        outcome=outcome_of(found),
        name=printable(labels.get(found.reference, found.reference)),
        engine=found.engine or "",
        because=str(found.error),
    )


def _judged(check: Check, *, sizes: bool) -> TableRow:
    result = check.result
    longest = result.context_tokens if is_beyond(result) else result.max_context
    plain = result.can_load or (result.tightest.status is Status.FAILED and not is_blocked(result))
    parameters = _parameters(check.bill) if sizes else ""
    weights = result.quantization.removeprefix(AS_NAMED).removesuffix("_MOE")
    return TableRow(
        outcome=outcome_of(check),
        name=printable(check.bill.label),
        engine=result.engine,
        weights=" ".join(filter(None, (parameters, weights.replace(" bit", "-bit")))),
        gib=f"{result.estimate.weights_bytes / GIB:,.1f}" if sizes else "",
        context=_window(result),
        longest=rounded_context_words(longest).removesuffix(" tokens") if longest else "-",
        memory=used_words(result),
        speed=_pace(result),
        because="" if plain else "; ".join(result.reasons),
    )


def _window(result: Verdict) -> str:
    """'32K', '32K q8_0' where the cache is not the engine's own, '4 x 16K' of several users."""
    each = context_words(result.context_tokens // result.streams).removesuffix(" tokens")
    tokens = f"{result.streams} x {each}" if result.streams > 1 else each
    return f"{tokens} {result.cache}" if cache_words(result) else tokens


def used_words(result: Verdict) -> str:
    """'10.2 of 10.5' GiB: of the device, unless only the RAM is as full as the verdict says. '+RAM' where a part of
    the model is there.
    """
    found = memories(result)
    devices = [one for one in found if not one.is_ram] if result.way.cards else []
    decide = any(one.use.status is result.status for one in devices)
    fullest = max(
        devices if decide else found, key=lambda one: (one.use.fullness, one.required_bytes)
    )
    words = sizes_words(fullest.required_bytes, fullest.usable_bytes)
    words = words if "MiB" in words else words.removesuffix(" GiB")
    return f"{words} +RAM" if is_divided(result) and not fullest.is_ram else words


def _pace(result: Verdict) -> str:
    """Tokens per second; of an embedding model, which writes nothing, how fast it reads."""
    if result.failed:
        return "-"
    speed = result.speed
    rates = None if speed is None else speed.prefill if embeds(result) else speed.decode
    return "?" if rates is None else typical_figure(rates)


def _parameters(bill: EstimateAnswer) -> str:
    counted = None if bill.geometry is None else count_parameters(bill.geometry)
    return "" if counted is None else short_count(counted[0])


def reasons_of(rows: Sequence[TableRow]) -> Iterator[str]:
    """What is to be said of several models once."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.because:
            found.setdefault((row.engine, row.because), []).append(row.name)
    for (engine, because), names in found.items():
        who = f"{len(names)} models" if len(names) > NAMES_TOLD else ", ".join(filter(None, names))
        told = " on ".join(filter(None, (who, engine)))
        yield because if told and because.startswith(f"{told}:") else f"{told}: {because}"


def _later_row(found: Found, first: Sequence[Found], *, sizes: bool) -> TableRow:
    """A row of a table that is laid out already: an engine that has no column is named next to the model."""
    row = _judged(found, sizes=sizes) if isinstance(found, Check) else _unanswered(found, {})
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

    def lines(self, row: TableRow) -> list[str]:
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


def _layout(rows: Sequence[TableRow], width: int) -> _Layout:
    """Names are shortened to fit the width. Where that leaves too little of them, columns are left out one by one,
    and where that does not help, a row takes several lines.

    Empty columns are left out; of a table that goes on, only those of the engine and the sizes are.
    """
    every = [_cells(row) for row in rows]
    goes_on = len(rows) >= FIRST_ROWS
    widths = {
        head: max(len(head), *(len(printable(cells[head])) for cells in every))
        for head in _cells(TableRow(outcome=""))
        if any(cells[head] for cells in every) or (goes_on and head not in _NOT_ALWAYS)
    }
    for last in range(len(_LEFT_OUT) + 1):
        columns = {head: size for head, size in widths.items() if head not in _LEFT_OUT[:last]}
        over = sum(columns.values()) + 2 * (len(columns) - 1) - width
        if over <= 0:
            return _Layout(width=width, columns=columns)
        room = columns.get(_NAME, 0) - over
        if room >= LEAST_NAME:
            return _Layout(width=width, columns={**columns, _NAME: room})
    return _Layout(width=width, columns={})


_NAME = "model"
_WORDS = frozenset({"", _NAME, "engine", "weights"})
_NOT_ALWAYS = frozenset({"engine", "GiB"})
_LEFT_OUT = ("GiB", "max", "tokens/s")  # on a narrow screen, in this order


def _cells(row: TableRow) -> dict[str, str]:
    return {
        "": row.outcome,
        _NAME: row.name,
        "engine": row.engine,
        "weights": row.weights,
        "GiB": row.gib,
        "context": row.context,
        "max": row.longest,
        "GiB used": row.memory,
        "tokens/s": row.speed,
    }


def shortened(name: str, room: int) -> str:
    """The end tells quantisations apart, the beginning models."""
    if len(name) <= room:
        return name
    head = (room - 3) // 2
    return f"{name[:head]}...{name[head + 3 - room :]}"


def _stacked(row: TableRow, width: int) -> list[str]:
    first = folded("  ".join(filter(None, (row.outcome, row.name, row.engine))), width)
    if row.memory == "-":
        return first
    used, _, ram = row.memory.partition(" +")
    used += "" if "iB" in used else " GiB"
    weights = f"{row.weights} {row.gib} GiB".strip() if row.gib else row.weights
    longest = "" if row.longest == "-" else f" (max {row.longest})"
    told = [weights, f"{row.context}{longest}", " + ".join(filter(None, (used, ram)))]
    told += [f"{row.speed} tokens/s"] if row.speed not in {"-", "?"} else []
    return [
        *first,
        *(f"  {line}" for line in folded(", ".join(filter(None, told)), width - 2)),
    ]


def unanswered_json(found: Unanswered) -> dict[str, Any]:
    return {
        "reference": found.reference,
        "engine": found.engine,
        "error": {"type": type(found.error).__name__, "message": str(found.error)},
    }


def checks_json(rows: Sequence[Check | Unanswered]) -> dict[str, Any]:
    """Many models, or all engines of one, in the order in which they were asked for."""
    told = {outcome.replace(" ", "_"): count for outcome, count in counts(rows).items()}
    return {
        "schema": SCHEMA,
        "models": [
            check_json(row) if isinstance(row, Check) else unanswered_json(row) for row in rows
        ],
        "summary": told,
    }


def answers_json(answers: Sequence[Answer]) -> dict[str, Any]:
    """One model and one engine as they are, else a list. Raises the error if the only answer is one."""
    if len(answers) > 1:
        return checks_json(answers)
    if isinstance(answers[0], Unanswered):
        raise answers[0].error
    return check_json(answers[0])


def models_json(rows: Sequence[Answer]) -> dict[str, Any]:
    """The object of `check --json` for each, and the figures of the table beside it."""
    return {"schema": SCHEMA, "models": [_model_json(row) for row in rows]}


def _model_json(found: Answer) -> dict[str, Any]:
    if isinstance(found, Unanswered):
        return unanswered_json(found)
    geometry, estimate = found.bill.geometry, found.result.estimate
    counted = None if geometry is None else count_parameters(geometry)
    total, active = (None, None) if counted is None else counted
    return {
        **check_json(found),
        "parameters": total,
        "active_parameters": active,
        "weights_bytes": estimate.weights_bytes,
        "cache_bytes": estimate.kv_cache_bytes,
        "total_bytes": estimate.total_bytes,
    }
