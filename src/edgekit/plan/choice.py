"""The choice of weights, context, cache and placement for a task, and the verdict on it (SPEC A4).

docs/plan.md has these rules as a table, with the reason for each. Every command, the Python API and the page use this
module, so that they cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from edgekit.bill.types import (
    USUAL_PROMPT_TOKENS,
    CacheChoice,
    Component,
    Load,
    MemoryEstimate,
    MemoryLine,
    Moment,
    Price,
    PricedLoad,
    Setup,
    Speculation,
    Speed,
    Status,
    Task,
    Variant,
    Verdict,
)
from edgekit.bill.waits import FirstToken, first_token, load_time
from edgekit.engines import engine_named
from edgekit.engines.choices import USUAL_ACCURACY, as_named
from edgekit.engines.speculation import expected_speculation
from edgekit.engines.speed import USUAL, expected_speed, steady_throughput
from edgekit.errors import RefusedError, UsageError
from edgekit.machine.types import PoolKind
from edgekit.model.types import Model
from edgekit.plan.fit import (
    UNKNOWN_NATIVE_TOKENS,
    Fitting,
    Ladder,
    can_divide,
    job_window,
    placements_of,
    price_of,
    recommended_context,
    whole_placements,
)
from edgekit.units import GIB, Basis, about_rate, format_bytes

READING_TOKENS_PER_S = 8.0  # below this speed, spare memory is left unspent
EMBEDDING_ACCURACY = 850  # Q8_0
MOST_ACCURACY = 660  # Q6_K, MLX 6-bit: the measured gain from more bits is within the noise
# Only used on request: quantisations with fewer bits than IQ4_XS, or older than the K-quants.
UNUSUAL = ("Q2", "IQ2", "Q3", "IQ3", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
ROUND_TOKENS = 4096  # longer contexts are rounded down to a multiple of this
ALWAYS_IN_RAM_BYTES = 3 * GIB  # token embeddings and buffers of the largest models
# ASSUMED: the settings that are tried after one that fits are at most this much faster.
MOST_GAIN_FROM_SETTINGS = 3.0
NOTABLY_FASTER = 1.05  # a smaller difference is not mentioned
# Steps of SPEC A4's list. Steps 1 and 2 have the usual weights on the devices and a long context, with the default
# cache or an 8-bit one; steps 3 and 4 the same with a short context.
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
    slow_tokens_per_s: float | None = None  # its speed, if it fits but is slower than requested

    @property
    def is_accepted(self) -> bool:
        return self.fits and self.slow_tokens_per_s is None

    def outcome(self) -> str:
        """'fits', or how much is missing. Expensive: computed only for display."""
        if self.slow_tokens_per_s is not None:
            return f"fits, but too slow: {about_rate(self.slow_tokens_per_s)}"
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
    cache: CacheChoice
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
        """The candidate in the first placement of the ladder that holds it; None if none does."""
        fitting = ladder.first_fit(self.tokens)
        return None if fitting is None else replace(self, fitting=fitting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The result of SPEC A4's search. If nothing fits, `candidate` has the figures of step 4."""

    candidate: Candidate
    attempts: tuple[Attempt, ...]
    # The fastest that fits, if nothing is as fast as requested; the candidate is then the usual one.
    fastest: Attempt | None = None

    @property
    def fits(self) -> bool:
        return self.candidate.step != NOTHING_FITS


def unchecked_bytes(estimate: MemoryEstimate) -> int:
    """Bytes that the bill puts into RAM; 0 if that is only the few tensors that are always in RAM."""
    size = estimate.in_pool(PoolKind.HOST)
    return size if size > ALWAYS_IN_RAM_BYTES else 0


def choose(task: Task) -> Choice:
    """The weights, context, cache and placement to run the task with.

    Raises HardwareError if the engine cannot run on the machine, RefusedError if it does not support the model.
    """
    return _Search(task).run()


def smallest_usual_loads(task: Task) -> tuple[tuple[Task, ...], int]:
    """What a plan tries last before it uses smaller weights or RAM, the smallest first, and the context in tokens.

    The second task has the engine's own cache, which may take less where the 8-bit one is unpacked, or be the only one
    that the model takes. Raises HardwareError if the engine cannot run on the machine, RefusedError if it does not
    support the model.
    """
    return _Search(task).smallest_usual()


