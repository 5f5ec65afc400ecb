"""A machine and the catalog -> the best models, each with its plan, and why others were skipped.

The names of the models are stored on disk, so that the same request needs no second search: each of them is only
planned again for the memory that is free now.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from edgekit.app.candidates import (
    OFFLINE,
    TOO_LARGE,
    UNKNOWN_SPEED,
    Candidates,
    OnPlan,
    complete,
    key_of,
    read_stored,
    slower_than,
    store,
    task_for,
    why_skipped,
    with_rounded_memory,
)
from edgekit.engines import engine_named
from edgekit.errors import CancelledError, EdgekitError
from edgekit.index import read_index
from edgekit.index.references import base_note
from edgekit.index.types import Entry, Index, ModelPurpose
from edgekit.plan.choice import READING_TOKENS_PER_S, check_users
from edgekit.plan.fit import MINIMUM_TOKENS
from edgekit.plan.plan import find_plan, make_plan
from edgekit.plan.recommend import (
    POINTS_OF_DRAWBACK,
    Order,
    Suggestion,
    is_minor,
    is_notable,
    rank_of,
    ranked_for,
    root_of,
    smallest_bytes,
    speed_points,
    version_of,
)
from edgekit.request import MOST_SHOWN, Request, Session

SHOWN = 5
MAX_PER_LINE = 2  # models of a product line, across its families
SLOW = "too slow"
MOST_PLANNED = (
    40  # models to find the fastest; their bounds are usually within a third of their speeds
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The best models first.

    If nothing fits, `nearest` is the smallest model, with what would help. If models fit, but none is as fast as
    requested, `fastest` is the fastest.
    """

    request: Request = field(repr=False)  # with the machine and the engine filled in
    suggestions: tuple[Suggestion, ...]
    passed_over: tuple[tuple[str, int], ...] = ()  # (reason, number of models)
    nearest: Suggestion | None = None
    fastest: Suggestion | None = None
    notes: tuple[str, ...] = ()  # on the models and the catalog

    @property
    def purpose(self) -> ModelPurpose:
        """What the models are for."""
        return self.request.purpose or ModelPurpose.CHAT


def recommend(
    request: Request,
    session: Session = OFFLINE,
    catalog: Index | None = None,
    *,
    on_plan: OnPlan | None = None,
) -> Recommendation:
    """The result of `find_best`, whose models are stored: a repeated request only plans them again.

    Two requests count as the same if the free memory, rounded down to STEP_BYTES, is the same; the plans always use the
    memory that is free now. `on_plan` gets each model as soon as it is planned, with its longest context. Raises
    UsageError, and HardwareError if the machine has no hardware for the engine.
    """
    catalog = read_index() if catalog is None else catalog
    request = complete(request)
    ranked = ranked_for(request.purpose or ModelPurpose.CHAT, catalog.entries)
    key = key_of(request, with_rounded_memory(request.find_machine()), ranked)
    recommendation = None
    if session.reach.cache:
        recommendation = _plan_stored(key, request, session, ranked, on_plan)
    if recommendation is None:
        recommendation = find_best(ranked, request, session, on_plan=on_plan)
        if recommendation.suggestions and session.reach.cache:
            picks = [suggestion.entry.id for suggestion in recommendation.suggestions]
            store(key, {"picks": picks, "passed_over": recommendation.passed_over})
    notes = (
        note for suggestion in recommendation.suggestions for note in base_note(suggestion.entry)
    )
    return replace(recommendation, notes=(*catalog.problems, *notes))


def _plan_stored(
    key: str,
    request: Request,
    session: Session,
    ranked: Sequence[Entry],
    on_plan: OnPlan | None = None,
) -> Recommendation | None:
    """The stored models with new plans; None if nothing is stored, it is damaged, or a model no longer fits."""
    by_id = {entry.id: entry for entry in ranked}
    answer = read_stored(key)
    try:
        picks = [by_id[name] for name in answer["picks"]]
        passed_over = tuple((str(reason), int(count)) for reason, count in answer["passed_over"])
    except (ArithmeticError, ValueError, TypeError, KeyError):
        return None
    suggestions: list[Suggestion] = []
    task = request.purpose or ModelPurpose.CHAT
    for entry in picks:
        plan = find_plan(task_for(entry, request, session), longest=on_plan is not None)
        if plan is None or plan.result.is_too_slow:
            return None
        if on_plan is not None:
            on_plan(entry, plan)
        suggestions.append(Suggestion(entry=entry, plan=plan, task=task))
    if not suggestions:
        return None
    suggestions.sort(key=lambda suggestion: suggestion.order, reverse=True)
    return Recommendation(request=request, suggestions=tuple(suggestions), passed_over=passed_over)


