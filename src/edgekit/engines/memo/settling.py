"""A tier and a wish -> context and cache layout: the second and third lever, and the spill where neither is enough."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.bill.decisions import Tried
from edgekit.catalog.tiers import Layout, Tier, check_engine, find_layout, layout_for
from edgekit.engines.memo.costing import bytes_for_chosen, bytes_held, safe_context
from edgekit.engines.memo.types import TierWish
from edgekit.engines.spill import (
    LEAST_PAGES,
    PAGE_TOKENS,
    SPILL_FROM_TOKENS,
    Spill,
    plan_spill,
)
from edgekit.errors import UsageError
from edgekit.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Where context and cache stand. `lacking_bytes`: what is missing for them, 0 where they fit."""

    layout: Layout
    context_tokens: int
    context_because: str
    layout_because: str
    tried: tuple[Tried, ...] = ()
    spill: Spill | None = None
    lacking_bytes: int = 0


def settle(tier: Tier, wish: TierWish, *, may_spill: bool = True) -> Settled:
    """Context and cache of this tier. Raises for a wish that no memory would meet."""
    _check(tier, wish)
    if wish.context_tokens is not None:
        return _asked(tier, wish, wish.context_tokens, may_spill=may_spill)
    if wish.layout is not None:
        return _only(tier, wish, wish.layout, f"{wish.layout.name} as requested")
    return _accurate(tier, wish) if wish.prefer_accurate_kv else _longest(tier, wish)


def least_context(tier: Tier, wish: TierWish, layout: Layout) -> int:
    """The fewest tokens that are of use: those wished for, or all there can be."""
    most = tier.window if layout.most_tokens is None else min(tier.window, layout.most_tokens)
    return min(wish.min_context, most)


def _check(tier: Tier, wish: TierWish) -> None:
    asked, layout = wish.context_tokens, wish.layout
    if asked is not None and asked > tier.window:
        raise UsageError(
            f"a context of {asked:,} tokens is longer than the {tier.name} supports: {tier.window:,} "
            f"(released with {tier.catalog_window:,}, native {tier.native_window:,})"
        )
    if layout is None:
        return
    check_engine(wish.engine, layout)
    if asked is not None and not layout.holds(asked):
        raise UsageError(
            f"{layout.name} holds up to {layout.most_tokens:,} tokens, but {asked:,} were requested; "
            f"for longer contexts use {layout_for(asked).name}"
        )


def _asked(tier: Tier, wish: TierWish, tokens: int, *, may_spill: bool) -> Settled:
    """A context that was asked for: the most accurate cache that fits, then the spill, else what is missing."""
    usable, tried = wish.memory.usable_bytes, []
    ladder = (wish.layout,) if wish.layout is not None else _ladder(tokens)
    for layout in ladder:
        check_engine(wish.engine, layout)
        needed = bytes_held(tier, layout, tokens, wish.windows)
        fits = needed <= usable
        told = (
            f"{format_bytes(needed)} {'fits' if fits else 'does not fit'} in {format_bytes(usable)}"
        )
        tried.append(Tried(value=layout.name, outcome=told, taken=fits))
        if fits:
            why = "the most accurate cache that holds the requested context"
            return _settled(layout, tokens, "as requested", why, tried)
    return _beyond(tier, wish, tokens, tried, may_spill=may_spill)


def _beyond(
    tier: Tier, wish: TierWish, tokens: int, tried: list[Tried], *, may_spill: bool
) -> Settled:
    """No layout holds it: the last one in two parts, or as it is with what is missing."""
    layout = find_layout(tried[-1].value)
    per_token = tier.bytes_per_token(layout) * wish.windows
    whole = bytes_held(tier, layout, tokens, wish.windows)
    room = wish.memory.usable_bytes - (whole - per_token * tokens)
    if may_spill and tokens > SPILL_FROM_TOKENS and room >= LEAST_PAGES * PAGE_TOKENS * per_token:
        spill = plan_spill(
            context_tokens=tokens,
            bytes_per_token=per_token,
            resident_budget_bytes=room,
            store=wish.memory.store,
            purpose=wish.purpose,
            room_bytes=wish.memory.store_room_bytes,
        )
        why = "even the most compressed cache does not fit: older pages are spilled"
        return _settled(layout, tokens, "as requested", why, tried, spill=spill)
    why = "even the most compressed cache does not fit"
    lacking = whole - wish.memory.usable_bytes
    return _settled(layout, tokens, "as requested", why, tried, lacking_bytes=lacking)