class _Search:
    """SPEC A4's search for one task; placements are computed once for each pair of weights and cache."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.variants = task.variants or as_named(task.model)
        self._streams_weights = engine_named(task.engine).streams_weights
        self._min_speed = task.min_speed
        self._is_hopeless = False  # no setting can be as fast as requested
        self.attempts: list[Attempt] = []
        self._ladders: dict[tuple[str, str, bool], Ladder] = {}

    def run(self) -> Choice:
        """The best combination that fits and is as fast as requested; if none is that fast, the best that fits."""
        choice = self._choice()
        slow = [attempt for attempt in self.attempts if attempt.slow_tokens_per_s is not None]
        if choice.fits or not slow:
            return choice
        self._min_speed, self._is_hopeless, self.attempts = None, False, []
        fastest = max(slow, key=lambda attempt: attempt.slow_tokens_per_s or 0.0)
        return replace(self._choice(), fastest=fastest)

    def _good_variants(self) -> list[Variant]:
        """The weights that are chosen unasked, the most accurate first; all if none of them is good."""
        good = [
            variant
            for variant in self.variants
            if variant.is_good and not variant.name.startswith(UNUSUAL)
        ]
        return good or list(self.variants)

    def _usual_variants(self) -> tuple[Variant, list[Variant]]:
        """The weights that the search starts with, and all that do not have more bits than usual.

        It starts with about 4.8 bits, 8 for embedding models, or the bits that were requested.
        """
        good = self._good_variants()
        max_accuracy = EMBEDDING_ACCURACY if self.task.embeds else USUAL_ACCURACY
        usual = [variant for variant in good if variant.accuracy <= max_accuracy] or good[-1:]
        preferred = usual[0]
        if not self.task.embeds:
            preferred = next((variant for variant in usual if variant.name == "Q4_K_M"), preferred)
        return preferred, usual

    def smallest_usual(self) -> tuple[tuple[Task, ...], int]:
        """Steps 4 and 3: the task with the first weights and an 8-bit cache or its own one, and the short context."""
        preferred, _ = self._usual_variants()
        default, eight_bit, _ = self._caches(preferred)
        ladders = [self._ladder(preferred, cache, on_host=False) for cache in (*eight_bit, default)]
        return tuple(ladder.task for ladder in ladders), ladders[-1].top.contexts_to_try[-1]

    def _choice(self) -> Choice:
        """The best combination that fits, else the one to report as not fitting."""
        good = self._good_variants()
        preferred, usual = self._usual_variants()
        top = self._ladder(preferred, self._caches(preferred)[0], on_host=False).top
        candidate = None
        if top.requested_tokens is not None or top.min_tokens <= top.max_tokens:
            smaller = [variant for variant in usual if variant.accuracy < preferred.accuracy]
            candidate = self._first_that_fits(preferred, smaller, top.contexts_to_try)
        if candidate is None:
            candidate = self._nearest(preferred, top.contexts_to_try[-1])
        else:
            better = [
                variant
                for variant in good
                if preferred.accuracy < variant.accuracy <= MOST_ACCURACY
            ]
            candidate = self._spend_spare_memory(candidate, better)
        return Choice(candidate=candidate, attempts=tuple(self.attempts))

    def _first_that_fits(
        self, preferred: Variant, smaller: Sequence[Variant], contexts: Sequence[int]
    ) -> Candidate | None:
        """The first step of SPEC A4's list that fits.

        `smaller`: weights with fewer bits than the preferred ones. `contexts`: the lengths to try, the longest first.
        """
        long, short = contexts[0], contexts[-1]
        for variant in (preferred, *smaller):
            default_cache, eight_bit, _ = self._caches(variant)
            for tokens in contexts:
                for cache in (default_cache, *eight_bit):
                    step = FEWER_BITS
                    if variant is preferred:
                        step = (1 if tokens == long else 3) + (cache is not default_cache)
                    if candidate := self._try(step, variant, tokens, cache):
                        return candidate
        default_cache, eight_bit, small_caches = self._caches(preferred)
        may_divide = can_divide(self.task)
        if may_divide:
            short_cache = eight_bit[0] if eight_bit else default_cache
            # Fewer bits leave less in RAM: only of use for a requested speed.
            for variant in (preferred, *(smaller if self._min_speed is not None else ())):
                for tokens, cache in ((long, default_cache), (short, short_cache)):
                    if candidate := self._try(PARTLY_IN_RAM, variant, tokens, cache, on_host=True):
                        return candidate
        for cache in small_caches:
            for on_host in (False, True) if may_divide else (False,):
                if candidate := self._try(SMALL_CACHE, preferred, short, cache, on_host=on_host):
                    return candidate
        if not self._streams_weights:
            return None
        # The context takes the memory that the streamed weights leave free.
        ladder = self._ladder(preferred, default_cache, on_host=True)
        fitting = ladder.rung(ladder.last)
        if fitting.requested_tokens is not None:
            return None
        tokens = fitting.longest_comfortable_tokens or fitting.longest_tokens
        if tokens < fitting.min_tokens:
            return None
        return self._try(SMALL_CACHE, preferred, tokens, default_cache, on_host=True)

    def _caches(
        self, variant: Variant
    ) -> tuple[CacheChoice, Sequence[CacheChoice], Sequence[CacheChoice]]:
        """The default or requested cache, the 8-bit one if there is one, and smaller ones."""
        default, *alternatives = cache_choices(with_weights(self.task, variant))
        if self.task.own_cache_only:
            return default, (), ()
        eight_bit = [cache for cache in alternatives if cache.is_eight_bit][:1]
        return default, eight_bit, [cache for cache in alternatives if cache not in eight_bit]

    def _ladder(self, variant: Variant, cache: CacheChoice, *, on_host: bool) -> Ladder:
        """The placements of these weights and this cache; `on_host` adds those with a part of the model in RAM."""
        key = (variant.name, cache.name, on_host)
        if key not in self._ladders:
            task = with_cache(with_weights(self.task, variant), cache)
            placements = placements_of(task) if on_host else whole_placements(task)
            measured = [ladder.buffer_share for ladder in self._ladders.values()]
            self._ladders[key] = Ladder(task, placements, buffer_share=max(measured, default=0.0))
        return self._ladders[key]

    def _try(
        self, step: int, variant: Variant, tokens: int, cache: CacheChoice, *, on_host: bool = False
    ) -> Candidate | None:
        """The candidate with these weights, context and cache; None if it does not fit. The attempt is recorded."""
        if self._is_hopeless:
            return None
        ladder = self._ladder(variant, cache, on_host=on_host)
        fitting = ladder.first_fit(tokens)
        attempt = Attempt(
            variant=variant, tokens=tokens, cache=cache, fits=fitting is not None, ladder=ladder
        )
        if fitting is None:
            self.attempts.append(attempt)
            return None
        candidate = Candidate(
            step=step,
            variant=variant,
            cache=cache,
            fitting=fitting,
            tokens=tokens,
            because=_because(ladder.top, tokens),
        )
        slow = self._too_slow(candidate)
        self.attempts.append(replace(attempt, slow_tokens_per_s=slow))
        if slow is None or self._min_speed is None:
            return candidate
        # Where a part is in RAM, settings may gain more than that.
        self._is_hopeless = (
            fitting.placement.whole and slow * MOST_GAIN_FROM_SETTINGS < self._min_speed
        )
        return None

    def _too_slow(self, candidate: Candidate) -> float | None:
        """The candidate's typical speed, if it is known and less than requested; else None."""
        if self._min_speed is None:
            return None
        speed = speed_of(candidate)
        embeds = candidate.fitting.placement.setup.embeddings
        rate = None if speed is None else speed.typical_for(embeds=embeds)
        return rate if rate is not None and rate < self._min_speed else None

    def _spend_spare_memory(self, candidate: Candidate, better: Iterable[Variant]) -> Candidate:
        """The candidate with better weights and then a longer context, while it has memory and speed to spare.

        Weights that were reduced to fit stay as they are. If part of the model is in RAM, the candidate does not
        change: spare device memory would have to go to that part first, and so would RAM to weights that are streamed.
        """
        placement = candidate.fitting.placement
        is_partly_in_ram = candidate.step > FEWER_BITS and placement.cards
        if is_partly_in_ram or placement.may_fill or self.task.keep_spare:
            return candidate
        if candidate.step < FEWER_BITS and _has_spare(candidate):
            for variant in better:
                other = self._try(candidate.step, variant, candidate.tokens, candidate.cache)
                if other is not None and _has_spare(other):
                    candidate = other
                    break
        fitting = candidate.fitting
        is_length_set = (
            fitting.requested_tokens is not None or self.task.window_budget_bytes is not None
        )
        if is_length_set or candidate.task.embeds or not _has_spare(candidate):
            return candidate
        tokens = fitting.longest_comfortable_tokens
        if tokens < fitting.max_tokens:
            tokens -= tokens % (ROUND_TOKENS * fitting.streams)
        if tokens <= candidate.tokens:
            return candidate
        longer = replace(candidate, tokens=tokens, because=_because(fitting, tokens))
        return candidate if self._too_slow(longer) is not None else longer

    def _nearest(self, variant: Variant, tokens: int) -> Candidate:
        """The candidate to report if nothing fits: step 4, the short context with an 8-bit cache."""
        best_cache, eight_bit, _ = self._caches(variant)
        on_host = self._streams_weights  # streamed weights need not be in device memory
        ladder = self._ladder(variant, best_cache, on_host=on_host)
        if on_host and ladder.top.requested_tokens is None:
            tokens = ladder.top.min_tokens
        for cache in eight_bit:  # MLX unpacks an 8-bit cache to compute, which may take more memory
            other = self._ladder(variant, cache, on_host=on_host)
            if _shortage(other, tokens) < _shortage(ladder, tokens):
                best_cache, ladder = cache, other
        return Candidate(
            step=NOTHING_FITS,
            variant=variant,
            cache=best_cache,
            fitting=ladder.nearest(tokens),
            tokens=tokens,
            because=_because(ladder.top, tokens),
        )


