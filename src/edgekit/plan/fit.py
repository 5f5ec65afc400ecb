"""One task in one placement: the bill for any context, whether it fits, and the longest context that fits.

A `Ladder` has the task in every placement that the engine offers, and finds the first that holds a context.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice, takewhile
from typing import Any

from edgekit.bill.types import (
    CACHES,
    Component,
    Job,
    MemoryEstimate,
    Placement,
    Placements,
    Price,
    Task,
)
from edgekit.bill.verdict import (
    ASSUMED_FULL_PERCENT,
    PricedLoad,
    Status,
    Usage,
    covered_bytes,
    for_bill,
    fullness,
)
from edgekit.engines import engine_named
from edgekit.engines.protocol import Floor
from edgekit.errors import CancelledError, RefusedError, UsageError
from edgekit.machine.types import HOST, Budget, Pool, gpu_budgets, together_bytes
from edgekit.units import format_bytes

DEFAULT_TOKENS = 32_768  # SPEC A4: the context to start from if none is given
EMBEDDING_TOKENS = 8_192  # the default context of an embedding model
MINIMUM_TOKENS = 16_384  # SPEC P13: shorter contexts are never chosen
STREAM_MINIMUM_TOKENS = 512  # the built-in engine is for memories far below the model's size
UNKNOWN_NATIVE_TOKENS = 32_768  # of a model that does not state its context length
JOB_MARGIN_TOKENS = 64
RECOMMENDED_PERCENT = 80
MAX_TOKENS = 2**31 - 1  # engines count tokens in 32 bits
LOOK_AHEAD = 8  # steps; the deepest dip seen is 18 MB, the cache of one or two steps


def longest(fits: Callable[[int], bool], *, step: int, most: int) -> int:
    """The largest multiple of `step` below `most` that fits, or `most` itself; 0 if nothing fits.

    Longer contexts cost more, so binary search finds the edge. A bill may dip there: with layers in RAM, llama.cpp
    moves some megabytes between the pools from one length to the next. So LOOK_AHEAD more steps are tried.
    """
    if most <= 0:
        return 0
    if fits(most):
        return most
    low, high = 0, -(-most // step)  # `low` fits or is 0, `high` does not fit
    end = high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle * step):
            low = middle
        else:
            high = middle
    ahead = low + 1
    while ahead < min(low + 1 + LOOK_AHEAD, end - 1):
        ahead += 1
        if fits(ahead * step):
            low = ahead
    return low * step


def recommended_context(max_tokens: int) -> int:
    return max_tokens * RECOMMENDED_PERCENT // 100


def budget_window(
    cache_bytes: Callable[[int], int], budget_bytes: int, *, step: int, most: int
) -> int:
    """The longest context whose cache stays within the budget, up to the native context."""
    return longest(lambda count: cache_bytes(count) <= budget_bytes, step=step, most=most)


def job_window(job: Job, native_tokens: int) -> tuple[int, str]:
    """The context that a known job needs, up to the native context, and the reason."""
    if job.prompt_tokens < 0 or job.new_tokens < 0:
        raise UsageError(
            f"a job must not be negative (got {job.prompt_tokens}+{job.new_tokens} tokens)"
        )
    needed = job.prompt_tokens + job.new_tokens + JOB_MARGIN_TOKENS
    because = (
        f"prompt {job.prompt_tokens:,} + {job.new_tokens:,} new tokens + {JOB_MARGIN_TOKENS} spare"
    )
    if needed > native_tokens:
        because += f", cut to the model's context length of {native_tokens:,}"
    return min(needed, native_tokens), because


TIMES_DIVIDED = 3  # a new split changes the buffers, which changes the split
MOST_MOVES = 4
NEARLY = 1.08  # fullness up to which moving single layers may still make a split fit
CACHE_STEP_TOKENS = 256  # llama.cpp pads its cells to it, mlx-lm grows its caches by it


class Fitting:
    """One task in one placement; the bill of each context is computed once."""

    def __init__(self, task: Task, placement: Placement) -> None:
        _check_numbers(task)
        self.task, self.placement = task, placement
        self.engine = engine_named(task.engine)
        self._bill: Price = task.bill or partial(self.engine.estimate, task.model)
        # a task's own bill includes more than the model, and the floor does not
        self._floor = self.engine.floor if task.bill is None else None
        self._prices: dict[int, PricedLoad] = {}
        self._division: Placement | None = None

    def price(self, tokens: int) -> PricedLoad:
        if tokens not in self._prices:
            self._prices[tokens] = self._divided(self._priced(tokens, self.placement))
        return self._prices[tokens]

    def _divided(self, found: PricedLoad) -> PricedLoad:
        """The load split among several cards: the engine's default split, or one by the free memory of each card."""
        is_easy = found.status is Status.PASSED
        if is_easy or not self.placement.may_resplit or self._devices(found) > 1:
            return found  # no split helps if all cards together are too small
        if self._division is not None:  # a split that worked for another length often works here
            found = self._better(found, [self._division])
        for _ in range(TIMES_DIVIDED if self.placement.whole and not found.fits else 1):
            other = None
            if found.status is not Status.PASSED:
                other = self.engine.rebalance(self.task.model, found.placement, found.estimate)
            if other is None:
                break
            found = self._better(found, [other])
        found = self._moved(found) if self.placement.whole else found
        self._division = found.placement if found.fits else self._division
        return found

    def _moved(self, found: PricedLoad) -> PricedLoad:
        """Move single layers if the load nearly fits: buffers do not grow linearly with the layers on a card."""
        for _ in range(MOST_MOVES):
            if found.fits or found.fullness >= NEARLY:
                break
            moved = self.engine.neighbours(self.task.model, found.placement, found.uses)
            other = self._better(found, moved)
            if other is found:
                break
            found = other
        return found

    def _better(self, found: PricedLoad, placements: Iterable[Placement]) -> PricedLoad:
        """The first placement that fits, else the one whose fullest memory is least full."""
        best = found
        for placement in placements:
            other = self._priced(found.context_tokens, placement)
            if other.fullness < best.fullness:
                best = other
            if best.fits:
                break
        return best

    def _priced(self, tokens: int, placement: Placement) -> PricedLoad:
        cancelled = self.task.cancelled
        if cancelled is not None and cancelled.is_set():
            raise CancelledError("cancelled")
        estimate = self._bill(self.task.load_of(tokens), placement.setup)
        refused = dict(estimate.facts).get("refused")  # by vLLM, if its pool size was given
        return PricedLoad(
            context_tokens=tokens,
            estimate=estimate,
            uses=tuple(self._use(budget, estimate) for budget in placement.budgets),
            placement=placement,
            refused=f"{self.engine.title} does not start: {refused}" if refused else "",
        )

    def _use(self, budget: Budget, estimate: MemoryEstimate) -> Usage:
        bound, assumed = estimate.bounds_in(budget.pools)
        mapped = self.placement.setup.use_mmap
        covered = covered_bytes(budget, estimate)
        return Usage(
            budget=for_bill(budget, estimate, mapped_weights=mapped),
            required_bytes=estimate.in_pools(budget.pools) - covered,
            bound_bytes=bound + covered,
            covered_bytes=covered,
            assumed=assumed,
            max_use=self.task.max_use,
        )

    def is_comfortable(self, tokens: int) -> bool:
        """Whether it fits with memory to spare."""
        return self.fits(tokens) and self.price(tokens).status is Status.PASSED

    def fits(self, tokens: int) -> bool:
        """Whether the context fits; False if the engine refuses it, e.g. because the cards cannot divide the heads."""
        try:
            if tokens not in self._prices and self._floor is not None:
                # weights and caches alone may be too large, and they are much cheaper to compute than the bill
                held, most = self._held(self._floor, tokens), self.task.max_use or 1.0
                for pools, available in self._limits:
                    if sum(held.get(pool, 0) for pool in pools) > available * most:
                        return False
            return self.price(tokens).fits
        except RefusedError:
            return False

    def held_bytes(self, tokens: int) -> int:
        """Bytes of weights, caches and states in all pools."""
        if self._floor is None:
            return self.price(tokens).estimate.of(Component.WEIGHTS, *CACHES)
        return sum(self._held(self._floor, tokens).values())

    def held_share(self, tokens: int) -> float:
        """Weights and caches as a share of all devices together, or of the fullest device if the split is fixed.

        For an engine without a floor, the whole bill as a share.
        """
        if self._floor is None:
            return self.devices_share(tokens)
        held = self._held(self._floor, tokens)
        needed = [
            (sum(held.get(pool, 0) for pool in budget.pools), budget.available_bytes)
            for budget in gpu_budgets(self.placement.budgets)
        ]
        if self.placement.may_resplit:
            needed = [(sum(required for required, _ in needed), sum(size for _, size in needed))]
        most = self.task.max_use or 1.0
        shares = (
            required / (usable * most) if usable else math.inf
            for required, usable in needed
            if required
        )
        return max(shares, default=0.0)

    def _held(self, floor: Floor, tokens: int) -> Mapping[Pool, int]:
        return floor.held_bytes(self.task.model, self.task.load_of(tokens), self.placement.setup)

    @cached_property
    def _limits(self) -> tuple[tuple[frozenset[Pool], int], ...]:
        """Pools with their available bytes. Layers that may be split differently count against all cards together."""
        cards = [(one.pools, one.available_bytes) for one in gpu_budgets(self.placement.budgets)]
        if self.placement.may_resplit:
            pools = frozenset[Pool]().union(*(pools for pools, _ in cards))
            cards = [(pools, sum(size for _, size in cards))]
        with_ram = (one for one in self.placement.budgets if HOST in one.pools)
        return (*cards, *((one.pools, one.unreserved_bytes) for one in with_ram))

    def devices_share(self, tokens: int) -> float:
        """How full all devices together are, or the fullest device if the split is fixed; 1 is full."""
        return self._devices(self.price(tokens))

    def _devices(self, priced: PricedLoad) -> float:
        uses = [self._use(one, priced.estimate) for one in gpu_budgets(priced.placement.budgets)]
        if self.placement.may_resplit:
            return fullness(uses)
        return max((use.fullness for use in uses), default=0.0)

    @cached_property
    def native(self) -> int:
        geometry = self.task.model.geometry
        stated = geometry.native_context or geometry.trained_context or UNKNOWN_NATIVE_TOKENS
        return min(stated, MAX_TOKENS)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Facts that the engine resolves from the load and that do not depend on the context."""
        try:
            return self._facts(self.native)
        except RefusedError:
            return self._facts(min(self.native, MINIMUM_TOKENS))

    def _facts(self, tokens: int) -> dict[str, Any]:
        if self._floor is None:
            return dict(self.price(tokens).estimate.facts)
        load = self.task.load_of(tokens)
        return dict(self._floor.load_facts(self.task.model, load, self.placement.setup))

    @cached_property
    def streams(self) -> int:
        """The number of caches that the context is divided among: one per sequence unless they share one."""
        streams: int = self.facts.get("kv_streams", 1)
        return streams if self.facts.get("n_ctx_seq") != self.facts.get("n_ctx") else 1

    @cached_property
    def step(self) -> int:
        size: int = self.facts.get("block_size", CACHE_STEP_TOKENS)
        return size * self.streams

    @cached_property
    def most(self) -> int:
        return self.native * self.streams

    @cached_property
    def minimum(self) -> int:
        """The shortest context that is chosen: 16K or --min-context, or the native context if that is shorter.

        A --min-context above 16K applies to every model. The built-in engine's minimum is lower.
        """
        requested = self.task.min_context
        usual = EMBEDDING_TOKENS if self.task.embeds else MINIMUM_TOKENS
        if self.engine.streams_weights:
            usual = STREAM_MINIMUM_TOKENS
        least = usual if requested is None else requested
        whole = least * self.streams
        return whole if least > MINIMUM_TOKENS else max(min(whole, self.most), self.least)

    @cached_property
    def windows(self) -> tuple[int, ...]:
        """Contexts to try, the longest first (SPEC A4): the requested one, else 32K and 16K."""
        if self.requested is not None:
            return (self.requested,)
        budget = self.task.window_budget_bytes
        if budget is not None:
            held = budget_window(self._cache_bytes, budget, step=self.step, most=self.most)
            is_set = self.task.min_context is not None
            least = self.minimum if is_set else min(max(held, self.least), self.minimum)
            return tuple(dict.fromkeys((max(held, least), least)))
        usual = (EMBEDDING_TOKENS,) if self.task.embeds else (DEFAULT_TOKENS, MINIMUM_TOKENS)
        tried = [min(tokens * self.streams, self.most) for tokens in usual]
        longer = [tokens for tokens in tried if tokens > self.minimum]
        if longer and self.engine.streams_weights:
            return tuple(dict.fromkeys(longer))  # shorter contexts are found by what fits
        return tuple(dict.fromkeys((*longer, self.minimum)))

    @cached_property
    def longest(self) -> int:
        return longest(self.fits, step=self.step, most=self.most)

    @property
    def least(self) -> int:
        """The shortest possible context."""
        return min(self.step, self.most)

    @cached_property
    def requested(self) -> int | None:
        """The requested context: a length, 0 for the native one, or derived from a job."""
        tokens, job = self.task.load.context_tokens, self.task.job
        if job is not None and tokens is not None:
            raise UsageError("give a context or a job, not both: the job sets the context")
        if job is not None:
            return job_window(job, self.native)[0] * self.streams
        if tokens is not None and tokens < 0:
            raise UsageError(f"the context must not be negative (got {tokens})")
        return self.native if tokens == 0 else tokens

    @property
    def requested_because(self) -> str:
        job = self.task.job
        return "as requested" if job is None else job_window(job, self.native)[1]

    @property
    def states_its_window(self) -> bool:
        geometry = self.task.model.geometry
        return bool(geometry.native_context or geometry.trained_context)

    def _cache_bytes(self, tokens: int) -> int:
        """Bytes of the cache, from the floor if possible: that is a hundred times faster than the bill."""
        if self._floor is None:
            return self.price(tokens).estimate.kv_cache_bytes
        return self._floor.cache_bytes(
            self.task.model, self.task.load_of(tokens), self.placement.setup
        )

    def reasons(self, priced: PricedLoad, longest_tokens: int) -> Iterator[str]:
        """Why this load fails; `longest_tokens` is the longest context that fits in any placement, 0 if none fits."""
        yield from (budget.blocked for budget in self.placement.budgets if budget.blocked)
        if priced.refused:
            yield priced.refused
        elif not priced.fits:
            use = max(priced.uses, key=lambda use: (use.fullness, use.required_bytes))
            each = f" for each of {self.streams} users" if self.streams > 1 else ""
            yield f"{priced.context_tokens // self.streams:,} tokens{each} need {_needed(use)}"
            if longest_tokens:
                yield f"the longest context that fits is {longest_tokens // self.streams:,} tokens{each}"
            else:
                bare = self.price(self.least).tightest
                yield f"no context fits: weights and overhead alone need {format_bytes(bare.required_bytes)}"


def _check_numbers(task: Task) -> None:
    for flag, number in (
        ("--min-context", task.min_context),
        ("--window-budget", task.window_budget_bytes),
        ("--reserve", task.reserve_bytes),
    ):
        if number is not None and number < 0:
            raise UsageError(f"{flag} must not be negative (got {number})")
    if task.max_use is not None and not 0 < task.max_use <= 1:
        raise UsageError(f"--max-use must be above 0 % and at most 100 % (got {task.max_use:.0%})")


def _needed(use: Usage) -> str:
    """'20.50 GiB; RTX 4070 has 11.50 GiB usable', or the other rule that the load breaks."""
    need = (
        f"{format_bytes(use.required_bytes)}; {use.budget.name} has "
        f"{format_bytes(use.budget.available_bytes)} usable"
    )
    if use.utilization > 1:
        return need
    if use.max_use is not None and use.utilization > use.max_use:
        return f"{need}, of which --max-use allows {use.max_use:.0%}"
    if use.assumed:
        return f"{need}; a rough estimate may take {ASSUMED_FULL_PERCENT} % of that"
    return (
        f"{need}; with its margin of error (up to {format_bytes(use.bound_bytes)} more) it exceeds the "
        f"{format_bytes(use.budget.free_bytes)} that is free"
    )


def placements_of(task: Task) -> Placements:
    """Placements, whole ones first; each of the others uses no more device memory than the one before it.

    Raises HardwareError if the engine cannot run on the machine.
    """
    return tuple(_placements(task))


def whole_placements(task: Task) -> Placements:
    """Placements with the whole model where the engine computes: on the devices, or on the CPU if there are none.

    A placement given by the user counts even if it leaves a part of the model elsewhere.
    """
    found = tuple(takewhile(lambda placement: placement.whole, _placements(task)))
    return found or placements_of(task)


def first_placement(task: Task) -> Placement:
    return next(_placements(task))


def can_divide(task: Task) -> bool:
    """Whether part of the model may be off the devices (for the built-in engine: off the memory)."""
    return any(not placement.whole for placement in islice(_placements(task), 1, None))


def _placements(task: Task) -> Iterator[Placement]:
    engine = engine_named(task.engine)
    engine.check_runs(task.machine)
    engine.check_limits(task.reserve_bytes, task.max_use)
    for placement in engine.placements(task):
        if task.reserve_bytes is None:
            yield placement
            continue
        budgets = tuple(
            replace(
                one,
                reserve_bytes=task.reserve_bytes,
                because="set with --reserve",
                has_default_reserve=False,
            )
            for one in placement.budgets
        )
        yield replace(placement, budgets=budgets)


SHORT = 8  # up to this many placements are tried one by one
# A load that fits several cards together may not fit each of them: only whole layers move between cards.
LOOK_FURTHER = 12
WORTH_A_PATTERN = 0.003  # share of device memory; for less, the simpler command is better
NEARLY_HELD = (
    0.05  # margin: buffers may be smaller than they seem, and a reserve covers the first request
)


class Ladder:
    """The placements of a task. Each rung uses less device memory, and usually more RAM, than the one above it."""

    def __init__(self, task: Task, placements: Placements) -> None:
        self.task, self._placements = task, placements
        self._rungs: dict[int, Fitting] = {}
        self._held: dict[int, int] = {}  # tokens -> first rung that fits its devices in sum

    def rung(self, place: int) -> Fitting:
        if place not in self._rungs:
            self._rungs[place] = Fitting(self.task, self._placements[place])
        return self._rungs[place]

    @property
    def top(self) -> Fitting:
        return self.rung(0)

    @cached_property
    def _wholes(self) -> int:
        """The number of whole placements at the top, at least 1. Each of them is tried."""
        leading = sum(1 for _ in takewhile(lambda placement: placement.whole, self._placements))
        return min(max(leading, 1), len(self._placements))

    @cached_property
    def _seam(self) -> int:
        """The last placement with all layers on the devices. The next has the head in RAM and may need more there."""
        return sum(1 for _ in takewhile(lambda one: one.all_layers, self._placements)) - 1

    @property
    def last(self) -> int:
        return len(self._placements) - 1

    def holder(self, tokens: int) -> Fitting | None:
        """The placement with the most on the devices that holds a context of this length; None if there is none."""
        rung = self._first_holder(tokens)
        return rung if rung is None or rung.placement.whole else self._finer(rung, tokens)

    def _finer(self, rung: Fitting, tokens: int) -> Fitting:
        """The best placement between this rung and the one above; this one if the gain is too small."""
        between = rung.engine.finer_placements(self.task.model, rung.placement)
        finer = [Fitting(self.task, placement) for placement in between]
        if not finer or self.last == 0:
            return rung
        held = rung.held_share(tokens)
        most = 1 + NEARLY_HELD - (rung.devices_share(tokens) - held)
        shares = {one: one.held_share(tokens) for one in finer}
        better = [one for one in finer if held + WORTH_A_PATTERN <= shares[one] <= most]
        better.sort(
            key=lambda one: shares[one] + WORTH_A_PATTERN * one.placement.is_short_command,
            reverse=True,
        )
        return next((one for one in better if one.fits(tokens)), rung)

    def _first_holder(self, tokens: int) -> Fitting | None:
        for place in range(self._wholes):
            if self.rung(place).fits(tokens):
                return self.rung(place)
        if self.last < SHORT or self._wholes > self.last:
            rungs = (self.rung(place) for place in range(self._wholes, self.last + 1))
            return next((one for one in rungs if one.fits(tokens)), None)
        # weights and caches alone may exceed all memories together; on the CPU nothing is held twice
        if self.rung(self.last).held_bytes(tokens) > together_bytes(self.top.placement.budgets):
            return None
        first = self._first_held(tokens)
        several = len(gpu_budgets(self.top.placement.budgets)) > 1
        further = LOOK_FURTHER if several or not first else 0
        seam = [self._seam] if self._wholes <= self._seam < first else []
        near = [*seam, *range(first, min(first + further, self.last) + 1), self.last]
        rungs = (self.rung(place) for place in dict.fromkeys(near))
        return next((one for one in rungs if one.fits(tokens)), None)

    def nearest(self, tokens: int) -> Fitting:
        """The placement that exceeds its limits least, if none holds the context."""
        tried = [one for one in self._rungs.values() if _is_run(one, tokens)]
        return min(tried, key=lambda one: one.price(tokens).fullness, default=self.top)

    @cached_property
    def longest(self) -> int:
        """The longest context that any placement holds."""
        step, most = self.top.step, self.top.most
        is_short = self.last < SHORT
        found = self.top.longest
        for place in range(1, self.last + 1 if is_short else self._wholes):
            if found == most:
                break
            if _is_run(self.rung(place)):
                found = max(found, self.rung(place).longest)
        if found == most or is_short or self._wholes > self.last:
            return found
        anywhere = longest(
            lambda tokens: self._first_holder(tokens) is not None, step=step, most=most
        )
        return max(found, anywhere)

    def _first_held(self, tokens: int) -> int:
        """The first rung that holds the context. Fewer tokens never need a lower one, so known results narrow it."""
        if tokens in self._held:
            return self._held[tokens]
        known_low = (rung - 1 for known, rung in self._held.items() if known < tokens)
        low = max(self._wholes - 1, *known_low, 0)
        high = min(
            (rung for known, rung in self._held.items() if known > tokens), default=self.last
        )
        low = min(max(low, 0), high - 1)
        rung = self.rung(low)
        overflows = rung.held_share(tokens) > 1 or rung.devices_share(tokens) > 1
        found = self._searched(tokens, low, high) if overflows else low
        self._held[tokens] = found
        return found

    def _searched(self, tokens: int, low: int, high: int) -> int:
        """Binary search by weights and caches, which are cheap to compute; buffers hardly change between rungs."""
        rest = 0.0  # the share of the devices that the buffers take

        def seems_held(place: int) -> bool:
            return self.rung(place).held_share(tokens) + rest <= 1

        while high - low > 1:
            guess = bisect_left(range(low + 1, high), True, key=seems_held)
            place = min(low + 1 + guess, high - 1)
            share = self.rung(place).devices_share(tokens)
            rest = share - self.rung(place).held_share(tokens)
            if share <= 1:
                high = place
            else:
                low = place
        return high


def _is_run(fitting: Fitting, tokens: int | None = None) -> bool:
    """Whether the engine would start in this placement: some numbers of cards cannot divide the heads."""
    try:
        fitting.price(fitting.least if tokens is None else tokens)
    except RefusedError:
        return False
    return True
