"""A machine and the catalog -> the best few models for it, each with its plan; why the others are not among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from edgekit.catalog import open_entry
from edgekit.catalog.types import Entry, Kind
from edgekit.errors import EdgekitError
from edgekit.hardware.budgets import (
    check_runs,
    devices_for,
    llamacpp_budgets,
    mlx_budgets,
    together_bytes,
)
from edgekit.hardware.types import Machine
from edgekit.memory.types import Load
from edgekit.plan.again import choices_of, plan_again
from edgekit.plan.caches import plain_setup
from edgekit.plan.context import MINIMUM_TOKENS
from edgekit.plan.drafting import own_drafter
from edgekit.plan.kept import keep, kept, key_of, steadied
from edgekit.plan.making import find_plan, make_plan
from edgekit.plan.pace import fastest_middle
from edgekit.plan.planned import Plan, Wish
from edgekit.plan.ranking import rank_of
from edgekit.plan.types import FULL_PERCENT, Start
from edgekit.plan.variants import GOOD_ACCURACY, accuracy_of, variants_of

SHOWN = 5
QUICK_TOKENS_PER_S = 5.0  # to expect: about as fast as people read. Slower ones come last.
TOO_LARGE, SLOW = "too large", "too slow to read along"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A model and how to run it there."""

    entry: Entry
    plan: Plan
    rank: float  # of the model, by a rule of thumb (plan/ranking.py)

    @property
    def is_quick(self) -> bool:
        """A device of which nobody knows how fast it reads is not called slow."""
        pace = self.plan.steady_tokens_per_s
        return pace is None or pace >= QUICK_TOKENS_PER_S


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
    check_runs(ask.machine, ask.engine)
    ask = replace(ask, machine=steadied(ask.machine))
    suited = [entry for entry in entries if ask.task in entry.kinds]
    ranked = sorted(suited, key=lambda entry: (-rank_of(entry), entry.id))
    key = key_of(_asked(ask, most, of_a_family), ask.machine, ask.engine, ranked)
    before = _kept(key, ask, ranked)
    if before is not None:
        return before
    answer = _searched(_Search(ask, most, of_a_family, tell), ask, ranked)
    if answer.suggestions:
        picks = [{"id": one.entry.id, **choices_of(one.plan)} for one in answer.suggestions]
        keep(key, {"picks": picks, "passed_over": answer.passed_over})
    return answer


def _asked(ask: Ask, most: int, of_a_family: int) -> dict[str, object]:
    return {
        "task": ask.task.value,
        "context": ask.context_tokens,
        "users": ask.users,
        "min_context": ask.min_context,
        "accurate": ask.prefer_accurate_cache,
        "most": most,
        "of_a_family": of_a_family,
    }


def _kept(key: str, ask: Ask, ranked: Sequence[Entry]) -> Recommendation | None:
    """What was found before, each priced anew; None where anything of it does not fit any more."""
    answer = kept(key)
    by_id = {entry.id: entry for entry in ranked}
    try:
        found = [_suggested(by_id[pick["id"]], ask, pick) for pick in (answer or {})["picks"]]
        reasons = tuple((str(why), int(count)) for why, count in (answer or {})["passed_over"])
    except (KeyError, TypeError, ValueError, EdgekitError):
        return None
    whole = [one for one in found if one is not None]
    if not whole or len(whole) < len(found):
        return None
    return Recommendation(ask=ask, suggestions=tuple(whole), passed_over=reasons)


def _suggested(entry: Entry, ask: Ask, pick: dict[str, Any]) -> Suggestion | None:
    plan = plan_again(wish_for(entry, ask), pick)
    return None if plan is None else Suggestion(entry=entry, plan=plan, rank=rank_of(entry))


def _searched(search: _Search, ask: Ask, ranked: Sequence[Entry]) -> Recommendation:
    found = search.quick(ranked) or search.slow()
    return Recommendation(
        ask=ask,
        suggestions=tuple(found),
        passed_over=tuple(search.passed_over.most_common()),
        nearest=None if found else search.nearest(ranked),
    )


