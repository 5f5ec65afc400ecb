"""References and flags -> a verdict for each model and engine, several models at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from edgekit.asking.bills import (
    OPTIONS,
    Asked,
    Pricing,
    biller,
    told_bill,
    values_for_users,
    with_quant,
)
from edgekit.bill.task import Job, Start, Task, Variant
from edgekit.bill.verdict import Verdict
from edgekit.engines import engine_named
from edgekit.engines.commands import Command
from edgekit.engines.flags import typed
from edgekit.engines.llamacpp.flags import COMPANIONS
from edgekit.errors import CancelledError, EdgekitError, HardwareError, UsageError
from edgekit.formats.types import Depth
from edgekit.machine.types import Machine
from edgekit.model.open import Opened
from edgekit.plan.assumed import AssumedChoice
from edgekit.plan.changes import changes
from edgekit.plan.commands import commands_of
from edgekit.plan.tasks import reads_at_once
from edgekit.plan.verdict import judge
from edgekit.preflight import in_two_steps
from edgekit.report.bill import Bill
from edgekit.report.check import Check, Unanswered
from edgekit.report.check_json import check_json, checks_json
from edgekit.report.plan_run import main_command, main_notes
from edgekit.resolver import AUTO, ResolvedModel, automatic, resolve_model
from edgekit.sources.folders import is_here
from edgekit.sources.side_by_side import side_by_side
from edgekit.sources.types import Reach

if TYPE_CHECKING:  # only to name it: a local file needs none of it
    from edgekit.sources.download import Download

LLAMACPP, STREAM = "llama.cpp", "stream"
OWN_CACHE = "f16"  # of both: it needs no flag

Answer = Check | Unanswered


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What is asked of every model."""

    machine: Machine
    engines: tuple[str, ...]  # none: the one that the files are for
    flags: Mapping[
        str, Mapping[str, Any]
    ]  # engine -> its flags as typed, those of every engine included
    quant: str | None = None  # of the weights, whichever engine
    users: int | None = None  # at the same time, each with a context of their own
    job: Job | None = None
    min_context: int | None = None
    window_budget_bytes: int | None = None
    max_use: float | None = None
    reserve_bytes: int | None = None
    with_changes: bool = True
    depth: Depth = Depth.TENSORS  # of remote headers; ARCHITECTURE: the rest only where it decides
    reach: Callable[[], Reach] = field(repr=False)
    confirm: Callable[[Download], bool] | None = field(repr=False)


def check_all(names: Sequence[str], asking: Asking) -> Iterator[list[Answer]]:
    """The answers of each model, in order, as they become known.

    Remote models are read side by side, in threads; local ones one after the other: they keep a core busy as it is.
    """
    far = [name for name in names if not is_here(name)]
    coming = side_by_side(lambda name: check_model(name, asking), far)
    away = set(far)
    for name in names:
        yield next(coming) if name in away else check_model(name, asking)


def check_model(reference: str, asking: Asking) -> list[Answer]:
    """One answer for each engine that is asked for."""
    reach = asking.reach()
    try:
        named = resolve_model(
            reference,
            depth=asking.depth,
            reach=reach,
            confirm=asking.confirm,
            assume=True,
            quant=asking.quant,
        )
    except EdgekitError as error:
        return [Unanswered(reference=reference, engine=None, error=error)]
    return check_named(named, asking, reach)


def check_named(named: ResolvedModel, asking: Asking, reach: Reach) -> list[Answer]:
    """The same of a model that is open."""
    if not asking.engines:
        return [_automatic(named, asking, reach)]
    answers = [_answer(named, engine, asking, reach) for engine in asking.engines]
    return _told_apart(answers)


def _told_apart(answers: list[Answer]) -> list[Answer]:
    """Of all engines, the built-in one only where it runs the model: it is for a few families of GGUF files."""
    found = [one for one in answers if isinstance(one, Check) or one.engine != STREAM]
    return found or answers


