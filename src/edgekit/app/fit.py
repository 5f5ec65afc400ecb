"""A model and settings -> this one load compared with a machine, nothing chosen; and memory against context."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from edgekit.app.estimate import EstimateAnswer, bill_of, task_of, values_of
from edgekit.app.open import ResolvedModel
from edgekit.bill.types import CacheChoice, PricedLoad, Task, Variant, Verdict
from edgekit.engines import engine_named
from edgekit.engines.choices import AS_NAMED, as_named, stored_quant
from edgekit.engines.flags import CONTEXT, flag_words, given_values
from edgekit.errors import EdgekitError, HardwareError, RefusedError, UsageError
from edgekit.index.resolve import CATALOG
from edgekit.model import OpenModel
from edgekit.plan.choice import NOTHING_FITS, Candidate, result_for
from edgekit.plan.commands import main_command, start_commands
from edgekit.plan.curve import Curve, curves
from edgekit.plan.fit import Fitting, first_placement
from edgekit.request import Request, Session, Values, in_order

POINTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One load on one machine, without a search."""

    label: str
    reference: str  # the model's name on the command line
    engine: str
    flags: Mapping[str, Any]  # the engine's flags by their keys, which determine the load
    context_tokens: int
    native_context: int | None
    notes: tuple[str, ...]
    # None: the engine refuses the model, or cannot run on the machine.
    result: Verdict | None = None
    bill: EstimateAnswer | None = field(default=None, repr=False)
    command: str = ""  # starts the engine; "" if the model does not load
    estimate_command: str
    refused: str = ""
    refused_about: str = ""  # the flag that is refused


def fit(resolved: ResolvedModel, request: Request, session: Session) -> Fit:
    """One load compared with the machine; a refusal of the engine is an answer too. Raises EdgekitError."""
    request = replace(request, machine=request.find_machine())
    engine = _engine(resolved, request)
    try:
        resolved = resolved.at_checkpoint(engine)
        opened = resolved.as_file(engine)
        task, values = task_of(resolved, opened, engine, request, session)
        return _fit(resolved, *_choose_weights(resolved, opened, task), values, users=request.users)
    except (RefusedError, HardwareError) as error:
        return _refusal(error, resolved, engine, request)


def curve(
    resolved: ResolvedModel, request: Request, session: Session, *, points: int | None = None
) -> tuple[Curve, ...]:
    """Memory by context for each type of cache, all else as requested."""
    request = replace(request, machine=request.find_machine())
    engine = _engine(resolved, request)
    resolved = resolved.at_checkpoint(engine)
    opened = resolved.as_file(engine)
    task, _ = task_of(resolved, opened, engine, request, replace(session, pricing=None))
    if engine_named(engine).chooses_repositories:
        # The curves are of the first weights with which at least the shortest context fits.
        shortest_tokens = Fitting(task, first_placement(task)).contexts_to_try[-1]
        shortest = replace(task, load=replace(task.load, context_tokens=shortest_tokens))
        _, chosen, _ = _choose_weights(resolved, opened, shortest)
        task = replace(task, model=chosen.model)
    return tuple(curves(task, first_placement(task), points=points or POINTS))


def _engine(resolved: ResolvedModel, request: Request) -> str:
    """The requested engine, or the one for the model's files. Raises UsageError if several were requested."""
    if len(request.engines) > 1:
        raise UsageError("engine: choose one engine; /check compares all of them")
    return request.engine or resolved.engine(request.find_machine())


def _label(resolved: ResolvedModel) -> str:
    """The name to show: of the file, else the entry's id, else what was typed."""
    if resolved.found is not None:
        return resolved.found.label
    return resolved.entry.id if resolved.entry is not None else resolved.name


def _reference(resolved: ResolvedModel) -> str:
    """The model's name on the command line. The catalog's prefix keeps it from being taken for a local file."""
    entry = resolved.entry
    if entry is not None and (resolved.found is None or entry.is_users):
        return f"{CATALOG}{entry.id}"
    return resolved.name


