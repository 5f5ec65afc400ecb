"""A name and a machine -> the plan: the whole line once more, with everything to be chosen."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from edgekit.catalog import find_entry, opened, read_catalog
from edgekit.catalog.types import Entry
from edgekit.engine import engine_name
from edgekit.errors import (
    EdgekitError,
    NotFoundError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    UsageError,
)
from edgekit.estimation import Opened, open_model, open_or_download
from edgekit.hardware.types import Machine
from edgekit.memory.types import Load
from edgekit.plan.drafting import catalog_drafters, own_drafter
from edgekit.plan.making import make_plan
from edgekit.plan.placement import engine_on
from edgekit.plan.planned import Drafter, Lever, Plan, Variant, Wish
from edgekit.plan.types import Start
from edgekit.plan.variants import accuracy_of, as_it_is, at_mixes, variants_of
from edgekit.source.folders import is_here
from edgekit.source.naming import quant_tag
from edgekit.source.types import Container, Origin

if TYPE_CHECKING:
    from edgekit.source.download import Download
    from edgekit.source.types import ModelFiles, Reach

CATALOG = "catalog:"
LLAMACPP, AUTO = "llama.cpp", "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A model by its name, before an engine is chosen: a known one, or one whose header was read."""

    name: str
    entry: Entry | None = None
    found: Opened | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> ModelFiles | None:
        return self.found.files if self.found is not None else None

    def engine(self, wanted: str, machine: Machine) -> str:
        if wanted.lower() != AUTO:
            return engine_name(wanted)
        return LLAMACPP if self.found is None else engine_on(self.found.model, machine)

    def opened(self, engine: str) -> Opened:
        """Raises RefusedError where the entry has nothing that the engine loads."""
        if self.found is None and self.entry is not None:
            return opened(self.entry, engine)
        if self.found is None:
            raise UsageError(f"{self.name}: neither opened nor in the catalog")
        return self.found


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is wanted of the plan, whatever the model."""

    machine: Machine
    engine: str = AUTO
    load: Load = field(default_factory=Load)
    start: Start = field(default_factory=Start)
    users: int | None = None
    min_context: int | None = None
    prefer_accurate_cache: bool = False
    drafter: bool = True  # look for one
    nodes: int = 1


def name_model(
    reference: str | os.PathLike[str],
    *,
    reach: Reach | None = None,
    confirm: Callable[[Download], bool] | None = None,
) -> Named:
    """A model of the catalog by its id, or anything that can be opened. Raises EdgekitError.

    A repository that cannot be reached is taken from the catalog, where it is there.
    """
    name = os.fspath(reference)
    if name.lower().startswith(CATALOG):
        return Named(name=name, entry=find_entry(name[len(CATALOG) :]))
    known = _known(name)
    if known is not None and "/" not in name and not is_here(name):
        return Named(name=name, entry=known)
    try:
        return Named(
            name=name,
            entry=known,
            found=open_or_download(reference, reach=reach, confirm=confirm),
        )
    except (RemoteNotFoundError, RemoteAccessError):
        raise  # the server was reached, and it said no
    except RemoteInspectError as error:
        if known is None:
            raise
        note = f"known from the catalog, for the repository could not be read: {error}"
        return Named(name=name, entry=known, notes=(note,))


def _known(name: str) -> Entry | None:
    try:
        return find_entry(name)
    except NotFoundError:
        return None


def plan_model(
    named: Named, wanted: Wanted, *, reach: Reach | None = None, thorough: bool = True
) -> Plan:
    """The plan for it. Where a file of a repository is chosen that was not looked at, its header is read as well."""
    wish = wish_of(named, wanted)
    plan = make_plan(wish, thorough=thorough)
    chosen = plan.variant
    if not plan.fits or not chosen.reference or not chosen.changes:
        return plan
    try:
        found = open_model(chosen.reference, reach=reach)
    except EdgekitError:
        return plan  # as if: the basis says so
    real = as_it_is(found.model, chosen.name, chosen.reference)
    exact = make_plan(replace(wish, variants=real), thorough=thorough)
    if not exact.fits:
        smaller = wish.variants[wish.variants.index(chosen) + 1 :]
        return make_plan(replace(wish, variants=smaller), thorough=thorough) if smaller else exact
    return _with_first_decision(exact, plan)


def _with_first_decision(plan: Plan, before: Plan) -> Plan:
    """Why this file was chosen stands in the search among all of them."""
    kept = tuple(one for one in before.decisions if one.lever is Lever.WEIGHTS)
    rest = tuple(one for one in plan.decisions if one.lever is not Lever.WEIGHTS)
    return replace(plan, decisions=(*kept, *rest))


def wish_of(named: Named, wanted: Wanted) -> Wish:
    """Raises HardwareError, RefusedError, UsageError."""
    engine = named.engine(wanted.engine, wanted.machine)
    model = named.opened(engine)
    drafters: tuple[Drafter, ...] = ()
    if wanted.drafter and engine == LLAMACPP:
        drafters = (*own_drafter(model.model), *_catalog_drafters(named))
    return Wish(
        label=model.label,
        variants=_variants(named, model, engine, wanted.start.settled),
        engine=engine,
        machine=wanted.machine,
        load=wanted.load,
        start=wanted.start,
        users=wanted.users,
        min_context=wanted.min_context,
        prefer_accurate_cache=wanted.prefer_accurate_cache,
        drafters=drafters,
        nodes=wanted.nodes,
        repository=(named.entry.repository or "") if named.entry is not None else "",
    )


def _catalog_drafters(named: Named) -> tuple[Drafter, ...]:
    entry = named.entry
    return () if entry is None else catalog_drafters(entry, read_catalog().entries)


def _variants(
    named: Named, model: Opened, engine: str, settled: frozenset[str]
) -> tuple[Variant, ...]:
    """The files of a repository where none was named; else what can be made of the model."""
    files = model.files
    if {"mix", "quantize"} & settled:
        return as_it_is(model.model)
    if files is None or files.container is not Container.GGUF or engine != LLAMACPP:
        return variants_of(model.model, engine, settled=False)
    tag = quant_tag(files.label) or "as stored"
    own = as_it_is(model.model, tag, files.reference)
    if ":" in named.name.rpartition("/")[2] or files.origin is not Origin.HUB:
        return own
    others = at_mixes(model.model, files.alternatives, repository=files.reference)
    mine = replace(own[0], accuracy=accuracy_of(tag))
    every = (mine, *(one for one in others if one.name != tag))
    return tuple(sorted(every, key=lambda one: -one.accuracy))
