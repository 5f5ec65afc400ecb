"""A model and a request -> the plan: every setting chosen, with reasons and commands."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from edgekit.app.asked import choose_with_engine
from edgekit.app.estimate import model_notes, task_of
from edgekit.app.open import ResolvedModel, answer_with_fallback, open_named
from edgekit.bill.types import Drafter, Task
from edgekit.engines import either, engine_named, planned_engines
from edgekit.errors import UsageError
from edgekit.index import related_entries
from edgekit.plan.commands import ready_commands
from edgekit.plan.plan import (
    Plan,
    check_planned,
    check_task,
    index_drafters,
    make_plan,
    own_drafter,
)
from edgekit.request import Request, Session
from edgekit.sources.types import Reach

if TYPE_CHECKING:
    from edgekit.engines.commands import Command


class PlanAnswer(NamedTuple):
    """A plan, the commands that start it (none if nothing fits), and notes on the model."""

    plan: Plan
    ready: tuple[Command, ...]
    notes: tuple[str, ...]


def plan(reference: str | os.PathLike[str], request: Request, session: Session) -> PlanAnswer:
    """How to run a model on the machine; if nothing fits, the plan says so. Raises EdgekitError."""
    check_engine(request)
    return plan_named(open_named(reference, session, quant=request.quant), request, session)


def check_engine(request: Request) -> None:
    """Raises UsageError for several engines, and for one that cannot be planned for."""
    if len(request.engines) > 1:
        raise UsageError(
            f"plan works for one engine (--engine {either(planned_engines())}); "
            "edgekit check --engine all compares them"
        )
    for engine in request.engines:
        check_planned(engine)


def plan_named(resolved: ResolvedModel, request: Request, session: Session) -> PlanAnswer:
    """`plan` for a model that is open already."""
    check_engine(request)
    machine = request.find_machine()
    request = replace(request, machine=machine)

    def plan_on(engine: str) -> Plan:
        return plan_model(resolved, replace(request, engines=(engine,)), session)

    if request.engine is None:
        chosen_plan, note = answer_with_fallback(
            resolved, machine, plan_on, lambda plan: plan.result
        )
    else:
        chosen_plan, note = plan_on(request.engine), ""
    values = request.values(chosen_plan.task.engine)
    ready = (
        ready_commands(chosen_plan, files=resolved.files, given=values) if chosen_plan.fits else ()
    )
    estimate = chosen_plan.result.estimate
    facts: dict[str, Any] = dict(estimate.facts)
    tokens_per_sequence = facts.get("n_ctx_seq") or chosen_plan.context_tokens
    geometry = chosen_plan.variant.model.geometry
    on_model = model_notes(resolved.files, geometry, tokens_per_sequence, estimate, values)
    notes = (*resolved.notes, *on_model)
    return PlanAnswer(plan=chosen_plan, ready=ready, notes=(note, *notes) if note else notes)


def plan_model(
    resolved: ResolvedModel,
    request: Request,
    session: Session | None = None,
    *,
    thorough: bool = True,
    longest: bool = False,
) -> Plan:
    """The plan alone, for the requested engine or the one for the model's files. `thorough`, `longest`: see make_plan.

    If the plan chooses a file of the repository that is not open yet, its header is read as well.
    """
    session = session or Session(reach=Reach())
    task = task_to_plan(resolved, request, session)
    check_task(task)
    opened = resolved.opened(task.engine)
    if request.ask_engine and opened.whole is not None:
        opened = opened.whole()
    _, chosen, choice = choose_with_engine(opened, task, request, session)
    if not choice.attempts:  # nothing was searched for, and nothing else can be
        return make_plan(chosen, choice=choice, thorough=False, helpful=False, longest=longest)
    return make_plan(task, choice=choice, thorough=thorough, longest=longest)


def task_to_plan(resolved: ResolvedModel, request: Request, session: Session) -> Task:
    """The task with the given settings; the plan chooses the others. Raises HardwareError, RefusedError, UsageError."""
    engine = request.engine or resolved.engine(request.find_machine())
    resolved = resolved.at_checkpoint(engine)
    rules, entry = engine_named(engine), resolved.entry
    values = request.values(engine, resolved.quant)
    for flag in rules.flags:
        if flag.not_planned and flag.key in values:
            raise UsageError(f"plan does not take {flag.not_planned}")
    opened = resolved.opened(engine)
    task, _ = task_of(resolved, opened, engine, request, session)
    variants = resolved.variants(opened, engine, task.start)
    drafters: tuple[Drafter, ...] = ()
    if request.drafter and rules.drafts and not resolved.embeds:
        drafters = own_drafter(opened.model)
        if entry is not None:
            drafters += index_drafters(entry, related_entries(entry))
    if request.acceptance is not None and (request.users is not None or not drafters):
        raise _no_drafter(task, request)
    return replace(
        task,
        model=variants[0].model if variants else opened.model,
        variants=variants,
        drafters=drafters,
    )


def _no_drafter(task: Task, request: Request) -> UsageError:
    """The error for an acceptance if no draft model can be proposed."""
    if not engine_named(task.engine).drafts:
        reason = f"no draft model is proposed for {task.engine}: leave it out"
    elif not request.drafter:
        reason = "--no-drafter leaves out the draft model: give one of the two"
    elif request.users is not None:
        reason = (
            "several users already fill the batch, so no draft model is proposed: leave out --users"
        )
    else:
        reason = (
            f"no draft model is known for {task.label}: name one with edgekit check MODEL -md MODEL"
        )
    return UsageError(f"--acceptance: {reason}")
