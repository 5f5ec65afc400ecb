"""Whether a task fits in a placement, and the longest context that does.

`Fitting` answers for one placement. A `Ladder` has all placements that the engine offers for the task, and finds the
first that holds a context.
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
    ASSUMED_FULL_PERCENT,
    CACHES,
    Component,
    Job,
    Load,
    MemoryEstimate,
    MemoryLine,
    Placement,
    Price,
    PricedLoad,
    Setup,
    Status,
    Task,
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


def longest_fitting(fits: Callable[[int], bool], *, step: int, max_tokens: int) -> int:
    """The largest multiple of `step` below `max_tokens` that fits, or `max_tokens` itself; 0 if nothing fits.

    Longer contexts cost more, so binary search finds where they stop fitting. Just above, a slightly longer one may fit
    again: with layers in RAM, llama.cpp moves some megabytes between the memories from one length to the next. So
    LOOK_AHEAD more steps are tried.
    """
    if max_tokens <= 0:
        return 0
    if fits(max_tokens):
        return max_tokens
    step_count = -(-max_tokens // step)
    low, high = 0, step_count  # in steps: `low` fits or is 0, `high` does not fit
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle * step):
            low = middle
        else:
            high = middle
    longer = low + 1
    while longer < min(low + 1 + LOOK_AHEAD, step_count - 1):
        longer += 1
        if fits(longer * step):
            low = longer
    return low * step


def recommended_context(max_tokens: int) -> int:
    return max_tokens * RECOMMENDED_PERCENT // 100


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


MAX_SPLITS = 3  # a new split changes the buffers, which changes the split
MAX_MOVES = 4
NEARLY_FITS = 1.08  # up to this fullness, moving single layers may make a split fit
CACHE_STEP_TOKENS = 256  # llama.cpp pads its cells to it, mlx-lm grows its caches by it


def price_of(task: Task) -> Price:
    """The bill of the task for a load and a setup, with the file that is loaded with its weights."""
    if task.bill is not None:
        return task.bill
    alone = partial(engine_named(task.engine).estimate, task.model)
    return alone if task.companion_lines is None else with_lines(alone, task.companion_lines)


def with_lines(
    price: Price, companion_lines: Callable[[Load, Setup], tuple[MemoryLine, ...]]
) -> Price:
    """The price with the lines of a file that is loaded with the model."""

    def bill(load: Load, setup: Setup) -> MemoryEstimate:
        alone = price(load, setup)
        return replace(alone, lines=(*alone.lines, *companion_lines(load, setup)))

    return bill


class Fitting:
    """One task in one placement; the bill of each context is computed once."""

    def __init__(self, task: Task, placement: Placement) -> None:
        for flag, number in (
            ("--min-context", task.min_context),
            ("--window-budget", task.window_budget_bytes),
            ("--reserve", task.reserve_bytes),
        ):
            if number is not None and number < 0:
                raise UsageError(f"{flag} must not be negative (got {number})")
        if task.max_use is not None and not 0 < task.max_use <= 1:
            raise UsageError(
                f"--max-use must be above 0 % and at most 100 % (got {task.max_use:.0%})"
            )
        self.task, self.placement = task, placement
        self.engine = engine_named(task.engine)
        self._bill = price_of(task)
        # a task with its own bill loads more than the model (a projector, adapters), which the floor does not count
        self._floor = self.engine.floor if task.bill is None else None
        self._prices: dict[int, PricedLoad] = {}
        self._last_split: Placement | None = None

    def price(self, tokens: int) -> PricedLoad:
        """The bill of a context in this placement, split among the cards if there are several."""
        if tokens not in self._prices:
            priced = self._price_in(tokens, self.placement)
            self._prices[tokens] = self._fill(self._split_among_cards(priced))
        return self._prices[tokens]

    def _fill(self, priced: PricedLoad) -> PricedLoad:
        """The load with more weights in the memory that it leaves free, up to where it is still comfortable."""
        if not priced.placement.may_fill:
            return priced
        spare_bytes = min(use.comfortable_bytes - use.required_bytes for use in priced.uses)
        filled = self.engine.fill(self.task.model, priced.placement, max(0, spare_bytes))
        return self._price_in(priced.context_tokens, filled)

    def _split_among_cards(self, priced: PricedLoad) -> PricedLoad:
        """The load in the engine's default split among several cards; if that is not comfortable, in a better split.

        First the layers are divided by the free memory of each card. If the load then nearly fits, single layers are
        moved between cards, because buffers do not grow linearly with the layers on a card.
        """
        is_comfortable = priced.status is Status.PASSED
        if is_comfortable or not self.placement.may_resplit or self._share_of_devices(priced) > 1:
            return priced  # no split helps if all cards together are too small
        if self._last_split is not None:  # a split that worked for another length often works here
            priced = self._best(priced, [self._last_split])
        for _ in range(MAX_SPLITS if self.placement.whole and not priced.fits else 1):
            if priced.status is Status.PASSED:
                break
            rebalanced = self.engine.rebalance(self.task.model, priced.placement, priced.estimate)
            if rebalanced is None:
                break
            priced = self._best(priced, [rebalanced])
        for _ in range(MAX_MOVES if self.placement.whole else 0):
            if priced.fits or priced.fullness >= NEARLY_FITS:
                break
            neighbours = self.engine.neighbours(self.task.model, priced.placement, priced.uses)
            moved = self._best(priced, neighbours)
            if moved is priced:
                break
            priced = moved
        if priced.fits:
            self._last_split = priced.placement
        return priced

    def _best(self, priced: PricedLoad, placements: Iterable[Placement]) -> PricedLoad:
        """The load in the first of these placements that fits, else in the one whose fullest memory is least full.

        `priced` itself if it fits already, or if no placement is better.
        """
        best = priced
        for placement in placements:
            other = self._price_in(priced.context_tokens, placement)
            if other.fullness < best.fullness:
                best = other
            if best.fits:
                break
        return best

    def _price_in(self, tokens: int, placement: Placement) -> PricedLoad:
        """The bill of a context in a placement, compared with its budgets. Raises CancelledError."""
        cancelled = self.task.cancelled
        if cancelled is not None and cancelled.is_set():
            raise CancelledError("cancelled")
        estimate = self._bill(self.task.load_of(tokens), placement.setup)
        refused = dict(estimate.facts).get("refused")  # vLLM: a request is larger than the pool
        return PricedLoad(
            context_tokens=tokens,
            estimate=estimate,
            uses=tuple(self._use(budget, estimate) for budget in placement.budgets),
            placement=placement,
            refused=f"{self.engine.title} does not start: {refused}" if refused else "",
        )

    def _use(self, budget: Budget, estimate: MemoryEstimate) -> Usage:
        """How much of a budget the bill takes."""
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
            if tokens not in self._prices and self._floor_exceeds_memory(tokens):
                return False
            return self.price(tokens).fits
        except RefusedError:
            return False

    def _floor_exceeds_memory(self, tokens: int) -> bool:
        """Whether weights and caches alone are too large, which is much cheaper to find out than the bill."""
        return self._floor_exceeds(self._device_limits, tokens) or self.floor_exceeds_ram(tokens)

    def floor_exceeds_ram(self, tokens: int) -> bool:
        """Whether the part of weights and caches that is in RAM is too large for it."""
        ram_limits = [
            (budget.pools, budget.unreserved_bytes)
            for budget in self.placement.budgets
            if HOST in budget.pools
        ]
        return self._floor_exceeds(ram_limits, tokens)

    def _floor_exceeds(self, limits: Iterable[tuple[frozenset[Pool], int]], tokens: int) -> bool:
        if self._floor is None:
            return False
        floor, max_use = self._floor_by_pool(self._floor, tokens), self.task.max_use or 1.0
        return any(
            sum(floor.get(pool, 0) for pool in pools) > available_bytes * max_use
            for pools, available_bytes in limits
        )

    def floor_bytes(self, tokens: int) -> int:
        """Bytes of weights, caches and states in all pools together."""
        if self._floor is None:
            return self.price(tokens).estimate.of(Component.WEIGHTS, *CACHES)
        return sum(self._floor_by_pool(self._floor, tokens).values())

    def floor_share(self, tokens: int) -> float:
        """Weights and caches as a share of all devices together, or of the fullest device if the split is fixed.

        For an engine without a floor, the whole bill as a share.
        """
        if self._floor is None:
            return self.devices_share(tokens)
        floor, max_use = self._floor_by_pool(self._floor, tokens), self.task.max_use or 1.0
        share = 0.0
        for pools, available in self._device_limits:
            required = sum(floor.get(pool, 0) for pool in pools)
            if required:
                share = max(share, required / (available * max_use) if available else math.inf)
        return share

    def _floor_by_pool(self, floor: Floor, tokens: int) -> Mapping[Pool, int]:
        return floor.held_bytes(self.task.model, self.task.load_of(tokens), self.placement.setup)

    @cached_property
    def _device_limits(self) -> list[tuple[frozenset[Pool], int]]:
        """The pools of each device and their available bytes; of all together if layers may be split differently."""
        cards = [
            (budget.pools, budget.available_bytes) for budget in gpu_budgets(self.placement.budgets)
        ]
        if self.placement.may_resplit:
            pools = frozenset[Pool]().union(*(pools for pools, _ in cards))
            cards = [(pools, sum(size for _, size in cards))]
        return cards

    def devices_share(self, tokens: int) -> float:
        """How full all devices together are, or the fullest device if the split is fixed; 1 is full."""
        return self._share_of_devices(self.price(tokens))

    def _share_of_devices(self, priced: PricedLoad) -> float:
        uses = [
            self._use(budget, priced.estimate) for budget in gpu_budgets(priced.placement.budgets)
        ]
        if self.placement.may_resplit:
            return fullness(uses)
        return max((use.fullness for use in uses), default=0.0)

    @cached_property
    def native_tokens(self) -> int:
        """The longest context that the model supports, for one sequence."""
        geometry = self.task.model.geometry
        stated = geometry.native_context or geometry.trained_context or UNKNOWN_NATIVE_TOKENS
        return min(stated, MAX_TOKENS)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Facts about the load that do not depend on the context, as the engine resolves them."""
        try:
            return self._facts(self.native_tokens)
        except RefusedError:
            return self._facts(min(self.native_tokens, MINIMUM_TOKENS))

    def _facts(self, tokens: int) -> dict[str, Any]:
        if self._floor is None:
            return dict(self.price(tokens).estimate.facts)
        load = self.task.load_of(tokens)
        return dict(self._floor.load_facts(self.task.model, load, self.placement.setup))

    @cached_property
    def streams(self) -> int:
        """The number of caches that the context is divided among: one per sequence, unless they share one."""
        streams: int = self.facts.get("kv_streams", 1)
        return streams if self.facts.get("n_ctx_seq") != self.facts.get("n_ctx") else 1

    @cached_property
    def step_tokens(self) -> int:
        """The cache grows in steps of this many tokens, in all streams together."""
        size: int = self.facts.get("block_size", CACHE_STEP_TOKENS)
        return size * self.streams

    @cached_property
    def max_tokens(self) -> int:
        """The longest context that the model supports, in all streams together."""
        return self.native_tokens * self.streams

    @cached_property
    def min_tokens(self) -> int:
        """The shortest context that is chosen, in all streams together: --min-context, else 16K.

        8K for embeddings, and 512 for the built-in engine. It is cut to the model's native context, except for a
        --min-context above 16K, which no shorter context satisfies.
        """
        each = self.task.min_context
        if each is None and self.engine.streams_weights:
            each = STREAM_MINIMUM_TOKENS
        elif each is None:
            each = EMBEDDING_TOKENS if self.task.embeds else MINIMUM_TOKENS
        tokens = each * self.streams
        if each > MINIMUM_TOKENS:
            return tokens
        return max(min(tokens, self.max_tokens), self.shortest_tokens)

    @cached_property
    def contexts_to_try(self) -> tuple[int, ...]:
        """Contexts to try, the longest first (SPEC A4): the requested one, else 32K and 16K."""
        if self.requested_tokens is not None:
            return (self.requested_tokens,)
        budget_bytes = self.task.window_budget_bytes
        if budget_bytes is not None:
            tokens = longest_fitting(
                lambda count: self._cache_bytes(count) <= budget_bytes,
                step=self.step_tokens,
                max_tokens=self.max_tokens,
            )
            short = self.min_tokens
            if self.task.min_context is None:  # a small budget may choose less than 16K
                short = min(max(tokens, self.shortest_tokens), short)
            return tuple(dict.fromkeys((max(tokens, short), short)))
        usual = (EMBEDDING_TOKENS,) if self.task.embeds else (DEFAULT_TOKENS, MINIMUM_TOKENS)
        lengths = [min(tokens * self.streams, self.max_tokens) for tokens in usual]
        longer = [tokens for tokens in lengths if tokens > self.min_tokens]
        if longer and self.engine.streams_weights:
            return tuple(dict.fromkeys(longer))  # a shorter context is chosen by what fits
        return tuple(dict.fromkeys((*longer, self.min_tokens)))

    @cached_property
    def longest_tokens(self) -> int:
        """The longest context that fits; 0 if none does."""
        return longest_fitting(self.fits, step=self.step_tokens, max_tokens=self.max_tokens)

    @cached_property
    def longest_comfortable_tokens(self) -> int:
        return longest_fitting(
            self.is_comfortable, step=self.step_tokens, max_tokens=self.max_tokens
        )

    @property
    def shortest_tokens(self) -> int:
        """The shortest context that the engine can have: one step of the cache."""
        return min(self.step_tokens, self.max_tokens)

    @cached_property
    def requested_tokens(self) -> int | None:
        """The requested context: a length, 0 for the native one, or derived from a job."""
        tokens, job = self.task.load.context_tokens, self.task.job
        if job is not None and tokens is not None:
            raise UsageError("give a context or a job, not both: the job sets the context")
        if job is not None:
            return job_window(job, self.native_tokens)[0] * self.streams
        if tokens is not None and tokens < 0:
            raise UsageError(f"the context must not be negative (got {tokens})")
        return self.native_tokens if tokens == 0 else tokens

    def _cache_bytes(self, tokens: int) -> int:
        """Bytes of the cache, from the floor if possible: that is a hundred times faster than the bill."""
        if self._floor is None:
            return self.price(tokens).estimate.kv_cache_bytes
        load = self.task.load_of(tokens)
        return self._floor.cache_bytes(self.task.model, load, self.placement.setup)

    def reasons(self, priced: PricedLoad, longest_tokens: int) -> Iterator[str]:
        """Why this load fails. `longest_tokens`: the longest context that fits in any placement; 0 if none does."""
        if self.requested_tokens is None and self.min_tokens > self.max_tokens:
            length, minimum = self.max_tokens // self.streams, self.min_tokens // self.streams
            yield f"the model has a context of {length:,} tokens, and --min-context asks for {minimum:,}"
            return
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
                bare = self.price(self.shortest_tokens).tightest
                yield f"no context fits: weights and overhead alone need {format_bytes(bare.required_bytes)}"


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