def _automatic(named: ResolvedModel, asking: Asking, reach: Reach) -> Answer:
    try:
        found, note = automatic(
            named,
            asking.machine,
            lambda engine: _checked(named, engine, asking, reach),
            lambda check: check.result,
        )
    except CancelledError:
        raise
    except EdgekitError as error:
        engine = named.engine(AUTO, asking.machine)
        return Unanswered(reference=named.name, engine=engine, error=error)
    notes = (note, *found.bill.notes) if note else found.bill.notes
    return replace(found, bill=replace(found.bill, notes=notes))


def _answer(named: ResolvedModel, engine: str, asking: Asking, reach: Reach) -> Answer:
    try:
        return _checked(named, engine, asking, reach)
    except CancelledError:
        raise
    except EdgekitError as error:
        return Unanswered(reference=named.name, engine=engine, error=error)


def _checked(named: ResolvedModel, engine: str, asking: Asking, reach: Reach) -> Check:
    if named.assumed is not None:
        return _assumed(named, named.assumed, engine, asking, reach)
    asking = for_model(asking, named, engine)
    found = check_opened(named.opened(engine), engine, asking, reach, named.variants)
    return replace(found, bill=replace(found.bill, notes=(*named.notes, *found.bill.notes)))


def _assumed(
    named: ResolvedModel, choice: AssumedChoice, engine: str, asking: Asking, reach: Reach
) -> Check:
    """Of a name alone. There is no command: nothing to start is known."""
    bill = choice.bill(engine)
    known = Opened(label=choice.assumed.name, model=choice.stand_in)
    question, values = asked_question(known, engine, asking, reach)
    if unused := sorted(COMPANIONS & values.keys()):
        flag = "-md" if unused[0] == "draft_model" else f"--{unused[0]}"
        raise UsageError(
            f"{flag} does not apply to {named.name!r}, of which only the name is known: give a file or a repository"
        )
    result = judge(replace(question, bill=bill))
    shown = Bill(
        label=choice.assumed.name,
        reference=named.name,
        version="",
        asked=f"{result.context_tokens:,} tokens; rule of thumb from the name alone, no file was read",
        command="",
        notes=named.notes,
        estimate=result.estimate,
    )
    return Check(bill=shown, result=result, flags=typed(values), is_assumed=True)


def for_model(asking: Asking, named: ResolvedModel, engine: str) -> Asking:
    """With the quantisation of the model's name among the flags; an embedding model is started to embed.

    Raises UsageError for a quantisation that the engine lacks, RefusedError where it returns no embeddings.
    """
    given = dict(with_quant(asking.flags.get(engine, {}), engine, named.quant))
    if named.embeds and engine_named(engine).embedding_start(Start()).settled:
        given.setdefault("embeddings", True)
    return replace(asking, flags={**asking.flags, engine: given})


def check_opened(
    opened: Opened,
    engine: str,
    asking: Asking,
    reach: Reach,
    variants: Callable[[Opened, str, Start], tuple[Variant, ...]] | None = None,
) -> Check:
    """Raises EdgekitError: the machine has nothing for the engine, or the engine refuses.

    Where only the first range of a file was read, and that does not decide it, the rest of its header is read too.
    `variants` lists the weights to choose from; None: the file that was named.
    """

    def ask(opened: Opened) -> Task:
        question, _ = asked_question(opened, engine, asking, reach)
        is_billed = question.bill is not None and "mix" not in question.start.settled
        if variants is None or (is_billed and opened.files is not None):
            return question  # what is loaded with it was opened for this file
        return replace(question, variants=variants(opened, engine, question.start))

    found, question, result = in_two_steps(opened, ask, reach=reach)
    if result.variant is not None and "mix" in result.variant.changes:
        found = replace(found, mix=result.variant.name)
    elif result.variant is not None and result.variant.reference and found.files is None:
        found = replace(found, repository=result.variant.reference)
    return _told(found, question, result, _values(found, engine, asking), asking)


