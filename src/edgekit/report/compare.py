"""Bills of several engines, or verdicts on several models, for one load -> one table, or the documented JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgekit.errors import EdgekitError
from edgekit.geometry.parameters import count_parameters
from edgekit.report.bill import Bill, pool_sums
from edgekit.report.bill_json import SCHEMA, bill_json
from edgekit.report.check import Check, Unanswered
from edgekit.report.check_json import check_json, unanswered_json
from edgekit.report.check_table import LEAST_NAME, Row, reasons_of, rows_of, shortened, summary
from edgekit.report.lines import figures
from edgekit.report.screen import LEAST_WIDTH, MOST_WIDTH, folded, hanging, joined, within
from edgekit.units import format_bytes, format_count

_COLUMNS = ("model", "context", "compute", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An engine's bill, or why there is none."""

    engine: str
    bill: Bill | None = None
    error: EdgekitError | None = None


def compare_text(
    label: str,
    context_tokens: int,
    answers: Sequence[Answer],
    hint: str = "",
    *,
    users: int = 1,
) -> str:
    """One row an engine, then what each was asked, then those that refuse."""
    billed = [answer.bill for answer in answers if answer.bill is not None]
    each = "one sequence" if users == 1 else f"{users} sequences"
    lines = [*folded(f"{label}  ·  {each} of {context_tokens:,} tokens", MOST_WIDTH), ""]
    if billed:
        lines += figures(("", *_COLUMNS, "total", "basis"), [_row(bill) for bill in billed])
    for bill in billed:
        lines += [
            "",
            *folded(f"{bill.engine_title}, {bill.estimate.backend}: {bill.asked}", MOST_WIDTH),
        ]
        lines += [
            f"  {line}" for note in bill.estimate.notes for line in folded(note, MOST_WIDTH - 2)
        ]
    for answer in answers:
        if answer.error is not None:
            lines += ["", *folded(f"{answer.engine}: no estimate: {answer.error}", MOST_WIDTH)]
    lines += ["", *folded(hint, MOST_WIDTH)] if hint else []
    return "\n".join(lines) + "\n"


def _row(bill: Bill) -> tuple[str, ...]:
    sums = pool_sums(bill.estimate).values()
    sizes = [sum(row[name] for row in sums) for name in _COLUMNS]
    cells = [format_bytes(size) if size else "-" for size in sizes]
    total = format_bytes(bill.estimate.total_bytes)
    return (bill.estimate.engine, *cells, total, bill.estimate.basis.value)


def compare_json(
    label: str,
    reference: str,
    context_tokens: int,
    answers: Sequence[Answer],
    *,
    users: int = 1,
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": label,
        "reference": reference,
        "context_tokens": context_tokens,
        "users": users,
        "engines": {answer.engine: _one(answer) for answer in answers},
    }


def _one(answer: Answer) -> dict[str, Any]:
    if answer.bill is not None:
        return bill_json(answer.bill)
    return {"error": str(answer.error), "type": type(answer.error).__name__}


Found = Check | Unanswered
Cells = tuple[Row, dict[str, str]]  # what a verdict says, and the columns of figures beside it


def models_text(rows: Sequence[Found], *, width: int = 100) -> str:
    """One row a model. What is the same in all of them stands above, why one has no figures below."""
    width = max(width, LEAST_WIDTH)
    told = [(row, _cells(found)) for row, found in zip(rows_of(rows), rows, strict=True)]
    lines = joined(_above(rows), within(width))
    lines += ["", *_table_lines(told, width)]
    reasons = [
        line
        for reason in reasons_of([row for row, _ in told])
        for line in hanging(reason, within(width))
    ]
    lines += ["", *reasons] if reasons else []
    return "\n".join([*lines, "", *folded(summary(rows), width)]).lstrip("\n") + "\n"


def _above(rows: Sequence[Found]) -> Iterator[str]:
    checks = [row for row in rows if isinstance(row, Check)]
    if not checks:
        return
    if len(rows) > 1 and not any(row.name for row in rows_of(rows)):
        yield checks[0].bill.label
    yield checks[0].result.machine.name
    if len({_engine(row) for row in rows} - {None}) == 1:
        yield checks[0].bill.engine_title
    contexts = {check.result.context_tokens for check in checks}
    yield f"{'up to ' if len(contexts) > 1 else ''}{max(contexts):,} tokens of context"


def _engine(found: Found) -> str | None:
    return found.result.engine if isinstance(found, Check) else found.engine


def _cells(found: Found) -> dict[str, str]:
    if isinstance(found, Unanswered):
        return dict.fromkeys(("parameters", "weights", "cache", "total"), "-")
    estimate = found.result.estimate
    return {
        "parameters": _parameters(found.bill),
        "weights": format_bytes(estimate.weights_bytes),
        "cache": format_bytes(estimate.kv_cache_bytes) if estimate.kv_cache_bytes else "-",
        "total": format_bytes(estimate.total_bytes),
    }


def _parameters(bill: Bill) -> str:
    """'30.5 B, 3.3 B active' of a mixture."""
    counted = None if bill.geometry is None else count_parameters(bill.geometry)
    if counted is None:
        return "-"
    total, active = counted
    return (
        format_count(total)
        if active == total
        else f"{format_count(total)} ({format_count(active)})"
    )


def _table_lines(told: Sequence[Cells], width: int) -> list[str]:
    """Names give way to the width; where too little is left of them, every row takes several lines."""
    table = _table(told)
    over = max(map(len, table)) - width
    room = max(len(row.name) for row, _ in told) - over
    if over <= 0:
        return table
    if room < LEAST_NAME:
        return [line for row, cells in told for line in _stacked(row, cells, width)]
    return _table([(replace(row, name=shortened(row.name, room)), cells) for row, cells in told])


def _table(told: Sequence[Cells]) -> list[str]:
    columns = {
        "": [row.outcome for row, _ in told],
        "model": [row.name for row, _ in told],
        "engine": [row.engine for row, _ in told],
        **{head: [cells[head] for _, cells in told] for head in told[0][1]},
        "used": [row.share for row, _ in told],
        "max ctx": [row.context for row, _ in told],
    }
    kept = {head: cells for head, cells in columns.items() if any(cells)}
    words = sum(head in kept for head in ("", "model", "engine"))
    return figures(tuple(kept), list(zip(*kept.values(), strict=True)), words)


def _stacked(row: Row, cells: dict[str, str], width: int) -> list[str]:
    first = folded("  ".join(filter(None, (row.outcome, row.name, row.engine))), width)
    if cells["total"] == "-":
        return first
    told = [f"{head} {cell}" for head, cell in cells.items()]
    told += [f"{row.share} used", f"up to {row.context}" if row.context != "-" else "no context"]
    return [*first, *(f"  {line}" for line in folded(", ".join(told), width - 2))]


def models_json(rows: Sequence[Found]) -> dict[str, Any]:
    """The object of `check --json` for each, and the figures of the table beside it."""
    return {"schema": SCHEMA, "models": [_model_json(row) for row in rows]}


def _model_json(found: Found) -> dict[str, Any]:
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
