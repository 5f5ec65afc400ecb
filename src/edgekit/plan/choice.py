"""The choice of weights, context, cache and placement for a task, and the verdict on it (SPEC A4).

docs/plan.md has these rules as a table, with the reason for each. Every command, the Python API and the page use this
module, so that they cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from edgekit.bill.types import (
    CacheChoice,
    Component,
    Load,
    MemoryEstimate,
    MemoryLine,
    Price,
    PricedLoad,
    Setup,
    Status,
    Task,
    Variant,
    Verdict,
)
from edgekit.engines import engine_named
from edgekit.engines.choices import USUAL_ACCURACY, as_named
from edgekit.engines.speed import expected_speed, steady_throughput
from edgekit.errors import RefusedError, UsageError
from edgekit.machine.types import PoolKind
from edgekit.model.types import Model
from edgekit.plan.fit import (
    UNKNOWN_NATIVE_TOKENS,
    Fitting,
    Ladder,
    can_divide,
    job_window,
    longest,
    placements_of,
    recommended_context,
    whole_placements,
)
from edgekit.units import GIB, Basis, format_bytes

READING_TOKENS_PER_S = 8.0  # below this speed, spare memory is left unspent
EMBEDDING_ACCURACY = 850  # Q8_0
MOST_ACCURACY = 660  # Q6_K, MLX 6-bit: the measured gain from more bits is within the noise
# Only used on request: below IQ4_XS by their tensors, or older than the K-quants.
UNUSUAL = ("Q2", "IQ2", "Q3", "IQ3", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
ROUND_TOKENS = 4096  # longer contexts are rounded down to a multiple of this
ALWAYS_IN_RAM_BYTES = 3 * GIB  # token embeddings and buffers of the largest models
# Steps of SPEC A4's list. Steps 1 to 4 have the usual weights on the devices: a long or a short context, each with the
# default cache and with an 8-bit one.
NOTHING_FITS = 0
FEWER_BITS = 5  # smaller weights on the devices
PARTLY_IN_RAM = 6
SMALL_CACHE = 7  # below 8 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One combination of weights, context and cache that was tried."""

    variant: Variant
    tokens: int
    cache: CacheChoice
    fits: bool
    ladder: Ladder = field(repr=False)

    def outcome(self) -> str:
        """'fits', or how much is missing. Expensive: computed only for display."""
        if self.fits:
            return "fits"
        try:
            uses = self.ladder.nearest(self.tokens).price(self.tokens).uses
        except RefusedError as error:
            return f"refused: {error}"
        use = max(uses, key=lambda use: use.fullness)
        return (
            f"needs {format_bytes(use.required_bytes)}; {use.budget.name} has "
            f"{format_bytes(use.budget.available_bytes)} usable"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Weights, context and cache, with the first placement that holds them."""

    step: int  # of SPEC A4's list
    variant: Variant
    choice: CacheChoice
    fitting: Fitting = field(repr=False)
    tokens: int
    because: str  # the reason for the context

    @property
    def task(self) -> Task:
        return self.fitting.task

    @property
    def priced(self) -> PricedLoad:
        return self.fitting.price(self.tokens)

    @property
    def status(self) -> Status:
        """The status of the bill; at best a warning if much of the model is in RAM whose size is unknown."""
        if not self.step:
            return Status.FAILED
        unchecked = self.task.machine.host is None and unchecked_bytes(self.priced.estimate)
        status = self.priced.status
        return Status.WARNING if unchecked and status is Status.PASSED else status

    def on(self, ladder: Ladder) -> Candidate | None:
        """The candidate with other placements; None if none of them fits."""
        fitting = ladder.first_fit(self.tokens)
        return None if fitting is None else replace(self, fitting=fitting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The result of SPEC A4's search. If nothing fits, `candidate` has the figures of step 4."""

    candidate: Candidate
    attempts: tuple[Attempt, ...]

    @property
    def fits(self) -> bool:
        return self.candidate.step != NOTHING_FITS


def unchecked_bytes(estimate: MemoryEstimate) -> int:
    """Bytes that the bill puts into RAM; 0 if that is only the few tensors that are always in RAM."""
    size = estimate.in_pool(PoolKind.HOST)
    return size if size > ALWAYS_IN_RAM_BYTES else 0


def choose(task: Task) -> Choice:
    """Raises HardwareError if the engine cannot run on the machine, RefusedError if it does not support the model."""
    return _Search(task).run()


class _Search:
    """SPEC A4's search for one task; placements are computed once for each pair of weights and cache."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.variants = task.variants or as_named(task.model)
        self._streams_weights = engine_named(task.engine).streams_weights
        self.attempts: list[Attempt] = []
        self._ladders: dict[tuple[str, str, bool], Ladder] = {}

    def run(self) -> Choice:
        """Starts with weights of about 4.8 bits, 8 for embedding models, or the bits that were requested."""
        good = [one for one in self.variants if one.is_good and not one.name.startswith(UNUSUAL)]
        good = good or list(self.variants)
        most = EMBEDDING_ACCURACY if self.task.embeds else USUAL_ACCURACY
        usual = [one for one in good if one.accuracy <= most] or good[-1:]
        first = usual[0]
        if most == USUAL_ACCURACY:
            first = next((one for one in usual if one.name == "Q4_K_M"), first)
        top = self._ladder(first, self._caches(first)[0], on_host=False).top
        found = None
        if top.requested is not None or top.minimum <= top.most:
            fewer = [one for one in usual if one.accuracy < first.accuracy]
            found = self._first_that_fits(first, fewer, top.windows)
        if found is None:
            found = self._nearest(first, top.windows[-1])
        else:
            better = [one for one in good if first.accuracy < one.accuracy <= MOST_ACCURACY]
            found = self._spend_spare_memory(found, better)
        return Choice(candidate=found, attempts=tuple(self.attempts))

    def _first_that_fits(
        self, first: Variant, fewer: Sequence[Variant], windows: Sequence[int]
    ) -> Candidate | None:
        long, short = windows[0], windows[-1]
        for variant in (first, *fewer):
            own, eight_bit, _ = self._caches(variant)
            for tokens in windows:
                for cache in (own, *eight_bit):
                    step = FEWER_BITS
                    if variant is first:
                        step = (1 if tokens == long else 3) + (cache is not own)
                    if found := self._try(step, variant, tokens, cache):
                        return found
        own, eight_bit, smaller = self._caches(first)
        divides = can_divide(self.task)
        short_cache = eight_bit[0] if eight_bit else own
        for tokens, cache in ((long, own), (short, short_cache)) if divides else ():
            if found := self._try(PARTLY_IN_RAM, first, tokens, cache, on_host=True):
                return found
        for cache in smaller:
            for on_host in (False, True) if divides else (False,):
                if found := self._try(SMALL_CACHE, first, short, cache, on_host=on_host):
                    return found
        if not self._streams_weights:
            return None
        ladder = self._ladder(first, own, on_host=True)  # the context takes the available memory
        last = ladder.rung(ladder.last)
        if last.requested is not None:
            return None
        tokens = longest(last.is_comfortable, step=last.step, most=last.most) or last.longest
        if tokens < last.minimum:
            return None
        return self._try(SMALL_CACHE, first, tokens, own, on_host=True)

    def _caches(
        self, variant: Variant
    ) -> tuple[CacheChoice, Sequence[CacheChoice], Sequence[CacheChoice]]:
        """The default or requested cache, the 8-bit one if there is one, and smaller ones."""
        own, *others = cache_choices(with_weights(self.task, variant))
        if self.task.own_cache_only:
            return own, (), ()
        eight_bit = [one for one in others if one.is_eight_bit][:1]
        return own, eight_bit, [one for one in others if one not in eight_bit]

    def _ladder(self, variant: Variant, cache: CacheChoice, *, on_host: bool) -> Ladder:
        key = (variant.name, cache.name, on_host)
        if key not in self._ladders:
            task = with_cache(with_weights(self.task, variant), cache)
            placements = placements_of(task) if on_host else whole_placements(task)
            self._ladders[key] = Ladder(task, placements)
        return self._ladders[key]

    def _try(
        self, step: int, variant: Variant, tokens: int, cache: CacheChoice, *, on_host: bool = False
    ) -> Candidate | None:
        ladder = self._ladder(variant, cache, on_host=on_host)
        fitting = ladder.first_fit(tokens)
        fits = fitting is not None
        self.attempts.append(
            Attempt(variant=variant, tokens=tokens, cache=cache, fits=fits, ladder=ladder)
        )
        if fitting is None:
            return None
        return Candidate(
            step=step,
            variant=variant,
            choice=cache,
            fitting=fitting,
            tokens=tokens,
            because=_because(ladder.top, tokens),
        )

    def _spend_spare_memory(self, found: Candidate, better: Iterable[Variant]) -> Candidate:
        """Spends it on better weights, then on a longer context, while the load is comfortable and faster than reading
        speed. Weights that were reduced to fit are not raised again. If part of the model is in RAM, no device memory
        is spare: it would take that part first.
        """
        if found.step > FEWER_BITS and found.fitting.placement.cards:
            return found
        for variant in better if found.step < FEWER_BITS and _is_easy(found) else ():
            other = self._try(found.step, variant, found.tokens, found.choice)
            if other is not None and _is_easy(other):
                found = other
                break
        top = found.fitting
        is_set = top.requested is not None or self.task.window_budget_bytes is not None
        if is_set or found.task.embeds or not _is_easy(found):
            return found
        most = longest(top.is_comfortable, step=top.step, most=top.most)
        if most < top.most:
            most -= most % (ROUND_TOKENS * top.streams)
        if most <= found.tokens:
            return found
        return replace(found, tokens=most, because=_because(top, most))

    def _nearest(self, variant: Variant, tokens: int) -> Candidate:
        """The figures to report if nothing fits, those of step 4: the short context with an 8-bit cache."""
        own, eight_bit, _ = self._caches(variant)
        streams = self._streams_weights  # if it does, weights need not be in memory
        ladder = self._ladder(variant, own, on_host=streams)
        if streams and ladder.top.requested is None:
            tokens = ladder.top.minimum
        for cache in eight_bit:  # MLX unpacks it to compute, which may take more in total
            other = self._ladder(variant, cache, on_host=streams)
            if _needs(other, tokens) < _needs(ladder, tokens):
                own, ladder = cache, other
        return Candidate(
            step=NOTHING_FITS,
            variant=variant,
            choice=own,
            fitting=ladder.nearest(tokens),
            tokens=tokens,
            because=_because(ladder.top, tokens),
        )


def _is_easy(found: Candidate) -> bool:
    """Whether it is comfortable and at least as fast as reading; an unknown speed does not count as slow."""
    if found.status is not Status.PASSED:
        return False
    speed = None if found.task.embeds else steady_throughput(found.task, found.priced)
    return speed is None or speed >= READING_TOKENS_PER_S


def _because(top: Fitting, tokens: int) -> str:
    if top.requested is not None:
        job = top.task.job
        return "as requested" if job is None else job_window(job, top.native)[1]
    if tokens == top.minimum and top.task.min_context is not None:
        return "the shortest that --min-context allows"
    if top.task.window_budget_bytes is not None and tokens == top.windows[0]:
        return f"the longest whose cache fits in {format_bytes(top.task.window_budget_bytes)} (--window-budget)"
    if tokens == top.most:
        geometry = top.task.model.geometry
        if geometry.native_context or geometry.trained_context:
            return "the model's full context"
        return "the model does not state its context length: 32K is assumed"
    if tokens in top.windows:
        return "the default" if tokens == top.windows[0] else "the default minimum"
    return "the longest that fits comfortably"


def _needs(ladder: Ladder, tokens: int) -> tuple[float, int]:
    """Fullness and bytes, to compare candidates that do not fit; infinite if the engine refuses.

    Bytes break the tie if nothing is usable, which makes every fullness infinite.
    """
    try:
        ladder.top.price(tokens)
        nearest = ladder.nearest(tokens).price(tokens)
    except RefusedError:
        return math.inf, 0
    return nearest.fullness, nearest.tightest.required_bytes


# --- copies of a task with changes


def with_setup(task: Task, **changes: object) -> Task:
    """The task with these fields of the engine's setup changed."""
    start = task.start
    setup = start.setup or engine_named(task.engine).default_setup()
    return replace(task, start=replace(start, setup=setup.changed(**changes)))


def with_cache(task: Task, choice: CacheChoice) -> Task:
    keys = choice.load.get("cache_k", task.load.cache_k)
    values = choice.load.get("cache_v", task.load.cache_v)
    changed = replace(task, load=replace(task.load, cache_k=keys, cache_v=values))
    if not choice.setup:
        return changed
    changed = with_setup(changed, **choice.setup)
    settled = changed.start.settled | choice.setup.keys()
    return replace(changed, start=replace(changed.start, settled=settled))


def with_weights(task: Task, variant: Variant) -> Task:
    changed = replace(task, model=variant.model)
    return with_setup(changed, **variant.changes) if variant.changes else changed


def cache_choices(task: Task) -> tuple[CacheChoice, ...]:
    """The engine's cache types, the most accurate first; only the requested one, if one was requested."""
    return tuple(engine_named(task.engine).cache_choices(task))


def check_users(users: int | None, engine: str) -> None:
    """Raises UsageError for more users than the engine serves at once."""
    most = engine_named(engine).most_users
    if users is None or 1 <= users <= most:
        return
    if most == 1:
        raise UsageError("--users: the built-in engine serves one user at a time")
    raise UsageError(f"--users must be 1 to {most:,} for {engine} (got {users:,})")


def for_users(load: Load, users: int | None, engine: str, model: Model) -> Load:
    """The load with a separate context for each user.

    Raises UsageError for more users than the engine serves at once.
    """
    if users is None:
        return load
    check_users(users, engine)
    geometry = model.geometry
    native = geometry.native_context or geometry.trained_context or UNKNOWN_NATIVE_TOKENS
    return engine_named(engine).load_for_users(load, users, native)


# Without the tensor directory, every line of a bill has at least this error bound.
LEAST_BOUND, LEAST_COMPUTE_BOUND = 0.01, 0.1


# --- the verdict


def judge(task: Task) -> Verdict:
    """The verdict on what SPEC A4 chooses.

    Raises HardwareError if the engine cannot run on the machine, RefusedError if it does not support the model.
    """
    return result_of(choose(task))


def result_of(choice: Choice) -> Verdict:
    return result_for(pinned_candidate(choice.candidate) if choice.fits else choice.candidate)


def result_for(found: Candidate, *, max_context: int | None = None) -> Verdict:
    """The verdict on a candidate. Pass `max_context` if it is known or does not matter."""
    priced, task, fitting = found.priced, found.task, found.fitting
    most = max_context
    if most is None and found.step:  # never above the model's own context, even if requested
        most = fitting.longest
        if found.tokens <= fitting.most:
            most = max(most, found.tokens)
    elif most is None:  # the longest in any placement with these weights and this cache
        try:
            most = Ladder(task, placements_of(task)).longest
        except RefusedError:
            most = 0
    geometry = task.model.geometry
    # No speed for a bare name: its layers are those of another model.
    is_rough = task.bill is not None and priced.estimate.basis is Basis.ASSUMED
    return Verdict(
        engine=task.engine,
        status=found.status,
        context_tokens=found.tokens,
        asked=fitting.requested is not None,
        max_context=most,
        recommended_context=recommended_context(most),
        native_context=geometry.native_context or geometry.trained_context,
        streams=fitting.streams,
        quantization=engine_named(task.engine).weights_name(
            priced.placement.setup, found.variant.name
        ),
        cache=found.choice.name,
        cache_asked=found.choice.is_given,
        step=found.step,
        variant=found.variant,
        load=fitting.task.load_of(found.tokens),
        uses=priced.uses,
        speed=None if not found.step or is_rough else expected_speed(task, priced),
        estimate=priced.estimate,
        reasons=() if found.step else tuple(fitting.reasons(priced, most)),
        window=found.because,
        way=priced.placement,
        machine=task.machine,
    )


def is_too_short(result: Verdict) -> bool:
    """Whether the model's native context is shorter than the requested minimum: more memory would not help."""
    native = (result.native_context or 0) * result.streams
    return result.failed and not result.asked and 0 < native < result.context_tokens


def pinned_candidate(found: Candidate) -> Candidate:
    """The candidate with its layers pinned to cards as in the bill.

    By default the engine splits them by the memory that is free when it starts.
    """
    if not found.fitting.placement.may_resplit:
        return found
    pinned = found.fitting.engine.pinned(found.task.model, found.priced.placement)
    return found.on(Ladder(found.task, (pinned,))) or found


def is_decided(task: Task, result: Verdict, *, loads_only: bool = False) -> bool:
    """Whether a verdict made without the tensor directory is final.

    It is if it stays the same with every line at its lower and at its upper bound, and the whole model fits
    comfortably or no context fits at all. Otherwise the directory has to be read. `loads_only`: check only `can_load`.
    """
    if task.bill is not None or result.estimate.basis is Basis.ASSUMED:
        return False
    if loads_only:
        bound = replace(task, bill=_at_bound(task, 1 if result.can_load else -1))
        return choose(bound).fits == result.can_load
    if result.can_load:
        is_read = result.variant is None or not result.variant.changes
        if not (result.passed and result.step == 1 and is_read and result.way.whole):
            return False
        fitting = Fitting(replace(task, load=result.load), result.way)
        speed = steady_throughput(task, fitting.price(result.context_tokens))
        # slightly larger or smaller weights could change whether spare memory is spent
        if speed is not None and abs(speed / READING_TOKENS_PER_S - 1) < LEAST_COMPUTE_BOUND:
            return False
    bounds = (replace(task, bill=_at_bound(task, sign)) for sign in (1, -1))
    return all(_answer(judge(bound)) == _answer(result) for bound in bounds)


def _answer(result: Verdict) -> tuple[object, ...]:
    return (
        result.status,
        result.quantization,
        result.cache,
        result.context_tokens,
        result.max_context,
        result.way.because,
    )


def _at_bound(task: Task, sign: int) -> Price:
    """The engine's bill with every line at its upper (`sign` 1) or lower (-1) bound."""
    engine = engine_named(task.engine)

    def at_bound(line: MemoryLine) -> MemoryLine:
        least = LEAST_COMPUTE_BOUND if line.component is Component.COMPUTE else LEAST_BOUND
        within = max(line.within or 0.0, least)
        return replace(line, size_bytes=max(0, math.ceil(line.size_bytes * (1 + sign * within))))

    def bill(load: Load, setup: Setup) -> MemoryEstimate:
        estimate = engine.estimate(task.model, load, setup)
        return replace(estimate, lines=tuple(map(at_bound, estimate.lines)))

    return bill


def download_bytes(result: Verdict) -> int | None:
    """The download size of the judged weights; None if unknown.

    The size of the repository if it was read, else the size of the model's quantised tensors.
    """
    if result.variant is None:
        return None
    engine = engine_named(result.engine)
    return engine.download_bytes(result.variant.model, result.way.setup, result.estimate)
