"""A tier, a load and a setup -> its bill, every line ASSUMED; and back: bytes -> the context they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgekit.bill.spill import Store
from edgekit.bill.types import Component, Load, MemoryEstimate, MemoryLine
from edgekit.catalog.tiers import BASIS, WHAT_IF, Layout, Tier, check_engine, layout_for
from edgekit.engines.memo.choices import layout_of, with_layout
from edgekit.engines.memo.models import tier_of
from edgekit.engines.memo.types import MemoSetup, windows_of
from edgekit.errors import UsageError
from edgekit.machine.types import DEVICE, HOST
from edgekit.model.types import Model
from edgekit.units import LARGEST

VERSION = "2026-05-15"  # of the document's audit note
DRAFTER = "drafter"
SPILLED = "spilled"  # pages of the cache in the RAM of the machine, next to a card


def estimate(model: Model, load: Load, setup: MemoSetup) -> MemoryEstimate:
    """The bill. Raises RefusedError where the engine lacks the cache layout, UsageError for too long a context."""
    tier = tier_of(model)
    check_load(tier, load, setup)
    return bill(tier, load, setup)


def check_load(tier: Tier, load: Load, setup: MemoSetup) -> None:
    """Raises UsageError or RefusedError for what no memory would be enough for."""
    tokens, layout = load.context_tokens, layout_of(load)
    if tokens is not None and not 1 <= tokens <= LARGEST:
        raise UsageError(f"the context must be at least 1 (got {tokens:,})")
    if tokens is not None and tokens > tier.window:
        raise UsageError(
            f"a context of {tokens:,} tokens is longer than the {tier.name} supports: {tier.window:,} "
            f"(released with {tier.catalog_window:,}, native {tier.native_window:,})"
        )
    if layout is None:
        return
    check_engine(setup.engine, layout)
    if tokens is not None and not layout.holds(tokens):
        raise UsageError(
            f"{layout.name} holds up to {layout.most_tokens:,} tokens, but {tokens:,} were requested; "
            f"for longer contexts use {layout_for(tokens).name}"
        )


def bill(tier: Tier, load: Load, setup: MemoSetup) -> MemoryEstimate:
    """Of any length, even if the tier does not support it."""
    lines = [*_lines(tier, load, setup)]
    if setup.drafter is not None:
        small = drafter_load(setup.drafter, load, setup)
        lines += _lines(setup.drafter, small, replace(setup, spill=None), DRAFTER)
    return MemoryEstimate(
        engine=setup.engine,
        backend="card" if setup.pool == DEVICE else "ram",
        lines=tuple(line for line in lines if line.size_bytes),
        facts=(
            ("context_tokens", _tokens(tier, load)),
            ("windows", windows_of(load)),
            ("layout", _layout(tier, load).name),
        ),
    )


def drafter_load(drafter: Tier, load: Load, setup: MemoSetup) -> Load:
    """The same context, as far as the drafter supports it.

    Its cache may be the least accurate: what it gets wrong costs time, not quality.
    """
    tokens = min(_tokens(drafter, load), drafter.window)
    small = replace(load, context_tokens=tokens)
    return with_layout(small, layout_for(tokens)) if setup.engine == WHAT_IF else small


def largest_context(tier: Tier, layout: Layout, memory_bytes: int, *, held_bytes: int = 0) -> int:
    """Tokens in what weights and working set leave, as in the document's tables: no reserve, margin or window."""
    left = memory_bytes - tier.weights_bytes - tier.working_bytes - held_bytes
    return max(0, left // tier.bytes_per_token(layout))


def _tokens(tier: Tier, load: Load) -> int:
    return tier.window if load.context_tokens is None else load.context_tokens


def _layout(tier: Tier, load: Load) -> Layout:
    return layout_of(load) or layout_for(_tokens(tier, load))


def _lines(tier: Tier, load: Load, setup: MemoSetup, part: str = "") -> Iterator[MemoryLine]:
    def line(component: Component, size_bytes: int, because: str) -> MemoryLine:
        return MemoryLine(
            component=component,
            size_bytes=size_bytes,
            pool=setup.pool,
            basis=BASIS,
            because=because,
            part=part,
        )

    yield line(Component.WEIGHTS, tier.weights_bytes, f"the file of the {tier.name}")
    yield line(Component.COMPUTE, tier.working_bytes, "working set")
    tokens, windows, layout = _tokens(tier, load), windows_of(load), _layout(tier, load)
    spill = setup.spill
    if spill is None:
        per_token = tier.bytes_per_token(layout)
        times = f"{windows} x " if windows > 1 else ""
        because = f"{times}{tokens:,} tokens x {per_token:,} B ({layout.name})"
        yield line(Component.KV_CACHE, windows * tokens * per_token, because)
    else:
        because = f"{spill.resident_tokens:,} tokens x {spill.bytes_per_token:,} B ({layout.name})"
        yield line(Component.KV_CACHE, spill.resident_bytes, because)
        if spill.store is Store.HOST_RAM:
            because = f"{spill.spilled_pages:,} cold pages of {spill.page_bytes:,} B"
            paged = line(Component.KV_CACHE, spill.spilled_bytes, because)
            yield replace(paged, pool=HOST, part=SPILLED)
    sequences = load.sequences or 1
    because = f"{sequences} x {tier.state_bytes:,} B, llama.cpp's for {tier.base_model}"
    yield line(Component.STATE, sequences * tier.state_bytes, because)
