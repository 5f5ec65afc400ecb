"""Models and a request -> a verdict for each model and engine, several models at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from edgekit.app.asked import choose_with_engine
from edgekit.app.estimate import EstimateAnswer, bill_of, check_acceptance, task_of, values_of
from edgekit.app.open import (
    ResolvedModel,
    answer_with_fallback,
    open_named,
)
from edgekit.bill.types import Change, Task, Verdict, is_asked
from edgekit.engines import engine_named
from edgekit.engines.choices import as_named
from edgekit.engines.flags import typed
from edgekit.errors import (
    CancelledError,
    EdgekitError,
    HardwareError,
    HeaderError,
    RefusedError,
    UnknownArchitectureError,
    UsageError,
)
from edgekit.formats.types import Depth
from edgekit.model import OpenModel, open_model
from edgekit.plan.changes import changes
from edgekit.plan.choice import is_decided, judge, result_of
from edgekit.plan.commands import main_command, start_commands
from edgekit.request import Request, Session
from edgekit.sources.local import is_here
from edgekit.sources.types import Traffic

if TYPE_CHECKING:
    from edgekit.engines.commands import Command
    from edgekit.plan.assumed import AssumedChoice

TENSORS_NOT_CHECKED = (
    "tensors were not checked: the start of the file was enough to answer"
    " (--exact or exact=True reads the whole header)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One model on one engine and machine."""

    bill: EstimateAnswer = field(repr=False)
    result: Verdict
    changes: tuple[Change, ...] = ()
    flags: Mapping[str, str | bool] = field(default_factory=dict)  # as typed on a command line
    ready: tuple[Command, ...] = field(default=(), repr=False)  # commands for every program
    is_remote: bool = False  # the weights are not on this machine
    is_assumed: bool = False  # estimated from the name: no file was found


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """A model that could not be checked, or not on this engine."""

    reference: str
    engine: str | None
    error: EdgekitError


Answer = Check | Unanswered


def check_all(
    names: Sequence[str], request: Request, session: Session, *, depth: Depth = Depth.TENSORS
) -> Iterator[list[Answer]]:
    """Yield the answers of each model, in order. Nothing is downloaded.

    Remote models are read in parallel threads, local ones one after the other, because each keeps a core busy.
    """
    request = replace(request, machine=request.find_machine())

    def check_one(name: str) -> list[Answer]:
        reach = replace(session.reach, progress=None, traffic=Traffic())
        own_session = Session(reach=reach, may_ask=session.may_ask)
        return check(name, request, own_session, depth=depth, with_changes=False)

    from edgekit.sources.http import side_by_side

    remote = [name for name in names if not is_here(name)]
    remote_answers, in_threads = side_by_side(check_one, remote), set(remote)
    for name in names:
        yield next(remote_answers) if name in in_threads else check_one(name)


def check(
    reference: str,
    request: Request,
    session: Session,
    *,
    depth: Depth = Depth.TENSORS,
    with_changes: bool = True,
) -> list[Answer]:
    """One answer for each requested engine.

    With `depth` ARCHITECTURE the rest of a remote header is read only if the answer depends on it.
    """
    request = replace(request, machine=request.find_machine())
    try:
        resolved = open_named(reference, session, depth=depth, assume=True, quant=request.quant)
    except EdgekitError as error:
        return [Unanswered(reference=reference, engine=None, error=error)]
    return check_named(resolved, request, session, with_changes=with_changes)


