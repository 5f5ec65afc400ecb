"""A request -> the load and setup of one engine, what it allocates, and the task that check and plan solve."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from edgekit.app.asked import asked_estimate
from edgekit.app.open import ResolvedModel, open_named
from edgekit.bill.types import (
    OWN_LAYERS,
    Drafter,
    Load,
    MemoryEstimate,
    MemoryLine,
    Price,
    Setup,
    Start,
    Task,
)
from edgekit.engines import default_engine, engine_name, engine_named
from edgekit.engines.flags import companions_in
from edgekit.engines.protocol import Companions, Engine
from edgekit.errors import EdgekitError, UsageError
from edgekit.formats import read_header
from edgekit.formats.types import ModelHeader
from edgekit.machine.what_if import what_if_machine
from edgekit.model import OpenModel
from edgekit.model.types import Cached, Model, ModelGeometry
from edgekit.plan.choice import for_users
from edgekit.plan.fit import with_lines
from edgekit.request import ALL, Request, RowOptions, Session, Values, in_order, options_with_quant
from edgekit.sources.locator import locate
from edgekit.sources.types import Container, ModelFiles, Origin, Reach

CELLS = 256  # llama.cpp rounds a context up to a multiple of this


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateAnswer:
    """The answer of `estimate`, which `check` and `plan` contain: a bill and what is shown with it."""

    label: str  # the model's name
    reference: str  # the model as the user typed it
    version: str  # the engine's version whose rules were used
    asked: str  # the resolved load as text
    command: str  # the command that starts the engine with this load
    notes: tuple[str, ...] = ()  # on the model and the load; the estimate has notes too
    estimate: MemoryEstimate = field(repr=False)
    geometry: ModelGeometry | None = field(default=None, repr=False)  # None: only a name is known
    from_index: bool = False  # the index answers for a repository that could not be read

    @property
    def engine_title(self) -> str:
        """'llama.cpp 0.5.0', or just 'mlx-lm 0.32.2' if the version starts with a name."""
        engine = self.estimate.engine
        return (
            self.version if self.version.startswith(engine) else f"{engine} {self.version}".strip()
        )


def estimate(
    reference: str | os.PathLike[str], request: Request, session: Session
) -> EstimateAnswer:
    """What an engine allocates for a model. Raises EdgekitError if it cannot be read or the engine refuses it."""
    return estimate_named(open_named(reference, session, quant=request.quant), request, session)


def estimate_named(resolved: ResolvedModel, request: Request, session: Session) -> EstimateAnswer:
    """`estimate` for a model that is open already."""
    check_one_engine(request)
    rules, users = engine_named(request.engine or resolved.engine()), request.users
    resolved = resolved.at_checkpoint(rules.name)
    opened = resolved.as_file(rules.name)
    values = request.values(rules.name, resolved.quant)
    if request.devices or request.vram is not None:
        cards = what_if_machine(devices=request.devices, vram=request.vram).devices
        if cards:
            values = {**rules.values_on_cards(cards, request.devices), **values}
    if users is not None:
        values.setdefault("context", 0)  # the native context for each user
    values = values_for_users(values, rules.name, users, opened.model)
    load, setup = rules.setup(values)
    if users is not None:
        load = replace(load, sequences=users)
    values = with_projector_path(opened, rules, values)
    price = (session.pricing or price_loads)(opened, rules.name, values, session.reach)
    header = None if session.text_only else projector_to_load(opened, rules, values, session.reach)
    if header is not None:
        price = with_lines(price, partial(rules.projector_lines, header))
    asked = asked_estimate(opened, rules, price, load, setup, request=request, session=session)
    bill = bill_of(
        opened, rules, values, load=load, setup=setup, estimate=asked or price(load, setup)
    )
    return replace(bill, notes=(*resolved.notes, *bill.notes), from_index=bool(resolved.from_index))


def check_one_engine(request: Request) -> None:
    """Raises UsageError if several engines were chosen."""
    if len(request.engines) > 1:
        engine_name(ALL)


def assume(name: str, request: Request) -> EstimateAnswer:
    """An estimate by rules of thumb, from a name alone. Raises UsageError if the name does not state a size."""
    check_one_engine(request)
    engine = request.engine or default_engine().name
    values = request.values(engine)
    unused = ", ".join(sorted(set(values) - {"mix", "context"}))
    if unused:
        raise UsageError(
            f"--assume ignores {unused}: its rule of thumb knows only the size, the quantisation and the context"
        )
    from edgekit.index import read_index
    from edgekit.plan.assumed import assumed_choice, assumed_estimate, from_name

    model = from_name(name, mix=values.get("mix") or request.quant)
    choice = assumed_choice(model, read_index().entries)
    load, wired = Load(context_tokens=values.get("context")), engine_named(engine).wires_memory
    assumed = model if choice is None else choice.assumed
    allocated = assumed_estimate(assumed, load, engine=engine, wired=wired)
    return EstimateAnswer(
        label=model.name,
        reference=name,
        version="",
        asked="rule of thumb from the name alone; no file was read",
        command="",
        notes=() if choice is None else (choice.note,),
        estimate=allocated,
    )


def bill_of(
    opened: OpenModel,
    engine: Engine,
    values: Values,
    *,
    load: Load,
    setup: Setup,
    estimate: MemoryEstimate,
) -> EstimateAnswer:
    """The estimate with a description of the load, notes, and the command that starts the engine."""
    files, facts = opened.files, dict[str, Any](estimate.facts)
    tokens_per_sequence = facts.get("n_ctx_seq") or load.context_tokens
    model_and_load_notes = model_notes(
        files, opened.model.geometry, tokens_per_sequence, estimate, values
    )
    words, command_notes = engine.estimate_command(values, setup, estimate, opened)
    return EstimateAnswer(
        label=opened.label,
        reference=files.reference if files is not None else opened.label,
        version=engine.version(setup),
        asked=engine.describe(load, estimate),
        notes=(*model_and_load_notes, *command_notes),
        command=shlex.join(words),
        estimate=estimate,
        geometry=opened.model.geometry,
    )


def model_notes(
    files: ModelFiles | None,
    geometry: ModelGeometry,
    context_tokens: int | None,
    estimate: MemoryEstimate,
    values: Values,
) -> Iterator[str]:
    """Notes on a model at a context length, for any engine. `values`: of the engine's flags."""
    if files is not None:
        yield from files.notes
    if geometry.because:
        yield f"approximate: {geometry.because}"
    native = geometry.native_context
    if native is not None and context_tokens is not None and context_tokens - native >= CELLS:
        yield f"the native context is {native:,} tokens: beyond it answers get worse or become nonsense"
    stored = files.projectors if files is not None else ()
    has_projector = any(line.part == "projector" for line in estimate.lines)
    if has_projector and "mmproj" not in values:
        name = stored[0].name if stored else "the image projector"
        yield f"{name} and one image are counted, because -hf loads it; --no-mmproj leaves it out"
    elif stored and not has_projector:
        yield f"{stored[0].name} is not counted; --mmproj auto (llama.cpp) adds it"


