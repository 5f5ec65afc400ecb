"""The memo's policy: which tier, context, cache layout, draft model and number of sequences to run.

Memory is spent in the order of the levers: bigger model, longer context, more accurate cache, draft model, parallel
sequences. If memory is short they are given up in reverse order. docs/tiers.md has the rules with their reasons;
docs/decisions/0010 says why the planner for real engines does not apply them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from edgekit.bill.spill import LEAST_PAGES, PAGE_TOKENS, SPILL_FROM_TOKENS, Spill, plan_spill
from edgekit.bill.types import Decision, Lever, Load, Placement, Status, Task, Tried, Usage, Verdict
from edgekit.engines.memo.rules import (
    WONT_FIT_PERCENT,
    MemoSetup,
    RamFit,
    RamLevel,
    assess,
    bill,
    cache_choices,
    check_load,
    drafter_load,
    estimate,
    largest_context,
    placements,
    store_of,
    tier_of,
    windows_of,
    with_layout,
)
from edgekit.errors import KvSpillUnsupportedError, UsageError
from edgekit.index.tiers import (
    Layout,
    Tier,
    check_engine,
    find_layout,
    find_tier,
    first_run,
    ladder,
)
from edgekit.machine.types import Budget
from edgekit.units import LARGEST, MIB, format_bytes

MIN_CONTEXT = 16_384  # tokens, if no minimum is given
MARGIN_PERCENT = 5  # left free of the longest context that fits, if the policy chooses the context
DRAFT_MAX = 6  # tokens that a draft model predicts ahead
LONG_TOKENS = 131_072
# Parallel sequences: for a context of LONG_TOKENS or more, for a shorter one, and if the cache limits the context.
LONG_SEQUENCES, SHORT_SEQUENCES, LIMITED_SEQUENCES = 8, 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPlan:
    """The best way to run a tier, with reasons. If it does not fit: the minimum, and the missing memory."""

    tier: Tier
    layout: Layout
    verdict: Verdict
    ram: RamFit
    steps: tuple[Decision, ...] = field(repr=False)
    to_add_bytes: int = 0  # missing memory

    @property
    def setup(self) -> MemoSetup:
        return MemoSetup.of(self.verdict.way.setup)

    @property
    def budget(self) -> Budget:
        """The memory that holds the tier."""
        return self.verdict.way.budgets[0]

    @property
    def required_bytes(self) -> int:
        """Bytes required in the memory that holds the tier, without spilled pages."""
        return self.verdict.uses[0].required_bytes

    @property
    def parallel(self) -> int:
        return self.verdict.load.sequences or 1

    @property
    def rank(self) -> tuple[float, ...]:
        """Sort key, the best largest: fits, not spilled, bigger model, longer, more accurate, drafter, sequences."""
        length, accuracy = self.verdict.context_tokens, self.layout.bits
        setup = self.setup
        middle = (accuracy, length) if setup.prefer_accurate_kv else (length, accuracy)
        is_resident, has_drafter = setup.spill is None, setup.drafter is not None
        fits = self.verdict.can_load
        return (fits, is_resident, self.tier.weights_bytes, *middle, has_drafter, self.parallel)


# --- on a machine


def plan_tier_on(task: Task) -> TierPlan:
    """`plan_tier` on the machine's largest card, or in its RAM if it does not fit on the card."""
    return _best_plan(tuple(placements(task)), partial(plan_tier, task))


def recommend_tier_on(tasks: Sequence[Task]) -> TierPlan:
    """`recommend_tier` on the machine's largest card, or in its RAM if none fits on the card."""
    return _best_plan(tuple(placements(tasks[0])), partial(recommend_tier, tasks))


def _best_plan(memories: Sequence[Placement], make_plan: Callable[..., TierPlan]) -> TierPlan:
    """The first plan that fits in one memory, else one that spills cache pages from the first memory to the next.

    If nothing fits, the plan that lacks the least memory.
    """
    plans = [make_plan(memory, may_spill=False) for memory in memories]
    for plan in plans:
        if plan.verdict.can_load:
            return plan
    spilled = make_plan(memories[0])
    if spilled.verdict.can_load:
        return spilled
    return min(plans, key=lambda plan: plan.to_add_bytes)


