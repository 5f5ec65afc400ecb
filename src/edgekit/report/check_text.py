"""A verdict -> one screen of text: the answer, the memory as bars, why not, what would change it, what to run."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.plan.types import PreflightResult
from edgekit.report.bars import BLOCKS, Glyphs
from edgekit.report.bill_text import basis_rows
from edgekit.report.check import Check
from edgekit.report.check_memory import memory_lines, painted
from edgekit.report.check_words import answer, is_beyond, is_blocked
from edgekit.report.later import later_rows
from edgekit.report.screen import (
    command_rows,
    folded,
    joined,
    placed,
    row_width,
    section,
    within,
)

_LESS = {"vllm": "more cards", "stream": "fewer weights in memory"}


def check_text(
    check: Check, *, width: int = 100, colour: bool = False, glyphs: Glyphs = BLOCKS
) -> str:
    """The screen. `colour` only decorates: every word stands there without it."""
    result, width = check.result, within(width)
    lines = [
        *_answer_lines(check, width, colour=colour),
        *joined(_title(check), width, glyphs.between),
    ]
    lines += folded(check.bill.asked, width)
    lines += section("Context", _context_rows(result), width)
    shown = memory_lines(result, row_width(width), glyphs, colour=colour)
    lines += placed("Memory", list(shown), width)
    for label, rows in _sections(check):
        lines += section(label, rows, width)
    if result.can_load and check.bill.command:
        lines += placed("Run", command_rows(check.bill.command, width), width)
    return "\n".join(lines) + "\n"


def quiet_text(check: Check) -> str:
    """The answer alone."""
    return f"{answer(check)}\n"


def _answer_lines(check: Check, width: int, *, colour: bool) -> list[str]:
    lines = folded(answer(check), width)
    return [painted(line, check.result.status, "1;") for line in lines] if colour else lines


def _title(check: Check) -> tuple[str, ...]:
    way, machine = check.result.way.because, check.result.machine.name
    where = way if machine in way else f"{machine}, {way}"
    return check.bill.label, check.bill.engine_title, where


def _context_rows(result: PreflightResult) -> Iterator[str]:
    why = result.window or "as asked"
    yield f"judged for {result.context_tokens:,} tokens, {why}"
    native = result.native_context
    made = f"the model was made for {native:,}" if native else "the model does not say its own"
    yield f"{_longest(result)}; {made}"


def _longest(result: PreflightResult) -> str:
    if is_beyond(result):
        return f"so many fit, {result.recommended_context:,} recommended"
    if not result.max_context:
        return "no context fits"
    fit = "would fit" if is_blocked(result) else "fit"
    most = f"up to {result.max_context:,}{_each(result)} {fit}"
    if result.can_load and result.way_context < result.max_context:
        less = _LESS.get(result.engine, "less on the devices")
        most = f"up to {result.way_context:,} {fit} so, up to {result.max_context:,} with {less}"
    return f"{most}, {result.recommended_context:,} recommended"


def _each(result: PreflightResult) -> str:
    if result.streams == 1:
        return ""
    return f" ({result.max_context // result.streams:,} for each of {result.streams})"


def _sections(check: Check) -> Iterator[tuple[str, list[str]]]:
    result, bill = check.result, check.bill
    yield "Why", list(result.reasons)
    yield "Later", list(later_rows(result)) if result.can_load else []
    yield "To fit" if result.failed else "Or", [change.told for change in check.changes]
    yield "Basis", basis_rows(result.estimate)
    yield "Note", [*result.machine.notes, *bill.notes, *bill.estimate.notes]