def _choose_weights(
    resolved: ResolvedModel, opened: OpenModel, task: Task
) -> tuple[OpenModel, Variant, Fitting]:
    """The file as it is. If it does not fit, another repository of the model that does, as in a check."""

    def fitting_of(variant: Variant) -> Fitting:
        with_weights = replace(task, model=variant.model)
        return Fitting(with_weights, first_placement(with_weights))

    stored = AS_NAMED if opened.files is None else stored_quant(opened.files)
    (as_it_is,) = as_named(opened.model, opened.mix or stored)
    fitting = fitting_of(as_it_is)
    priced = _price(fitting)
    if not priced.fits and engine_named(task.engine).chooses_repositories:
        for variant in resolved.variants(opened, task.engine, task.start)[1:]:
            other = fitting_of(variant)
            if other.fits(priced.context_tokens):
                model = replace(opened, repository=variant.reference, model=variant.model)
                return model, variant, other
    return opened, as_it_is, fitting


def _price(fitting: Fitting) -> PricedLoad:
    """The load at the requested context, or at the native one."""
    return fitting.price(fitting.requested_tokens or fitting.native_tokens)


def _fit(
    resolved: ResolvedModel,
    opened: OpenModel,
    variant: Variant,
    fitting: Fitting,
    values: Values,
    *,
    users: int | None,
) -> Fit:
    """The answer for one load, priced once, so that bars, estimate and verdict have the same figures."""
    task, priced = fitting.task, _price(fitting)
    engine, placement, tokens = engine_named(task.engine), priced.placement, priced.context_tokens
    # The page repeats a check that failed at its minimum context with that context, which the user did not request:
    # the verdict must not say that it was.
    minimum = task.min_context
    is_failed_minimum = (
        minimum is not None and minimum * fitting.streams == tokens > fitting.max_tokens
    )
    if is_failed_minimum:
        unrequested = replace(task.load, context_tokens=None)
        fitting = Fitting(replace(task, load=unrequested), placement)
    cache = engine.cache_name(task.load, placement.setup)
    candidate = Candidate(
        step=NOTHING_FITS if is_failed_minimum else 1,
        variant=variant,
        cache=CacheChoice(name=cache, place=0, flags=""),
        fitting=fitting,
        tokens=tokens,
        because="",
    )
    result = result_for(candidate, max_context=tokens)
    load = task.load_of(tokens)
    batch = given_values((flag for flag in engine.flags if flag.group == "batch"), load)
    flags = {  # what was requested, and what the machine adds to it
        **(batch if task.in_one_batch else {}),
        **values,
        "context": tokens,
        **engine.placement(placement.setup),
        **engine.machine_flags(placement),
    }
    taken = engine.taken(result)
    bill = bill_of(opened, engine, flags, load=load, setup=placement.setup, estimate=taken)
    started = main_command(start_commands(opened, result, values, users=users))
    command = bill.command if started is None else started.text
    return Fit(
        label=_label(resolved),
        reference=_reference(resolved),
        engine=task.engine,
        flags=flags,
        context_tokens=tokens,
        native_context=result.native_context,
        notes=resolved.notes,
        result=result,
        bill=bill,
        command=command if result.can_load else "",
        estimate_command=_command(variant.reference or _reference(resolved), task.engine, flags),
        refused=priced.refused,
    )


def _refusal(error: EdgekitError, resolved: ResolvedModel, engine: str, request: Request) -> Fit:
    """What the engine refuses, with the flags as requested."""
    values = request.values(engine, resolved.quant)
    with suppress(RefusedError):
        values = values_of(resolved, engine, request)
    if resolved.found is not None:
        geometry = resolved.found.model.geometry
        native = geometry.native_context or geometry.trained_context
    else:
        native = resolved.entry.native_context if resolved.entry is not None else None
    return Fit(
        label=_label(resolved),
        reference=_reference(resolved),
        engine=engine,
        flags=values,
        context_tokens=values.get("context") or native or 0,
        native_context=native,
        notes=resolved.notes,
        estimate_command=_command(_reference(resolved), engine, values),
        refused=str(error),
        refused_about=error.about,
    )


def _command(reference: str, engine: str, flags: Values) -> str:
    words = flag_words((CONTEXT, *engine_named(engine).flags), in_order(engine, flags), ours=True)
    return shlex.join(["edgekit", "estimate", reference, "--engine", engine, *words])