def whole_placements(task: Task) -> tuple[Placement, ...]:
    """Placements with the whole model where the engine computes: on the devices, or on the CPU if there are none.

    A placement that the user requested counts even if it leaves a part of the model elsewhere.
    """
    whole = tuple(takewhile(lambda placement: placement.whole, placements_of(task)))
    return whole or tuple(placements_of(task))


def first_placement(task: Task) -> Placement:
    return next(placements_of(task))


def can_divide(task: Task) -> bool:
    """Whether part of the model may be off the devices; for the built-in engine, out of memory."""
    return any(not placement.whole for placement in islice(placements_of(task), 1, None))


def placements_of(task: Task) -> Iterator[Placement]:
    """The engine's placements: whole ones first, then ones that use less and less device memory.

    They have the reserve that the user set. Raises HardwareError if the engine cannot run on the machine.
    """
    engine = engine_named(task.engine)
    engine.check_runs(task.machine)
    engine.check_limits(task.reserve_bytes, task.max_use)
    for placement in engine.placements(task):
        if task.reserve_bytes is None:
            yield placement
            continue
        budgets = (with_reserve(budget, task.reserve_bytes) for budget in placement.budgets)
        yield replace(placement, budgets=tuple(budgets))


def with_reserve(budget: Budget, reserve_bytes: int) -> Budget:
    """The budget with the reserve that the user set."""
    return replace(
        budget,
        reserve_bytes=reserve_bytes,
        because="set with --reserve",
        has_default_reserve=False,
    )


