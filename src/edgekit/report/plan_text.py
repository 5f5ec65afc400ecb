"""A plan -> one screen of text: the answer, the memory as bars, every decision with its because, what to run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from edgekit.plan.choice import AS_NAMED
from edgekit.plan.planned import Decision, Lever, Plan, Tried
from edgekit.report.bars import BLOCKS, Glyphs
from edgekit.report.bill_text import basis_rows
from edgekit.report.check_memory import memory_lines, painted
from edgekit.report.check_words import VERDICTS, verdict
from edgekit.report.later import later_rows
from edgekit.report.lines import printable
from edgekit.report.plan_bill import bill_of
from edgekit.report.plan_run import run_lines, run_notes
from edgekit.report.screen import folded, hanging, joined, placed, row_width, section, within
from edgekit.report.speed_words import embeds, rate_words, speed_row

if TYPE_CHECKING:
    from edgekit.report.commands import Ready

_BESIDE_FROM = 45  # columns of a row; with less the name of a lever stands before its words
_ORDER = tuple(Lever)


def plan_text(
    plan: Plan,
    *,
    ready: Sequence[Ready] = (),
    notes: Sequence[str] = (),
    width: int = 100,
    colour: bool = False,
    glyphs: Glyphs = BLOCKS,
    why: bool = False,
) -> str:
    """The screen. `why` adds everything that was tried; `colour` only decorates.

    `ready` of one program are given in full; of several the first is, and the others are named.
    """
    width = within(width)
    lines = _answer_lines(plan, width, colour=colour)
    lines += joined(_title(plan), width, glyphs.between)
    shown = memory_lines(plan.result, row_width(width), glyphs, colour=colour)
    lines += placed("Memory", list(shown), width)
    lines += placed("Plan", list(_plan_lines(plan, row_width(width), why=why)), width)
    for label, rows in _sections(plan, ready, notes):
        lines += section(label, rows, width)
    if plan.fits:
        lines += run_lines(ready, plan.wish.machine.system, width)
    return "\n".join(lines) + "\n"


def plan_answer(plan: Plan) -> str:
    """The whole plan in one line."""
    if not plan.fits:
        return printable(f"{verdict(plan.result)}{_smallest(plan)}")
    parts = [f"{weights_words(plan)} with {window_words(plan)}", plan.result.way.because]
    if plan.speed is not None and not embeds(plan):
        parts.append(rate_words(plan.speed.decode))
    return printable(f"{VERDICTS[plan.result.status]}: {', '.join(parts)}")


def weights_words(plan: Plan) -> str:
    name = plan.variant.name
    return "the weights as stored" if name == AS_NAMED else name


def window_words(plan: Plan) -> str:
    users = plan.wish.users
    each = f" for each of {users} users" if users is not None and users > 1 else ""
    return f"{plan.context_tokens:,} tokens{each}"


def _smallest(plan: Plan) -> str:
    one = len(plan.wish.variants) == 1
    return "" if one else f"; {plan.variant.name} is the smallest that was looked at"


def _answer_lines(plan: Plan, width: int, *, colour: bool) -> list[str]:
    lines = folded(plan_answer(plan), width)
    return [painted(line, plan.result.status, "1;") for line in lines] if colour else lines


def _title(plan: Plan) -> tuple[str, ...]:
    wish = plan.wish
    machine = (
        f"{wish.nodes} machines of {wish.machine.name}" if wish.nodes > 1 else wish.machine.name
    )
    return wish.label, bill_of(plan).engine_title, machine


def _sections(
    plan: Plan, ready: Sequence[Ready], notes: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    result = plan.result
    yield "Why", list(result.reasons)
    yield "To fit", [change.told for change in plan.to_fit]
    yield "Later", list(later_rows(result)) if plan.fits else []
    yield "Basis", basis_rows(result.estimate)
    before = run_notes(ready) if plan.fits else ()
    yield "Note", [*result.machine.notes, *notes, *result.estimate.notes, *before]


def _plan_lines(plan: Plan, width: int, *, why: bool) -> Iterator[str]:
    """A row for each lever, below it what else was tried."""
    levers = [lever for lever in _ORDER if plan.decision(lever) is not None]
    names = [lever.value for lever in levers] + ["speed"]
    column = max(map(len, names)) + 2 if width >= _BESIDE_FROM else 0
    for lever in levers:
        decision = plan.decision(lever)
        if decision is not None:
            yield from _row(lever.value, _told(decision), column, width)
            yield from _below(decision, column, width, why=why)
    if plan.fits:
        yield from _row("speed", speed_row(plan), column, width)


def _row(name: str, text: str, column: int, width: int) -> Iterator[str]:
    if not column:
        yield from hanging(f"{name} {text}", width)
        return
    first, *more = hanging(text, width - column)
    yield f"{name:<{column}}{first}"
    yield from (" " * column + line for line in more)


def _told(decision: Decision) -> str:
    """'value: because'; where the because has a colon of its own, a comma."""
    if not decision.because:
        return decision.value
    return f"{decision.value}{', ' if ': ' in decision.because else ': '}{decision.because}"


def _below(decision: Decision, column: int, width: int, *, why: bool) -> Iterator[str]:
    """All that was tried; without `why` only what the other caches would hold."""
    rows: list[str] = []
    if why:
        rows = list(_tried_rows(decision.tried, width - column - 2))
    elif decision.lever is Lever.CACHE and (told := _other_caches(decision.tried)):
        rows = hanging(told, width - column - 2)
    yield from (f"{' ' * column}  {row}" for row in rows)


def _tried_rows(tried: Sequence[Tried], width: int) -> Iterator[str]:
    """What was taken has a star."""
    size = max((len(one.value) for one in tried), default=0)
    for one in tried:
        value = f"{one.value:<{size}}" if size < width // 3 else one.value
        first, *more = hanging(f"{value}  {one.told}", width - 2)
        yield f"{'*' if one.taken else ' '} {first}"
        yield from (f"  {line}" for line in more)


def _other_caches(tried: Sequence[Tried]) -> str:
    """'f16 up to 14,336 tokens, q8_0 up to 42,240'."""
    told: list[str] = []
    before = ""
    for one in (one for one in tried if not one.taken):
        same = one.told == before and before.startswith("does not")
        words = f"nor {one.value}" if same else f"{one.value} {one.told}"
        told.append(words.removesuffix(" tokens") if told else words)
        before = one.told
    return ", ".join(told)