# --- the model


def recommend_tier(
    tasks: Sequence[Task], placement: Placement, *, may_spill: bool = True
) -> TierPlan:
    """The plan of the largest tier that fits; if none fits, of the smallest, with the memory to add.

    `tasks` are the same request for each tier. Of the variants in one series, the one with the longest context is
    chosen. Cold pages are spilled only if no tier holds the whole context. Raises KvSpillUnsupportedError if the only
    tiers that would fit must not spill.
    """
    requested = tasks[0].load.context_tokens or 0
    by_series: dict[str, list[Task]] = {}  # both the series and their tasks in order of size
    for task in sorted(tasks, key=lambda task: tier_of(task.model).size):
        if requested <= tier_of(task.model).window:
            by_series.setdefault(tier_of(task.model).line, []).append(task)
    if not by_series:
        longest = max(tier_of(task.model).window for task in tasks)
        raise UsageError(
            f"no tier has a context of {requested:,} tokens; the longest is {longest:,}"
        )
    tried: list[TierPlan] = []
    for variants in reversed(by_series.values()):  # the largest first
        plans = [plan_tier(task, placement, may_spill=False) for task in variants]
        tried = [*plans, *tried]
        best = max(plans, key=lambda plan: plan.rank)
        if best.verdict.can_load:
            larger = [plan for plan in tried if plan.tier.weights_bytes > best.tier.weights_bytes]
            why = "the largest tier"
            if larger:
                why += f" that fits; {larger[0].tier.name}: {larger[0].verdict.reasons[0]}"
            return _with_reason(best, why, tried)
    if may_spill and requested > SPILL_FROM_TOKENS:
        refused = None
        for task in (task for variants in reversed(by_series.values()) for task in variants):
            try:
                plan = plan_tier(task, placement)
            except KvSpillUnsupportedError as error:
                refused = refused or error
                continue
            if plan.verdict.can_load:
                why = "no tier has the whole context in memory: the largest that fits with pages spilled"
                return _with_reason(plan, why, ())
        if refused is not None:
            raise refused
    return _with_reason(tried[0], "no tier fits; this is the smallest", tried)


def ladder_plan(kind: str | None, tasks: Sequence[Task], placement: Placement) -> TierPlan:
    """The plan of the first tier that fits, from the ladder for 'small' or 'large' texts.

    `kind` None: a first run, for which nothing was requested. It starts with the 2B.
    """
    if kind is None:
        names = [tier.name for tier in (first_run(), *ladder("large"))]
        rule = f"a first run starts with the {names[0]}"
    else:
        names = [tier.name for tier in ladder(kind)]
        rule = f"the ladder for {kind} texts is {', '.join(names)}"
    by_name = {tier_of(task.model).name: task for task in tasks}
    tried = []
    for name in dict.fromkeys(names):
        plan = plan_tier(by_name[name], placement, may_spill=False)
        tried.append(plan)
        if plan.verdict.can_load:
            return _with_reason(plan, f"{rule}: the first that fits", tried)
    smallest = min(tried, key=lambda plan: plan.tier.weights_bytes)
    return _with_reason(smallest, f"{rule}: none of them fits", tried)


def _with_reason(plan: TierPlan, because: str, plans: Iterable[TierPlan]) -> TierPlan:
    """The plan with the reason for its tier, and the outcomes of all tiers that were tried."""
    tried = tuple(
        Tried(
            value=other.tier.name,
            outcome="; ".join(other.verdict.reasons) or f"{other.verdict.context_tokens:,} tokens",
            taken=other is plan and plan.verdict.can_load,
        )
        for other in plans
    )
    first = Decision(lever=Lever.WEIGHTS, value=plan.tier.name, because=because, tried=tried)
    return replace(plan, steps=(first, *plan.steps[1:]))


# --- one tier in one memory