FEW_RUNGS = 8  # shorter ladders are tried rung by rung
# How many rungs are tried below the one that should fit several cards: only whole layers move between cards, so a load
# that fits the cards together may not fit each of them.
MORE_RUNGS = 12
WORTH_A_PATTERN = 0.003  # share of device memory; a smaller gain is not worth a longer command
# A placement is still tried if its lower bound exceeds the memory by this share: buffers may turn out smaller, and
# part of the reserve is for the first request.
FLOOR_MARGIN = 0.05


class Ladder:
    """A task in all of its placements. Each rung uses less device memory, and usually more RAM, than the one above."""

    def __init__(
        self, task: Task, placements: Iterable[Placement], *, buffer_share: float = 0.0
    ) -> None:
        self.task, self._placements = task, tuple(placements)
        # Share of the devices that buffers take. It hardly changes between rungs, lengths and types of cache.
        self.buffer_share = buffer_share
        self._rungs: dict[int, Fitting] = {}
        self._rung_by_tokens: dict[int, int] = {}

    def rung(self, index: int) -> Fitting:
        """The task in one placement, by its place in the ladder."""
        if index not in self._rungs:
            self._rungs[index] = Fitting(self.task, self._placements[index])
        return self._rungs[index]

    @property
    def top(self) -> Fitting:
        return self.rung(0)

    @property
    def last(self) -> int:
        """The index of the last rung."""
        return len(self._placements) - 1

    @cached_property
    def _whole_count(self) -> int:
        """The number of whole placements at the top, at least 1. Each of them is tried."""
        leading = sum(1 for _ in takewhile(lambda placement: placement.whole, self._placements))
        return min(max(leading, 1), len(self._placements))

    def first_fit(self, tokens: int) -> Fitting | None:
        """The placement with the most on the devices that holds a context of this length; None if no placement does,
        or the engine refuses the load.
        """
        try:
            rung = self._first_rung(tokens)
            return rung if rung is None or rung.placement.whole else self._finer(rung, tokens)
        except RefusedError:
            return None

    def _finer(self, rung: Fitting, tokens: int) -> Fitting:
        """The placement between this rung and the one above that fits and has the most on the devices.

        This rung if there is none, or if the gain is too small.
        """
        between = rung.engine.finer_placements(self.task.model, rung.placement)
        finer = [Fitting(self.task, placement) for placement in between]
        if not finer or self.last == 0:
            return rung
        rung_share = rung.floor_share(tokens)
        buffer_share = rung.devices_share(tokens) - rung_share
        shares = {fitting: fitting.floor_share(tokens) for fitting in finer}
        better = [
            fitting
            for fitting in finer
            if rung_share + WORTH_A_PATTERN <= shares[fitting] <= 1 + FLOOR_MARGIN - buffer_share
        ]

        def worth(fitting: Fitting) -> float:
            return shares[fitting] + WORTH_A_PATTERN * fitting.placement.is_short_command

        better.sort(key=worth, reverse=True)
        return next((fitting for fitting in better if fitting.fits(tokens)), rung)

    def _first_rung(self, tokens: int) -> Fitting | None:
        """The first rung that fits. A long ladder is not tried rung by rung, but from where the floors fit."""
        for index in range(self._whole_count):
            if self.rung(index).fits(tokens):
                return self.rung(index)
        if self.last < FEW_RUNGS or self._whole_count > self.last:
            rungs = (self.rung(index) for index in range(self._whole_count, self.last + 1))
            return next((rung for rung in rungs if rung.fits(tokens)), None)
        # weights and caches alone may exceed all memories together; on the CPU nothing is stored twice
        if self.rung(self.last).floor_bytes(tokens) > together_bytes(self.top.placement.budgets):
            return None
        first = self._estimated_rung(tokens)
        has_several_cards = len(gpu_budgets(self.top.placement.budgets)) > 1
        more = MORE_RUNGS if has_several_cards or not first else 0
        tried = [*range(first, min(first + more, self.last) + 1), self.last]
        # The last rung with all layers on the devices may fit although a lower one does not: below it the head is in
        # RAM, which may need more device memory.
        with_all_layers = takewhile(lambda placement: placement.all_layers, self._placements)
        last_with_layers = sum(1 for _ in with_all_layers) - 1
        if self._whole_count <= last_with_layers < first:
            tried.insert(0, last_with_layers)
        rungs = (self.rung(index) for index in dict.fromkeys(tried))
        return next((rung for rung in rungs if rung.fits(tokens)), None)

    def nearest(self, tokens: int) -> Fitting:
        """The placement, of those tried, that exceeds its limits least: what to report if none holds the context."""

        def excess(rung: Fitting) -> tuple[float, int]:
            priced = rung.price(tokens)
            return (
                priced.fullness,
                priced.tightest.required_bytes,
            )  # infinitely full if nothing is usable

        tried = [rung for rung in self._rungs.values() if _starts(rung, tokens)]
        return min(tried, key=excess, default=self.top)

    @cached_property
    def longest_tokens(self) -> int:
        """The longest context that any placement holds."""
        is_short = self.last < FEW_RUNGS
        max_tokens, longest_tokens = self.top.max_tokens, self.top.longest_tokens
        for index in range(1, self.last + 1 if is_short else self._whole_count):
            if longest_tokens == max_tokens:
                break
            if _starts(self.rung(index)):
                longest_tokens = max(longest_tokens, self.rung(index).longest_tokens)
        if longest_tokens == max_tokens or is_short or self._whole_count > self.last:
            return longest_tokens
        on_any_rung = longest_fitting(
            lambda tokens: self._first_rung(tokens) is not None,
            step=self.top.step_tokens,
            max_tokens=max_tokens,
        )
        return max(longest_tokens, on_any_rung)

    def _estimated_rung(self, tokens: int) -> int:
        """The index of the first rung whose devices together are large enough.

        Fewer tokens never need a lower rung, so earlier answers narrow the search.
        """
        known = self._rung_by_tokens
        if tokens in known:
            return known[tokens]
        high = min((rung for other, rung in known.items() if other > tokens), default=self.last)
        shorter = (rung - 1 for other, rung in known.items() if other < tokens)
        low = min(max(self._whole_count - 1, *shorter, 0), high - 1)

        def seems_to_fit(index: int) -> bool:
            return self.rung(index).floor_share(tokens) + self.buffer_share <= 1

        def fits_devices(index: int) -> bool:
            rung = self.rung(index)
            share = rung.devices_share(tokens)
            self.buffer_share = share - rung.floor_share(tokens)
            return share <= 1

        if self.rung(low).floor_share(tokens) <= 1 and fits_devices(low):
            high = low
        # Guess the rung by weights and caches, which are cheap to compute, and check the guess with the whole bill.
        while high - low > 1:
            if all(self.rung(index).floor_exceeds_ram(tokens) for index in (low + 1, self.last)):
                return low + 1  # and so does every lower rung, which has more in RAM
            guess = bisect_left(range(low + 1, high), True, key=seems_to_fit)
            index = min(low + 1 + guess, high - 1)
            low, high = (low, index) if fits_devices(index) else (index, high)
        known[tokens] = high
        return high


def _starts(fitting: Fitting, tokens: int | None = None) -> bool:
    """Whether the engine starts in this placement. It may not: some numbers of cards cannot divide the heads."""
    try:
        fitting.price(fitting.shortest_tokens if tokens is None else tokens)
    except RefusedError:
        return False
    return True
