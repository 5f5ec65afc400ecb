"""A tier, a layout, a context -> bytes; and back: bytes -> the context they hold."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.bill.types import Component, MemoryEstimate, MemoryLine
from edgekit.catalog.tiers import BASIS, WHAT_IF, Layout, Tier, layout_for
from edgekit.engines.memo.types import SPILLED, MemoryKind, TierWish
from edgekit.engines.spill import PAGE_TOKENS, Spill, Store
from edgekit.machine.types import DEVICE, HOST, Pool

MARGIN_PERCENT = 5  # of the largest context that fits, where the context is chosen
DRAFTER = "drafter"


def largest_context(tier: Tier, layout: Layout, memory_bytes: int, *, held_bytes: int = 0) -> int:
    """Tokens in what weights and working set leave, as in the memo's tables: no reserve, no margin, no window."""
    left = memory_bytes - tier.weights_bytes - tier.working_bytes - held_bytes
    return max(0, left // tier.bytes_per_token(layout))


def safe_context(tier: Tier, layout: Layout, wish: TierWish) -> int:
    """The largest that fits less 5 %, for each of the windows, in whole pages; never past the tier's window."""
    held = tier.state_bytes * wish.windows
    largest = largest_context(tier, layout, wish.memory.usable_bytes, held_bytes=held)
    tokens = largest // wish.windows * (100 - MARGIN_PERCENT) // 100
    pages = tokens // PAGE_TOKENS * PAGE_TOKENS
    most = tier.window if layout.most_tokens is None else min(tier.window, layout.most_tokens)
    return min(most, pages)


def bytes_for_chosen(tier: Tier, layout: Layout, wish: TierWish, tokens: int) -> int:
    """The least usable memory with which `safe_context` gives so many tokens."""
    pages = -(-tokens // PAGE_TOKENS) * PAGE_TOKENS
    largest = -(-pages * 100 // (100 - MARGIN_PERCENT))
    return bytes_held(tier, layout, largest, wish.windows)


def bytes_held(tier: Tier, layout: Layout, tokens: int, windows: int) -> int:
    """Everything of a tier in so many windows of so many tokens, a sequence in each."""
    cache = tier.bytes_per_token(layout) * tokens + tier.state_bytes
    return tier.weights_bytes + tier.working_bytes + cache * windows


def drafter_bytes(drafter: Tier, layout: Layout, tokens: int, wish: TierWish) -> int:
    """A drafter's weights, working set, states and its own cache of the same context."""
    held = min(tokens, drafter.window)
    return bytes_held(drafter, drafter_layout(layout, held, wish), held, wish.windows)


def drafter_layout(layout: Layout, tokens: int, wish: TierWish) -> Layout:
    """A drafter's cache may be the least accurate: what it gets wrong costs time, not words."""
    return layout_for(tokens) if wish.engine == WHAT_IF else layout


def bill(
    wish: TierWish,
    tier: Tier,
    layout: Layout,
    tokens: int,
    *,
    sequences: int = 1,
    drafter: Tier | None = None,
    spill: Spill | None = None,
) -> MemoryEstimate:
    """Every byte of a plan, each line ASSUMED."""
    pool = DEVICE if wish.memory.kind is MemoryKind.CARD else HOST
    lines = [*_model_lines(tier, pool)]
    lines += _cache_lines(tier, layout, tokens, windows=wish.windows, pool=pool, spill=spill)
    lines.append(_state_line(tier, sequences, pool))
    if drafter is not None:
        held = min(tokens, drafter.window)
        small = drafter_layout(layout, held, wish)
        lines += _model_lines(drafter, pool, DRAFTER)
        lines.append(
            _cache_line(drafter, small, held, windows=wish.windows, pool=pool, part=DRAFTER)
        )
        lines.append(_state_line(drafter, sequences, pool, DRAFTER))
    kept = tuple(line for line in lines if line.size_bytes)
    return MemoryEstimate(engine=wish.engine, backend=wish.memory.kind.value, lines=kept)


def _line(
    component: Component, size_bytes: int, pool: Pool, because: str, part: str = ""
) -> MemoryLine:
    return MemoryLine(
        component=component,
        size_bytes=size_bytes,
        pool=pool,
        basis=BASIS,
        because=because,
        part=part,
    )


def _model_lines(tier: Tier, pool: Pool, part: str = "") -> Iterator[MemoryLine]:
    yield _line(Component.WEIGHTS, tier.weights_bytes, pool, f"the file of the {tier.name}", part)
    yield _line(Component.COMPUTE, tier.working_bytes, pool, "working set", part)


def _cache_lines(
    tier: Tier, layout: Layout, tokens: int, *, windows: int, pool: Pool, spill: Spill | None
) -> Iterator[MemoryLine]:
    if spill is None:
        yield _cache_line(tier, layout, tokens, windows=windows, pool=pool)
        return
    per_token = f"{spill.bytes_per_token:,} B ({layout.name})"
    told = f"{spill.resident_tokens:,} tokens x {per_token}"
    yield _line(Component.KV_CACHE, spill.resident_bytes, pool, told)
    if spill.store is Store.HOST_RAM:
        told = f"{spill.spilled_pages:,} cold pages of {spill.page_bytes:,} B"
        yield _line(Component.KV_CACHE, spill.spilled_bytes, HOST, told, SPILLED)


def _cache_line(
    tier: Tier, layout: Layout, tokens: int, *, windows: int, pool: Pool, part: str = ""
) -> MemoryLine:
    per_token = tier.bytes_per_token(layout)
    times = f"{windows} x " if windows > 1 else ""
    told = f"{times}{tokens:,} tokens x {per_token:,} B ({layout.name})"
    return _line(Component.KV_CACHE, windows * tokens * per_token, pool, told, part)


def _state_line(tier: Tier, sequences: int, pool: Pool, part: str = "") -> MemoryLine:
    told = f"{sequences} x {tier.state_bytes:,} B, llama.cpp's for {tier.base_model}"
    return _line(Component.STATE, sequences * tier.state_bytes, pool, told, part)