class _Search:
    """One walk down the ranks; what is too slow is remembered for the end."""

    def __init__(
        self, ask: Ask, most: int, of_a_family: int, tell: Callable[[str], None] | None
    ) -> None:
        self._ask, self._most, self._of_a_family = ask, most, of_a_family
        self._tell = tell
        self._room_bytes = _room_bytes(ask)
        self._late: list[Entry] = []
        self.passed_over: Counter[str] = Counter()

    def quick(self, ranked: Sequence[Entry]) -> list[Suggestion]:
        return list(islice(self._first_of_family(ranked, quick=True), self._most))

    def _first_of_family(
        self, ranked: Sequence[Entry], *, quick: bool = False
    ) -> Iterator[Suggestion]:
        families: Counter[str] = Counter()
        for entry in ranked:
            if families[entry.family] < self._of_a_family:
                found = self._if_quick(entry) if quick else self._suggestion(entry)
                if found is not None:
                    families[entry.family] += 1
                    yield found

    def _if_quick(self, entry: Entry) -> Suggestion | None:
        reason = self._hopeless(entry) or self._slow(entry)
        found = None if reason else self._suggestion(entry)
        if found is not None and found.is_quick:
            return found
        if found is not None or reason == SLOW:
            self._late.append(entry)
            reason = SLOW
        if reason:
            self.passed_over[reason] += 1
        return None

    def slow(self) -> list[Suggestion]:
        """The first of them that fit: where nothing is quick, they are not passed over."""
        self.passed_over.pop(SLOW, None)
        return list(islice(self._first_of_family(self._late), self._most))

    def nearest(self, ranked: Sequence[Entry]) -> Suggestion | None:
        """The smallest that the engine takes, with what would make it fit."""
        for entry in sorted(ranked, key=_smallest_bytes):
            try:
                plan = make_plan(wish_for(entry, self._ask))
            except EdgekitError:
                continue
            return Suggestion(entry=entry, plan=plan, rank=rank_of(entry))
        return None

    def _suggestion(self, entry: Entry) -> Suggestion | None:
        try:
            plan = find_plan(self._good(entry))
        except EdgekitError:
            self.passed_over["not run by the engine"] += 1
            return None
        if plan is None:
            self.passed_over[TOO_LARGE] += 1
            return None
        return Suggestion(entry=entry, plan=plan, rank=rank_of(entry))

    def _good(self, entry: Entry) -> Wish:
        """Nobody is recommended a model at three bits: a smaller one at four answers better."""
        if self._tell is not None:
            self._tell(f"planning {entry.id}")
        wish = wish_for(entry, self._ask)
        good = tuple(one for one in wish.variants if one.is_good)
        return replace(wish, variants=good or wish.variants)

    def _hopeless(self, entry: Entry) -> str:
        """What needs no bill: a window that is too short, weights beyond all memory there is."""
        wanted = self._ask.context_tokens or self._ask.min_context
        least = MINIMUM_TOKENS if wanted is None else wanted
        if self._ask.task is not Kind.EMBEDDING and (entry.native_context or 0) < least:
            return "made for too short a context"
        if _smallest_bytes(entry) > self._room_bytes:
            return TOO_LARGE
        return ""

    def _slow(self, entry: Entry) -> str:
        """What a glance at the weights tells: not even reading them is quick enough."""
        size, whole = _smallest_bytes(entry), entry.parameters or 0
        if not size or not whole:
            return ""
        work = READ_SHARE * size * (entry.active_parameters or whole) / whole
        most = fastest_middle(work, size, self._ask.machine, self._ask.engine)
        return SLOW if most is not None and most < QUICK_TOKENS_PER_S else ""


def wish_for(entry: Entry, ask: Ask) -> Wish:
    """Raises EdgekitError where the entry has nothing that the engine loads."""
    model = open_entry(entry, ask.engine)
    start = Start()
    if ask.task is Kind.EMBEDDING and ask.engine == "llama.cpp":
        setup = replace(plain_setup(ask.engine), embeddings=True)
        start = Start(setup=setup, settled=frozenset({"embeddings"}))
    return Wish(
        label=entry.id,
        variants=variants_of(model, ask.engine, settled=False),
        engine=ask.engine,
        machine=ask.machine,
        load=Load(context_tokens=ask.context_tokens),
        start=start,
        users=ask.users,
        min_context=ask.min_context,
        prefer_accurate_cache=ask.prefer_accurate_cache,
        drafters=own_drafter(model),
        repository=entry.repository or "",
    )


def _smallest_bytes(entry: Entry) -> int:
    """Of the quantisations with about four bits and more."""
    return min(_good_bytes(entry), default=0)


def _good_bytes(entry: Entry) -> Iterator[int]:
    for size in entry.sizes:
        if accuracy_of(size.mix) >= GOOD_ACCURACY:
            yield size.tensor_bytes


def _room_bytes(ask: Ask) -> int:
    """What weights may take at most, in all memories together."""
    machine, devices = ask.machine, devices_for(ask.machine, ask.engine)
    if ask.engine == "vllm":
        return sum(one.free_bytes for one in devices)
    budgets = {"llama.cpp": llamacpp_budgets, "mlx": mlx_budgets}[ask.engine]
    return together_bytes(budgets(machine, devices)) * FULL_PERCENT // 100
