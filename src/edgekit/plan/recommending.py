"""A machine and the catalog -> the best few models for it, each with its plan; why the others are not among them."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from edgekit.bill.task import GOOD_ACCURACY, Job, Start, Task
from edgekit.bill.types import Load
from edgekit.bill.verdict import COMFORTABLE_PERCENT
from edgekit.catalog.types import Entry, ModelPurpose
from edgekit.engines import default_engine, engine_named
from edgekit.engines.entries import open_entry
from edgekit.engines.variants import accuracy_of
from edgekit.errors import CancelledError, EdgekitError, RefusedError, UnknownArchitectureError
from edgekit.machine.types import HOST, Machine
from edgekit.plan.choice import READING_TOKENS_PER_S
from edgekit.plan.context import MINIMUM_TOKENS, job_window
from edgekit.plan.making import check_planned, find_plan, make_plan
from edgekit.plan.planned import Plan
from edgekit.plan.ranking import is_minor, rank_of, root_of, version_of
from edgekit.plan.tasks import check_users, for_users

SHOWN = 5

# Of the worth of a model with a part in RAM, where the speed is unknown: few experts work on a token.
DIVIDED_SHARE, DIVIDED_DENSE_SHARE = 0.5, 0.1
FULL_RAM_PERCENT = 92  # of the usable RAM; what takes more counts FULL_RAM_SHARE
FULL_RAM_SHARE = 0.25
OF_A_ROOT = 2  # models of one line, however many families it has
TOO_LARGE, SLOW = "too large", "too slow"
FAST_TOKENS_PER_S = 4 * READING_TOKENS_PER_S  # more is not worth more
EMBEDDING_TOKENS_PER_S = 2000  # a book of 100,000 tokens in less than a minute
READ_SHARE = 0.75  # of the weights that work on a token, at least: of the embedding one row is read


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What somebody wants to do on a machine."""

    machine: Machine
    task: ModelPurpose = ModelPurpose.CHAT
    engine: str = field(default_factory=lambda: default_engine().name)
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
        """The rank, less what slowness and a full RAM cost; with an unknown speed, less where a part is in RAM.

        More for a preferred model that is faster than people read.
        """
        worth = self.rank * self._ram_share
        speed = self.plan.speed
        if ModelPurpose.EMBEDDING in self.entry.kinds:
            read = None if speed is None else speed.prefill
            if read is None:
                return worth
            return worth * slowness(math.sqrt(math.prod(read)), EMBEDDING_TOKENS_PER_S)
        steady = self.plan.steady_tokens_per_s
        if speed is None or steady is None:
            is_dense = (self.entry.active_parameters or 0) >= (self.entry.parameters or 1)
            share = DIVIDED_DENSE_SHARE if is_dense else DIVIDED_SHARE
            return worth if self.plan.result.way.whole else worth * share
        return worth * (quickness(speed.typical) if self.is_preferred else slowness(steady))

    @property
    def is_preferred(self) -> bool:
        """At least reading speed, and neither small nor outdated: it ranks before all others.

        Where the speed is unknown, one that is not divided.
        """
        if is_minor(self.entry) or ModelPurpose.EMBEDDING in self.entry.kinds:
            return False
        return self.is_quick if self.plan.speed is not None else self.plan.result.way.whole

    @property
    def order(self) -> tuple[bool, float]:
        """The greatest is the best."""
        return self.is_preferred, self.worth

    @property
    def _ram_share(self) -> float:
        """What is left of its worth if it leaves little RAM to other programs, whatever the limit of the GPU is."""
        percent = max(
            (
                100 * use.required_bytes / max(use.budget.unreserved_bytes, 1)
                for use in self.plan.result.uses
                if HOST in use.budget.pools
            ),
            default=0.0,
        )
        over = (percent - COMFORTABLE_PERCENT) / (FULL_RAM_PERCENT - COMFORTABLE_PERCENT)
        return 1 - (1 - FULL_RAM_SHARE) * min(max(over, 0.0), 1.0) ** 2

    @property
    def is_quick(self) -> bool:
        """At least reading speed. An unknown speed is not called slow."""
        return ModelPurpose.EMBEDDING in self.entry.kinds or not self.plan.is_slow


def slowness(tokens_per_s: float, enough: float = READING_TOKENS_PER_S) -> float:
    """What is left of a model's worth at this speed: all of it where that is enough, a quarter at half of that."""
    return min(1.0, tokens_per_s / enough) ** 2