def _ladder(tokens: int) -> tuple[Layout, ...]:
    return find_layout("f16"), find_layout("q8_0"), layout_for(tokens)


def _longest(tier: Tier, wish: TierWish) -> Settled:
    """None asked for: the longest window in the compressed cache, then f16 where it holds the same."""
    compressed = layout_for(tier.window)
    check_engine(wish.engine, compressed)
    base = _only(tier, wish, compressed, "the compressed cache holds the longest context")
    accurate = find_layout("f16")
    reach = safe_context(tier, accurate, wish)
    told = f"holds {reach:,} tokens after the 5 % margin"
    fits = not base.lacking_bytes and reach >= base.context_tokens
    if fits and not tier.keeps_compressed:
        tried = (Tried(value=accurate.name, outcome=told, taken=True), *_untaken(base))
        why = "f16 holds the same context at full accuracy"
        return _settled(accurate, base.context_tokens, base.context_because, why, tried)
    why = f"f16 {told}; compressed, the context is longer"
    if base.lacking_bytes:
        why = "even the compressed cache does not fit"
    elif fits:
        why = (
            f"f16 would hold {base.context_tokens:,} tokens too, but the {tier.name} uses a compressed "
            "cache unless an accurate one is preferred (prefer_accurate_kv)"
        )
    tried = (Tried(value=accurate.name, outcome=told), *base.tried)
    return _settled(
        base.layout, base.context_tokens, base.context_because, why, tried,
        lacking_bytes=base.lacking_bytes,
    )  # fmt: skip


def _untaken(base: Settled) -> tuple[Tried, ...]:
    return tuple(Tried(value=one.value, outcome=one.told) for one in base.tried)


def _accurate(tier: Tier, wish: TierWish) -> Settled:
    """Accuracy first: the most accurate cache that holds the minimum context, and the longest in it."""
    tried: list[Tried] = []
    for layout in _ladder(tier.window):
        check_engine(wish.engine, layout)
        found = _only(tier, wish, layout, "the most accurate cache that holds the minimum context")
        tried.extend(found.tried)
        if not found.lacking_bytes:
            break
    return _settled(
        found.layout, found.context_tokens, found.context_because, found.layout_because, tried,
        lacking_bytes=found.lacking_bytes,
    )  # fmt: skip


def _only(tier: Tier, wish: TierWish, layout: Layout, because: str) -> Settled:
    """The longest context in this layout."""
    tokens, least = safe_context(tier, layout, wish), least_context(tier, wish, layout)
    holds = tokens >= least
    told = f"holds {tokens:,} tokens after the 5 % margin"
    if holds:
        why = _window_because(tier, layout, tokens)
        tried = [Tried(value=layout.name, outcome=told, taken=True)]
        return _settled(layout, tokens, why, because, tried)
    lacking = bytes_for_chosen(tier, layout, wish, least) - wish.memory.usable_bytes
    why = f"the minimum; {tokens:,} fit"
    tried = [Tried(value=layout.name, outcome=told)]
    return _settled(layout, least, why, because, tried, lacking_bytes=lacking)


def _window_because(tier: Tier, layout: Layout, tokens: int) -> str:
    if tokens == layout.most_tokens:
        return f"the maximum of {layout.name}"
    if tokens < tier.window:
        return f"the longest that fits, minus 5 %; the {tier.name} supports {tier.window:,}"
    if tier.catalog_window <= tier.native_window:
        return f"the context the {tier.name} is released with (native {tier.native_window:,})"
    return f"the context in its header, although it is listed with {tier.catalog_window:,}"


def _settled(
    layout: Layout,
    tokens: int,
    context_because: str,
    layout_because: str,
    tried: tuple[Tried, ...] | list[Tried],
    *,
    spill: Spill | None = None,
    lacking_bytes: int = 0,
) -> Settled:
    return Settled(
        layout=layout,
        context_tokens=tokens,
        context_because=context_because,
        layout_because=layout_because,
        tried=tuple(tried),
        spill=spill,
        lacking_bytes=lacking_bytes,
    )
