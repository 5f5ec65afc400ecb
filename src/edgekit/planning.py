"""A name and a machine -> the plan: the whole line once more, with everything to be chosen."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from edgekit.catalog import find_entry, opened, read_catalog
from edgekit.catalog.naming import is_base
from edgekit.catalog.types import Catalog, Entry, Kind
from edgekit.engine import engine_for, engine_name
from edgekit.engine.llamacpp.as_gguf import convert
from edgekit.errors import (
    NotFoundError,
    PrivateAddressError,
    RefusedError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    UsageError,
)
from edgekit.estimation import Opened, open_model, open_or_download
from edgekit.hardware.types import Machine
from edgekit.kept import keep, kept, key_of, steadied
from edgekit.memory.types import Load
from edgekit.plan.again import as_data, choices_of, plan_again, read_choices
from edgekit.plan.caches import embedding_start
from edgekit.plan.drafting import catalog_drafters, own_drafter
from edgekit.plan.making import make_plan
from edgekit.plan.placement import engine_on
from edgekit.plan.planned import Drafter, Lever, Plan, Variant, Wish
from edgekit.plan.ranking import rank_of
from edgekit.plan.recommending import (
    SHOWN,
    Ask,
    Recommendation,
    Suggestion,
    ranked_for,
    recommend,
    wish_for,
)
from edgekit.plan.types import Start
from edgekit.plan.variants import (
    AS_STORED,
    accuracy_of,
    as_it_is,
    at_mixes,
    stored_accuracy,
    usual_variant,
    variants_of,
)
from edgekit.source.folders import is_here
from edgekit.source.naming import close_names, quant_tag
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
    catalog: Catalog = field(repr=False)
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

    @property
    def first_engine(self) -> str:
        """The one that its files are for."""
        if self.found is not None:
            return engine_for(self.found.model)
        return LLAMACPP if self.entry is not None and self.entry.keys else "vllm"

    def opened(self, engine: str) -> Opened:
        """Raises RefusedError where the entry has nothing that the engine loads."""
        if self.found is None and self.entry is not None:
            return opened(self.entry, engine)
        if self.found is None:
            raise UsageError(f"{self.name}: neither opened nor in the catalog")
        return self.found

    def as_file(self, engine: str) -> Opened:
        """The same, of a known GGUF as the file that people run, at the usual quantisation.

        What is known by its config alone llama.cpp is asked about as if it were converted, and says so.
        """
        model = self.opened(engine)
        if self.found is not None or model.model.header.container is not Container.GGUF:
            return model
        usual = usual_variant(variants_of(model.model, engine, settled=False))
        return replace(model, model=convert(model.model, usual.name).model, mix=usual.name)

    @property
    def embeds(self) -> bool:
        """Whether it is a model of which nobody wants words."""
        if self.entry is not None:
            return Kind.EMBEDDING in self.entry.kinds
        return self.found is not None and self.found.model.geometry.causal is False


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

    What the user added is opened from where it came; a repository that cannot be reached is taken from the catalog,
    where it is there.
    """
    name = os.fspath(reference)
    is_file = is_here(name, whole=reach is not None and reach.within is not None)
    catalog = Catalog(entries=()) if is_file else read_catalog()  # a file needs none
    entry: Entry | None = None
    is_said = name.lower().startswith(CATALOG)
    if is_said:
        name = name[len(CATALOG) :]
        entry = find_entry(name, catalog)
    elif not is_file:
        entry = _known(name, catalog)
    if entry is not None and (is_said or "/" not in name) and not entry.is_users:
        return Named(name=name, catalog=catalog, entry=entry, notes=base_note(entry))
    source = entry.reference if entry is not None and entry.is_users else name
    try:
        found = open_or_download(source, reach=reach, confirm=confirm)
    except NotFoundError as error:
        if entry is not None and entry.is_users:
            note = (
                f"known from the catalog, for {source} is gone (edgekit catalog remove {entry.id})"
            )
            return Named(name=name, catalog=catalog, entry=entry, notes=(note,))
        if any(sign in name for sign in "/\\:."):
            raise  # a path, an address, a name with a tag
        raise _with_near(error, name, catalog) from error
    except PrivateAddressError:
        raise  # the catalog's word for it would hide what was refused
    except RemoteInspectError as error:
        said_no = isinstance(error, RemoteNotFoundError | RemoteAccessError)
        if entry is None or (said_no and not entry.is_users):
            raise
        note = f"known from the catalog, for {source} could not be read: {error}"
        return Named(name=name, catalog=catalog, entry=entry, notes=(note,))
    return Named(name=name, catalog=catalog, entry=entry, found=found)


def _with_near(error: NotFoundError, name: str, catalog: Catalog) -> NotFoundError:
    """The same, with names of the catalog that are near, and with what of it could not be read."""
    near = close_names(name.lower(), [entry.id for entry in catalog.entries])
    damaged = "".join(f"; the catalog cannot be read whole: {one}" for one in catalog.problems[:1])
    return NotFoundError(f"{error}{damaged}", candidates=() if error.candidates else near)


def base_note(entry: Entry) -> tuple[str, ...]:
    """What whoever wants answers should know of a base model."""
    repository = entry.repository
    if repository is None or Kind.CHAT not in entry.kinds or not is_base(repository):
        return ()
    return (
        f"{repository} is the base model: to be answered take its instruct version, of the same shape",
    )


def _known(name: str, catalog: Catalog) -> Entry | None:
    try:
        return find_entry(name, catalog)
    except NotFoundError:
        return None


