"""A model and a request -> the plan: every setting chosen, with reasons and commands."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from edgekit.app.answers import PlanAnswer
from edgekit.app.estimate import model_notes
from edgekit.app.open import ResolvedModel, automatic, choose_file, open_named
from edgekit.bill.task import Drafter, Start, Task
from edgekit.engines import either, engine_named, planned_engines
from edgekit.errors import UsageError
from edgekit.plan.commands import ready_commands
from edgekit.plan.drafting import catalog_drafters, own_drafter
from edgekit.plan.making import check_planned, check_task, make_plan
from edgekit.plan.planned import Plan
from edgekit.plan.tasks import for_users
from edgekit.request import AUTO, Request, Session


def plan(reference: str | os.PathLike[str], request: Request, session: Session) -> PlanAnswer:
    """Raises EdgekitError; that nothing fits is an answer."""
    check_engine(request)
    return plan_named(open_named(reference, session, quant=request.quant), request, session)


def check_engine(request: Request) -> None:
    """Raises UsageError for several engines, and for one that leaves nothing to choose."""
    if len(request.engines) > 1:
        raise UsageError(
            f"plan works for one engine (--engine {either(planned_engines())}); "
            "edgekit check --engine all compares them"
        )
    for engine in request.engines:
        check_planned(engine)


def plan_named(named: ResolvedModel, request: Request, session: Session) -> PlanAnswer:
    """The same of a model that is open."""
    check_engine(request)
    machine = request.find_machine()
    request = replace(request, machine=machine)

    def made(engine: str) -> Plan:
        return plan_model(named, replace(request, engines=(engine,)), session)

    if request.engine is None:
        found, note = automatic(named, machine, made, lambda plan: plan.result)
    else:
        found, note = made(request.engine), ""
    given = request.values(found.task.engine)
    ready = ready_commands(found, files=named.files, given=given) if found.fits else ()
    facts: dict[str, Any] = dict(found.result.estimate.facts)
    length = facts.get("n_ctx_seq") or found.context_tokens
    notes = (
        *([note] if note else []),
        *named.notes,
        *model_notes(named.files, found.variant.model.geometry, length),
    )
    return PlanAnswer(plan=found, ready=ready, notes=notes)


def plan_model(
    named: ResolvedModel,
    request: Request,
    session: Session | None = None,
    *,
    thorough: bool = True,
) -> Plan:
    """The plan alone, for the engine that is chosen or that the files are for.

    If a file of a repository is chosen that was not opened, its header is read as well.
    """
    reach = None if session is None else session.reach
    task = task_to_plan(named, request)
    if reach is not None:
        task = replace(task, cancelled=reach.cancelled)
    check_task(task)
    *_, choice = choose_file(named.opened(task.engine), task, reach)
    return make_plan(task, choice=choice, thorough=thorough)


def task_to_plan(named: ResolvedModel, request: Request) -> Task:
    """What is not given is left to the plan. Raises HardwareError, RefusedError, UsageError."""
    machine = request.find_machine()
    engine = request.engine or named.engine(AUTO, machine)
    values = request.values(engine, named.quant)
    for flag in engine_named(engine).flags:
        if flag.not_planned and flag.key in values:
            raise UsageError(f"plan does not take {flag.not_planned}")
    load, setup = engine_named(engine).setup(values)
    if values.pop("context", None) == 0:  # every engine: the whole native window
        load = replace(load, context_tokens=0)
    start = Start(setup=setup if values else None, settled=frozenset(values))
    opened = named.opened(engine)
    drafters: tuple[Drafter, ...] = ()
    if request.drafter and engine_named(engine).drafts and not named.embeds:
        entry = named.entry
        known: tuple[Drafter, ...] = ()
        if entry is not None and named.catalog is not None:
            known = catalog_drafters(entry, named.catalog.entries)
        drafters = (*own_drafter(opened.model), *known)
    variants = named.variants(opened, engine, start)
    model = variants[0].model if variants else opened.model
    return Task(
        model=model,
        variants=variants,
        engine=engine,
        machine=machine,
        load=for_users(load, request.users, engine, model),
        start=engine_named(engine).embedding_start(start) if named.embeds else start,
        job=request.job,
        min_context=request.min_context,
        own_cache_only=request.prefer_accurate_kv,
        max_use=request.max_use,
        reserve_bytes=request.reserve_bytes,
        nodes=request.nodes or 1,
        label=opened.label,
        repository=(named.entry.repository or "") if named.entry is not None else "",
        is_remote=opened.files is None or opened.files.origin.is_remote,
        users=request.users,
        drafters=drafters,
    )
