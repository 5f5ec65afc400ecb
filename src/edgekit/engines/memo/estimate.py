"""The bill of a tier, every line ASSUMED, and the inverse: the context that fits in a number of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from edgekit.bill.spill import Purpose, Spill, Store
from edgekit.bill.types import Component, Load, MemoryEstimate, MemoryLine, Setup, Start, Task
from edgekit.catalog.tiers import (
    BASIS,
    WHAT_IF,
    Layout,
    Tier,
    check_engine,
    layout_for,
    layouts,
)
from edgekit.errors import RefusedError, UsageError
from edgekit.formats.types import ModelHeader
from edgekit.machine.types import DEVICE, HOST, Machine, Pool
from edgekit.model.types import Attention, Layer, Model, ModelGeometry
from edgekit.sources.types import Container
from edgekit.units import LARGEST

NAME = "memo"
VERSION = "2026-05-15"  # of the document's audit note
DRAFTER = "drafter"
SPILLED = "spilled"  # pages of the cache in the machine's RAM while the tier is on a card


@dataclass(frozen=True, slots=True, kw_only=True)
class RamNeed:
    """The RAM needed to start a tier, and to run a long session with it."""

    min_bytes: int
    recommended_bytes: int
    source: str  # "manifest", or the figures it was computed from


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoSetup(Setup):
    """The settings of a tier. The policy chooses the drafter and the spill."""

    engine: str = WHAT_IF  # decides which cache layouts exist
    pool: Pool = HOST  # the memory that holds the tier
    prefer_accurate_kv: bool = False  # prefer an accurate cache to a long context
    may_draft: bool = True
    purpose: Purpose = Purpose.TEXT
    manifest: RamNeed | None = None  # of an installed bundle
    drafter: Tier | None = None
    spill: Spill | None = None  # None: the whole cache stays in memory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TierModel(Model):
    """A tier as a model without file and header: everything comes from the memo."""

    tier: Tier


def tier_model(tier: Tier) -> TierModel:
    attention = Attention(
        heads=0,  # not stated
        kv_heads=tier.kv_heads,
        key_dim=tier.head_dim,
        value_dim=tier.head_dim,
    )
    return TierModel(
        tier=tier,
        header=ModelHeader(
            name=f"tier:{tier.name}", container=Container.CONFIG, file_bytes=tier.weights_bytes
        ),
        geometry=ModelGeometry(
            architecture=tier.base_model,
            layers=tuple(Layer(index=place, mixer=attention) for place in range(tier.cache_layers)),
            hidden=0,  # not stated
            vocabulary=None,
            trained_context=tier.native_window,
            native_context=tier.window,
            basis=BASIS,
            because="the context-scaling document states it",
        ),
    )


def tier_of(model: Model) -> Tier:
    """Raises RefusedError for a model that is not a tier."""
    if not isinstance(model, TierModel):
        raise RefusedError(f"{model.header.name} is not a tier: write for example tier:27b")
    return model.tier


def tier_task(
    tier: Tier,
    machine: Machine,
    load: Load | None = None,
    setup: MemoSetup | None = None,
    min_context: int | None = None,
) -> Task:
    return Task(
        model=tier_model(tier),
        engine=NAME,
        machine=machine,
        load=load or Load(),
        start=Start(setup=setup),
        min_context=min_context,
    )


def layout_of(load: Load) -> Layout | None:
    """The cache layout; None if the load does not set one. Raises UsageError for K and V types that do not match."""
    if load.cache_k is None and load.cache_v is None:
        return None
    for layout in layouts():
        if (layout.keys, layout.values) == (load.cache_k, load.cache_v):
            return layout
    names = ", ".join(layout.name for layout in layouts())
    raise UsageError(f"the types of K and V are not those of a cache layout: {names}")


def with_layout(load: Load, layout: Layout) -> Load:
    return replace(load, cache_k=layout.keys, cache_v=layout.values)


def windows_of(load: Load) -> int:
    """The number of contexts in memory: sequences share one unless each has its own."""
    return (load.sequences or 1) if load.unified is False else 1


def estimate(model: Model, load: Load, setup: MemoSetup) -> MemoryEstimate:
    """The bill. Raises RefusedError if the engine lacks the cache layout, UsageError if the context is too long."""
    tier = tier_of(model)
    check_load(tier, load, setup)
    return bill(tier, load, setup)


def check_load(tier: Tier, load: Load, setup: MemoSetup) -> None:
    """Raises UsageError or RefusedError for loads that are impossible with any amount of memory."""
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
    """The bill of a context of any length, even one that the tier does not support."""
    tokens = _tokens(tier, load)
    lines = [*_lines(tier, load, setup)]
    if setup.drafter is not None:
        small = drafter_load(setup.drafter, load, setup)
        lines += _lines(setup.drafter, small, replace(setup, spill=None), DRAFTER)
    return MemoryEstimate(
        engine=setup.engine,
        backend="card" if setup.pool == DEVICE else "ram",
        lines=tuple(line for line in lines if line.size_bytes),
        facts=(
            ("context_tokens", tokens),
            ("windows", windows_of(load)),
            ("layout", (layout_of(load) or layout_for(tokens)).name),
        ),
    )


def drafter_load(drafter: Tier, load: Load, setup: MemoSetup) -> Load:
    """The load of the drafter: the main model's context, up to the drafter's own limit.

    Its cache may be the least accurate: a wrong guess costs time, not quality.
    """
    tokens = min(_tokens(drafter, load), drafter.window)
    small = replace(load, context_tokens=tokens)
    return with_layout(small, layout_for(tokens)) if setup.engine == WHAT_IF else small


def largest_context(tier: Tier, layout: Layout, memory_bytes: int, *, held_bytes: int = 0) -> int:
    """Tokens that fit after weights and working set, as in the memo's tables: without reserve, margin or window."""
    left = memory_bytes - tier.weights_bytes - tier.working_bytes - held_bytes
    return max(0, left // tier.bytes_per_token(layout))


def _tokens(tier: Tier, load: Load) -> int:
    return tier.window if load.context_tokens is None else load.context_tokens


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
    tokens, windows, spill = _tokens(tier, load), windows_of(load), setup.spill
    layout = layout_of(load) or layout_for(tokens)
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
