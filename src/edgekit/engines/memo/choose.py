"""A tier and a wish -> its plan; all tiers and a wish -> the best plan, by the levers in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from edgekit.bill.decisions import Decision, Lever, Tried
from edgekit.catalog.tiers import Tier, first_run, ladder, tiers
from edgekit.engines.memo.costing import bill
from edgekit.engines.memo.guard import assess, least_total_bytes
from edgekit.engines.memo.levers import (
    cache_step,
    choose_drafter,
    choose_sequences,
    context_step,
    spill_step,
)
from edgekit.engines.memo.settling import Settled, settle
from edgekit.engines.memo.types import DRAFT_MAX, RamLevel, TierPlan, TierWish
from edgekit.engines.spill import SPILL_FROM_TOKENS
from edgekit.errors import KvSpillUnsupportedError, UsageError
from edgekit.units import MIB, format_bytes


def plan_tier(tier: Tier, wish: TierWish, *, may_spill: bool = True) -> TierPlan:
    """What to run of this tier. One that does not hold is a result too, with what is missing.

    Raises UsageError or RefusedError for a wish that no memory would meet, KvSpillUnsupportedError where a context
    past 64K would have to be spilled and must not be.
    """
    settled = settle(tier, wish, may_spill=may_spill)
    ram = assess(tier, wish.memory, wish.manifest)
    reasons = tuple(_reasons(tier, wish, settled))
    if ram.level is RamLevel.WONT_FIT:
        reasons = (ram.because, *reasons)
    drafter, drafter_step = choose_drafter(tier, wish, settled, holds=not reasons)
    sequences, sequences_step = choose_sequences(tier, wish, settled, drafter, holds=not reasons)
    return TierPlan(
        wish=wish,
        tier=tier,
        layout=settled.layout,
        context_tokens=settled.context_tokens,
        parallel=sequences,
        ram=ram,
        estimate=bill(
            wish,
            tier,
            settled.layout,
            settled.context_tokens,
            sequences=sequences,
            drafter=drafter,
            spill=settled.spill,
        ),
        steps=(
            Decision(lever=Lever.WEIGHTS, value=tier.name, because="as requested"),
            context_step(wish, settled),
            cache_step(settled),
            spill_step(tier, wish, settled),
            drafter_step,
            sequences_step,
        ),
        drafter=drafter,
        draft_max=DRAFT_MAX if drafter is not None else 0,
        spill=settled.spill,
        reasons=reasons,
        to_add_bytes=_to_add(tier, wish, settled) if reasons else 0,
    )


def recommend_tier(
    wish: TierWish, *, among: Sequence[Tier] | None = None, may_spill: bool = True
) -> TierPlan:
    """The largest tier that holds, as it is best run; where none does, the smallest and what to add.

    Tiers of one line are variants: of those the one with the longest context is taken. Cold pages are spilled only
    where no tier holds the context whole.
    """
    lines = _lines(tiers() if among is None else among)
    kept: list[TierPlan] = []
    for variants in reversed(lines):
        plans = _possible(variants, wish)
        kept = [*plans, *kept]
        best = max(plans, key=lambda plan: plan.rank, default=None)
        if best is not None and best.holds:
            return _with_model(best, *_taken(best, kept))
    if not kept:
        longest = max(tier.window for variants in lines for tier in variants)
        raise UsageError(
            f"no tier has a context of {wish.context_tokens:,} tokens; the longest is {longest:,}"
        )
    spilled = _spilled(lines, wish) if may_spill else None
    return spilled or _with_model(kept[0], "no tier fits; this is the smallest", _told(kept, None))


def first_run_plan(wish: TierWish) -> TierPlan:
    """What a machine starts with when nothing was said: the 2B, and down from it."""
    return _down(
        (first_run(), *ladder("large")),
        wish,
        f"a first run starts with the {first_run().name}",
    )


def ladder_plan(kind: str, wish: TierWish) -> TierPlan:
    """The first of the ladder for 'small' or 'large' texts that the machine holds."""
    names = ", ".join(tier.name for tier in ladder(kind))
    return _down(ladder(kind), wish, f"the ladder for {kind} texts is {names}")


def _down(rungs: Iterable[Tier], wish: TierWish, rule: str) -> TierPlan:
    kept = []
    for tier in dict.fromkeys(rungs):
        plan = plan_tier(tier, wish, may_spill=False)
        kept.append(plan)
        if plan.holds:
            return _with_model(plan, f"{rule}: the first that fits", _told(kept, plan))
    smallest = min(kept, key=lambda plan: plan.tier.weights_bytes)
    return _with_model(smallest, f"{rule}: none of them fits", _told(kept, None))


def _lines(among: Sequence[Tier]) -> list[list[Tier]]:
    """Variants together, the smallest line first."""
    found: dict[str, list[Tier]] = {}
    for tier in sorted(among, key=lambda tier: (tier.weights_bytes, tier.window)):
        found.setdefault(tier.line, []).append(tier)
    return list(found.values())


def _possible(variants: list[Tier], wish: TierWish) -> list[TierPlan]:
    """Plans of those whose window is long enough for what was asked."""
    asked = wish.context_tokens or 0
    return [plan_tier(tier, wish, may_spill=False) for tier in variants if asked <= tier.window]


def _spilled(lines: list[list[Tier]], wish: TierWish) -> TierPlan | None:
    """The largest that holds with its cold pages elsewhere; None where spilling is not the question."""
    asked, refused = wish.context_tokens or 0, None
    if asked <= SPILL_FROM_TOKENS:
        return None
    for tier in (one for variants in reversed(lines) for one in variants if asked <= one.window):
        try:
            plan = plan_tier(tier, wish)
        except KvSpillUnsupportedError as error:
            refused = refused or error
            continue
        if plan.holds:
            why = (
                "no tier has the whole context in memory: the largest that fits with pages spilled"
            )
            return _with_model(plan, why, ())
    if refused is not None:
        raise refused
    return None


def _with_model(plan: TierPlan, because: str, tried: tuple[Tried, ...]) -> TierPlan:
    first = Decision(lever=Lever.WEIGHTS, value=plan.tier.name, because=because, tried=tried)
    return replace(plan, steps=(first, *plan.steps[1:]))


def _taken(best: TierPlan, kept: list[TierPlan]) -> tuple[str, tuple[Tried, ...]]:
    larger = [plan for plan in kept if plan.tier.weights_bytes > best.tier.weights_bytes]
    why = "the largest tier"
    if larger:
        why = f"the largest tier that fits; {larger[0].tier.name}: {larger[0].reasons[0]}"
    return why, _told(kept, best)


def _told(plans: Iterable[TierPlan], taken: TierPlan | None) -> tuple[Tried, ...]:
    return tuple(
        Tried(
            value=plan.tier.name,
            outcome=f"{plan.context_tokens:,} tokens" if plan.holds else "; ".join(plan.reasons),
            taken=plan is taken,
        )
        for plan in plans
    )


def _reasons(tier: Tier, wish: TierWish, settled: Settled) -> Iterator[str]:
    if settled.lacking_bytes:
        usable = wish.memory.usable_bytes
        needed = usable + settled.lacking_bytes
        each = f" for each of {wish.windows}" if wish.windows > 1 else ""
        yield (
            f"the {tier.name} with {settled.context_tokens:,} tokens{each} ({settled.layout.name}) "
            f"needs {format_bytes(needed)}, {format_bytes(usable)} usable"
        )


def _to_add(tier: Tier, wish: TierWish, settled: Settled) -> int:
    """Memory that is missing for the guard and for the bill, in whole MiB."""
    memory = wish.memory
    guard = least_total_bytes(tier, memory, wish.manifest) - memory.total_bytes
    # what is used by others first fills the reserve that is missing
    below = max(0, memory.reserve_bytes - memory.free_bytes) if settled.lacking_bytes else 0
    return -(-max(guard, settled.lacking_bytes + below) // MIB) * MIB
