"""The levers after the context: cache, spill, drafter and sequences of a tier, each with its reason."""

from __future__ import annotations

from dataclasses import replace

from edgekit.bill.spill import SPILL_FROM_TOKENS, Spill
from edgekit.bill.types import Load, Placement
from edgekit.bill.verdict import Decision, Lever, Tried
from edgekit.catalog.tiers import Tier, find_tier
from edgekit.engines.memo.context import ContextChoice
from edgekit.engines.memo.estimate import bill, drafter_load
from edgekit.engines.memo.placements import store_of
from edgekit.engines.memo.types import DRAFT_MAX, windows_of
from edgekit.units import format_bytes

LONG_TOKENS = 131_072  # from here on eight sequences, below it four
MANY, SOME, FEW = 8, 4, 2


def for_each(load: Load) -> str:
    windows = windows_of(load)
    return f" for each of {windows}" if windows > 1 else ""


def context_step(context: ContextChoice) -> Decision:
    value = f"{context.tokens:,} tokens{for_each(context.load)}"
    return Decision(lever=Lever.CONTEXT, value=value, because=context.because)


def cache_step(context: ContextChoice) -> Decision:
    return Decision(
        lever=Lever.CACHE,
        value=context.layout.name,
        because=context.layout_because,
        tried=context.tried,
    )


def spill_step(tier: Tier, placement: Placement, context: ContextChoice) -> Decision:
    """Where the cache is. Whether it could spill is only mentioned: a chosen context always stays whole."""
    spill = context.spill
    if spill is not None:
        value = f"{spill.spilled_pages:,} cold pages in {spill.store.value}"
        return Decision(lever=Lever.PLACEMENT, value=value, because=spill.told)
    page = Spill(
        context_tokens=context.tokens,
        bytes_per_token=tier.bytes_per_token(context.layout) * windows_of(context.load),
        resident_tokens=context.tokens,
        store=store_of(placement)[0],
        purpose=placement.setup.purpose,
    )
    why = "the cache does not fit" if context.lacking_bytes else "the whole cache fits"
    if context.tokens <= SPILL_FROM_TOKENS:
        could = f"only contexts over {SPILL_FROM_TOKENS:,} tokens can spill"
    else:
        could = f"{'it could spill' if page.is_in_time else 'it could not spill'}: {page.told}"
    return Decision(lever=Lever.PLACEMENT, value="none", because=f"{why}; {could}")


def left_bytes(
    tier: Tier, placement: Placement, context: ContextChoice, drafter: Tier | None = None
) -> int:
    """What is free next to the tier, its cache and its drafter."""
    setup = replace(placement.setup, spill=context.spill, drafter=drafter)
    budget = placement.budgets[0]
    return budget.available_bytes - bill(tier, context.load, setup).in_pools(budget.pools)


def choose_drafter(
    tier: Tier, placement: Placement, context: ContextChoice, *, fits: bool
) -> tuple[Tier | None, Decision]:
    """The one that is paired with the tier, if what is left holds all of it."""
    found: Tier | None = None
    tried: tuple[Tried, ...] = ()
    setup = placement.setup
    why = _no_drafter(tier, context, may_draft=setup.may_draft, fits=fits)
    if not why and tier.drafter is not None:
        drafter = find_tier(tier.drafter)
        small = drafter_load(drafter, context.load, setup)
        needed = bill(drafter, small, setup).total_bytes
        left = left_bytes(tier, placement, context)
        holds = needed <= left
        why = (
            f"the {drafter.name} as draft model for the {tier.name}, {DRAFT_MAX} tokens ahead, "
            f"{'takes' if holds else 'would take'} {format_bytes(needed)} with its own cache; "
            f"{format_bytes(left)} is left"
        )
        found = drafter if holds else None
        tried = (Tried(value=drafter.name, outcome=why, taken=holds),)
    value = "none" if found is None else found.name
    return found, Decision(lever=Lever.DRAFTER, value=value, because=why, tried=tried)


def _no_drafter(tier: Tier, context: ContextChoice, *, may_draft: bool, fits: bool) -> str:
    """Why none is tried; empty where one is."""
    if not may_draft:
        return "not requested"
    if not fits:
        return "no memory is left for one"
    if context.spill is not None:
        return "the cache is spilled, so no memory is left for one"
    if tier.drafter is None:
        return f"no draft model of known size goes with the {tier.name}"
    other = find_tier(tier.drafter)
    if other.vocabulary != tier.vocabulary:
        return f"the {other.name} has a different vocabulary ({other.vocabulary}, not {tier.vocabulary})"
    return ""


def choose_sequences(
    tier: Tier, placement: Placement, context: ContextChoice, drafter: Tier | None, *, fits: bool
) -> tuple[int, Decision]:
    """Each of those that share a window costs its state and no tokens; users were counted with theirs."""
    load = context.load
    if load.sequences is not None:
        own = f", each with a context of {context.tokens:,} tokens" if load.unified is False else ""
        return load.sequences, Decision(
            lever=Lever.SEQUENCES, value=str(load.sequences), because=f"as requested{own}"
        )
    wanted, why = _wanted_sequences(tier, context, fits=fits)
    each = tier.state_bytes + (drafter.state_bytes if drafter is not None else 0)
    left = left_bytes(tier, placement, context, drafter)
    count = wanted
    while count > 1 and (count - 1) * each > left:  # the first is in the bill
        count //= 2
    if each and count < wanted:
        why = f"{wanted} by the rule, but each one more needs {format_bytes(each)} of state, which does not fit"
    elif each and count > 1:
        why += f"; they share the context, and each has {format_bytes(each)} of state"
    elif count > 1:
        why += "; they share the context"
    return count, Decision(lever=Lever.SEQUENCES, value=str(count), because=why)


def _wanted_sequences(tier: Tier, context: ContextChoice, *, fits: bool) -> tuple[int, str]:
    if not fits:
        return 1, "no memory is left for more"
    tokens = context.tokens
    most = min(tier.window, context.layout.most_tokens or tier.window)
    if context.spill is not None or (not context.is_given and tokens < most):
        return FEW, "the cache limits the context"
    if tokens >= LONG_TOKENS:
        return MANY, f"the context has {LONG_TOKENS:,} tokens or more"
    return SOME, f"the context is shorter than {LONG_TOKENS:,} tokens"