def _has_spare(candidate: Candidate) -> bool:
    """Whether it fits comfortably and is at least as fast as reading; an unknown speed does not count as slow."""
    if candidate.status is not Status.PASSED:
        return False
    speed = None if candidate.task.embeds else steady_throughput(candidate.task, candidate.priced)
    return speed is None or speed >= READING_TOKENS_PER_S


def _because(top: Fitting, tokens: int) -> str:
    """The reason for a context of this length, as a plan prints it."""
    if top.requested_tokens is not None:
        job = top.task.job
        return "as requested" if job is None else job_window(job, top.native_tokens)[1]
    if tokens == top.min_tokens and top.task.min_context is not None:
        return "the shortest that --min-context allows"
    if top.task.window_budget_bytes is not None and tokens == top.contexts_to_try[0]:
        return f"the longest whose cache fits in {format_bytes(top.task.window_budget_bytes)} (--window-budget)"
    if tokens == top.max_tokens:
        geometry = top.task.model.geometry
        if geometry.native_context or geometry.trained_context:
            return "the model's full context"
        return "the model does not state its context length: 32K is assumed"
    if tokens in top.contexts_to_try:
        return "the default" if tokens == top.contexts_to_try[0] else "the default minimum"
    return "the longest that fits comfortably"


def _shortage(ladder: Ladder, tokens: int) -> tuple[float, int]:
    """A key that compares candidates that do not fit: fullness and bytes, infinite if the engine refuses the load.

    The bytes decide if no memory is usable, which makes every fullness infinite.
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
    """The task with this cache type. The fields of the setup that it changes count as set by the user."""
    keys = choice.load.get("cache_k", task.load.cache_k)
    values = choice.load.get("cache_v", task.load.cache_v)
    changed = replace(task, load=replace(task.load, cache_k=keys, cache_v=values))
    if not choice.setup:
        return changed
    changed = with_setup(changed, **choice.setup)
    settled = changed.start.fixed_flags | choice.setup.keys()
    return replace(changed, start=replace(changed.start, fixed_flags=settled))


def with_weights(task: Task, variant: Variant) -> Task:
    """The task with the weights of this variant."""
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


# Error bounds that every line of a bill has at least until the list of tensors in the file has been read.
LEAST_BOUND, LEAST_COMPUTE_BOUND = 0.01, 0.1


# --- the verdict


def judge(task: Task) -> Verdict:
    """The verdict on the weights, context, cache and placement that SPEC A4 chooses.

    Raises HardwareError if the engine cannot run on the machine, RefusedError if it does not support the model.
    """
    return result_of(choose(task))


def result_of(choice: Choice) -> Verdict:
    """The verdict on a choice."""
    result = result_for(pinned_candidate(choice.candidate) if choice.fits else choice.candidate)
    return replace(result, fastest=fastest_words(choice, result))


def fastest_words(choice: Choice, result: Verdict) -> str:
    """What is fastest, if nothing is as fast as requested: 'the fastest setting that was tried: Q4_K_S ...'."""
    attempt = choice.fastest
    if attempt is None or attempt.slow_tokens_per_s is None or not result.is_too_slow:
        return ""
    rate = about_rate(attempt.slow_tokens_per_s)
    if attempt.slow_tokens_per_s <= (result.typical_speed or 0.0) * NOTABLY_FASTER:
        return "no other setting that was tried is faster"
    each = attempt.tokens // result.streams
    return (
        f"the fastest setting that was tried: {attempt.variant.name}, {each:,} tokens, {attempt.cache.name} cache, "
        f"{rate}"
    )


def result_for(candidate: Candidate, *, max_context: int | None = None) -> Verdict:
    """The verdict on a candidate. Pass `max_context` if it is known or does not matter."""
    priced, task, fitting = candidate.priced, candidate.task, candidate.fitting
    if max_context is None:
        max_context = _longest_context(candidate)
    geometry = task.model.geometry
    speed = speed_of(candidate) if candidate.step else None
    return Verdict(
        engine=task.engine,
        status=candidate.status,
        context_tokens=candidate.tokens,
        asked=fitting.requested_tokens is not None,
        max_context=max_context,
        recommended_context=recommended_context(max_context),
        native_context=geometry.native_context or geometry.trained_context,
        streams=fitting.streams,
        quantization=engine_named(task.engine).weights_name(
            priced.placement.setup, candidate.variant.name
        ),
        cache=candidate.cache.name,
        cache_asked=candidate.cache.is_given,
        step=candidate.step,
        variant=candidate.variant,
        load=fitting.task.load_of(candidate.tokens),
        uses=priced.uses,
        speed=speed,
        speed_at=None if speed is None else partial(speed_of, candidate),
        speculation=None if speed is None else speculation_of(candidate),
        first_token=None if speed is None else _first_token(candidate),
        load_time=load_time(_read_bytes(candidate), task.machine),
        min_speed=task.min_speed,
        estimate=priced.estimate,
        reasons=() if candidate.step else tuple(fitting.reasons(priced, max_context)),
        window=candidate.because,
        doubt=geometry.doubt if task.bill is None else "",
        from_index=task.from_index,
        way=priced.placement,
        machine=task.machine,
    )


def _read_bytes(candidate: Candidate) -> int:
    """What is read from the disk to load the weights: on several cards more than the bill of one."""
    task, priced = candidate.task, candidate.priced
    setup = priced.placement.setup
    stored = engine_named(task.engine).download_bytes(
        candidate.variant.model, setup, priced.estimate
    )
    return max(stored or 0, priced.estimate.weights_bytes)


def speed_of(candidate: Candidate, moment: Moment = USUAL) -> Speed | None:
    """The expected speed; None if it is unknown."""
    return expected_speed(candidate.task, candidate.priced, moment)


def speculation_of(candidate: Candidate) -> Speculation | None:
    """The speed with the drafter that is loaded; None if there is none, or no acceptance was stated."""
    if candidate.task.drafter is None or speed_of(candidate) is None:
        return None
    return expected_speculation(candidate.task, candidate.priced)


def _first_token(candidate: Candidate) -> FirstToken | None:
    """The time to the first token for the requested prompt, a job's or a usual one; at most the context is filled."""
    task = candidate.task
    if task.embeds:
        return None
    wanted = task.prompt_tokens or (task.job.prompt_tokens if task.job is not None else 0)
    tokens = min(wanted or USUAL_PROMPT_TOKENS, candidate.tokens // candidate.fitting.streams)
    speed = expected_speed(task, candidate.priced, Moment(prompt_tokens=tokens))
    return None if speed is None else first_token(speed.prefill, tokens)


def _longest_context(candidate: Candidate) -> int:
    """The longest context with the candidate's weights and cache, in its placement; in any, if it does not fit."""
    fitting, task = candidate.fitting, candidate.task
    if candidate.step == NOTHING_FITS:
        try:
            return Ladder(task, placements_of(task)).longest_tokens
        except RefusedError:
            return 0
    if candidate.tokens > fitting.max_tokens:  # a request for more than the model supports
        return fitting.longest_tokens
    return max(fitting.longest_tokens, candidate.tokens)


def is_too_short(result: Verdict) -> bool:
    """Whether the model's native context is shorter than the requested minimum: more memory would not help."""
    native = (result.native_context or 0) * result.streams
    return result.failed and not result.asked and 0 < native < result.context_tokens


def pinned_candidate(candidate: Candidate) -> Candidate:
    """The candidate with its layers pinned to cards as in the bill.

    By default the engine splits them by the memory that is free when it starts.
    """
    if not candidate.fitting.placement.may_resplit:
        return candidate
    pinned = candidate.fitting.engine.pinned(candidate.task.model, candidate.priced.placement)
    return candidate.on(Ladder(candidate.task, (pinned,))) or candidate


def is_decided(task: Task, result: Verdict, *, loads_only: bool = False) -> bool:
    """Whether a verdict that was made before the file's list of tensors was read is final.

    It is if it stays the same with every line at its lower and at its upper error bound, and either the whole model
    fits comfortably or no context fits at all. `loads_only`: only `can_load` has to stay the same.
    """
    if task.bill is not None or result.estimate.basis is Basis.ASSUMED:
        return False
    if loads_only:
        bound = replace(task, bill=_at_bound(task, 1 if result.can_load else -1))
        return choose(bound).fits == result.can_load
    if result.can_load:
        is_as_stored = result.variant is None or not result.variant.changes
        if not (result.passed and result.step == 1 and is_as_stored and result.way.whole):
            return False
        fitting = Fitting(replace(task, load=result.load), result.way)
        speed = steady_throughput(task, fitting.price(result.context_tokens))
        # slightly larger or smaller weights could change whether spare memory is spent
        if speed is not None and abs(speed / READING_TOKENS_PER_S - 1) < LEAST_COMPUTE_BOUND:
            return False
        # or whether they are as fast as requested
        wanted, rate = task.min_speed, result.typical_speed
        if wanted is not None and rate is not None and abs(rate / wanted - 1) < LEAST_COMPUTE_BOUND:
            return False
    bounds = (replace(task, bill=_at_bound(task, sign)) for sign in (1, -1))
    return all(_answer(judge(bound)) == _answer(result) for bound in bounds)


def _answer(result: Verdict) -> tuple[object, ...]:
    """The parts of a verdict that have to stay the same for it to be final."""
    return (
        result.status,
        result.quantization,
        result.cache,
        result.context_tokens,
        result.max_context,
        result.way.because,
    )


def _at_bound(task: Task, sign: int) -> Price:
    """The engine's bill with every line at its upper (`sign` 1) or lower (-1) error bound."""
    price = price_of(task)

    def at_bound(line: MemoryLine) -> MemoryLine:
        least = LEAST_COMPUTE_BOUND if line.component is Component.COMPUTE else LEAST_BOUND
        within = max(line.within or 0.0, least)
        return replace(line, size_bytes=max(0, math.ceil(line.size_bytes * (1 + sign * within))))

    def bill(load: Load, setup: Setup) -> MemoryEstimate:
        estimate = price(load, setup)
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


def runs_on(result: Verdict) -> str:
    """'GPU', '2 GPUs', 'GPU + CPU' or 'CPU'."""
    cards, off = result.way.cards, engine_named(result.engine).offload(result)
    if not cards or off.everything:
        return "CPU"
    where = "GPU" if len(cards) == 1 else f"{len(cards)} GPUs"
    return f"{where} + CPU" if off.layers or off.experts else where
