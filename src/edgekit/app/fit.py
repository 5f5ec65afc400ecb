"""A model and settings -> that one load against a machine, nothing chosen; and what it costs as the context grows."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from edgekit.app.answers import Fit
from edgekit.app.check import task_of, values_of, whole_pool
from edgekit.app.commands import main_command, start_commands
from edgekit.app.estimate import bill_of
from edgekit.app.open import LLAMACPP, ResolvedModel, stored_quant
from edgekit.bill.task import CacheChoice, Placement, Task, Variant
from edgekit.bill.verdict import Verdict, Weighed
from edgekit.catalog.resolve import CATALOG
from edgekit.engines import engine_named
from edgekit.engines.common_flags import CONTEXT
from edgekit.engines.flags import flag_words
from edgekit.engines.llamacpp.flags import this_cpu
from edgekit.errors import EdgekitError, HardwareError, RefusedError, UsageError
from edgekit.machine.devices import find_device
from edgekit.machine.types import Device
from edgekit.model.open import Opened
from edgekit.plan.caches import cache_name
from edgekit.plan.choice import AS_NAMED, NOTHING, Candidate, as_named
from edgekit.plan.curve import Curve, curves
from edgekit.plan.fitting import Fitting
from edgekit.plan.ladder import Ladder
from edgekit.plan.placement import first_way
from edgekit.plan.verdict import result_for
from edgekit.request import AUTO, Request, Session, Values, flags_of, in_order

POINTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """One load that is settled: its weights, and where they are."""

    opened: Opened = field(repr=False)
    variant: Variant
    fitting: Fitting = field(repr=False)

    @property
    def task(self) -> Task:
        return self.fitting.question

    @property
    def weighed(self) -> Weighed:
        return self.fitting.price(self.fitting.asked or self.fitting.native)

    def result(self) -> Verdict:
        """The verdict on this load as it is: nothing of it is chosen here."""
        weighed, held, least = self.weighed, self.fitting, self.task.min_context
        tokens = weighed.context_tokens
        # a check that sets such a context has failed: the user did not ask for it
        is_too_short = least is not None and least * held.streams == tokens > held.most
        if is_too_short:
            unasked = replace(self.task.load, context_tokens=None)
            held = Fitting(replace(self.task, load=unasked), weighed.way)
        cache = cache_name(self.task.engine, self.task.load, weighed.way.setup)
        settled = Candidate(
            step=NOTHING if is_too_short else 1,
            variant=self.variant,
            choice=CacheChoice(name=cache, place=0, flags=""),
            ladder=Ladder(self.task, (weighed.way,)),
            held=held,
            tokens=tokens,
            because="",
        )
        return result_for(settled, max_context=tokens)


def fit(named: ResolvedModel, request: Request, session: Session) -> Fit:
    """What the engine refuses is an answer too. Raises EdgekitError for a request that makes no sense."""
    request = replace(request, machine=request.find_machine())
    engine = _engine(named, request)
    try:
        opened = named.as_file(engine)
        task, values = task_of(
            opened, engine, request, session, embeds=named.embeds, quant=named.quant
        )
        return _fit(named, _settled(named, opened, task), values, users=request.users)
    except (RefusedError, HardwareError) as error:
        return _refused(error, named, engine, request)


def curve(
    named: ResolvedModel, request: Request, session: Session, *, points: int | None = None
) -> tuple[Curve, ...]:
    """Memory by context for each type of cache, all else as requested."""
    request = replace(request, machine=request.find_machine())
    engine = _engine(named, request)
    opened = named.as_file(engine)
    plain = replace(session, pricing=None)
    task, _ = task_of(opened, engine, request, plain, embeds=named.embeds, quant=named.quant)
    if engine == "vllm":  # the weights that hold the shortest context there is
        least = Fitting(task, first_way(task)).windows[-1]
        shortest = replace(task, load=replace(task.load, context_tokens=least))
        task = replace(task, model=_settled(named, opened, shortest).variant.model)
    return tuple(curves(task, first_way(task), points=points or POINTS))


def _engine(named: ResolvedModel, request: Request) -> str:
    if len(request.engines) > 1:
        raise UsageError("engine: choose one engine; /check compares all of them")
    return request.engine or named.engine(AUTO, request.find_machine())


def _label(named: ResolvedModel) -> str:
    if named.found is not None:
        return named.found.label
    return named.entry.id if named.entry is not None else named.name


def _reference(named: ResolvedModel) -> str:
    """What the command line takes; of the catalog, so that no file here is taken for it."""
    entry = named.entry
    if entry is not None and (named.found is None or entry.is_users):
        return f"{CATALOG}{entry.id}"
    return named.name


def _settled(named: ResolvedModel, opened: Opened, task: Task) -> _Load:
    """The file as it is. Where it does not fit, vLLM loads another repository of the model that does, as in a check."""
    stored = AS_NAMED if opened.files is None else stored_quant(opened.files)
    first = _load(opened, as_named(opened.model, opened.mix or stored)[0], task)
    if task.engine != "vllm" or first.weighed.fits:
        return first
    others = named.variants(opened, task.engine, task.start)[1:]
    loads = (_load(replace(opened, repository=one.reference), one, task) for one in others)
    return next((one for one in loads if one.fitting.fits(first.weighed.context_tokens)), first)


def _load(opened: Opened, variant: Variant, task: Task) -> _Load:
    asked = replace(task, model=variant.model)
    return _Load(
        opened=replace(opened, model=variant.model),
        variant=variant,
        fitting=Fitting(asked, first_way(asked)),
    )


def _fit(named: ResolvedModel, load: _Load, values: Values, *, users: int | None) -> Fit:
    """The load is priced once: the bars, the estimate and the verdict are of the same figures."""
    weighed, result, engine = load.weighed, load.result(), load.task.engine
    flags = _completed(load.fitting, weighed, values)
    asked = load.fitting.load(weighed.context_tokens)
    estimate = weighed.estimate
    if engine == "vllm":  # judged is what requests need; shown is the pool that it will take
        estimate = whole_pool(load.task, result, asked)
    bill = bill_of(load.opened, engine, flags, (asked, weighed.way.setup), estimate)
    command = main_command(start_commands(load.opened, result, values, users=users)) or bill.command
    return Fit(
        label=_label(named),
        reference=_reference(named),
        engine=engine,
        flags=flags,
        context_tokens=weighed.context_tokens,
        native_context=result.native_context,
        notes=named.notes,
        result=result,
        bill=bill,
        command=command if result.can_load else "",
        estimate_command=_command(load.variant.reference or _reference(named), engine, flags),
        refused=weighed.refused,
    )


def _refused(error: EdgekitError, named: ResolvedModel, engine: str, request: Request) -> Fit:
    """With the flags as requested."""
    values = request.values(engine, named.quant)
    with suppress(RefusedError):
        values = values_of(engine, request, embeds=named.embeds, quant=named.quant)
    if named.found is not None:
        geometry = named.found.model.geometry
        native = geometry.native_context or geometry.trained_context
    else:
        native = named.entry.native_context if named.entry is not None else None
    return Fit(
        label=_label(named),
        reference=_reference(named),
        engine=engine,
        flags=values,
        context_tokens=values.get("context") or native or 0,
        native_context=native,
        notes=named.notes,
        estimate_command=_command(_reference(named), engine, values),
        refused=str(error),
        refused_about=error.about,
    )


def _completed(fitting: Fitting, weighed: Weighed, values: Values) -> dict[str, Any]:
    """What was asked, and all that the machine adds to it."""
    engine, way = fitting.question.engine, weighed.way
    load = fitting.load(weighed.context_tokens)
    batch = {"batch": load.batch_tokens, "ubatch": load.microbatch_tokens}
    return {
        **(batch if fitting.question.in_one_batch else {}),
        **values,
        "context": weighed.context_tokens,
        **flags_of(engine).settled(way.setup),
        **(_cards(way) if engine == LLAMACPP else {}),
        **(_gpu(min(way.cards, key=lambda card: card.total_bytes)) if engine == "vllm" else {}),
    }


def _cards(way: Placement) -> dict[str, Any]:
    """llama.cpp's: what computes, what weights are rearranged for, and what is free on each of several cards."""
    own = way.cards[
        len(way.setup.servers) :
    ]  # those of servers come first, and --rpc says their memory
    found: dict[str, Any] = {"backend": way.setup.backend.value}
    if way.setup.servers and not own:
        found.clear()
    if way.setup.repack or way.setup.cpu is not this_cpu():
        found["cpu"] = way.setup.cpu.value
    if len(way.cards) > 1:
        found |= {"device_memory": tuple(card.free_bytes for card in own)} if own else {}
        split = way.setup.tensor_split
        if split:  # cards that a division does not name get nothing
            found["tensor_split"] = (*split, *[0.0] * (len(way.cards) - len(split)))
    return found


def _gpu(card: Device) -> dict[str, Any]:
    """vLLM's: the card by its name where the table has it, and its memory where that is another."""
    try:
        device = find_device(card.name)
    except UsageError:
        return {"gpu_memory": card.total_bytes}
    if device.capability is None or device.capability != card.capability:
        return {"gpu_memory": card.total_bytes}
    same = device.usable_bytes == card.total_bytes
    return {"gpu": device, **({} if same else {"gpu_memory": card.total_bytes})}


def _command(reference: str, engine: str, flags: Values) -> str:
    words = flag_words((CONTEXT, *engine_named(engine).flags), in_order(engine, flags), ours=True)
    return shlex.join(["edgekit", "estimate", reference, "--engine", engine, *words])
