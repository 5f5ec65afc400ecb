"""Bills of several engines for one load -> one table, or the documented JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgekit.errors import EdgekitError
from edgekit.report.bill import Bill, pool_sums
from edgekit.report.bill_json import SCHEMA, bill_json
from edgekit.report.lines import figures
from edgekit.report.screen import MOST_WIDTH, folded
from edgekit.units import format_bytes

_COLUMNS = ("model", "context", "compute", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An engine's bill, or why there is none."""

    engine: str
    bill: Bill | None = None
    error: EdgekitError | None = None


def compare_text(label: str, context_tokens: int, answers: Sequence[Answer], hint: str = "") -> str:
    """One row an engine, then what each was asked, then those that refuse."""
    billed = [answer.bill for answer in answers if answer.bill is not None]
    lines = [*folded(f"{label}  ·  one sequence of {context_tokens:,} tokens", MOST_WIDTH), ""]
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
            lines += ["", *folded(f"{answer.engine}: no bill. {answer.error}", MOST_WIDTH)]
    lines += ["", *folded(hint, MOST_WIDTH)] if hint else []
    return "\n".join(lines) + "\n"


def _row(bill: Bill) -> tuple[str, ...]:
    sums = pool_sums(bill.estimate).values()
    sizes = [sum(row[name] for row in sums) for name in _COLUMNS]
    cells = [format_bytes(size) if size else "-" for size in sizes]
    total = format_bytes(bill.estimate.total_bytes)
    return (bill.estimate.engine, *cells, total, bill.estimate.basis.value)


def compare_json(
    label: str, reference: str, context_tokens: int, answers: Sequence[Answer]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": label,
        "reference": reference,
        "context_tokens": context_tokens,
        "engines": {answer.engine: _one(answer) for answer in answers},
    }


def _one(answer: Answer) -> dict[str, Any]:
    if answer.bill is not None:
        return bill_json(answer.bill)
    return {"error": str(answer.error), "type": type(answer.error).__name__}