def plan_model(
    named: Named, wanted: Wanted, *, reach: Reach | None = None, thorough: bool = True
) -> Plan:
    """The plan for it. Where a file of a repository is chosen that was not looked at, its header is read as well.

    Such a file may be larger than its name says: then the next smaller one is looked at.
    """
    wish = wish_of(named, wanted)
    if reach is not None:
        wish = replace(wish, cancelled=reach.cancelled)
    while True:
        plan = make_plan(wish, thorough=thorough)
        chosen = plan.variant
        if not plan.fits or not chosen.reference or not chosen.changes:
            return plan
        found = open_model(chosen.reference, reach=reach)
        real = as_it_is(found.model, chosen.name, chosen.reference)
        exact = make_plan(replace(wish, variants=real), thorough=thorough)
        smaller = wish.variants[wish.variants.index(chosen) + 1 :]
        if exact.fits:
            return _with_first_decision(exact, plan)
        if not smaller:
            return exact
        wish = replace(wish, variants=smaller)


def _with_first_decision(plan: Plan, before: Plan) -> Plan:
    """Why this file was chosen stands in the search among all of them."""
    kept = tuple(one for one in before.decisions if one.lever is Lever.WEIGHTS)
    rest = tuple(one for one in plan.decisions if one.lever is not Lever.WEIGHTS)
    return replace(plan, decisions=(*kept, *rest))


def wish_of(named: Named, wanted: Wanted) -> Wish:
    """Raises HardwareError, RefusedError, UsageError."""
    engine = named.engine(wanted.engine, wanted.machine)
    model = named.opened(engine)
    embeds = named.embeds
    if embeds and engine == "mlx":
        raise RefusedError("mlx-lm hands over no embeddings: llama.cpp and vLLM do")
    drafters: tuple[Drafter, ...] = ()
    if wanted.drafter and engine == LLAMACPP and not embeds:
        drafters = (*own_drafter(model.model), *_catalog_drafters(named))
    return Wish(
        label=model.label,
        variants=_variants(named, model, engine, wanted.start),
        engine=engine,
        machine=wanted.machine,
        load=wanted.load,
        start=embedding_start(wanted.start, engine) if embeds else wanted.start,
        users=wanted.users,
        min_context=wanted.min_context,
        prefer_accurate_cache=wanted.prefer_accurate_cache,
        drafters=drafters,
        nodes=wanted.nodes,
        repository=(named.entry.repository or "") if named.entry is not None else "",
    )


def _catalog_drafters(named: Named) -> tuple[Drafter, ...]:
    entry = named.entry
    return () if entry is None else catalog_drafters(entry, named.catalog.entries)


def _variants(named: Named, model: Opened, engine: str, start: Start) -> tuple[Variant, ...]:
    """The files of a repository where none was named; else what can be made of the model."""
    files = model.files
    if {"mix", "quantize"} & start.settled:
        return as_it_is(model.model, str(getattr(start.setup, "mix", None) or "as asked"))
    if files is None or files.container is not Container.GGUF or engine != LLAMACPP:
        return variants_of(model.model, engine, settled=False)
    tag = quant_tag(files.label.rpartition(":")[2]) or quant_tag(files.label) or AS_STORED
    own = as_it_is(model.model, tag, files.reference)
    if ":" in named.name.rpartition("/")[2] or files.origin is not Origin.HUB:
        return own
    others = at_mixes(model.model, files.alternatives, repository=files.reference)
    mine = replace(own[0], accuracy=accuracy_of(tag) or stored_accuracy(model.model))
    every = (mine, *(one for one in others if one.name != tag))
    return tuple(sorted(every, key=lambda one: -one.accuracy))


def recommended(
    catalog: Catalog,
    ask: Ask,
    *,
    most: int = SHOWN,
    of_a_family: int = 1,
    tell: Callable[[str], None] | None = None,
) -> Recommendation:
    """`recommend`, or what it said when the same was asked before, each priced anew.

    Free memory counts in whole steps, so that the same machine is asked the same question again.
    """
    ask = replace(ask, machine=steadied(ask.machine))
    ranked = ranked_for(ask.task, catalog.entries)
    wishes = (ask.context_tokens, ask.users, ask.min_context, ask.prefer_accurate_cache)
    key = key_of((*wishes, ask.task, most, of_a_family), ask.machine, ask.engine, ranked)
    before = _before(kept(key), ask, ranked)
    if before is not None:
        return before
    found = recommend(ranked, ask, most=most, of_a_family=of_a_family, tell=tell)
    if found.suggestions:
        picks = [{"id": one.entry.id, **as_data(choices_of(one.plan))} for one in found.suggestions]
        keep(key, {"picks": picks, "passed_over": found.passed_over})
    return found


def _before(
    answer: Mapping[str, Any] | None, ask: Ask, ranked: Sequence[Entry]
) -> Recommendation | None:
    """None where nothing was kept, it is damaged, or anything of it does not fit any more."""
    picks, reasons = (answer or {}).get("picks"), _reasons((answer or {}).get("passed_over"))
    if not isinstance(picks, list) or not picks or reasons is None:
        return None
    by_id = {entry.id: entry for entry in ranked}
    found: list[Suggestion] = []
    for pick in picks:
        choices = read_choices(pick)
        entry = None if choices is None else by_id.get(str(pick.get("id")))
        if choices is None or entry is None:
            return None
        plan = plan_again(wish_for(entry, ask), choices)
        if plan is None or not plan.fits:
            return None
        found.append(Suggestion(entry=entry, plan=plan, rank=rank_of(entry)))
    return Recommendation(ask=ask, suggestions=tuple(found), passed_over=reasons)


def _reasons(told: object) -> tuple[tuple[str, int], ...] | None:
    if not isinstance(told, list):
        return None
    pairs = [one for one in told if isinstance(one, list) and len(one) == 2]
    right = [(str(why), count) for why, count in pairs if isinstance(count, int)]
    return tuple(right) if len(right) == len(told) else None