def plan_tier(task: Task, placement: Placement, *, may_spill: bool = True) -> TierPlan:
    """How to run the task's tier in this memory. If it does not fit, the plan has the missing bytes.

    Raises UsageError or RefusedError for loads that are impossible with any amount of memory, KvSpillUnsupportedError
    if a context past 64K would have to be spilled and must not be.
    """
    tier, memory, setup = tier_of(task.model), placement.budgets[0], MemoSetup.of(placement.setup)
    min_context = MIN_CONTEXT if task.min_context is None else task.min_context
    if not 1 <= min_context <= LARGEST:
        raise UsageError(f"--min-context must be at least 1 (got {min_context:,})")
    check_load(tier, task.load, setup)
    capacity = Capacity(tier=tier, load=task.load, placement=placement, min_context=min_context)
    context = choose_context(task, capacity, may_spill=may_spill)
    ram = assess(tier, memory, setup.manifest)
    reasons = [ram.because] if ram.level is RamLevel.WONT_FIT else []
    if context.lacking_bytes:
        usable = memory.available_bytes
        reasons.append(
            f"the {tier.name} with {context.tokens:,} tokens{for_each(context.load)} "
            f"({context.layout.name}) needs {format_bytes(usable + context.lacking_bytes)}, "
            f"{format_bytes(usable)} usable"
        )
    fits = not reasons
    drafter, drafter_step = choose_drafter(capacity, context, fits=fits)
    sequences, sequences_step = choose_sequences(capacity, context, drafter, fits=fits)
    to_add_bytes = 0
    if not fits:
        # the memory with which the guard would accept the download
        accepted_bytes = -(-tier.weights_bytes * 100 // WONT_FIT_PERCENT) + memory.reserve_bytes
        guard_bytes = max(ram.need.min_bytes, accepted_bytes) - memory.total_bytes
        lacking_bytes = context.lacking_bytes
        if lacking_bytes:  # what other programs use comes out of the reserve first
            lacking_bytes += max(0, memory.reserve_bytes - memory.free_bytes)
        to_add_bytes = -(-max(guard_bytes, lacking_bytes) // MIB) * MIB
    status = Status.WARNING if ram.level is RamLevel.TIGHT else Status.PASSED
    load = replace(context.load, sequences=sequences)
    chosen = replace(setup, drafter=drafter, spill=context.spill)
    memory_estimate = estimate(task.model, load, chosen)
    return TierPlan(
        tier=tier,
        layout=context.layout,
        verdict=Verdict(
            engine=task.engine,
            status=status if fits else Status.FAILED,
            context_tokens=context.tokens,
            asked=context.is_given,
            max_context=min(
                capacity.most_tokens(context.layout), capacity.largest_context(context.layout)
            ),
            recommended_context=capacity.safe_context(context.layout),
            native_context=tier.native_window,
            cache=context.layout.name,
            cache_asked=task.load.cache_k is not None,
            load=load,
            uses=tuple(
                Usage(budget=budget, required_bytes=memory_estimate.in_pools(budget.pools))
                for budget in placement.budgets
            ),
            estimate=memory_estimate,
            reasons=tuple(reasons),
            window="" if context.is_given else context.because,
            way=replace(placement, setup=chosen),
            machine=task.machine,
        ),
        ram=ram,
        steps=(
            Decision(lever=Lever.WEIGHTS, value=tier.name, because="as requested"),
            Decision(
                lever=Lever.CONTEXT,
                value=f"{context.tokens:,} tokens{for_each(context.load)}",
                because=context.because,
            ),
            Decision(
                lever=Lever.CACHE,
                value=context.layout.name,
                because=context.layout_because,
                tried=context.tried,
            ),
            spill_step(capacity, context),
            drafter_step,
            sequences_step,
        ),
        to_add_bytes=to_add_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The capacity of one memory for one tier, with a load that may leave context and layout open."""

    tier: Tier
    load: Load
    placement: Placement
    min_context: int

    @property
    def setup(self) -> MemoSetup:
        return MemoSetup.of(self.placement.setup)

    @property
    def usable_bytes(self) -> int:
        return self.placement.budgets[0].available_bytes

    def load_with(self, layout: Layout, tokens: int) -> Load:
        return replace(with_layout(self.load, layout), context_tokens=tokens)

    def needed_bytes(self, layout: Layout, tokens: int) -> int:
        return bill(self.tier, self.load_with(layout, tokens), self.setup).total_bytes

    def left_bytes(self, context: ContextChoice, drafter: Tier | None = None) -> int:
        """Bytes left free by the tier, its cache and its drafter."""
        setup = replace(self.setup, spill=context.spill, drafter=drafter)
        used_bytes = bill(self.tier, context.load, setup).in_pools(self.placement.budgets[0].pools)
        return self.usable_bytes - used_bytes

    def most_tokens(self, layout: Layout) -> int:
        """The longest context that the tier and the layout support."""
        window = self.tier.window
        return window if layout.most_tokens is None else min(window, layout.most_tokens)

    def largest_context(self, layout: Layout) -> int:
        """The longest context that fits, for each sequence with a context of its own."""
        states = self.tier.state_bytes * (self.load.sequences or 1)
        largest = largest_context(self.tier, layout, self.usable_bytes, held_bytes=states)
        return largest // windows_of(self.load)

    def safe_context(self, layout: Layout) -> int:
        """The longest context that fits, minus 5 %, in whole pages; never longer than the tier and layout support."""
        tokens = self.largest_context(layout) * (100 - MARGIN_PERCENT) // 100
        return min(self.most_tokens(layout), tokens // PAGE_TOKENS * PAGE_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextChoice:
    """The chosen context and cache layout, as a load, and the reason for each."""

    load: Load
    layout: Layout
    because: str
    layout_because: str
    tried: tuple[Tried, ...] = ()
    spill: Spill | None = None
    lacking_bytes: int = 0  # how much more memory is needed
    is_given: bool = False  # the caller requested the context

    @property
    def tokens(self) -> int:
        return self.load.context_tokens or 0


def for_each(load: Load) -> str:
    """' for each of 4' if every sequence has its own context, else nothing."""
    windows = windows_of(load)
    return f" for each of {windows}" if windows > 1 else ""


# --- context, cache layout and spill


def choose_context(task: Task, capacity: Capacity, *, may_spill: bool = True) -> ContextChoice:
    """Context and cache of the task's tier. Raises RefusedError if the engine lacks a required layout."""
    layouts = [find_layout(choice.name) for choice in cache_choices(task, capacity.placement)]
    if (tokens := task.load.context_tokens) is not None:
        return _choose_for_request(capacity, layouts, tokens, may_spill=may_spill)
    if len(layouts) == 1:
        return _choose_longest(capacity, layouts[0], f"{layouts[0].name} as requested")
    if not capacity.setup.prefer_accurate_kv:
        return _choose_longest_then_accurate(capacity, layouts)
    tried: tuple[Tried, ...] = ()
    because = "the most accurate cache that holds the minimum context"
    for layout in layouts:
        choice = _choose_longest(capacity, layout, because)
        tried += choice.tried
        if not choice.lacking_bytes:
            break
    return replace(choice, tried=tried)


def _choose_for_request(
    capacity: Capacity, layouts: Sequence[Layout], tokens: int, *, may_spill: bool
) -> ContextChoice:
    """For a requested context: the most accurate cache that fits, else a spill, else the missing memory.

    Raises KvSpillUnsupportedError if the cache must not be spilled.
    """
    usable, tried = capacity.usable_bytes, []
    for layout in layouts:
        check_engine(capacity.setup.engine, layout)
        needed = capacity.needed_bytes(layout, tokens)
        fits = needed <= usable
        outcome = (
            f"{format_bytes(needed)} {'fits' if fits else 'does not fit'} in {format_bytes(usable)}"
        )
        tried.append(Tried(value=layout.name, outcome=outcome, taken=fits))
        if fits:
            break
    spill = None
    per_token = capacity.tier.bytes_per_token(layout) * windows_of(capacity.load)
    left_bytes = usable - capacity.needed_bytes(layout, 0)
    holds_two_pages = left_bytes >= LEAST_PAGES * PAGE_TOKENS * per_token
    if may_spill and not fits and tokens > SPILL_FROM_TOKENS and holds_two_pages:
        store, store_bytes = store_of(capacity.placement)
        spill = plan_spill(
            context_tokens=tokens,
            bytes_per_token=per_token,
            resident_budget_bytes=left_bytes,
            store=store,
            purpose=capacity.setup.purpose,
            store_free_bytes=store_bytes,
        )
    why = "the most accurate cache that holds the requested context"
    if not fits:
        why = "even the most compressed cache does not fit"
    if spill is not None:
        why += ": older pages are spilled"
    return ContextChoice(
        load=capacity.load_with(layout, tokens),
        layout=layout,
        because="as requested",
        layout_because=why,
        tried=tuple(tried),
        spill=spill,
        lacking_bytes=0 if fits or spill is not None else needed - usable,
        is_given=True,
    )


def _choose_longest(capacity: Capacity, layout: Layout, because: str) -> ContextChoice:
    """The longest context in this layout; the minimum, with the missing memory, if not even that fits.

    `because`: the reason for the layout. Raises RefusedError if the engine does not have it.
    """
    tier = capacity.tier
    check_engine(capacity.setup.engine, layout)
    tokens = capacity.safe_context(layout)
    min_tokens = min(capacity.min_context, capacity.most_tokens(layout))
    fits, lacking_bytes = tokens >= min_tokens, 0
    if not fits:
        why = f"the minimum; {tokens:,} fit"
        # the smallest memory in which `safe_context` is as long as the minimum
        pages = -(-min_tokens // PAGE_TOKENS) * PAGE_TOKENS
        with_margin = -(-pages * 100 // (100 - MARGIN_PERCENT))
        lacking_bytes = capacity.needed_bytes(layout, with_margin) - capacity.usable_bytes
    elif tokens == layout.most_tokens:
        why = f"the maximum of {layout.name}"
    elif tokens < tier.window:
        why = f"the longest that fits, minus 5 %; the {tier.name} supports {tier.window:,}"
    elif tier.catalog_window <= tier.native_window:
        why = f"the context the {tier.name} is released with (native {tier.native_window:,})"
    else:
        why = f"the context in its header, although it is listed with {tier.catalog_window:,}"
    outcome = f"holds {tokens:,} tokens after the 5 % margin"
    return ContextChoice(
        load=capacity.load_with(layout, tokens if fits else min_tokens),
        layout=layout,
        because=why,
        layout_because=because,
        tried=(Tried(value=layout.name, outcome=outcome, taken=fits),),
        lacking_bytes=lacking_bytes,
    )


def _choose_longest_then_accurate(capacity: Capacity, layouts: Sequence[Layout]) -> ContextChoice:
    """The longest context in the compressed cache, or in f16 if that holds the same context."""
    because = "the compressed cache holds the longest context"
    compressed = _choose_longest(capacity, layouts[-1], because)
    f16 = layouts[0]
    f16_tokens = capacity.safe_context(f16)
    outcome = f"holds {f16_tokens:,} tokens after the 5 % margin"
    f16_fits = not compressed.lacking_bytes and f16_tokens >= compressed.tokens
    is_f16_taken = f16_fits and not capacity.tier.keeps_compressed
    tried_f16 = Tried(value=f16.name, outcome=outcome, taken=is_f16_taken)
    if is_f16_taken:
        return replace(
            compressed,
            load=capacity.load_with(f16, compressed.tokens),
            layout=f16,
            layout_because="f16 holds the same context at full accuracy",
            tried=(tried_f16, *(replace(attempt, taken=False) for attempt in compressed.tried)),
        )
    if compressed.lacking_bytes:
        because = "even the compressed cache does not fit"
    elif f16_fits:
        because = (
            f"f16 would hold {compressed.tokens:,} tokens too, but the {capacity.tier.name} uses a compressed "
            "cache unless an accurate one is preferred (prefer_accurate_kv)"
        )
    else:
        because = f"f16 {outcome}; compressed, the context is longer"
    return replace(compressed, layout_because=because, tried=(tried_f16, *compressed.tried))


def spill_step(capacity: Capacity, context: ContextChoice) -> Decision:
    """The decision on where the cache goes. A context that the policy chooses itself always stays in memory."""
    spill = context.spill
    if spill is not None:
        value = f"{spill.spilled_pages:,} cold pages in {spill.store.value}"
        return Decision(lever=Lever.PLACEMENT, value=value, because=spill.restore_text)
    possible = Spill(  # as if pages were spilled, for the time to read one back
        context_tokens=context.tokens,
        bytes_per_token=capacity.tier.bytes_per_token(context.layout) * windows_of(context.load),
        resident_tokens=context.tokens,
        store=store_of(capacity.placement)[0],
        purpose=capacity.setup.purpose,
    )
    why = "the cache does not fit" if context.lacking_bytes else "the whole cache fits"
    if context.tokens <= SPILL_FROM_TOKENS:
        note = f"only contexts over {SPILL_FROM_TOKENS:,} tokens can spill"
    elif possible.is_in_time:
        note = f"it could spill: {possible.restore_text}"
    else:
        note = f"it could not spill: {possible.restore_text}"
    return Decision(lever=Lever.PLACEMENT, value="none", because=f"{why}; {note}")


# --- draft model and sequences


def choose_drafter(
    capacity: Capacity, context: ContextChoice, *, fits: bool
) -> tuple[Tier | None, Decision]:
    """The tier's drafter, if it fits in the memory that is left."""
    tier, setup = capacity.tier, capacity.setup
    paired = None if tier.drafter is None else find_tier(tier.drafter)
    drafter: Tier | None = None
    tried: tuple[Tried, ...] = ()
    if not setup.may_draft:
        why = "not requested"
    elif not fits:
        why = "no memory is left for one"
    elif context.spill is not None:
        why = "the cache is spilled, so no memory is left for one"
    elif paired is None:
        why = f"no draft model of known size goes with the {tier.name}"
    elif paired.vocabulary != tier.vocabulary:
        why = f"the {paired.name} has a different vocabulary ({paired.vocabulary}, not {tier.vocabulary})"
    else:
        needed_bytes = bill(paired, drafter_load(paired, context.load, setup), setup).total_bytes
        left_bytes = capacity.left_bytes(context)
        drafter = paired if needed_bytes <= left_bytes else None
        why = (
            f"the {paired.name} as draft model for the {tier.name}, {DRAFT_MAX} tokens ahead, "
            f"{'would take' if drafter is None else 'takes'} {format_bytes(needed_bytes)} with its own cache; "
            f"{format_bytes(left_bytes)} is left"
        )
        tried = (Tried(value=paired.name, outcome=why, taken=drafter is not None),)
    value = "none" if drafter is None else drafter.name
    return drafter, Decision(lever=Lever.DRAFTER, value=value, because=why, tried=tried)


def choose_sequences(
    capacity: Capacity, context: ContextChoice, drafter: Tier | None, *, fits: bool
) -> tuple[int, Decision]:
    """The number of sequences that can run at once.

    Sequences that share the context cost only their states. If each has a context of its own, their number was
    requested, and the bill already includes all of them.
    """
    tier, load, tokens = capacity.tier, context.load, context.tokens
    if load.sequences is not None:
        context_text = (
            f", each with a context of {tokens:,} tokens" if load.unified is False else ""
        )
        return load.sequences, Decision(
            lever=Lever.SEQUENCES, value=str(load.sequences), because=f"as requested{context_text}"
        )
    is_cut = not context.is_given and tokens < capacity.most_tokens(context.layout)
    if not fits:
        target, why = 1, "no memory is left for more"
    elif context.spill is not None or is_cut:
        target, why = LIMITED_SEQUENCES, "the cache limits the context"
    elif tokens >= LONG_TOKENS:
        target, why = LONG_SEQUENCES, f"the context has {LONG_TOKENS:,} tokens or more"
    else:
        target, why = SHORT_SEQUENCES, f"the context is shorter than {LONG_TOKENS:,} tokens"
    state_bytes = tier.state_bytes + (drafter.state_bytes if drafter is not None else 0)
    left_bytes = capacity.left_bytes(context, drafter)
    count = target
    while count > 1 and (count - 1) * state_bytes > left_bytes:  # the bill has the first state
        count //= 2
    if state_bytes and count < target:
        why = f"{target} by the rule, but each one more needs {format_bytes(state_bytes)} of state, which does not fit"
    elif state_bytes and count > 1:
        why += f"; they share the context, and each has {format_bytes(state_bytes)} of state"
    elif count > 1:
        why += "; they share the context"
    return count, Decision(lever=Lever.SEQUENCES, value=str(count), because=why)
