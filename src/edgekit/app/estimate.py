"""A model and a load -> the memory that an engine allocates for it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from edgekit.app.answers import EstimateAnswer
from edgekit.app.open import ResolvedModel, open_named
from edgekit.app.task import price_loads, values_for_users
from edgekit.bill.types import Load, MemoryEstimate
from edgekit.engines import default_engine, engine_name, engine_named
from edgekit.engines.flags import companions_in
from edgekit.engines.protocol import Engine
from edgekit.errors import UsageError
from edgekit.machine.what_if import what_if_machine
from edgekit.model.open import OpenModel
from edgekit.model.types import ModelGeometry
from edgekit.request import ALL, Request, Session, Values
from edgekit.sources.types import ModelFiles

CELLS = 256  # llama.cpp rounds a context up to a multiple of this


def estimate(
    reference: str | os.PathLike[str], request: Request, session: Session
) -> EstimateAnswer:
    """Raises EdgekitError if the model cannot be read or the engine refuses it."""
    return estimate_named(open_named(reference, session, quant=request.quant), request, session)


def estimate_named(named: ResolvedModel, request: Request, session: Session) -> EstimateAnswer:
    """`estimate` for a model that is open already."""
    check_one_engine(request)
    engine = request.engine or named.first_engine
    opened, users = named.as_file(engine), request.users
    values = request.values(engine, named.quant)
    if request.devices or request.vram is not None:
        cards = what_if_machine(devices=request.devices, vram=request.vram).devices
        if cards:
            values = {**engine_named(engine).values_on_cards(cards, request.devices), **values}
    if users is not None:
        values.setdefault("context", 0)  # the native context for each user
    values = values_for_users(values, engine, users, opened.model)
    load, setup = engine_named(engine).setup(values)
    if users is not None:
        load = replace(load, sequences=users)
    price = (session.pricing or price_loads)(opened, engine, values, session.reach)
    bill = bill_of(
        opened,
        engine_named(engine),
        values,
        load=load,
        setup=setup,
        estimate=price(load, setup),
    )
    return replace(bill, notes=(*named.notes, *bill.notes))


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
    from edgekit.catalog import read_catalog
    from edgekit.plan.assumed import assumed_choice, assumed_estimate, from_name

    model = from_name(name, mix=values.get("mix") or request.quant)
    choice = assumed_choice(model, read_catalog().entries)
    load = Load(context_tokens=values.get("context"))
    return EstimateAnswer(
        label=model.name,
        reference=name,
        version="",
        asked="rule of thumb from the name alone; no file was read",
        command="",
        notes=() if choice is None else (choice.note,),
        estimate=assumed_estimate(
            model if choice is None else choice.assumed,
            load,
            engine=engine,
            wired=engine_named(engine).wires_memory,
        ),
    )


def bill_of(
    opened: OpenModel,
    engine: Engine,
    values: Values,
    *,
    load: Load,
    setup: Any,
    estimate: MemoryEstimate,
) -> EstimateAnswer:
    """The estimate with a description of the load, notes, and the command that starts the engine."""
    files, facts = opened.files, dict[str, Any](estimate.facts)
    length = facts.get("n_ctx_seq") or load.context_tokens
    has_projector = "projector" in companions_in(engine.flags, values)
    return EstimateAnswer(
        label=opened.label,
        reference=files.reference if files is not None else opened.label,
        version=engine.version(setup),
        asked=engine.describe(load, estimate),
        notes=(
            *model_notes(files, opened.model.geometry, length, has_projector=has_projector),
            *engine.estimate_notes(values, setup, estimate, opened),
        ),
        command=shlex.join(engine.estimate_words(values, estimate, opened)),
        estimate=estimate,
        geometry=opened.model.geometry,
    )


def model_notes(
    files: ModelFiles | None,
    geometry: ModelGeometry,
    context_tokens: int | None,
    *,
    has_projector: bool = False,
) -> Iterator[str]:
    """Notes on a model at a context length, for any engine."""
    if files is not None:
        yield from files.notes
    if geometry.because:
        yield f"approximate: {geometry.because}"
    native, length = geometry.native_context, context_tokens
    if native is not None and length is not None and length - native >= CELLS:
        yield f"the native context is {native:,} tokens: beyond it answers get worse or become nonsense"
    if files is not None and files.projectors and not has_projector:
        yield f"{files.projectors[0].name} is not counted; --mmproj auto (llama.cpp) adds it"