def asked_question(
    opened: Opened, engine: str, asking: Asking, reach: Reach, pricing: Pricing = biller
) -> tuple[Task, dict[str, Any]]:
    """What is asked of the engine on the machine, and the flags that say so. Raises EdgekitError."""
    values = _values(opened, engine, asking)
    load, setup = OPTIONS[engine].ask(values)
    if values.get("context") == 0:  # every engine: the whole native window
        load = replace(load, context_tokens=0)
    if asking.users is not None:
        load = replace(load, sequences=asking.users)
    question = Task(
        model=opened.model,
        engine=engine,
        machine=asking.machine,
        load=load,
        start=Start(setup=setup, settled=frozenset(values)),
        bill=pricing(opened, engine, values, reach) if COMPANIONS & values.keys() else None,
        job=asking.job,
        min_context=asking.min_context,
        in_one_batch=reads_at_once(opened.model, setup),
        alternatives=opened.files.alternatives if opened.files is not None else (),
        window_budget_bytes=asking.window_budget_bytes,
        max_use=asking.max_use,
        reserve_bytes=asking.reserve_bytes,
        cancelled=reach.cancelled,
    )
    return question, values


def _values(opened: Opened, engine: str, asking: Asking) -> dict[str, Any]:
    given = asking.flags.get(engine, {})
    values = Asked(engine, given).values(engine)
    return values_for_users(values, engine, asking.users, opened.model)


def _told(
    opened: Opened,
    question: Task,
    result: Verdict,
    values: Mapping[str, Any],
    asking: Asking,
) -> Check:
    engine = engine_named(result.engine)
    settled = engine.settle(result, values)
    ready = start_commands(opened, result, values, users=asking.users) if result.can_load else ()
    bill = told_bill(
        opened, result.engine, settled, (result.load, result.way.setup), result.estimate
    )
    bill = replace(bill, asked=engine.load_words(result))
    if ready:
        notes = dict.fromkeys((*bill.notes, *main_notes(ready)))
        bill = replace(bill, command=main_command(ready), notes=tuple(notes))
    return Check(
        bill=bill,
        result=result,
        changes=changes(question, result) if asking.with_changes else (),
        flags=typed(settled),
        ready=ready,
        is_remote=opened.files is None or opened.files.origin.is_remote,
    )


def start_commands(
    opened: Opened,
    result: Verdict,
    values: Mapping[str, Any],
    *,
    users: int | None = None,
) -> tuple[Command, ...]:
    """As `plan` prints them; none for llama.cpp as a library, whose bill has the command."""
    if values.get("mode") == "library":
        return ()
    return commands_of(
        result,
        label=opened.label,
        repository=opened.repository,
        files=opened.files,
        users=users,
        given=values,
    )


def answers_json(answers: Sequence[Answer]) -> dict[str, Any]:
    """One model and one engine as they are, else a list. Raises what the only answer is."""
    if len(answers) > 1:
        return checks_json(answers)
    if isinstance(answers[0], Unanswered):
        raise answers[0].error  # told as every error is
    return check_json(answers[0])


def exit_code(answers: Sequence[Answer], *, strict: bool) -> int:
    """Of one model: the best of its engines, for it runs if any of them runs it."""
    codes = [_code(answer, strict=strict) for answer in answers]
    return min(codes, key=_CODES.index)


def worst_code(found: Sequence[Sequence[Answer]], *, strict: bool) -> int:
    """Of several models: that a question made no sense is worse than that something does not fit."""
    return max((exit_code(answers, strict=strict) for answers in found), key=_CODES.index)


_CODES = (0, 1, 3, 2, 4, 5)  # the better ones first


def _code(answer: Answer, *, strict: bool) -> int:
    if isinstance(answer, Unanswered):
        return answer.error.exit_code
    if answer.result.failed:
        return HardwareError.exit_code
    return int(strict and answer.result.warning)
