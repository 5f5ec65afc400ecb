"""A machine and the catalog -> the best few models, and those that were recommended before when the same is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from edgekit.app.answers import Best
from edgekit.app.estimate import check_one_engine
from edgekit.app.recommendation_cache import keep, kept, key_of, steadied
from edgekit.catalog import read_catalog
from edgekit.catalog.known_names import base_note
from edgekit.catalog.types import Catalog, Entry, ModelPurpose
from edgekit.engines import default_engine, engine_named
from edgekit.plan import recommending
from edgekit.plan.making import check_planned, find_plan
from edgekit.plan.ranking import rank_of
from edgekit.plan.recommending import (
    SHOWN,
    Ask,
    Recommendation,
    Suggestion,
    ranked_for,
    task_for,
)
from edgekit.request import Request, Session

MOST_SHOWN = 100
_EVERY_FAMILY = 10**6


def recommend(request: Request, session: Session) -> Best:
    """Raises UsageError, and HardwareError where the engine has nothing to run on."""
    catalog = read_catalog()
    found = recommended(
        catalog,
        ask_of(request),
        most=min(request.limit or SHOWN, MOST_SHOWN),
        of_a_family=_EVERY_FAMILY if request.all_sizes else 1,
        tell=session.tell,
    )
    notes = (note for one in found.suggestions for note in base_note(one.entry))
    return Best(found=found, notes=(*catalog.problems, *notes))


def ask_of(request: Request) -> Ask:
    """Raises UsageError."""
    check_one_engine(request)
    engine = request.engine or default_engine().name
    check_planned(engine)
    engine_named(engine).check_limits(request.reserve_bytes, request.max_use)
    return Ask(
        machine=request.find_machine(),
        task=request.purpose or ModelPurpose.CHAT,
        engine=engine,
        context_tokens=request.context,
        users=request.users,
        job=request.job,
        min_context=request.min_context,
        prefer_accurate_cache=request.prefer_accurate_kv,
        max_use=request.max_use,
        reserve_bytes=request.reserve_bytes,
    )


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
    found = recommending.recommend(ranked, ask, most=most, of_a_family=of_a_family, tell=tell)
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
        plan = None if entry is None else find_plan(task_for(entry, ask))
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
