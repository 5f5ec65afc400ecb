"""A machine and the catalog -> the best few models for it, each with its plan; why the others are not among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from edgekit.catalog import open_entry
from edgekit.catalog.types import Entry, Kind
from edgekit.errors import CancelledError, EdgekitError, RefusedError, UnknownArchitectureError
from edgekit.hardware.budgets import check_runs
from edgekit.hardware.types import Machine
from edgekit.memory.types import Load
from edgekit.plan.caches import embedding_start
from edgekit.plan.context import MINIMUM_TOKENS
from edgekit.plan.making import check_planned, check_users, find_plan, make_plan
from edgekit.plan.pace import fastest_middle
from edgekit.plan.planned import Plan, Wish
from edgekit.plan.ranking import rank_of, root_of
from edgekit.plan.room import room_bytes
from edgekit.plan.types import GOOD_ACCURACY, Start
from edgekit.plan.variants import accuracy_of, variants_of

SHOWN = 5
QUICK_TOKENS_PER_S = 5.0  # to expect: about as fast as people read. Slower ones come last.
DIVIDED_SHARE = 0.5
OF_A_ROOT = 2  # models of one line, however many families it has
TOO_LARGE, SLOW = "too large", "slower than reading speed"
READ_SHARE = 0.75  # of the weights that work on a token, at least: of the embedding one row is read


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What somebody wants to do on a machine."""

    machine: Machine
    task: Kind = Kind.CHAT
    engine: str = "llama.cpp"
    context_tokens: int | None = None  # of each user
    users: int | None = None
    min_context: int | None = None
    prefer_accurate_cache: bool = False
    max_use: float | None = None
    reserve_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A model and how to run it there."""

    entry: Entry
    plan: Plan
    rank: float  # of the model, by a rule of thumb (plan/ranking.py)

    @property
    def worth(self) -> float:
        """The rank; half of it where a part lies on the host, which is much slower there."""
        return self.rank if self.plan.result.way.whole else self.rank * DIVIDED_SHARE

    @property
    def is_quick(self) -> bool:
        """A device of which nobody knows how fast it reads is not called slow."""
        pace = self.plan.steady_tokens_per_s
        return pace is None or pace >= QUICK_TOKENS_PER_S or Kind.EMBEDDING in self.entry.kinds


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

    Of one family the first so many. Those too slow to read along come after all others. Raises HardwareError where the
    engine has nothing to run on.
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
    """One walk down the ranks; what is too slow is remembered for the end."""

    def __init__(
        self, ask: Ask, most: int, of_a_family: int, tell: Callable[[str], None] | None
    ) -> None:
        self._ask, self._most, self._of_a_family = ask, most, of_a_family
        self._tell = tell
        self._room_bytes = room_bytes(ask.machine, ask.engine)
        self._late: list[Entry] = []
        self._slow: list[Suggestion] = []
        self.passed_over: Counter[str] = Counter()

    def found(self, ranked: Sequence[Entry]) -> list[Suggestion]:
        """The quick ones, then as many of the others as there is room for, each by its worth."""
        quick = self._best(ranked, self._if_quick, [])
        both = self._best(self._late, self._if_slow, quick)
        self.passed_over[SLOW] -= len(both) - len(quick)
        self.passed_over += Counter()  # drops what came to nothing
        return both

    def _best(
        self,
        entries: Sequence[Entry],
        look: Callable[[Entry], Suggestion | None],
        before: list[Suggestion],
    ) -> list[Suggestion]:
        """Down the ranks until no further one can be worth more than those that were found."""
        found: list[Suggestion] = []
        shown = before
        for entry in entries:
            if len(shown) >= self._most and shown[-1].worth >= rank_of(entry):
                break
            if len(before) < self._most and self._has_room(entry, shown):
                one = look(entry)
                if one is not None:
                    found = sorted([*found, one], key=lambda one: -one.worth)
                    shown = self._shown(before, found)
        return shown

    def _shown(self, before: list[Suggestion], found: list[Suggestion]) -> list[Suggestion]:
        """The best, of one family and of one line only the first so many."""
        shown = list(before)
        for one in found:
            if len(shown) < self._most and self._leaves_room(one.entry, shown):
                shown.append(one)
        return shown

    def _has_room(self, entry: Entry, shown: Sequence[Suggestion]) -> bool:
        """Whether those that it cannot be worth more than leave it a place."""
        return self._leaves_room(entry, [one for one in shown if one.worth >= rank_of(entry)])

    def _leaves_room(self, entry: Entry, others: Sequence[Suggestion]) -> bool:
        families = [one.entry.family for one in others]
        line = [root_of(family) for family in families].count(root_of(entry.family))
        several = self._of_a_family > 1
        return families.count(entry.family) < self._of_a_family and (several or line < OF_A_ROOT)

    def _if_quick(self, entry: Entry) -> Suggestion | None:
        reason = self._hopeless(entry) or self._at_a_glance(entry)
        found = None if reason else self._suggestion(entry)
        if found is not None and found.is_quick:
            return found
        if found is not None:
            self._slow.append(found)
            reason = SLOW
        if reason == SLOW:
            self._late.append(entry)
        if reason:
            self.passed_over[reason] += 1
        return None

    def _if_slow(self, entry: Entry) -> Suggestion | None:
        known = next((one for one in self._slow if one.entry is entry), None)
        return known or self._suggestion(entry)

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
            self.passed_over["not run by the engine"] += 1
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
        least = max(ask.context_tokens or 0, ask.min_context or 0)
        if ask.context_tokens is None and ask.min_context is None:
            least = MINIMUM_TOKENS
        if ask.task is not Kind.EMBEDDING and entry.native_context is None:
            return "with an unknown context length"
        if ask.task is not Kind.EMBEDDING and (entry.native_context or 0) < least:
            return "with too short a context"
        if smallest_bytes(entry) > self._room_bytes:
            return TOO_LARGE
        return ""

    def _at_a_glance(self, entry: Entry) -> str:
        """What a glance at the weights tells: not even reading them is quick enough."""
        size, whole = smallest_bytes(entry), entry.parameters or 0
        if not size or not whole or self._ask.task is Kind.EMBEDDING:
            return ""  # nobody reads along with an embedding
        work = READ_SHARE * size * (entry.active_parameters or whole) / whole
        most = fastest_middle(work, size, self._ask.machine, self._ask.engine)
        return SLOW if most is not None and most < QUICK_TOKENS_PER_S else ""


def wish_for(entry: Entry, ask: Ask) -> Wish:
    """Raises EdgekitError where the entry has nothing that the engine loads."""
    model = open_entry(entry, ask.engine)
    embeds = Kind.EMBEDDING in entry.kinds
    if embeds and ask.engine == "mlx":
        raise RefusedError("mlx-lm hands over no embeddings")
    return Wish(
        label=entry.id,
        variants=variants_of(model, ask.engine, settled=False),
        engine=ask.engine,
        machine=ask.machine,
        load=Load(context_tokens=ask.context_tokens),
        start=embedding_start(Start(), ask.engine) if embeds else Start(),
        users=ask.users,
        min_context=ask.min_context,
        prefer_accurate_cache=ask.prefer_accurate_cache,
        max_use=ask.max_use,
        reserve_bytes=ask.reserve_bytes,
        repository=entry.repository or "",
    )


def smallest_bytes(entry: Entry) -> int:
    """Of the quantisations with about four bits and more."""
    return min(_good_bytes(entry), default=0)


def _good_bytes(entry: Entry) -> Iterator[int]:
    for size in entry.sizes:
        if (accuracy_of(size.mix) or 0) >= GOOD_ACCURACY:
            yield size.tensor_bytes