def check_named(
    resolved: ResolvedModel, request: Request, session: Session, *, with_changes: bool = True
) -> list[Answer]:
    """`check` for a model that is open already."""
    machine = request.find_machine()
    request = replace(request, machine=machine)

    def with_notes(answer: Check, *notes: str) -> Check:
        return replace(answer, bill=replace(answer.bill, notes=(*notes, *answer.bill.notes)))

    def check_on(engine: str) -> Check:
        check_acceptance(request, engine)
        if resolved.assumed is not None:
            return _check_assumed(resolved, resolved.assumed, engine, request, session)
        model = resolved.at_checkpoint(engine)
        values_of(model, engine, request)  # raises what the engine refuses before it is opened
        opened = model.opened(engine)
        answer = check_opened(
            opened, engine, request, session, resolved=model, with_changes=with_changes
        )
        return with_notes(answer, *resolved.notes)

    answers: list[Answer] = []
    for chosen in request.engines or (None,):
        try:
            if chosen is None:
                answer, note = answer_with_fallback(
                    resolved, machine, check_on, lambda check: check.result
                )
                answers.append(with_notes(answer, note) if note else answer)
            else:
                answers.append(check_on(chosen))
        except CancelledError:
            raise
        except EdgekitError as error:
            engine = chosen or resolved.engine(machine)
            answers.append(Unanswered(reference=resolved.name, engine=engine, error=error))
    # The built-in engine runs only a few families of GGUF files. Where it cannot run the model, it is not mentioned,
    # unless nothing else was requested.
    relevant = [
        answer
        for answer in answers
        if isinstance(answer, Check)
        or answer.engine is None
        or engine_named(answer.engine).page.is_compared
    ]
    return relevant or answers


def _check_assumed(
    resolved: ResolvedModel, choice: AssumedChoice, engine: str, request: Request, session: Session
) -> Check:
    """The check of a model of which only the name is known, or only the size.

    The first has no command, because there is no file to start. The second is started with its known repository; the
    engine has to divide its layers, which are not known here, between the devices.
    """
    stand_in = OpenModel(label=choice.assumed.name, model=choice.stand_in)
    task, values = task_of(resolved, stand_in, engine, request, session)
    rules = engine_named(engine)
    used = {rules.quant_key} if choice.assumed.is_known else set()
    if used & values.keys():
        choice = choice.at_mix(values[rules.quant_key])
    bill = choice.bill(engine)
    given = rules.companions & values.keys() - used
    unused = [flag for flag in rules.flags if flag.key in given]
    if unused:
        raise UsageError(
            f"{'/'.join(unused[0].names)} does not apply to {resolved.name!r}, of which only the name is known: "
            "give a file or a repository"
        )
    known = choice.assumed.is_known
    if known:
        task = replace(task, variants=as_named(choice.stand_in, choice.assumed.mix))
    result = judge(replace(task, bill=bill))
    if known:
        result = replace(result, doubt=choice.stand_in.geometry.doubt)
    ready = (
        rules.unplaced_commands(choice.assumed.name, choice.assumed.mix, result) if known else ()
    )
    command = main_command(ready)
    notes = (f"estimated from {choice.size}", *(command.notes if command is not None else ()))
    answer = EstimateAnswer(
        label=choice.assumed.name,
        reference=resolved.name,
        version="",
        asked=f"{result.context_tokens:,} tokens; rule of thumb from the "
        f"{'size' if known else 'name'} alone, no file was read",
        command=command.text if command is not None else "",
        notes=(*resolved.notes, *(notes if known else ())),
        estimate=result.estimate,
    )
    return Check(bill=answer, result=result, flags=typed(values), ready=ready, is_assumed=not known)


