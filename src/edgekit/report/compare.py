"""Bills of several engines for one load -> one table, or the documented JSON; and the JSON of several verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgekit.app.answers import Check, EngineAnswer, EngineComparison, EstimateAnswer, Unanswered
from edgekit.model.parameters import count_parameters
from edgekit.report.bill import pool_sums
from edgekit.report.bill_json import SCHEMA, bill_json
from edgekit.report.check_json import check_json, unanswered_json
from edgekit.report.lines import figures
from edgekit.report.screen import folded, within
from edgekit.units import format_bytes

_COLUMNS = ("model", "context", "compute", "other")


def compare_text(
    found: EngineComparison,
    *,
    width: int = 100,
) -> str:
    """A row for each engine, then what each was asked, then those that refuse."""
    width = within(width)
    billed = [answer.bill for answer in found.answers if answer.bill is not None]
    each = "one sequence" if found.users == 1 else f"{found.users} sequences"
    lines = [*folded(f"{found.label}  ·  {each} of {found.context_tokens:,} tokens", width), ""]
    if billed:
        lines += figures(("", *_COLUMNS, "total", "basis"), [_row(bill) for bill in billed])
    for bill in billed:
        asked = f"{bill.engine_title}, {bill.estimate.backend}: {bill.asked}"
        lines += ["", *folded(asked, width)]
        lines += [f"  {line}" for note in bill.estimate.notes for line in folded(note, width - 2)]
    for answer in found.answers:
        if answer.error is not None:
            lines += ["", *folded(f"{answer.engine}: no estimate: {answer.error}", width)]
    lines += ["", *folded(found.hint, width)] if found.hint else []
    return "\n".join(lines) + "\n"


def _row(bill: EstimateAnswer) -> tuple[str, ...]:
    sums = pool_sums(bill.estimate).values()
    sizes = [sum(row[name] for row in sums) for name in _COLUMNS]
    cells = [format_bytes(size) if size else "-" for size in sizes]
    total = format_bytes(bill.estimate.total_bytes)
    return (bill.estimate.engine, *cells, total, bill.estimate.basis.value)


def compare_json(found: EngineComparison, reference: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": found.label,
        "reference": reference,
        "context_tokens": found.context_tokens,
        "users": found.users,
        "engines": {answer.engine: _one(answer) for answer in found.answers},
    }


def _one(answer: EngineAnswer) -> dict[str, Any]:
    if answer.bill is not None:
        return bill_json(answer.bill)
    return {"error": str(answer.error), "type": type(answer.error).__name__}


Found = Check | Unanswered


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