def task_of(
    resolved: ResolvedModel | None,
    opened: OpenModel,
    engine: str,
    request: Request,
    session: Session,
) -> tuple[Task, dict[str, Any]]:
    """The task of an opened model on this engine, and the values of the engine's flags. Raises EdgekitError.

    `resolved` says what was requested by the model's name: a quantisation, or to embed. None: only the file counts.
    """
    rules, values = engine_named(engine), dict[str, Any]()
    if request.options is not None:  # from Python keywords
        quant = None if resolved is None else resolved.quant
        options = options_with_quant(engine, request.options, quant)
        load, setup = Load(), None
        if options:
            read = RowOptions(options)
            load, setup = rules.read_keywords(read)
            read.require_known(engine)
        if request.context is not None:
            load = replace(load, context_tokens=request.context)
        if request.sequences is not None:
            load = replace(load, sequences=request.sequences)
        start = Start(setup=setup, fixed_flags=frozenset(options))
        if resolved is not None and resolved.embeds:
            start = rules.embedding_start(start)
        load = for_users(load, request.users, engine, opened.model)
    else:
        values = values_of(resolved, engine, request)
        values = values_for_users(values, engine, request.users, opened.model)
        load, setup = rules.setup(values)
        if values.get("context") == 0:  # 0 is the native context for every engine
            load = replace(load, context_tokens=0)
        if request.users is not None:
            load = replace(load, sequences=request.users)
        start = Start(setup=setup, fixed_flags=frozenset(values))
        values = with_projector_path(opened, rules, values)
    bill: Price | None = None
    if companions_in(rules.flags, values):
        bill = (session.pricing or price_loads)(opened, engine, values, session.reach)
    header = None if session.text_only else projector_to_load(opened, rules, values, session.reach)
    companion_lines: Callable[[Load, Setup], tuple[MemoryLine, ...]] | None = None
    if header is not None:
        companion_lines = partial(rules.projector_lines, header)
        if bill is not None:
            bill = with_lines(bill, companion_lines)
    return Task(
        model=opened.model,
        engine=engine,
        machine=request.find_machine(),
        load=load,
        start=start,
        bill=bill,
        companion_lines=companion_lines,
        drafter=loaded_drafter(rules, values, setup, request, session.reach),
        acceptance=request.acceptance,
        job=request.job,
        prompt_tokens=request.prompt_tokens,
        min_speed=request.min_speed,
        min_context=request.min_context,
        alternatives=opened.files.alternatives if opened.files is not None else (),
        window_budget_bytes=request.window_budget_bytes,
        max_use=request.max_use,
        reserve_bytes=request.reserve_bytes,
        own_cache_only=request.prefer_accurate_kv,
        keep_spare=request.keep_spare,
        nodes=request.nodes or 1,
        label=opened.label,
        repository=opened.repository,
        from_index=resolved is not None and bool(resolved.from_index),
        is_remote=opened.files is None or opened.files.origin.is_remote,
        users=request.users,
        cancelled=session.reach.cancelled,
    ), values