def check_opened(
    opened: OpenModel,
    engine: str,
    request: Request,
    session: Session,
    *,
    resolved: ResolvedModel | None = None,
    with_changes: bool = True,
) -> Check:
    """The check of a model on an engine, with the flags and commands that follow from the verdict.

    `resolved` lists the weights to choose from; None: only this file. Raises EdgekitError if the machine has no
    hardware for the engine, or the engine refuses the model.
    """
    opened, task, values, result = judge_model(opened, engine, request, session, resolved=resolved)
    variant = result.variant
    if variant is not None and "mix" in variant.changes:  # weights that are still to be quantised
        opened = replace(opened, mix=variant.name)
    elif variant is not None and variant.reference and opened.files is None:
        opened = replace(opened, repository=variant.reference)
    rules = engine_named(result.engine)
    settled = rules.settle(result, values)
    bill = bill_of(
        opened, rules, settled, load=result.load, setup=result.way.setup, estimate=result.estimate
    )
    bill = replace(bill, asked=rules.describe(result.load, rules.taken(result)))
    ready: tuple[Command, ...] = ()
    if result.can_load:
        ready = start_commands(opened, result, values, users=request.users)
    command = main_command(ready)
    if command is not None:
        notes = dict.fromkeys((*bill.notes, *command.notes))
        bill = replace(bill, command=command.text, notes=tuple(notes))
    # For a model that only the engine knows, each further load would be a start of it.
    is_unknown = not request.ask_engine and is_asked(result.estimate)
    return Check(
        bill=bill,
        result=result,
        changes=changes(task, result) if with_changes and not is_unknown else (),
        flags=typed(settled),
        ready=ready,
        is_remote=opened.files is None or opened.files.origin.is_remote,
    )


def judge_model(
    opened: OpenModel,
    engine: str,
    request: Request,
    session: Session,
    *,
    resolved: ResolvedModel | None,
    loads_only: bool = False,
) -> tuple[OpenModel, Task, dict[str, Any], Verdict]:
    """The chosen file, its task, the values of the flags, and the verdict.

    If only the start of a remote file's header was read, the rest is read only if the verdict depends on it; the same
    applies to another file of the repository, if that is chosen. `loads_only`: the caller only uses `can_load`, so no
    better file is looked for.
    """

    def task_for(opened: OpenModel) -> tuple[Task, dict[str, Any]]:
        """The task with all weights that may be chosen; only this file if its bill includes companion files."""
        task, values = task_of(resolved, opened, engine, request, session)
        has_companions = task.bill is not None and "mix" not in task.start.fixed_flags
        if resolved is None or (has_companions and opened.files is not None):
            return task, values
        return replace(task, variants=resolved.variants(opened, engine, task.start)), values

    if opened.whole is not None and not request.ask_engine:
        # After an error here the whole header decides: its start may not be enough to describe the model.
        with suppress(RefusedError, HeaderError, UnknownArchitectureError):
            task, values = task_for(opened)
            result = judge(task)
            chosen = result.variant
            is_other_file = chosen is not None and chosen.changes and chosen.reference
            if chosen is not None and is_other_file and result.can_load and not loads_only:
                opened = open_model(chosen.reference, depth=Depth.ARCHITECTURE, reach=session.reach)
                task, values = task_for(opened)
                result = judge(task)
            if is_decided(task, result, loads_only=loads_only):
                notes = (*result.estimate.notes, TENSORS_NOT_CHECKED)
                result = replace(result, estimate=replace(result.estimate, notes=notes))
                return opened, task, values, result
        if opened.whole is not None:
            opened = opened.whole()
    elif opened.whole is not None:
        opened = opened.whole()
    task, values = task_for(opened)
    opened, task, choice = choose_with_engine(opened, task, request, session)
    return opened, task, values, result_of(choice)


_CODES = (0, 1, 3, 2, 4, 5)  # exit codes, the best first


def exit_code(answers: Sequence[Answer], *, strict: bool) -> int:
    """The exit code of one model: the best of its engines, because one that runs it is enough."""
    codes: list[int] = []
    for answer in answers:
        if isinstance(answer, Unanswered):
            codes.append(answer.error.exit_code)
        elif answer.result.failed or answer.result.is_too_slow:
            codes.append(HardwareError.exit_code)
        else:
            codes.append(int(strict and answer.result.warning))
    return min(codes, key=_CODES.index)


def worst_code(answers_by_model: Sequence[Sequence[Answer]], *, strict: bool) -> int:
    """The exit code of several models: the worst of theirs. A usage error is worse than a model that does not fit."""
    return max(
        (exit_code(answers, strict=strict) for answers in answers_by_model), key=_CODES.index
    )
