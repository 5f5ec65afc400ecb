"""A name and a machine -> the plan: the whole line once more, with everything to be chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from edgekit.bill.task import Drafter, Job, Start
from edgekit.bill.types import Load
from edgekit.catalog.types import Catalog, Entry
from edgekit.engines import engine_named
from edgekit.kept import keep, kept, key_of, steadied
from edgekit.machine.types import Machine
from edgekit.plan.drafting import catalog_drafters, own_drafter
from edgekit.plan.making import check_wish, find_plan, make_plan, question_of
from edgekit.plan.planned import Plan, Wish
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
from edgekit.resolver import AUTO, LLAMACPP, ResolvedModel, choose_file

if TYPE_CHECKING:
    from edgekit.sources.types import Reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is wanted of the plan, whatever the model."""

    machine: Machine
    engine: str = AUTO
    load: Load = field(default_factory=Load)
    start: Start = field(default_factory=Start)
    users: int | None = None
    job: Job | None = None
    min_context: int | None = None
    prefer_accurate_cache: bool = False
    drafter: bool = True  # look for one
    nodes: int = 1
    max_use: float | None = None
    reserve_bytes: int | None = None


def plan_model(
    named: ResolvedModel, wanted: Wanted, *, reach: Reach | None = None, thorough: bool = True
) -> Plan:
    """The plan for it. Where a file of a repository is chosen that was not looked at, its header is read as well."""
    wish = wish_of(named, wanted)
    if reach is not None:
        wish = replace(wish, cancelled=reach.cancelled)
    check_wish(wish)
    *_, choice = choose_file(named.opened(wish.engine), question_of(wish), reach)
    return make_plan(wish, choice=choice, thorough=thorough)


def wish_of(named: ResolvedModel, wanted: Wanted) -> Wish:
    """Raises HardwareError, RefusedError, UsageError."""
    engine = named.engine(wanted.engine, wanted.machine)
    model = named.opened(engine)
    embeds = named.embeds
    drafters: tuple[Drafter, ...] = ()
    if wanted.drafter and engine == LLAMACPP and not embeds:
        drafters = (*own_drafter(model.model), *_catalog_drafters(named))
    return Wish(
        label=model.label,
        variants=named.variants(model, engine, wanted.start),
        engine=engine,
        machine=wanted.machine,
        load=wanted.load,
        start=engine_named(engine).embedding_start(wanted.start) if embeds else wanted.start,
        users=wanted.users,
        job=wanted.job,
        min_context=wanted.min_context,
        prefer_accurate_cache=wanted.prefer_accurate_cache,
        max_use=wanted.max_use,
        reserve_bytes=wanted.reserve_bytes,
        drafters=drafters,
        nodes=wanted.nodes,
        repository=(named.entry.repository or "") if named.entry is not None else "",
        is_remote=model.files is None or model.files.origin.is_remote,
    )


def _catalog_drafters(named: ResolvedModel) -> tuple[Drafter, ...]:
    entry = named.entry
    return () if entry is None else catalog_drafters(entry, named.catalog.entries)


def recommended(
    catalog: Catalog,
    ask: Ask,
    *,
    most: int = SHOWN,
    of_a_family: int = 1,
    tell: Callable[[str], None] | None = None,
) -> Recommendation:
    """`recommend`, or the models that it listed when the same was asked before, each planned anew.

    Free memory counts in whole steps for "the same"; what is planned and shown is for the memory there is.
    """
    ranked = ranked_for(ask.task, catalog.entries)
    wishes = (getattr(ask, one.name) for one in fields(ask) if one.name != "machine")
    key = key_of((*wishes, most, of_a_family), steadied(ask.machine), ask.engine, ranked)
    before = _before(kept(key), ask, ranked)
    if before is not None:
        return before
    found = recommend(ranked, ask, most=most, of_a_family=of_a_family, tell=tell)
    if found.suggestions:
        picks = [one.entry.id for one in found.suggestions]
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
        entry = by_id.get(str(pick))
        plan = None if entry is None else find_plan(wish_for(entry, ask))
        if entry is None or plan is None:
            return None
        found.append(Suggestion(entry=entry, plan=plan, rank=rank_of(entry)))
    found.sort(key=lambda one: one.order, reverse=True)
    return Recommendation(ask=ask, suggestions=tuple(found), passed_over=reasons)


def _reasons(told: object) -> tuple[tuple[str, int], ...] | None:
    if not isinstance(told, list):
        return None
    pairs = [one for one in told if isinstance(one, list) and len(one) == 2]
    right = [(str(why), count) for why, count in pairs if isinstance(count, int)]
    return tuple(right) if len(right) == len(told) else None
