"""A plan -> one screen of text: the answer, a bar per memory, what to run, what would change it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from edgekit.bill.verdict import Decision, Lever, Tried
from edgekit.engines import engine_named
from edgekit.plan.plan import Plan
from edgekit.report.answer_lines import (
    MORE,
    assumed_of,
    change_lines,
    download_words,
    headline_lines,
    top_lines,
)
from edgekit.report.bars import BLOCKS, Glyphs
from edgekit.report.bill import basis_rows
from edgekit.report.check_memory import memory_lines
from edgekit.report.check_words import speed_row
from edgekit.report.headline import embeds
from edgekit.report.plan_bill import bill_of
from edgekit.report.plan_run import run_lines, run_notes
from edgekit.report.screen import hanging, joined, placed, row_width, section, within

if TYPE_CHECKING:
    from edgekit.engines.commands import Command

_BESIDE_FROM = 45  # columns of a row; with less the name of a lever comes before its words
_ORDER = tuple(lever for lever in Lever if lever is not Lever.LIMIT)  # that is one of the changes


def plan_text(
    plan: Plan,
    *,
    ready: Sequence[Command] = (),
    notes: Sequence[str] = (),
    width: int = 100,
    colour: bool = False,
    glyphs: Glyphs = BLOCKS,
    why: bool = False,
) -> str:
    """The screen. `why` adds every decision, what was tried, and the notes; `colour` only decorates.

    `ready` of one program are given in full; of several the first is, and the others are named.
    """
    width = within(width)
    run = run_lines(ready, plan.task.machine.system, width) if plan.fits else []
    before = list(run_notes(ready)) if plan.fits else []
    if why:
        lines = headline_lines(plan.result, width=width, colour=colour)
        lines += joined(_title(plan), width, glyphs.between)
        shown = memory_lines(plan.result, row_width(width), glyphs, colour=colour)
        lines += placed("Memory", list(shown), width)
        lines += placed("Plan", list(_plan_lines(plan, row_width(width))), width)
        for label, rows in _sections(plan, (*notes, *before)):
            lines += section(label, rows, width)
        return "\n".join([*lines, *run]) + "\n"
    size = download_words(plan.result, is_remote=plan.task.is_remote)
    title = (plan.task.label, plan.task.engine, *size)
    lines = top_lines(plan.result, title, width=width, colour=colour, glyphs=glyphs)
    assumed = assumed_of(plan.task.machine, plan.result)
    lines += [*run, *section("Note", [*notes, *before, *assumed], width)]
    helps = plan.to_fit or plan.changes
    lines += change_lines(plan.result, helps, width, more=list(_draft_lines(plan)))
    lines += section("More", [MORE], width)
    return "\n".join(lines) + "\n"


def _draft_lines(plan: Plan) -> Iterator[str]:
    decision = plan.decision(Lever.DRAFTER)
    if decision is not None and decision.value != "none":
        engine, drafter = engine_named(plan.task.engine), plan.drafter
        words = "" if drafter is None else shlex.join(engine.draft_words(plan.result, drafter))
        what = f"{words} (draft model)" if words else f"draft model {decision.value}"
        yield f"{what}: {decision.because}"


def _title(plan: Plan) -> tuple[str, ...]:
    task = plan.task
    machine = f"{task.nodes} nodes of {task.machine.name}" if task.nodes > 1 else task.machine.name
    size = download_words(plan.result, is_remote=task.is_remote)
    return task.label, bill_of(plan).engine_title, *size, machine


def _sections(plan: Plan, notes: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    result = plan.result
    yield "Why", list(result.reasons)
    yield "To fit", [change.told for change in plan.to_fit]
    yield "Or", [change.told for change in plan.changes]
    yield "Later", list(engine_named(result.engine).later_rows(result)) if plan.fits else []
    yield "Basis", basis_rows(result.estimate)
    yield "Note", [*result.machine.notes, *notes, *result.estimate.notes]


def _plan_lines(plan: Plan, width: int) -> Iterator[str]:
    """A row for each lever, below it what else was tried."""
    decisions = [one for lever in _ORDER if (one := plan.decision(lever)) is not None]
    names = [one.lever.value for one in decisions] + ["speed"]
    column = max(map(len, names)) + 2 if width >= _BESIDE_FROM else 0
    for one in decisions:
        yield from _row(one.lever.value, _words(one), column, width)
        for line in _tried_rows(one.tried, width - column - 2):
            yield f"{' ' * column}  {line}"
    if plan.fits:
        speed = speed_row(plan.speed, embeds=embeds(plan.result), is_slow=plan.is_slow)
        yield from _row("speed", speed, column, width)


def _row(name: str, text: str, column: int, width: int) -> Iterator[str]:
    if not column:
        yield from hanging(f"{name} {text}", width)
        return
    first, *more = hanging(text, width - column)
    yield f"{name:<{column}}{first}"
    yield from (" " * column + line for line in more)


def _words(decision: Decision) -> str:
    """'value: because'; where the because has a colon of its own, a comma."""
    if not decision.because:
        return decision.value
    return f"{decision.value}{', ' if ': ' in decision.because else ': '}{decision.because}"


def _tried_rows(tried: Sequence[Tried], width: int) -> Iterator[str]:
    """What was taken has a star."""
    size = max((len(one.value) for one in tried), default=0)
    for one in tried:
        value = f"{one.value:<{size}}" if size < width // 3 else one.value
        first, *more = hanging(f"{value}  {one.told}", width - 2)
        yield f"{'*' if one.taken else ' '} {first}"
        yield from (f"  {line}" for line in more)
