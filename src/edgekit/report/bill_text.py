"""A bill -> one screen of text: the answer first, then the bill, then how it is known and what to run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edgekit.app.answers import EstimateAnswer
from edgekit.bill.types import MemoryEstimate, MemoryLine
from edgekit.report.bill import RAM, basis_rows, column_of, later_lines, pool_names, pool_sums
from edgekit.report.lines import figures
from edgekit.report.screen import (
    MOST_WIDTH,
    command_rows,
    folded,
    joined,
    placed,
    section,
    within,
)
from edgekit.units import format_bytes

_COLUMNS = ("model", "context", "compute", "other", "total")


def bill_text(bill: EstimateAnswer, *, bold: bool = False, width: int = MOST_WIDTH) -> str:
    """The screen. `bold` marks the answer for terminals."""
    width = within(width)
    answer = folded(_answer(bill.estimate), width)
    lines = [f"\x1b[1m{line}\x1b[0m" for line in answer] if bold else answer
    lines += [*joined(_title(bill), width), *folded(bill.asked, width), ""]
    lines += _pool_table(bill.estimate)
    for label, rows in _sections(bill):
        lines += section(label, rows, width)
    lines += placed("Run", command_rows(bill.command, width), width)
    return "\n".join(lines) + "\n"


def _answer(estimate: MemoryEstimate) -> str:
    total, names = format_bytes(estimate.total_bytes), pool_names(estimate)
    parts = [
        f"{format_bytes(sum(row.values()))} {_where(names[pool])}"
        for pool, row in pool_sums(estimate).items()
    ]
    return f"{total}: {', '.join(parts)}" if len(parts) > 1 else "".join(parts) or total


def _where(pool: str) -> str:
    """'in RAM', 'on the GPU', 'on GPU 0'."""
    if pool == RAM:
        return "in RAM"
    return f"on {pool}" if " " in pool else f"on the {pool}"


def _title(bill: EstimateAnswer) -> tuple[str, ...]:
    return bill.label, bill.engine_title, bill.estimate.backend


def _pool_table(estimate: MemoryEstimate) -> list[str]:
    sums, names = pool_sums(estimate), pool_names(estimate)
    rows = [(names[pool], row) for pool, row in sums.items()]
    if len(rows) > 1:
        rows.append(
            ("total", {name: sum(row[name] for row in sums.values()) for name in _COLUMNS[:-1]})
        )
    cells = [
        (label, *(_cell(row[name]) for name in _COLUMNS[:-1]), _cell(sum(row.values())))
        for label, row in rows
    ]
    return figures(("", *_COLUMNS), cells)


def _cell(size_bytes: int) -> str:
    return format_bytes(size_bytes) if size_bytes else "-"


def _sections(bill: EstimateAnswer) -> Iterator[tuple[str, Iterable[str]]]:
    estimate, names = bill.estimate, pool_names(bill.estimate)
    yield "Other", [_told(line, names[line.pool]) for line in estimate.lines if _is_other(line)]
    yield "Later", [_told(line, names[line.pool]) for line in later_lines(estimate)]
    yield "Basis", basis_rows(estimate)
    yield "Note", (*bill.notes, *estimate.notes)


def _is_other(line: MemoryLine) -> bool:
    return line.reserved and bool(line.size_bytes) and column_of(line) == "other"


def _told(line: MemoryLine, pool: str) -> str:
    most = "" if line.reserved else "up to "
    what = f"{line.part} {line.component.value}" if line.part else line.component.value
    return f"{most}{format_bytes(line.size_bytes)} {what} {_where(pool)}: {line.because}"
