"""The five tiers of elizaOS' memo on a machine: which, with how long a context, in which cache, and why.

What is chosen is for the memo's what-if engine, and every figure is ASSUMED.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from edgekit.catalog.tiers import Tier
from edgekit.engines.memo.choose import first_run_plan, ladder_plan, plan_tier, recommend_tier
from edgekit.engines.memo.memory import card_memory, memories_of, ram_memory
from edgekit.engines.memo.types import TierMemory, TierPlan, TierWish
from edgekit.machine.types import Machine

__all__ = [
    "TierMemory",
    "TierPlan",
    "TierWish",
    "card_memory",
    "first_run_plan",
    "ladder_plan",
    "memories_of",
    "plan_tier",
    "plan_tier_on",
    "ram_memory",
    "recommend_tier",
    "recommend_tier_on",
]


Make = Callable[[TierMemory], TierWish]


def _wish(memory: TierMemory) -> TierWish:
    return TierWish(memory=memory)


def plan_tier_on(machine: Machine, tier: Tier, make: Make = _wish) -> TierPlan:
    """`plan_tier` on the machine's largest card, or in its RAM where the card does not hold it."""
    return _best_on(machine, make, partial(plan_tier, tier))


def recommend_tier_on(machine: Machine, make: Make = _wish) -> TierPlan:
    """`recommend_tier` on the machine's largest card, or in its RAM where that holds none."""
    return _best_on(machine, make, recommend_tier)


def _best_on(machine: Machine, make: Make, plan: Callable[..., TierPlan]) -> TierPlan:
    """Whole in one memory, then spilled beside the first; else the plan that lacks least."""
    wishes = [make(memory) for memory in memories_of(machine)]
    whole = [plan(wish, may_spill=False) for wish in wishes]
    found = next((one for one in whole if one.holds), None) or plan(wishes[0])
    return found if found.holds else min(whole, key=lambda one: one.to_add_bytes)