def quickness(tokens_per_s: float) -> float:
    """What a model's worth is multiplied by at this speed: 1 at reading speed, 2 at four times that and above."""
    return math.sqrt(min(tokens_per_s, FAST_TOKENS_PER_S) / READING_TOKENS_PER_S)


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

    Of one family the first few. Slow ones come last. Raises HardwareError where the engine has nothing to run on.
    """
    check_planned(ask.engine)
    engine_named(ask.engine).check_runs(ask.machine)
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


def ranked_for(task: ModelPurpose, entries: Iterable[Entry]) -> list[Entry]:
    """Those made for the task, the first to be looked at first."""
    suited = [entry for entry in entries if task in entry.kinds and _speaks(entry, task)]
    newest_first = sorted(suited, key=lambda entry: version_of(entry.id)[1], reverse=True)
    return sorted(newest_first, key=lambda entry: (-rank_of(entry), version_of(entry.id)[0]))


def _speaks(entry: Entry, task: ModelPurpose) -> bool:
    """An embedding model of code writes none."""
    return task is ModelPurpose.EMBEDDING or ModelPurpose.EMBEDDING not in entry.kinds


class _Search:
    """One walk down the ranks."""

    def __init__(
        self, ask: Ask, most: int, of_a_family: int, tell: Callable[[str], None] | None
    ) -> None:
        self._ask, self._most, self._of_a_family = ask, most, of_a_family
        self._tell = tell
        default = ask.reserve_bytes is None  # with another reserve only the bill decides
        engine = engine_named(ask.engine)
        self._capacity_bytes = engine.capacity_bytes(ask.machine) if default else sys.maxsize
        self.passed_over: Counter[str] = Counter()

    def found(self, ranked: Sequence[Entry]) -> list[Suggestion]:
        """The best, until no further one can come before those that were found."""
        found: list[Suggestion] = []
        shown: list[Suggestion] = []
        slow: list[Entry] = []
        embeds = self._ask.task is ModelPurpose.EMBEDDING
        for entry in ranked:
            limit = not embeds, rank_of(entry) * quickness(math.inf)  # for all that follow
            if len(shown) >= self._most and shown[-1].order >= limit:
                break
            reason = self._hopeless(entry)
            if reason:
                self.passed_over[reason] += 1
                continue
            if not self._has_room(entry, shown, self._most_order(entry)):
                slow.append(entry)
                continue
            one = self._suggestion(entry)
            if one is not None:
                found = sorted([*found, one], key=lambda one: one.order, reverse=True)
                shown = self._shown(found)
        slow += [one.entry for one in found if one not in shown and not one.is_quick]
        if self._most > 1 and shown and not any(one.is_quick for one in shown):
            counted = self.passed_over.copy()
            quick = self._first_quick(ranked)
            self.passed_over = counted
            shown = shown if quick is None else [*shown[: self._most - 1], quick]
        too_slow = sum(self._has_room(entry, shown, _best_order(entry)) for entry in slow)
        self.passed_over += Counter({SLOW: too_slow})
        return shown

    def _first_quick(self, ranked: Sequence[Entry]) -> Suggestion | None:
        """The best model at reading speed, however much better the slower ones answer."""
        for entry in ranked:
            if self._hopeless(entry) or self._most_order(entry)[1] < rank_of(entry):
                continue
            one = self._suggestion(entry)
            if one is not None and one.is_quick:
                return one
        return None

    def _shown(self, found: list[Suggestion]) -> list[Suggestion]:
        """The best, of one family and of one line only the first few, and of one model only the newest version."""
        shown: list[Suggestion] = []
        for one in found:
            is_old = self._of_a_family == 1 and any(_replaces(other, one) for other in found)
            if len(shown) < self._most and not is_old and self._leaves_room(one.entry, shown):
                shown.append(one)
        return shown

    def _has_room(
        self, entry: Entry, shown: Sequence[Suggestion], order: tuple[bool, float]
    ) -> bool:
        """Whether the model would be shown with that order."""
        better = [one for one in shown if one.order >= order]
        return len(better) < self._most and self._leaves_room(entry, better)

    def _leaves_room(self, entry: Entry, others: Sequence[Suggestion]) -> bool:
        families = [one.entry.family for one in others]
        line = [root_of(family) for family in families].count(root_of(entry.family))
        if self._of_a_family > 1:
            return families.count(entry.family) < self._of_a_family
        models = [version_of(one.entry.id)[0] for one in others]
        return (
            entry.family not in families
            and line < OF_A_ROOT
            and version_of(entry.id)[0] not in models
        )

    def nearest(self, ranked: Sequence[Entry]) -> Suggestion | None:
        """The smallest that the engine takes, with what would make it fit."""
        for entry in sorted(ranked, key=smallest_bytes):
            try:
                plan = make_plan(task_for(entry, self._ask))
            except EdgekitError:
                continue
            return Suggestion(entry=entry, plan=plan, rank=rank_of(entry))
        return None

    def _suggestion(self, entry: Entry) -> Suggestion | None:
        try:
            plan = find_plan(self._task(entry))
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

    def _task(self, entry: Entry) -> Task:
        if self._tell is not None:
            self._tell(f"planning {entry.id}")
        return task_for(entry, self._ask)

    def _hopeless(self, entry: Entry) -> str:
        """What needs no bill: a window that is too short, weights beyond all memory there is."""
        ask = self._ask
        least = max(ask.wanted_tokens or 0, ask.min_context or 0)
        if not ask.wanted_tokens and ask.min_context is None:
            least = MINIMUM_TOKENS
        if ask.task is not ModelPurpose.EMBEDDING and entry.native_context is None:
            return "with an unknown context length"
        if ask.task is not ModelPurpose.EMBEDDING and (entry.native_context or 0) < least:
            return "with too short a context"
        if smallest_bytes(entry) > self._capacity_bytes:
            return TOO_LARGE
        return ""

    def _most_order(self, entry: Entry) -> tuple[bool, float]:
        """The best order it can have, by the time that reading its weights takes."""
        size, whole = smallest_bytes(entry), entry.parameters or 0
        if not size or not whole or self._ask.task is ModelPurpose.EMBEDDING:
            return _best_order(entry)
        work = READ_SHARE * size * (entry.active_parameters or whole) / whole
        most = engine_named(self._ask.engine).fastest_tokens_per_s(work, size, self._ask.machine)
        if most is None:
            return _best_order(entry)
        is_quick = round(most, 1) >= READING_TOKENS_PER_S
        if is_quick and not is_minor(entry):
            return True, rank_of(entry) * quickness(most)
        return False, rank_of(entry) * slowness(most)


def _replaces(new: Suggestion, old: Suggestion) -> bool:
    """Whether it is a newer version of the same model, and not the slower one of the two."""
    (name, version), (old_name, old_version) = map(version_of, (new.entry.id, old.entry.id))
    return name == old_name and version > old_version and new.order[0] >= old.order[0]


def _best_order(entry: Entry) -> tuple[bool, float]:
    """Of the model at the highest speed that counts."""
    if is_minor(entry) or ModelPurpose.EMBEDDING in entry.kinds:
        return False, rank_of(entry)
    return True, rank_of(entry) * quickness(math.inf)


def task_for(entry: Entry, ask: Ask) -> Task:
    """Raises EdgekitError where the entry has nothing that the engine loads."""
    engine, model = engine_named(ask.engine), open_entry(entry, ask.engine).model
    embeds = ModelPurpose.EMBEDDING in entry.kinds
    variants = engine.variants(model, entry.id)
    model = variants[0].model if variants else model
    return Task(
        model=model,
        variants=variants,
        engine=ask.engine,
        machine=ask.machine,
        load=for_users(Load(context_tokens=ask.context_tokens), ask.users, ask.engine, model),
        start=engine.embedding_start(Start()) if embeds else Start(),
        job=ask.job,
        min_context=ask.min_context,
        own_cache_only=ask.prefer_accurate_cache,
        max_use=ask.max_use,
        reserve_bytes=ask.reserve_bytes,
        label=entry.id,
        repository=entry.repository or "",
        is_remote=True,
        users=ask.users,
    )


def smallest_bytes(entry: Entry) -> int:
    """Of the quantisations with about four bits and more."""
    return min(_good_bytes(entry), default=0)


def _good_bytes(entry: Entry) -> Iterator[int]:
    for size in entry.sizes:
        if (accuracy_of(size.mix) or 0) >= GOOD_ACCURACY:
            yield size.tensor_bytes
