"""Context and cache layout of a tier: the second and third lever, and the spill where neither is enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgekit.bill.spill import (
    LEAST_PAGES,
    PAGE_TOKENS,
    SPILL_FROM_TOKENS,
    Spill,
    plan_spill,
)
from edgekit.bill.types import Load, Placement, Task
from edgekit.bill.verdict import Tried
from edgekit.catalog.tiers import Layout, Tier, check_engine, find_layout
from edgekit.engines.memo.choices import cache_choices, with_layout
from edgekit.engines.memo.estimate import bill, check_load, largest_context
from edgekit.engines.memo.models import tier_of
from edgekit.engines.memo.placements import store_of
from edgekit.engines.memo.types import MIN_CONTEXT, MemoSetup, windows_of
from edgekit.errors import UsageError
from edgekit.units import LARGEST, format_bytes

MARGIN_PERCENT = 5  # of the largest context that fits, where the context is chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextChoice:
    """A load with context and cache layout, and why."""

    load: Load
    layout: Layout
    because: str
    layout_because: str
    tried: tuple[Tried, ...] = ()
    spill: Spill | None = None
    lacking_bytes: int = 0  # missing memory
    is_given: bool = False  # the caller gave the context

    @property
    def tokens(self) -> int:
        return self.load.context_tokens or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """One tier in one memory, for a load whose context and layout may be open."""

    tier: Tier
    load: Load
    setup: MemoSetup
    usable_bytes: int
    min_context: int

    def load_with(self, layout: Layout, tokens: int) -> Load:
        return replace(with_layout(self.load, layout), context_tokens=tokens)

    def held_bytes(self, layout: Layout, tokens: int) -> int:
        return bill(self.tier, self.load_with(layout, tokens), self.setup).total_bytes

    def most_tokens(self, layout: Layout) -> int:
        window = self.tier.window
        return window if layout.most_tokens is None else min(window, layout.most_tokens)

    def largest_context(self, layout: Layout) -> int:
        """Of each window."""
        windows = windows_of(self.load)
        held = self.tier.state_bytes * (self.load.sequences or 1)
        largest = largest_context(self.tier, layout, self.usable_bytes, held_bytes=held)
        return largest // windows

    def safe_context(self, layout: Layout) -> int:
        """The largest that fits minus 5 %, in whole pages; never past the tier's window."""
        tokens = self.largest_context(layout) * (100 - MARGIN_PERCENT) // 100
        return min(self.most_tokens(layout), tokens // PAGE_TOKENS * PAGE_TOKENS)

    def bytes_for(self, layout: Layout, tokens: int) -> int:
        """The smallest memory with which `safe_context` is that long."""
        pages = -(-tokens // PAGE_TOKENS) * PAGE_TOKENS
        return self.held_bytes(layout, -(-pages * 100 // (100 - MARGIN_PERCENT)))

    def longest(self, layout: Layout, because: str) -> ContextChoice:
        """The longest context in this layout. Raises RefusedError where the engine does not have it."""
        check_engine(self.setup.engine, layout)
        tokens = self.safe_context(layout)
        least = min(self.min_context, self.most_tokens(layout))
        fits = tokens >= least
        outcome = f"holds {tokens:,} tokens after the 5 % margin"
        return ContextChoice(
            load=self.load_with(layout, tokens if fits else least),
            layout=layout,
            because=self._why(layout, tokens) if fits else f"the minimum; {tokens:,} fit",
            layout_because=because,
            tried=(Tried(value=layout.name, outcome=outcome, taken=fits),),
            lacking_bytes=0 if fits else self.bytes_for(layout, least) - self.usable_bytes,
        )

    def _why(self, layout: Layout, tokens: int) -> str:
        tier = self.tier
        if tokens == layout.most_tokens:
            return f"the maximum of {layout.name}"
        if tokens < tier.window:
            return f"the longest that fits, minus 5 %; the {tier.name} supports {tier.window:,}"
        if tier.catalog_window <= tier.native_window:
            return f"the context the {tier.name} is released with (native {tier.native_window:,})"
        return f"the context in its header, although it is listed with {tier.catalog_window:,}"


def room_of(task: Task, placement: Placement) -> Room:
    """Raises for what no memory would be enough for."""
    tier = tier_of(task.model)
    least = MIN_CONTEXT if task.min_context is None else task.min_context
    if not 1 <= least <= LARGEST:
        raise UsageError(f"--min-context must be at least 1 (got {least:,})")
    check_load(tier, task.load, placement.setup)
    return Room(
        tier=tier,
        load=task.load,
        setup=placement.setup,
        usable_bytes=placement.budgets[0].available_bytes,
        min_context=least,
    )


def choose_context(task: Task, placement: Placement, *, may_spill: bool = True) -> ContextChoice:
    """Context and cache of the task's tier. Raises for what no memory would be enough for."""
    room = room_of(task, placement)
    layouts = [find_layout(choice.name) for choice in cache_choices(task, placement)]
    if (tokens := task.load.context_tokens) is not None:
        return _given(room, layouts, tokens, placement, may_spill=may_spill)
    if len(layouts) == 1:
        return room.longest(layouts[0], f"{layouts[0].name} as requested")
    return _accurate(room, layouts) if room.setup.prefer_accurate_kv else _longest(room, layouts)


def _given(
    room: Room, layouts: Sequence[Layout], tokens: int, placement: Placement, *, may_spill: bool
) -> ContextChoice:
    """A context that was given: the most accurate cache that fits, then the spill, else what is missing."""
    usable, tried = room.usable_bytes, []
    for layout in layouts:
        check_engine(room.setup.engine, layout)
        needed = room.held_bytes(layout, tokens)
        fits = needed <= usable
        outcome = (
            f"{format_bytes(needed)} {'fits' if fits else 'does not fit'} in {format_bytes(usable)}"
        )
        tried.append(Tried(value=layout.name, outcome=outcome, taken=fits))
        if fits:
            break
    spill = _spill(room, layout, tokens, placement) if may_spill and not fits else None
    why = "the most accurate cache that holds the requested context"
    if not fits:
        why = "even the most compressed cache does not fit"
    if spill is not None:
        why += ": older pages are spilled"
    return ContextChoice(
        load=room.load_with(layout, tokens),
        layout=layout,
        because="as requested",
        layout_because=why,
        tried=tuple(tried),
        spill=spill,
        lacking_bytes=0 if fits or spill is not None else needed - usable,
        is_given=True,
    )


def _spill(room: Room, layout: Layout, tokens: int, placement: Placement) -> Spill | None:
    """The cache in two parts; None where it is too short, or not even two pages fit.

    Raises KvSpillUnsupportedError where it must not be divided.
    """
    per_token = room.tier.bytes_per_token(layout) * windows_of(room.load)
    left = room.usable_bytes - room.held_bytes(layout, 0)
    if tokens <= SPILL_FROM_TOKENS or left < LEAST_PAGES * PAGE_TOKENS * per_token:
        return None
    store, store_bytes = store_of(placement)
    return plan_spill(
        context_tokens=tokens,
        bytes_per_token=per_token,
        resident_budget_bytes=left,
        store=store,
        purpose=room.setup.purpose,
        room_bytes=store_bytes,
    )


def _longest(room: Room, layouts: Sequence[Layout]) -> ContextChoice:
    """No context given: the longest in the compressed cache, then f16 where it holds the same."""
    base = room.longest(layouts[-1], "the compressed cache holds the longest context")
    f16 = layouts[0]
    reach = room.safe_context(f16)
    outcome = f"holds {reach:,} tokens after the 5 % margin"
    fits = not base.lacking_bytes and reach >= base.tokens
    taken = fits and not room.tier.keeps_compressed
    tried = Tried(value=f16.name, outcome=outcome, taken=taken)
    if taken:
        return replace(
            base,
            load=room.load_with(f16, base.tokens),
            layout=f16,
            layout_because="f16 holds the same context at full accuracy",
            tried=(tried, *(replace(one, taken=False) for one in base.tried)),
        )
    why = f"f16 {outcome}; compressed, the context is longer"
    if base.lacking_bytes:
        why = "even the compressed cache does not fit"
    elif fits:
        why = (
            f"f16 would hold {base.tokens:,} tokens too, but the {room.tier.name} uses a compressed "
            "cache unless an accurate one is preferred (prefer_accurate_kv)"
        )
    return replace(base, layout_because=why, tried=(tried, *base.tried))


def _accurate(room: Room, layouts: Sequence[Layout]) -> ContextChoice:
    """Accuracy first: the most accurate cache that holds the minimum context, and the longest in it."""
    tried: tuple[Tried, ...] = ()
    for layout in layouts:
        found = room.longest(layout, "the most accurate cache that holds the minimum context")
        tried += found.tried
        if not found.lacking_bytes:
            break
    return replace(found, tried=tried)