def loaded_drafter(
    rules: Engine, values: Values, setup: Setup | None, request: Request, reach: Reach
) -> Drafter | None:
    """The drafter that the flags name; None if there is none, or no acceptance was stated."""
    if request.acceptance is None or setup is None or not rules.draft_tokens(setup):
        return None
    return _named_drafter(rules, values, reach) or Drafter(name=OWN_LAYERS)


def _named_drafter(rules: Engine, values: Values, reach: Reach) -> Drafter | None:
    """The model that -md names, and the quantisation that it is to have."""
    reference = companions_in(rules.flags, values).get("drafter")
    if reference is None:
        return None
    opened = open_named(reference, Session(reach=reach)).as_file(rules.name)
    is_made = opened.model.header.container is not Container.GGUF  # else its tensors have types
    return Drafter(name=opened.label, model=opened.model, mix=opened.mix if is_made else None)


def check_acceptance(request: Request, engine: str) -> None:
    """Raises UsageError if an acceptance is stated, but no draft model."""
    if request.acceptance is None:
        return
    rules = engine_named(engine)
    if not rules.drafts:
        raise UsageError(
            f"--acceptance only works with llama.cpp and a draft model, not with {engine}: leave it out"
        )
    values = request.values(engine)
    if not rules.draft_tokens(rules.setup(values)[1]):
        if companions_in(rules.flags, values).get("drafter"):
            raise UsageError("--acceptance needs drafted tokens: --draft-max 0 turns drafting off")
        raise UsageError(
            "--acceptance needs a draft model: add -md MODEL, or --spec-type draft-mtp if the model has its own "
            "prediction layers"
        )