def find_best(
    entries: Iterable[Entry],
    request: Request,
    session: Session = OFFLINE,
    *,
    on_plan: OnPlan | None = None,
) -> Recommendation:
    """The best models for the task by rank, slow ones last. `on_plan`: see `recommend`.

    Raises HardwareError if the machine has no hardware for the engine.
    """
    request = complete(request)
    (engine,) = request.engines
    engine_named(engine).check_runs(request.find_machine())
    check_users(request.users, engine)
    search = _Search(request, session, on_plan)
    ranked = ranked_for(request.purpose or ModelPurpose.CHAT, entries)
    suggestions = search.find(ranked)
    passed_over = tuple(search.passed_over.most_common())
    fastest = None if suggestions else search.fastest(ranked)
    return Recommendation(
        request=request,
        suggestions=tuple(suggestions),
        passed_over=passed_over,
        nearest=None if suggestions or fastest is not None else search.nearest(ranked),
        fastest=fastest,
    )


class _Search:
    """One pass over the ranked models.

    An "order" is what suggestions are sorted by: whether the model is notable, and its worth. It is known only after
    planning, which takes time, so models whose best possible order is too low are not planned.
    """

    def __init__(self, request: Request, session: Session, on_plan: OnPlan | None = None) -> None:
        self._request, self._session = request, session
        self._limit = min(request.limit or SHOWN, MOST_SHOWN)
        self._candidates = Candidates(request, session, on_plan)
        self._task = request.purpose or ModelPurpose.CHAT
        self._embeds = self._task is ModelPurpose.EMBEDDING
        self.passed_over: Counter[str] = Counter()

    def find(self, ranked: Sequence[Entry]) -> list[Suggestion]:
        """The best models. Stops when no later model can rank higher than the selected ones."""
        planned: list[Suggestion] = []
        shown: list[Suggestion] = []
        slow: list[Entry] = []  # would perhaps be shown if they were faster
        for entry in ranked:
            # Entries are sorted by rank, so neither this one nor a later one can have a better order.
            best_worth = rank_of(entry, self._task) + speed_points(math.inf)
            best_order = is_notable(entry, self._task), best_worth
            if len(shown) >= self._limit and shown[-1].order >= best_order:
                break
            reason = self._reason_to_skip(entry)
            if reason:
                self.passed_over[reason] += 1
                continue
            if not self._would_show(entry, shown, self._best_order_at_speed(entry)):
                slow.append(entry)
                continue
            suggestion = self._suggestion(entry)
            if suggestion is not None:
                planned.append(suggestion)
                planned.sort(key=lambda suggestion: suggestion.order, reverse=True)
                shown = self._select(planned)
        slow += [
            suggestion.entry
            for suggestion in planned
            if suggestion not in shown and not suggestion.is_quick
        ]
        if self._limit > 1 and shown and not any(suggestion.is_quick for suggestion in shown):
            # Even if slower models rank higher, the last place goes to one at reading speed.
            quick = self._best_quick(ranked)
            shown = shown if quick is None else [*shown[: self._limit - 1], quick]
        too_slow = sum(self._would_show(entry, shown, self._best_order(entry)) for entry in slow)
        self.passed_over += Counter({SLOW: too_slow})
        return shown

    def _best_quick(self, ranked: Sequence[Entry]) -> Suggestion | None:
        """The best model at reading speed; None if there is none."""
        counted = self.passed_over.copy()
        for entry in ranked:
            is_skipped = bool(self._reason_to_skip(entry))
            fastest = self._candidates.fastest_tokens_per_s(entry)
            if is_skipped or (fastest is not None and fastest < READING_TOKENS_PER_S):
                continue
            suggestion = self._suggestion(entry)
            if suggestion is not None and suggestion.is_quick:
                break
        else:
            suggestion = None
        self.passed_over = counted  # the first search has already counted these models
        return suggestion

    def _select(self, suggestions: list[Suggestion]) -> list[Suggestion]:
        """The best of each family, at most MAX_PER_LINE of a product line, and only the newest version of a model."""
        shown: list[Suggestion] = []
        for suggestion in suggestions:
            name, version = version_of(suggestion.entry.id)
            is_outdated = not self._request.all_sizes and any(
                version_of(other.entry.id)[0] == name
                and version_of(other.entry.id)[1] > version
                # a slow newer version does not replace a quick one
                and other.is_preferred >= suggestion.is_preferred
                for other in suggestions
            )
            if (
                len(shown) < self._limit
                and not is_outdated
                and self._is_varied(suggestion.entry, shown)
            ):
                shown.append(suggestion)
        return shown

    def _would_show(self, entry: Entry, shown: Sequence[Suggestion], order: Order) -> bool:
        """Whether the model would be shown with that order."""
        better = [suggestion for suggestion in shown if suggestion.order >= order]
        return len(better) < self._limit and self._is_varied(entry, better)

    def _is_varied(self, entry: Entry, others: Sequence[Suggestion]) -> bool:
        """Whether the list stays varied with this model: one per family and version, MAX_PER_LINE per product line.

        A product line is Qwen, a family Qwen3. With --all-sizes any list is varied enough.
        """
        if self._request.all_sizes:
            return True
        if any(
            entry.geometry is not None and entry.geometry == other.entry.geometry
            for other in others
        ):
            return False  # of the same size and build: phi-4-reasoning next to -plus
        families = [suggestion.entry.family for suggestion in others]
        same_line = [root_of(family) for family in families].count(root_of(entry.family))
        models = [version_of(suggestion.entry.id)[0] for suggestion in others]
        return (
            entry.family not in families
            and same_line < MAX_PER_LINE
            and version_of(entry.id)[0] not in models
        )

    def nearest(self, ranked: Sequence[Entry]) -> Suggestion | None:
        """The smallest model that the engine loads, with what would make it fit."""
        known = [entry for entry in ranked if is_notable(entry, self._task)] or ranked
        for entry in sorted(known, key=smallest_bytes):
            try:
                plan = make_plan(task_for(entry, self._request, self._session))
            except CancelledError:
                raise
            except EdgekitError:
                continue
            return Suggestion(entry=entry, plan=plan, task=self._task)
        return None

    def fastest(self, ranked: Sequence[Entry]) -> Suggestion | None:
        """The fastest model that fits, if a speed was requested; None if none fits, or no speed is known."""
        if self._request.min_speed is None:
            return None
        known = [entry for entry in ranked if is_notable(entry, self._task)] or ranked

        def bound(entry: Entry) -> float:
            fastest = None if self._embeds else self._candidates.fastest_tokens_per_s(entry)
            return fastest or math.inf

        best, best_speed = None, 0.0
        for entry in sorted(known, key=bound, reverse=True)[:MOST_PLANNED]:
            if bound(entry) <= best_speed:
                break
            try:
                plan = self._candidates.plan(entry)
            except CancelledError:
                raise
            except EdgekitError:
                continue
            speed = plan.result.typical_speed or 0.0
            if plan.fits and speed > best_speed:
                best, best_speed = Suggestion(entry=entry, plan=plan, task=self._task), speed
        return best

    def _suggestion(self, entry: Entry) -> Suggestion | None:
        """The model with its plan. None if it cannot be planned; `passed_over` counts the reason."""
        try:
            plan = self._candidates.plan(entry)
        except CancelledError:
            raise
        except EdgekitError as error:
            self.passed_over[why_skipped(error)] += 1
            return None
        if not plan.fits:
            self.passed_over[TOO_LARGE] += 1
            return None
        if self._request.min_speed is not None and not plan.result.is_fast_enough:
            is_known = plan.result.typical_speed is not None
            self.passed_over[
                slower_than(self._request.min_speed) if is_known else UNKNOWN_SPEED
            ] += 1
            return None
        return Suggestion(entry=entry, plan=plan, task=self._task)

    def _reason_to_skip(self, entry: Entry) -> str:
        """Why the model needs no bill to be skipped: its context is too short, or its weights exceed the memory."""
        tokens, minimum = self._request.wanted_tokens, self._request.min_context
        min_tokens = max(tokens or 0, minimum or 0)
        if not tokens and minimum is None:
            min_tokens = MINIMUM_TOKENS
        if not self._embeds and entry.native_context is None:
            return "with an unknown context length"
        if not self._embeds and (entry.native_context or 0) < min_tokens:
            return "with too short a context"
        if self._candidates.is_too_large(entry):
            return TOO_LARGE
        if self._candidates.has_unknown_speed(entry):
            return UNKNOWN_SPEED
        if self._candidates.is_too_slow(entry):
            return slower_than(self._request.min_speed or 0.0)
        return ""

    def _best_order_at_speed(self, entry: Entry) -> Order:
        """An upper bound of the model's order, from the fastest that the machine can read its smallest weights."""
        tokens_per_s = None if self._embeds else self._candidates.fastest_tokens_per_s(entry)
        if tokens_per_s is None:
            return self._best_order(entry)
        worth = rank_of(entry, self._task) + speed_points(tokens_per_s)
        if is_minor(entry) or round(tokens_per_s, 1) < READING_TOKENS_PER_S:
            worth -= POINTS_OF_DRAWBACK
        return is_notable(entry, self._task), worth

    def _best_order(self, entry: Entry) -> Order:
        """An upper bound of the model's order at any speed."""
        worth = rank_of(entry, self._task)
        if not self._embeds:
            worth += -POINTS_OF_DRAWBACK if is_minor(entry) else speed_points(math.inf)
        return is_notable(entry, self._task), worth
