"""A plan as one screen of text and as JSON (docs/json.md), with the commands that start it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from edgekit.app.estimate import EstimateAnswer
from edgekit.bill.types import Decision, Lever
from edgekit.engines import engine_named
from edgekit.engines.commands import COMMAND, SETTINGS, Command
from edgekit.errors import printable
from edgekit.machine.types import System
from edgekit.plan.choice import download_bytes
from edgekit.plan.commands import LIMIT, by_program, main_command
from edgekit.plan.plan import Plan
from edgekit.report.bill import asked_words, basis_rows, bill_json, sums_json
from edgekit.report.check import (
    MORE,
    assumed_of,
    change_json,
    changes_section,
    commands_json,
    download_words,
    embeds,
    headline,
    notes_on_screen,
    offload_words,
    result_figures,
    use_json,
)
from edgekit.report.hardware import machine_json
from edgekit.report.json import SCHEMA, Json, fields
from edgekit.report.speed import (
    speculation_rows,
    speed_json,
    speed_row,
    speed_rows,
    wait_rows,
    waits_json,
)
from edgekit.report.text import (
    PLAIN,
    Screen,
    Section,
    bar_lines,
    command_lines,
    fold,
    fold_hanging,
    memories,
    memory_lines,
    render,
)

_LEVER_COLUMN_FROM = 45  # columns; on a narrower screen a lever has no column of its own
# In the rows of a plan's decisions; LIMIT is shown as a change.
_LEVERS = tuple(lever for lever in Lever if lever is not Lever.LIMIT)


def plan_text(
    plan: Plan,
    screen: Screen = PLAIN,
    *,
    ready: Sequence[Command] = (),
    notes: Sequence[str] = (),
    why: bool = False,
) -> str:
    """The screen. `why` adds every decision, the settings that were tried, and the notes.

    Commands of the first program in `ready` are shown in full, the other programs by name.
    """
    task, result, machine = plan.task, plan.result, plan.task.machine
    engine = engine_named(task.engine)
    programs = by_program(ready if plan.fits else ())
    commands = next(iter(programs.values()), [])
    several = len(commands) > 1
    notes = (
        *notes,
        *(
            f"{command.name}: {note}" if several else note
            for command in commands
            for note in command.notes
        ),
    )
    other_programs = [name for name in [*programs][1:] if name != LIMIT]
    also = (
        [f"--for {' | '.join(other_programs)}: the same for another program"]
        if other_programs
        else []
    )
    run: list[Section] = [
        ("Run", lambda screen: _command_lines(commands, machine.system, screen.width)),
        ("Also", also),
    ]
    offloaded = offload_words(result, plan.on_gpu_tokens_per_s)
    drafting = _speculation_rows(plan) if task.acceptance is not None else ()
    speed = [*speed_rows(result, drafting), *filter(None, [offloaded])]
    if why:
        name = bill_of(plan).engine_title
        details = [f"{task.nodes} nodes of {machine.name}" if task.nodes > 1 else machine.name]
        sections: list[Section] = [
            ("Memory", lambda screen: memory_lines(result, screen)),
            ("Plan", lambda screen: _decision_lines(plan, screen.width)),
            ("Why", result.reasons),
            ("To fit", [change.told for change in plan.to_fit]),
            ("Or", [change.told for change in plan.changes]),
            ("Later", engine.later_rows(result) if plan.fits else ()),
            ("Basis", basis_rows(result.estimate)),
            ("Note", [*result.machine.notes, *notes, *result.estimate.notes]),
            *run,
        ]
    else:
        name, details = task.engine, [*result_figures(result)]
        decision, drafter, more = plan.decision(Lever.DRAFTER), plan.drafter, []
        if decision is not None and decision.value != "none":
            flags = "" if drafter is None else shlex.join(engine.draft_words(result, drafter))
            draft = f"{flags} (draft model)" if flags else f"draft model {decision.value}"
            more = [f"{draft}: {decision.because}"]
        sections = [
            ("", lambda screen: bar_lines(memories(result), screen)),
            *run,
            ("Speed", speed),
            ("Note", [*notes, *notes_on_screen(result.estimate), *assumed_of(machine, result)]),
            changes_section(result, plan.to_fit or plan.changes, more),
            ("More", [MORE]),
        ]
    size = download_words(result, is_remote=task.is_remote)
    title = (task.label, name, *size, *details, asked_words(result.estimate))
    return render(headline(result), sections, screen, title=title, status=result.status)


def _decision_lines(plan: Plan, width: int) -> Iterator[str]:
    """A row for each lever, followed by the settings that were tried; a star marks the chosen one."""
    decisions = [decision for lever in _LEVERS if (decision := plan.decision(lever)) is not None]
    names = [decision.lever.value for decision in decisions] + ["speed"]
    column = max(map(len, names)) + 2 if width >= _LEVER_COLUMN_FROM else 0
    for decision in decisions:
        colon = ", " if ": " in decision.because else ": "
        words = f"{decision.value}{colon}{decision.because}" if decision.because else decision.value
        yield from _named_lines(decision.lever.value, words, column, width)
        indent, inner = " " * (column + 2), width - column - 4
        size = max((len(tried.value) for tried in decision.tried), default=0)
        for tried in decision.tried:
            value = f"{tried.value:<{size}}" if size < (inner + 2) // 3 else tried.value
            first, *continuation = fold_hanging(f"{value}  {tried.told}", inner)
            yield f"{indent}{'*' if tried.taken else ' '} {first}"
            yield from (f"{indent}  {line}" for line in continuation)
    if plan.fits:
        speed = speed_row(plan.speed, embeds=embeds(plan.result), is_slow=plan.is_slow)
        yield from _named_lines("speed", speed, column, width)
        offloaded = offload_words(plan.result, plan.on_gpu_tokens_per_s)
        result = plan.result
        rows = [*speed_rows(result, _speculation_rows(plan)), *wait_rows(result), offloaded]
        for row in filter(None, rows):
            yield from _named_lines("", row, column, width)


def _speculation_rows(plan: Plan) -> Iterator[str]:
    """The speed with the proposed draft model, or how to ask for it."""
    if plan.fits and plan.task.acceptance is not None and plan.drafter is None:
        yield "no draft model fits next to the model, so --acceptance changes nothing"
    yield from speculation_rows(plan.result, has_drafter=plan.drafter is not None)


def _named_lines(name: str, text: str, column: int, width: int) -> Iterator[str]:
    """The name and next to it the folded text, which starts at `column`; 0: in one paragraph."""
    if not column:
        yield from fold_hanging(f"{name} {text}", width)
        return
    first, *continuation = fold_hanging(text, width - column)
    yield f"{name:<{column}}{first}"
    yield from (" " * column + line for line in continuation)


def _command_lines(commands: Sequence[Command], system: System, width: int) -> Iterator[str]:
    """Each command below the machine it runs on. If there are several, the others are below their names."""
    for command in commands:
        if command.where:
            yield from fold(f"# {command.where}", width)
        elif len(commands) > 1 and not command.text.startswith(command.name):
            yield from fold(f"{command.name}:", width)
        for line in map(printable, command.text.rstrip("\n").split("\n")):
            if command.kind == COMMAND:
                yield from command_lines(line, width, "`" if system is System.WINDOWS else "\\")
            elif command.kind == SETTINGS:
                yield from fold_hanging(line, width)
            else:
                yield line  # the content of a file is not folded


def bill_of(plan: Plan, command: str = "") -> EstimateAnswer:
    """The estimate that the plan is based on; `command` starts the engine, "" if none is known."""
    result, sequences = plan.result, plan.load.sequences
    for_sequences = f" for {sequences} sequences" if sequences is not None and sequences > 1 else ""
    return EstimateAnswer(
        label=plan.task.label,
        reference=plan.variant.reference or plan.task.label,
        version=engine_named(result.engine).version(result.way.setup),
        asked=f"{result.context_tokens:,} tokens of context{for_sequences}",
        command=command,
        estimate=result.estimate,
        geometry=plan.variant.model.geometry,
    )


def plan_json(plan: Plan, *, ready: Sequence[Command] = (), notes: Sequence[str] = ()) -> Json:
    """The plan with every line of its estimate."""
    result = plan.result
    commands = ready if plan.fits else ()
    main = main_command(commands)
    return {
        "schema": SCHEMA,
        **plan_fields(plan),
        "machine": machine_json(plan.task.machine),
        "estimate": bill_json(bill_of(plan, "" if main is None else main.text)),
        "commands": commands_json(commands),
        "notes": [*result.machine.notes, *notes, *result.estimate.notes],
    }


def plan_fields(plan: Plan) -> Json:
    """The fields that a plan and a suggestion share; only the sums of the estimate."""
    result, task = plan.result, plan.task
    tightest, drafter = use_json(result.tightest), None
    on_gpu = plan.on_gpu_tokens_per_s
    if plan.drafter is not None:  # a draft model that would also fit, but is not in the estimate
        words = engine_named(task.engine).draft_words(result, plan.drafter)
        drafter = {
            "name": plan.drafter.name,
            "reference": None,
            "own_blocks": plan.drafter.model is None,
            "because": plan.drafter.because,
            "flags": shlex.join(words),
        }
    return {
        "model": task.label,
        "headline": headline(result),
        "status": result.status.value,
        "can_load": plan.fits,
        "engine": {
            "name": task.engine,
            "version": engine_named(task.engine).version(result.way.setup),
        },
        "variant": fields(plan.variant, "name reference? is_good"),
        "context_tokens": plan.context_tokens,
        **fields(result, "context_asked=asked native_context max_context step"),
        **fields(plan, "users=task.users sequences=load.sequences"),
        "total_context_tokens": result.context_tokens,
        # a type is null if it is the engine's default
        "cache": {
            "name": result.cache,
            **fields(plan.load, "type_k=cache_k.name type_v=cache_v.name"),
        },
        **fields(plan, "way=result.way.because nodes=task.nodes"),
        "download_bytes": download_bytes(result) if task.is_remote else None,
        **{name: tightest[name] for name in ("required_bytes", "available_bytes", "utilization")},
        "basis": result.estimate.basis.value,
        "budgets": [use_json(use) for use in result.uses],
        "decisions": [decision_json(decision) for decision in plan.decisions],
        "drafter": drafter,
        "speed": plan_speed(plan),
        "on_gpu_tokens_per_s": None if on_gpu is None else round(on_gpu, 2),
        **waits_json(result),
        "reasons": list(result.reasons),
        "to_fit": [change_json(change) for change in plan.to_fit],
        "changes": [change_json(change) for change in plan.changes],
        "estimate": sums_json(result.estimate),
    }


def decision_json(decision: Decision) -> Json:
    tried = [fields(trial, "value told taken") for trial in decision.tried]
    return {**fields(decision, "lever value because"), "tried": tried}


def plan_speed(plan: Plan) -> Json | None:
    """The speed, with `steady`, the number by which plans are compared."""
    speed, steady = speed_json(plan.result), plan.steady_tokens_per_s
    if speed is None:
        return None
    return {**speed, "steady": None if steady is None else round(steady, 2)}
