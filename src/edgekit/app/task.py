"""A request -> the task for one model on one engine and one machine: for check, plan, recommend and fit.

`estimate` has no machine, and so no task.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgekit.app.open import open_named
from edgekit.bill.types import Load, Price, Start, Task
from edgekit.engines import engine_named
from edgekit.engines.flags import companions_in
from edgekit.engines.options import RowOptions, options_with_quant
from edgekit.engines.protocol import Companions
from edgekit.errors import UsageError
from edgekit.formats import read_header
from edgekit.formats.types import ModelHeader
from edgekit.model.open import OpenModel
from edgekit.model.types import Model
from edgekit.plan.choice import for_users
from edgekit.request import Request, Session, Values, in_order
from edgekit.sources import locate
from edgekit.sources.types import Container, ModelFiles, Reach


def task_of(
    opened: OpenModel,
    engine: str,
    request: Request,
    session: Session,
    *,
    embeds: bool = False,
    quant: str | None = None,
) -> tuple[Task, dict[str, Any]]:
    """The task of this model on this engine, and the values of the engine's flags.

    `embeds`: it is an embedding model, and the engine is started to embed. `quant`: the quantisation of its weights.
    Raises EdgekitError.
    """
    values: dict[str, Any] = {}
    if request.options is not None:
        load, start = _of_options(request, engine, embeds=embeds, quant=quant)
        load = for_users(load, request.users, engine, opened.model)
    else:
        values = values_of(engine, request, embeds=embeds, quant=quant)
        values = values_for_users(values, engine, request.users, opened.model)
        load, setup = engine_named(engine).setup(values)
        if values.get("context") == 0:  # 0 is the native context for every engine
            load = replace(load, context_tokens=0)
        if request.users is not None:
            load = replace(load, sequences=request.users)
        start = Start(setup=setup, settled=frozenset(values))
    bill: Price | None = None
    if companions_in(engine_named(engine).flags, values):
        bill = (session.pricing or price_loads)(opened, engine, values, session.reach)
    return Task(
        model=opened.model,
        engine=engine,
        machine=request.find_machine(),
        load=load,
        start=start,
        bill=bill,
        job=request.job,
        min_context=request.min_context,
        alternatives=opened.files.alternatives if opened.files is not None else (),
        window_budget_bytes=request.window_budget_bytes,
        max_use=request.max_use,
        reserve_bytes=request.reserve_bytes,
        own_cache_only=request.prefer_accurate_kv,
        nodes=request.nodes or 1,
        label=opened.label,
        repository=opened.repository,
        is_remote=opened.files is None or opened.files.origin.is_remote,
        users=request.users,
        cancelled=session.reach.cancelled,
    ), values


def values_of(
    engine: str, request: Request, *, embeds: bool = False, quant: str | None = None
) -> dict[str, Any]:
    """The values of the engine's flags, with those that start it to embed if the model is an embedding model.

    Raises UsageError for a quantisation that the engine lacks, RefusedError if it returns no embeddings.
    """
    values = request.values(engine, quant)
    if embeds and engine_named(engine).embedding_start(Start()).settled:
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


def _of_options(
    request: Request, engine: str, *, embeds: bool, quant: str | None
) -> tuple[Load, Start]:
    """The load and setup of Python's options."""
    options = options_with_quant(engine, request.options or {}, quant)
    load, setup = _read_options(engine, options) if options else (Load(), None)
    own: dict[str, Any] = {"context_tokens": request.context, "sequences": request.sequences}
    load = replace(load, **{name: value for name, value in own.items() if value is not None})
    start = Start(setup=setup, settled=frozenset(options))
    return load, engine_named(engine).embedding_start(start) if embeds else start


def takes_options(engine: str, options: Values) -> bool:
    try:
        _read_options(engine, options)
    except UsageError:
        return False
    return True


def _read_options(engine: str, options: Values) -> tuple[Load, Any]:
    read = RowOptions(options)
    load, setup = engine_named(engine).read_keywords(read)
    read.require_known(engine)
    return load, setup


NEXT_TO_MODEL = "auto"  # the projector: the one next to the model


def price_loads(opened: OpenModel, engine: str, values: Values, reach: Reach) -> Price:
    """What any load costs, including the files loaded next to the model, which are opened here.

    Raises EdgekitError for a file that cannot be opened or is of the wrong kind.
    """
    one, model = engine_named(engine), opened.model
    if not one.companions & values.keys():
        return lambda load, setup: one.estimate(model, load, setup)
    given, drafter = companions_in(one.flags, values), None
    projector, adapters = given.get("projector"), given.get("adapters", ())
    if (name := given.get("drafter")) is not None:
        drafter = open_named(name, Session(reach=reach)).as_file(engine)
    companions = Companions(
        projector=None if projector is None else _projector(projector, opened, reach),
        adapters=tuple(read_header(locate(name, reach=reach)) for name in adapters),
        drafter=None if drafter is None else drafter.model,
        drafter_mix=None if drafter is None else drafter.mix,
    )
    return lambda load, setup: one.estimate_with(companions, model, load, setup, values)


NO_PROJECTOR_SIZE = (
    "--mmproj auto: the catalog does not have the size of this model's projector: download it and give its path "
    "with --mmproj FILE"
)


def _projector(name: str, opened: OpenModel, reach: Reach) -> ModelHeader:
    if name != NEXT_TO_MODEL:
        return read_header(locate(name, reach=reach))
    if opened.files is None:
        raise UsageError(NO_PROJECTOR_SIZE)
    found = opened.files.projectors
    if not found:
        raise UsageError("--mmproj auto: no mmproj file was found next to the model; give its path")
    files = ModelFiles(
        reference=found[0].name,
        label=found[0].name,
        origin=opened.files.origin,
        container=Container.GGUF,
        weights=found[:1],
    )
    return read_header(files)
