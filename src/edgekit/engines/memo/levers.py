"""What is settled of a tier -> the levers after the context: cache, spill, drafter, sequences, each with its why."""

from __future__ import annotations

from edgekit.bill.decisions import Decision, Lever, Tried
from edgekit.catalog.tiers import Tier, find_tier
from edgekit.engines.memo.costing import bytes_held, drafter_bytes
from edgekit.engines.memo.settling import Settled
from edgekit.engines.memo.types import DRAFT_MAX, TierWish
from edgekit.engines.spill import SPILL_FROM_TOKENS, Spill
from edgekit.units import format_bytes

LONG_TOKENS = 131_072  # from here on eight sequences, below it four
MANY, SOME, FEW = 8, 4, 2


def context_step(wish: TierWish, settled: Settled) -> Decision:
    each = f" for each of {wish.windows}" if wish.windows > 1 else ""
    return Decision(
        lever=Lever.CONTEXT,
        value=f"{settled.context_tokens:,} tokens{each}",
        because=settled.context_because,
    )


def cache_step(settled: Settled) -> Decision:
    return Decision(
        lever=Lever.CACHE,
        value=settled.layout.name,
        because=settled.layout_because,
        tried=settled.tried,
    )


def spill_step(tier: Tier, wish: TierWish, settled: Settled) -> Decision:
    """Where the cache lies. Armed is told, not counted: a chosen context always stays whole."""
    spill = settled.spill
    if spill is not None:
        value = f"{spill.spilled_pages:,} cold pages in {spill.store.value}"
        return Decision(lever=Lever.PLACEMENT, value=value, because=spill.told)
    page = Spill(
        context_tokens=settled.context_tokens,
        bytes_per_token=tier.bytes_per_token(settled.layout) * wish.windows,
        resident_tokens=settled.context_tokens,
        store=wish.memory.store,
        purpose=wish.purpose,
    )
    why = "the cache does not fit" if settled.lacking_bytes else "the whole cache fits"
    if settled.context_tokens <= SPILL_FROM_TOKENS:
        told = f"only contexts over {SPILL_FROM_TOKENS:,} tokens can spill"
    else:
        told = f"{'it could spill' if page.is_in_time else 'it could not spill'}: {page.told}"
    return Decision(lever=Lever.PLACEMENT, value="none", because=f"{why}; {told}")


def choose_drafter(
    tier: Tier, wish: TierWish, settled: Settled, *, holds: bool
) -> tuple[Tier | None, Decision]:
    """The one that is paired with the tier, if what is left holds all of it."""
    found: Tier | None = None
    tried: tuple[Tried, ...] = ()
    why = _no_drafter(tier, wish, settled, holds=holds)
    if not why and tier.drafter is not None:
        drafter = find_tier(tier.drafter)
        needed = drafter_bytes(drafter, settled.layout, settled.context_tokens, wish)
        held = bytes_held(tier, settled.layout, settled.context_tokens, wish.windows)
        left = wish.memory.usable_bytes - held
        fits = needed <= left
        why = (
            f"the {drafter.name} as draft model for the {tier.name}, {DRAFT_MAX} tokens ahead, "
            f"{'takes' if fits else 'would take'} {format_bytes(needed)} with its own cache; "
            f"{format_bytes(left)} is left"
        )
        found = drafter if fits else None
        tried = (Tried(value=drafter.name, outcome=why, taken=fits),)
    value = "none" if found is None else found.name
    return found, Decision(lever=Lever.DRAFTER, value=value, because=why, tried=tried)


def _no_drafter(tier: Tier, wish: TierWish, settled: Settled, *, holds: bool) -> str:
    """Why none is looked at; empty where one is."""
    if not wish.with_drafter:
        return "not requested"
    if not holds:
        return "no memory is left for one"
    if settled.spill is not None:
        return "the cache is spilled, so no memory is left for one"
    if tier.drafter is None:
        return f"no draft model of known size goes with the {tier.name}"
    other = find_tier(tier.drafter)
    if other.vocabulary != tier.vocabulary:
        return f"the {other.name} has a different vocabulary ({other.vocabulary}, not {tier.vocabulary})"
    return ""


def choose_sequences(
    tier: Tier, wish: TierWish, settled: Settled, drafter: Tier | None, *, holds: bool
) -> tuple[int, Decision]:
    """Of those that share a window each costs its state, no tokens; users were costed with theirs."""
    if wish.users is not None:
        why = f"as requested, each with a context of {settled.context_tokens:,} tokens"
        return wish.users, Decision(lever=Lever.SEQUENCES, value=str(wish.users), because=why)
    wanted, why = _wanted_sequences(tier, wish, settled, holds=holds)
    each = tier.state_bytes + (drafter.state_bytes if drafter is not None else 0)
    count = wanted
    while count > 1 and _more_bytes(count, each) > _left_bytes(tier, wish, settled, drafter):
        count //= 2
    if each and count < wanted:
        why = f"{wanted} by the rule, but each one more needs {format_bytes(each)} of state, which does not fit"
    elif each and count > 1:
        why += f"; they share the context, and each has {format_bytes(each)} of state"
    elif count > 1:
        why += "; they share the context"
    return count, Decision(lever=Lever.SEQUENCES, value=str(count), because=why)


def _wanted_sequences(
    tier: Tier, wish: TierWish, settled: Settled, *, holds: bool
) -> tuple[int, str]:
    if not holds:
        return 1, "no memory is left for more"
    tokens = settled.context_tokens
    most = min(tier.window, settled.layout.most_tokens or tier.window)
    if settled.spill is not None or (wish.context_tokens is None and tokens < most):
        return FEW, "the cache limits the context"
    if tokens >= LONG_TOKENS:
        return MANY, f"the context has {LONG_TOKENS:,} tokens or more"
    return SOME, f"the context is shorter than {LONG_TOKENS:,} tokens"


def _more_bytes(count: int, each: int) -> int:
    """Of the sequences beyond the first, which is paid for."""
    return (count - 1) * each


def _left_bytes(tier: Tier, wish: TierWish, settled: Settled, drafter: Tier | None) -> int:
    tokens, layout = settled.context_tokens, settled.layout
    if settled.spill is not None:
        held = tier.weights_bytes + tier.working_bytes + tier.state_bytes * wish.windows
        return wish.memory.usable_bytes - held - settled.spill.resident_bytes
    held = bytes_held(tier, layout, tokens, wish.windows)
    if drafter is not None:
        held += drafter_bytes(drafter, layout, tokens, wish)
    return wish.memory.usable_bytes - held
