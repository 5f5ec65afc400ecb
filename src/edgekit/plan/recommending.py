"""A machine and the catalog -> the best few models for it, each with its plan; why the others are not among them."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from edgekit.catalog import open_entry
from edgekit.catalog.types import Entry, Kind
from edgekit.errors import CancelledError, EdgekitError, RefusedError, UnknownArchitectureError
from edgekit.hardware.budgets import check_runs
from edgekit.hardware.types import Machine
from edgekit.memory.types import HOST, Load
from edgekit.plan.caches import embedding_start
from edgekit.plan.choice import READING_TOKENS_PER_S
from edgekit.plan.context import MINIMUM_TOKENS, job_window
from edgekit.plan.making import check_planned, check_users, find_plan, make_plan
from edgekit.plan.pace import fastest_middle
from edgekit.plan.planned import Plan, Wish
from edgekit.plan.ranking import rank_of, root_of
from edgekit.plan.room import room_bytes
from edgekit.plan.types import COMFORTABLE_PERCENT, GOOD_ACCURACY, Job, Start
from edgekit.plan.variants import accuracy_of, variants_of

SHOWN = 5

# Of the worth of a model with a part in RAM, where the speed is unknown: few experts work on a token.
DIVIDED_SHARE, DIVIDED_DENSE_SHARE = 0.5, 0.1
FULL_RAM_SHARE = 0.25  # of the worth of a model that takes more than 85 % of the usable RAM
OF_A_ROOT = 2  # models of one line, however many families it has
TOO_LARGE, SLOW = "too large", "slower than reading speed"
EMBEDDING_TOKENS_PER_S = 2000  # a book of 100,000 tokens in less than a minute
READ_SHARE = 0.75  # of the weights that work on a token, at least: of the embedding one row is read


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What somebody wants to do on a machine."""

    machine: Machine
    task: Kind = Kind.CHAT
    engine: str = "llama.cpp"
    context_tokens: int | None = None  # of each user
    users: int | None = None
    job: Job | None = None
    min_context: int | None = None
    prefer_accurate_cache: bool = False
    max_use: float | None = None
    reserve_bytes: int | None = None

    @property
    def wanted_tokens(self) -> int | None:
        """The context that each user needs: as given (0: the model's whole one), or for the job."""
        return (
            self.context_tokens
            if self.job is None
            else job_window(self.job, native_tokens=sys.maxsize)[0]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A model and how to run it there."""

    entry: Entry
    plan: Plan
    rank: float  # of the model, by a rule of thumb (plan/ranking.py)

    @property
    def worth(self) -> float:
        """The rank, less what slowness and a full RAM cost; with an unknown speed, less where a part is in RAM."""
        worth = self.rank * (FULL_RAM_SHARE if self._fills_ram else 1.0)
        if Kind.EMBEDDING in self.entry.kinds:
            read = None if self.plan.speed is None else self.plan.speed.prefill
            if read is None:
                return worth
            return worth * slowness(math.sqrt(math.prod(read)), EMBEDDING_TOKENS_PER_S)
        speed = self.plan.steady_tokens_per_s
        if speed is None:
            is_dense = (self.entry.active_parameters or 0) >= (self.entry.parameters or 1)
            share = DIVIDED_DENSE_SHARE if is_dense else DIVIDED_SHARE
            return worth if self.plan.result.way.whole else worth * share
        return worth * slowness(speed)

    @property
    def _fills_ram(self) -> bool:
        """Whether it leaves little RAM for other programs, whatever a limit on the GPU leaves."""
        return any(
            HOST in use.budget.pools
            and use.required_bytes * 100 > use.budget.unreserved_bytes * COMFORTABLE_PERCENT
            for use in self.plan.result.uses
        )

    @property
    def is_quick(self) -> bool:
        """At least reading speed. An unknown speed is not called slow."""
        speed = self.plan.steady_tokens_per_s
        return speed is None or speed >= READING_TOKENS_PER_S or Kind.EMBEDDING in self.entry.kinds


def slowness(tokens_per_s: float, enough: float = READING_TOKENS_PER_S) -> float:
    """What is left of a model's worth at this speed: all of it where that is enough, a quarter at half of that.

    There is no sharp limit, so that a machine a little slower or larger is not recommended another list.
    """
    return min(1.0, tokens_per_s / enough) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The best first. Where nothing fits, the smallest there is with what would help."""

    ask: Ask = field(repr=False)
    suggestions: tuple[Suggestion, ...]
    passed_over: tuple[tuple[str, int], ...] = ()  # why, and how many
    nearest: Suggestion | None = None


def recommend(
    entries: Iterable[Entry],
    ask: Ask,
    *,
    most: int = SHOWN,
    of_a_family: int = 1,
    tell: Callable[[str], None] | None = None,
) -> Recommendation:
    """The models that suit the task, in the order of their rank, until `most` are found.

    Of one family the first few. A slow one counts for less. Raises HardwareError where the engine has nothing to run
    on.
    """
    check_planned(ask.engine)
    check_runs(ask.machine, ask.engine)
    check_users(ask.users, ask.engine)
    search = _Search(ask, most, of_a_family, tell)
    ranked = ranked_for(ask.task, entries)
    found = search.found(ranked)
    return Recommendation(
        ask=ask,
        suggestions=tuple(found),
        passed_over=tuple(search.passed_over.most_common()),
        nearest=None if found else search.nearest(ranked),
    )


def ranked_for(task: Kind, entries: Iterable[Entry]) -> list[Entry]:
    """Those made for the task, the first to be looked at first."""
    suited = [entry for entry in entries if task in entry.kinds and _speaks(entry, task)]
    return sorted(suited, key=lambda entry: (-rank_of(entry), entry.id))


def _speaks(entry: Entry, task: Kind) -> bool:
    """An embedding model of code writes none."""
    return task is Kind.EMBEDDING or Kind.EMBEDDING not in entry.kinds


class _Search:
    """One walk down the ranks."""

    def __init__(
        self, ask: Ask, most: int, of_a_family: int, tell: Callable[[str], None] | None
    ) -> None:
        self._ask, self._most, self._of_a_family = ask, most, of_a_family
        self._tell = tell
        default = ask.reserve_bytes is None  # with another reserve only the bill decides
        self._room_bytes = room_bytes(ask.machine, ask.engine) if default else sys.maxsize
        self.passed_over: Counter[str] = Counter()

    def found(self, ranked: Sequence[Entry]) -> list[Suggestion]:
        """Those with most worth, until no further one can be worth more than those that were found."""
        found: list[Suggestion] = []
        shown: list[Suggestion] = []
        for entry in ranked:
            if len(shown) >= self._most and shown[-1].worth >= rank_of(entry):
                break
            reason = self._hopeless(entry)
            if not reason and not self._has_room(entry, shown, self._most_worth(entry)):
                if self._has_room(entry, shown, rank_of(entry)):
                    reason = SLOW
                else:
                    continue
            one = None if reason else self._suggestion(entry)
            if one is not None:
                found = sorted([*found, one], key=lambda one: -one.worth)
                shown = self._shown(found)
            if reason:
                self.passed_over[reason] += 1
        if self._most > 1 and shown and not any(one.is_quick for one in shown):
            counted = self.passed_over.copy()
            quick = self._first_quick(ranked)
            self.passed_over = counted
            shown = shown if quick is None else [*shown[: self._most - 1], quick]
        return shown

    def _first_quick(self, ranked: Sequence[Entry]) -> Suggestion | None:
        """The best model at reading speed, however much better the slower ones answer."""
        for entry in ranked:
            if self._hopeless(entry) or self._most_worth(entry) < rank_of(entry):
                continue
            one = self._suggestion(entry)
            if one is not None and one.is_quick:
                return one
        return None

    def _shown(self, found: list[Suggestion]) -> list[Suggestion]:
        """The best, of one family and of one line only the first few."""
        shown: list[Suggestion] = []
        for one in found:
            if len(shown) < self._most and self._leaves_room(one.entry, shown):
                shown.append(one)
        return shown

    def _has_room(self, entry: Entry, shown: Sequence[Suggestion], worth: float) -> bool:
        """Whether a model of that worth would be shown."""
        better = [one for one in shown if one.worth >= worth]
        return len(better) < self._most and self._leaves_room(entry, better)

    def _leaves_room(self, entry: Entry, others: Sequence[Suggestion]) -> bool:
        families = [one.entry.family for one in others]
        line = [root_of(family) for family in families].count(root_of(entry.family))
        several = self._of_a_family > 1
        return families.count(entry.family) < self._of_a_family and (several or line < OF_A_ROOT)

    def nearest(self, ranked: Sequence[Entry]) -> Suggestion | None:
        """The smallest that the engine takes, with what would make it fit."""
        for entry in sorted(ranked, key=smallest_bytes):
            try:
                plan = make_plan(wish_for(entry, self._ask))
            except EdgekitError:
                continue
            return Suggestion(entry=entry, plan=plan, rank=rank_of(entry))
        return None

    def _suggestion(self, entry: Entry) -> Suggestion | None:
        try:
            plan = find_plan(self._wish(entry))
        except CancelledError:
            raise
        except (RefusedError, UnknownArchitectureError):
            self.passed_over["not supported by the engine"] += 1
            return None
        except EdgekitError:
            self.passed_over["damaged or incomplete"] += 1
            return None
        if plan is None:
            self.passed_over[TOO_LARGE] += 1
            return None
        return Suggestion(entry=entry, plan=plan, rank=rank_of(entry))

    def _wish(self, entry: Entry) -> Wish:
        if self._tell is not None:
            self._tell(f"planning {entry.id}")
        return wish_for(entry, self._ask)

    def _hopeless(self, entry: Entry) -> str:
        """What needs no bill: a window that is too short, weights beyond all memory there is."""
        ask = self._ask
        least = max(ask.wanted_tokens or 0, ask.min_context or 0)
        if not ask.wanted_tokens and ask.min_context is None:
            least = MINIMUM_TOKENS
        if ask.task is not Kind.EMBEDDING and entry.native_context is None:
            return "with an unknown context length"
        if ask.task is not Kind.EMBEDDING and (entry.native_context or 0) < least:
            return "with too short a context"
        if smallest_bytes(entry) > self._room_bytes:
            return TOO_LARGE
        return ""

    def _most_worth(self, entry: Entry) -> float:
        """What it can be worth at most, by the time that reading its weights takes."""
        size, whole = smallest_bytes(entry), entry.parameters or 0
        if not size or not whole or self._ask.task is Kind.EMBEDDING:
            return rank_of(entry)
        work = READ_SHARE * size * (entry.active_parameters or whole) / whole
        most = fastest_middle(work, size, self._ask.machine, self._ask.engine)
        return rank_of(entry) * (1.0 if most is None else slowness(most))


def wish_for(entry: Entry, ask: Ask) -> Wish:
    """Raises EdgekitError where the entry has nothing that the engine loads."""
    model = open_entry(entry, ask.engine)
    embeds = Kind.EMBEDDING in entry.kinds
    return Wish(
        label=entry.id,
        variants=variants_of(model, ask.engine, settled=False, label=entry.id),
        engine=ask.engine,
        machine=ask.machine,
        load=Load(context_tokens=ask.context_tokens),
        start=embedding_start(Start(), ask.engine) if embeds else Start(),
        users=ask.users,
        job=ask.job,
        min_context=ask.min_context,
        prefer_accurate_cache=ask.prefer_accurate_cache,
        max_use=ask.max_use,
        reserve_bytes=ask.reserve_bytes,
        repository=entry.repository or "",
        is_remote=True,
    )


def smallest_bytes(entry: Entry) -> int:
    """Of the quantisations with about four bits and more."""
    return min(_good_bytes(entry), default=0)


def _good_bytes(entry: Entry) -> Iterator[int]:
    for size in entry.sizes:
        if (accuracy_of(size.mix) or 0) >= GOOD_ACCURACY:
            yield size.tensor_bytes
