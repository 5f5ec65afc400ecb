"""A plan as one screen of text and as JSON (docs/json.md), with the commands that start it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from edgekit.app.answers import EstimateAnswer
from edgekit.bill.cache_types import CacheType
from edgekit.bill.types import Variant
from edgekit.bill.verdict import Decision, Lever, Tried, Verdict
from edgekit.engines import engine_named
from edgekit.engines.commands import COMMAND, SETTINGS, Command
from edgekit.machine.types import System
from edgekit.plan.commands import LIMIT, by_program, main_command
from edgekit.plan.plan import Plan
from edgekit.plan.verdict import download_bytes
from edgekit.report.bars import BLOCKS, Glyphs, memory_lines
from edgekit.report.bill import answer_json, basis_rows, bill_json
from edgekit.report.check import (
    MORE,
    assumed_of,
    change_json,
    change_lines,
    download_words,
    headline_lines,
    speed_json,
    top_lines,
    use_json,
)
from edgekit.report.hardware import machine_json
from edgekit.report.headline import embeds, headline, speed_row
from edgekit.report.json import SCHEMA
from edgekit.report.text import (
    continued,
    folded,
    hanging,
    joined,
    placed,
    row_width,
    section,
    within,
)
from edgekit.terminal import printable

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


def run_lines(ready: Sequence[Command], system: System, width: int) -> list[str]:
    """What to paste, and which other programs it could be pasted into."""
    programs = by_program(ready)
    if not programs:
        return []
    main, *others = programs
    lines = placed("Run", list(_full(programs[main], system, row_width(width))), width)
    named = [name for name in others if name != LIMIT]
    if named:
        words = f"--for {' | '.join(named)}: the same for another program"
        lines += placed("Also", folded(words, row_width(width)), width)
    return lines


def run_notes(ready: Sequence[Command]) -> Iterator[str]:
    """What is to be known before it is pasted."""
    shown = next(iter(by_program(ready).values()), [])
    for one in shown:
        for note in one.notes:
            yield f"{one.name}: {note}" if len(shown) > 1 else note


def _full(shown: Sequence[Command], system: System, width: int) -> Iterator[str]:
    """Several have their names above, but for those that begin with them; of several machines, which one it is for."""
    for one in shown:
        if one.where:
            yield from folded(f"# {one.where}", width)
        elif len(shown) > 1 and not one.text.startswith(one.name):
            yield from folded(f"{one.name}:", width)
        yield from _pasted(one, system, width)


def _pasted(one: Command, system: System, width: int) -> Iterator[str]:
    for line in map(printable, one.text.rstrip("\n").split("\n")):
        if one.kind == COMMAND:
            yield from continued(line, width, "`" if system is System.WINDOWS else "\\")
        elif one.kind == SETTINGS:
            yield from hanging(line, width)
        else:
            yield line  # of a file every space counts


def bill_of(plan: Plan, command: str = "") -> EstimateAnswer:
    """`command` starts the engine so; "" where none is known."""
    result, sequences = plan.result, plan.load.sequences
    many = f" for {sequences} sequences" if sequences is not None and sequences > 1 else ""
    return EstimateAnswer(
        label=plan.task.label,
        reference=plan.variant.reference or plan.task.label,
        version=engine_named(result.engine).version(result.way.setup),
        asked=f"{result.context_tokens:,} tokens of context{many}",
        command=command,
        estimate=result.estimate,
        geometry=plan.variant.model.geometry,
    )


def plan_json(
    plan: Plan, *, ready: Sequence[Command] = (), notes: Sequence[str] = ()
) -> dict[str, Any]:
    """The whole plan, with every line of its bill."""
    result = plan.result
    shown = ready if plan.fits else ()
    return {
        "schema": SCHEMA,
        **plan_fields(plan),
        "machine": machine_json(plan.task.machine),
        "estimate": bill_json(bill_of(plan, main_command(shown))),
        "commands": [_ready(one) for one in shown],
        "notes": [*result.machine.notes, *notes, *result.estimate.notes],
    }


def plan_fields(plan: Plan) -> dict[str, Any]:
    """What a plan is, whatever it is part of; the bill in sums."""
    result, task = plan.result, plan.task
    return {
        "model": task.label,
        "headline": headline(result),
        "status": result.status.value,
        "can_load": plan.fits,
        "engine": {
            "name": task.engine,
            "version": engine_named(task.engine).version(result.way.setup),
        },
        "variant": _variant(plan.variant),
        "context_tokens": plan.context_tokens,
        "context_asked": result.asked,
        "native_context": result.native_context,
        "max_context": result.max_context,
        "step": result.step,
        **_together(plan),
        "cache": _cache(plan),
        "way": result.way.because,
        "nodes": task.nodes,
        "download_bytes": download_bytes(result) if task.is_remote else None,
        **_numbers(result),
        "budgets": [use_json(use) for use in result.uses],
        "decisions": [_decision(one) for one in plan.decisions],
        "drafter": _drafter(plan),
        "speed": plan_speed(plan),
        "reasons": list(result.reasons),
        "to_fit": [change_json(change) for change in plan.to_fit],
        "changes": [change_json(change) for change in plan.changes],
        "estimate": answer_json(result.estimate),
    }


def _together(plan: Plan) -> dict[str, Any]:
    """All users: the context that the engine is asked for, and how many sequences."""
    return {
        "users": plan.task.users,
        "sequences": plan.load.sequences,
        "total_context_tokens": plan.result.context_tokens,
    }


def _numbers(result: Verdict) -> dict[str, Any]:
    tightest = use_json(result.tightest)
    names = ("required_bytes", "available_bytes", "utilization")
    return {name: tightest[name] for name in names} | {"basis": result.estimate.basis.value}


def _variant(variant: Variant) -> dict[str, Any]:
    return {
        "name": variant.name,
        "reference": variant.reference or None,
        "is_good": variant.is_good,
    }


def _cache(plan: Plan) -> dict[str, Any]:
    """Types of keys and values are null where they are the engine's own."""
    return {
        "name": None if plan.choice is None else plan.choice.name,
        "type_k": _type(plan.load.cache_k),
        "type_v": _type(plan.load.cache_v),
    }


def _type(kind: CacheType | None) -> str | None:
    return None if kind is None else kind.name


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "lever": decision.lever.value,
        "value": decision.value,
        "because": decision.because,
        "tried": [
            {"value": one.value, "told": one.told, "taken": one.taken} for one in decision.tried
        ],
    }


def _drafter(plan: Plan) -> dict[str, Any] | None:
    """A draft model that would fit as well; it is not in the bill."""
    drafter = plan.drafter
    if drafter is None:
        return None
    return {
        "name": drafter.name,
        "reference": None,
        "own_blocks": drafter.model is None,
        "because": drafter.because,
        "flags": shlex.join(engine_named(plan.task.engine).draft_words(plan.result, drafter)),
    }


def plan_speed(plan: Plan) -> dict[str, Any] | None:
    """With the one number that plans are compared by."""
    speed, steady = plan.speed, plan.steady_tokens_per_s
    if speed is None:
        return None
    return {**speed_json(speed), "steady": None if steady is None else round(steady, 2)}


def _ready(one: Command) -> dict[str, Any]:
    return {
        "program": one.program,
        "name": one.name,
        "kind": one.kind,
        "text": one.text,
        "notes": list(one.notes),
    }