def values_of(resolved: ResolvedModel | None, engine: str, request: Request) -> dict[str, Any]:
    """The values of the engine's flags, with the flag for embeddings if the model and the engine need it.

    Raises UsageError for a quantisation that the engine lacks, RefusedError if it returns no embeddings.
    """
    if resolved is None:
        return request.values(engine)
    values = request.values(engine, resolved.quant)
    if resolved.embeds and engine_named(engine).embedding_start(Start()).fixed_flags:
        values = in_order(engine, {"embeddings": True, **values})
    return values


def values_for_users(
    values: Values, engine: str, users: int | None, model: Model
) -> dict[str, Any]:
    """The flags with which each user has a separate context. Raises UsageError."""
    if users is None:
        return dict(values)
    load = for_users(Load(context_tokens=values.get("context")), users, engine, model)
    return engine_named(engine).values_for_users(values, users, load)


NEXT_TO_MODEL = "auto"  # the projector file in the model's folder


class _CachedProjector:
    """The header of the projector in a model's repository, read once."""

    def __init__(self) -> None:
        self.header = Cached[ModelHeader | None]()


def projector_to_load(
    opened: OpenModel, rules: Engine, values: Values, reach: Reach
) -> ModelHeader | None:
    """The projector that the engine loads unasked, if there is one and its size is known."""
    files = opened.files
    if files is None or not rules.loads_projector(files, values):
        return rules.known_projector(opened, values)

    def read() -> ModelHeader | None:
        with suppress(EdgekitError):
            header = projector_header(NEXT_TO_MODEL, opened, rules, reach)
            rules.projector_lines(header, *rules.setup({}))  # raises if it is not a projector
            return header
        return None

    return opened.model.prepared(_CachedProjector).header.get(read)


def with_projector_path(opened: OpenModel, rules: Engine, values: Values) -> dict[str, Any]:
    """The values with the path of a local projector instead of "auto", which no engine knows."""
    files, found = opened.files, dict(values)
    if files is None or files.origin is not Origin.LOCAL or not files.projectors:
        return found
    for flag in rules.flags:
        if flag.companion == "projector" and found.get(flag.key) == NEXT_TO_MODEL:
            with closing(files.projectors[0].open()) as source:
                found[flag.key] = source.name
    return found


def price_loads(opened: OpenModel, engine: str, values: Values, reach: Reach) -> Price:
    """A function that estimates any load of the model, together with its draft model, projector and adapters.

    Raises EdgekitError for a file that cannot be opened or is of the wrong kind.
    """
    rules, model = engine_named(engine), opened.model
    if not rules.companions & values.keys():
        return lambda load, setup: rules.estimate(model, load, setup)
    references, drafter = companions_in(rules.flags, values), _named_drafter(rules, values, reach)
    projector = references.get("projector")
    companions = Companions(
        projector=None if projector is None else projector_header(projector, opened, rules, reach),
        adapters=tuple(
            read_header(locate(adapter, reach=reach)) for adapter in references.get("adapters", ())
        ),
        drafter=drafter,
    )
    return lambda load, setup: rules.estimate_with(companions, model, load, setup, values)


NO_PROJECTOR = "--mmproj auto: no mmproj file was found next to the model; give its path"
NO_PROJECTOR_SIZE = (
    "--mmproj auto: the index does not have the size of this model's projector: download it and give its path "
    "with --mmproj FILE"
)


def projector_header(name: str, opened: OpenModel, rules: Engine, reach: Reach) -> ModelHeader:
    """The header of the named projector, or with "auto" of the first one in the model's folder; of a model of the
    index, the one that its config implies.
    """
    if name != NEXT_TO_MODEL:
        return read_header(locate(name, reach=reach))
    if opened.files is None:
        known = rules.known_projector(opened, {})
        if known is None:
            raise UsageError(NO_PROJECTOR_SIZE)
        return known
    projectors = opened.files.projectors
    if not projectors:
        raise UsageError(NO_PROJECTOR)
    files = ModelFiles(
        reference=projectors[0].name,
        label=projectors[0].name,
        origin=opened.files.origin,
        container=Container.GGUF,
        weights=projectors[:1],
    )
    return read_header(files)
