"""The rules of tiers: the bill, the memory that a tier may use, its cache layouts, and the guard on its size.

The guard compares sizes before any bill is made. A download that takes more than 80 % of the memory does not fit, more
than 65 % is tight. A machine with less than the tier's minimum RAM does not run it, with less than the recommended RAM
it is tight.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgekit.bill.spill import Purpose, Spill, Store
from edgekit.bill.types import (
    CacheChoice,
    Component,
    Load,
    MemoryEstimate,
    MemoryLine,
    Placement,
    Setup,
    Task,
)
from edgekit.engines.choices import card_budget
from edgekit.errors import HardwareError, NotFoundError, RefusedError, UsageError
from edgekit.formats.types import ModelHeader
from edgekit.index.tiers import (
    BASIS,
    WHAT_IF,
    Layout,
    Tier,
    check_engine,
    find_layout,
    layout_for,
    layouts,
    tiers,
)
from edgekit.machine.types import (
    DEVICE,
    HOST,
    Budget,
    Device,
    HostMemory,
    Machine,
    Pool,
    Vendor,
)
from edgekit.model.types import Attention, Layer, Model, ModelGeometry
from edgekit.sources.types import Container
from edgekit.units import LARGEST, MIB, format_bytes

NAME = "memo"
VERSION = "2026-05-15"  # of the document's audit note
DRAFTER = "drafter"
# The part of the bill that is cache pages in RAM, while the tier itself is on a card.
SPILLED = "spilled"


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
    """The tier as a model whose layers all have the same attention."""
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
    """The bill of a load. Raises UsageError or RefusedError if no amount of memory would make the load possible."""
    check_load(tier_of(model), load, setup)
    return bill(tier_of(model), load, setup)


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
    left_bytes = memory_bytes - tier.weights_bytes - tier.working_bytes - held_bytes
    return max(0, left_bytes // tier.bytes_per_token(layout))


def _tokens(tier: Tier, load: Load) -> int:
    """The context of the load; the tier's window if it does not set one."""
    return tier.window if load.context_tokens is None else load.context_tokens


def _lines(tier: Tier, load: Load, setup: MemoSetup, part: str = "") -> Iterator[MemoryLine]:
    """The lines of one tier; `part` is "drafter" for the lines of a draft model."""

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


def default_setup() -> MemoSetup:
    return MemoSetup()


def describe(load: Load, estimate: MemoryEstimate) -> str:
    """The resolved load as text."""
    facts: dict[str, Any] = dict(estimate.facts)
    each = f" for each of {facts['windows']}" if facts["windows"] > 1 else ""
    sequences = ""
    if load.sequences and load.sequences > 1:
        sequences = f", {load.sequences} sequences"
    return (
        f"{facts['context_tokens']:,} tokens of context{each}, cache {facts['layout']}{sequences}"
    )


def cache_choices(task: Task, _placement: Placement | None = None) -> tuple[CacheChoice, ...]:
    """f16, q8_0 and the compressed layout for the context; only the requested one, if one was requested."""
    requested = layout_of(task.load)
    tokens = task.load.context_tokens or tier_of(task.model).window
    usual = (find_layout("f16"), find_layout("q8_0"), layout_for(tokens))
    return tuple(
        CacheChoice(
            name=layout.name,
            place=place,
            flags="",
            is_given=requested is not None,
            is_eight_bit=layout.name == "q8_0",
            load={"cache_k": layout.keys, "cache_v": layout.values},
        )
        for place, layout in enumerate(usual if requested is None else (requested,))
    )


def cache_name(load: Load, _setup: object = None) -> str:
    """The name of the cache layout. Without a context, the layout for the longest window of all tiers."""
    longest = max(tier.window for tier in tiers())
    return (layout_of(load) or layout_for(load.context_tokens or longest)).name


# --- the memory that a tier may use

OS_RESERVE_BYTES = 1536 * MIB  # of RAM; cards have no reserve
MOST_USERS = 1024


def devices(machine: Machine) -> tuple[Device, ...]:
    """The card with the most free memory: a tier runs on one."""
    return tuple(sorted(_cards(machine), key=lambda card: -card.free_bytes)[:1])


def budgets(machine: Machine) -> tuple[Budget, ...]:
    """The card, then the RAM; a tier uses only one of the two. Raises HardwareError if no memory is known."""
    memories = tuple(card_budget(DEVICE, card, 0, "") for card in devices(machine))
    if machine.host is not None:
        memories += (_ram(machine, machine.host),)
    if not memories:
        raise HardwareError(f"the memory of {machine.name} is unknown: give --ram or --vram")
    return memories


def capacity_bytes(machine: Machine) -> int:
    """Bytes of the larger memory: a tier is never split."""
    return max(budget.available_bytes for budget in budgets(machine))


def placements(task: Task) -> Iterator[Placement]:
    """Placements, the card first. A card's placement has the RAM as second budget: cache pages can be spilled to it."""
    setup = MemoSetup.of(task.start.setup or MemoSetup())
    memories = budgets(task.machine)
    for place, budget in enumerate(memories):
        on_card = HOST not in budget.pools
        yield Placement(
            setup=replace(setup, pool=DEVICE if on_card else HOST),
            budgets=memories[place:],
            because=f"on the {budget.name}" if on_card else "in RAM",
            cards=devices(task.machine) if on_card else (),
            whole=not place,
        )


def store_of(placement: Placement) -> tuple[Store, int | None]:
    """Where cold pages of the cache would go, and the bytes available there; None: unknown."""
    if len(placement.budgets) == 1:
        return Store.NVME, None
    return Store.HOST_RAM, placement.budgets[1].available_bytes


def memory_notes(machine: Machine, budget: Budget) -> Iterator[str]:
    """Notes on memory that is not counted."""
    uncounted = len(_cards(machine)) - 1
    if HOST not in budget.pools and uncounted:
        subject = "the other one is" if uncounted == 1 else f"the other {uncounted} are"
        yield f"a tier runs on one GPU: {subject} not counted"
    if budget.limit_bytes is not None:
        yield budget.limit_because


def _cards(machine: Machine) -> list[Device]:
    return [device for device in machine.devices if not device.unified and not device.integrated]


def _ram(machine: Machine, host: HostMemory) -> Budget:
    """The budget of the RAM. A Mac's GPU may wire only part of it, and an app on a phone may use only part of it."""
    limits = [
        (device.limit_bytes, "the GPU may use {} of it")
        for device in machine.devices
        if device.vendor is Vendor.APPLE and device.limit_bytes is not None
    ]
    if machine.is_phone:
        limits += [(limit.left_bytes, limit.name + ": {} of it") for limit in host.limits]
    limit_bytes, because = min(limits, default=(None, ""))
    return Budget(
        name=machine.name,
        pools=frozenset({HOST}),
        total_bytes=host.total_bytes if machine.is_phone else host.limited_total_bytes,
        free_bytes=host.free_bytes if machine.is_phone else host.usable_bytes,
        reserve_bytes=OS_RESERVE_BYTES,
        because="for the system",
        limit_bytes=limit_bytes,
        limit_because="" if limit_bytes is None else because.format(format_bytes(limit_bytes)),
    )


def load_for_users(load: Load, users: int, _native_tokens: int) -> Load:
    """The load with a separate context for each user."""
    if not 1 <= users <= MOST_USERS:
        raise UsageError(f"the number of users must be 1 to {MOST_USERS:,} (got {users:,})")
    return replace(load, sequences=users, unified=False)


WONT_FIT_PERCENT = 80
TIGHT_PERCENT = 65
MANIFEST_BYTES = 1024 * 1024  # real ones have a few KiB
MOST_MB = 2**30  # a pebibyte


class RamLevel(enum.Enum):
    FITS = "fits"
    TIGHT = "tight"
    WONT_FIT = "won't fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class RamFit:
    """The guard's answer: whether a machine of this size should run a tier at all."""

    level: RamLevel
    need: RamNeed
    because: str


def assess(tier: Tier, memory: Budget, manifest: RamNeed | None = None) -> RamFit:
    """Judges the size of the memory; free memory is compared with the bill elsewhere.

    Without a manifest, the tier's minimum RAM is needed, and a compressed cache of the whole window recommended.
    """
    need = manifest
    if need is None:
        if tier.min_ram_bytes is not None and HOST in memory.pools:
            min_bytes, source = tier.min_ram_bytes, "the tier's minimum RAM"
        else:
            min_bytes = tier.weights_bytes + tier.working_bytes + memory.reserve_bytes
            source = "weights and working set"
            if memory.reserve_bytes:
                source = "weights, working set and the system reserve"
        need = RamNeed(
            min_bytes=min_bytes,
            recommended_bytes=min_bytes
            + tier.bytes_per_token(layout_for(tier.window)) * tier.window,
            source=f"{source}; recommended with the compressed cache of {tier.window:,} tokens",
        )
    weights_bytes = tier.weights_bytes
    usable_bytes = max(0, memory.total_bytes - memory.reserve_bytes)
    share = f"{weights_bytes * 100 / usable_bytes:.1f} %" if usable_bytes else "more than all"
    size_text = (
        f"the download of {format_bytes(weights_bytes)} is {share} of {format_bytes(usable_bytes)}"
    )
    machine_text = f"the machine has {format_bytes(memory.total_bytes)}"
    if weights_bytes * 100 > usable_bytes * WONT_FIT_PERCENT:
        level, because = RamLevel.WONT_FIT, f"{size_text}, more than {WONT_FIT_PERCENT} %"
    elif memory.total_bytes < need.min_bytes:
        level = RamLevel.WONT_FIT
        because = f"{format_bytes(need.min_bytes)} is needed, {machine_text}"
    elif weights_bytes * 100 > usable_bytes * TIGHT_PERCENT:
        level, because = RamLevel.TIGHT, f"{size_text}, more than {TIGHT_PERCENT} %"
    elif memory.total_bytes < need.recommended_bytes:
        level = RamLevel.TIGHT
        because = f"{format_bytes(need.recommended_bytes)} is recommended, {machine_text}"
    else:
        level, because = RamLevel.FITS, f"{size_text}, at most {TIGHT_PERCENT} %"
    return RamFit(level=level, need=need, because=because)


def read_manifest(path: Path) -> RamNeed:
    """The ramBudgetMb of an installed bundle's manifest. Raises NotFoundError or UsageError."""
    try:
        with path.open("rb") as file:
            text = file.read(MANIFEST_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"no such manifest: {path}") from error
    except OSError as error:
        raise NotFoundError(f"{path}: {error.strerror or error}") from error
    if len(text) > MANIFEST_BYTES:
        raise UsageError(f"{path}: the manifest is larger than {format_bytes(MANIFEST_BYTES)}")
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {str(error)[:80]}") from error
    ram_budget = read.get("ramBudgetMb") if isinstance(read, dict) else None
    if not isinstance(ram_budget, dict):
        raise UsageError(f"{path}: ramBudgetMb with min and recommended is missing")
    numbers = []
    for name in ("min", "recommended"):
        value = ram_budget.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_MB:
            raise UsageError(
                f"{path}: ramBudgetMb.{name} is {str(value)[:40]}, not a number of megabytes"
            )
        numbers.append(value)
    least, recommended = numbers
    if recommended < least:
        raise UsageError(
            f"{path}: ramBudgetMb recommends {recommended:,}, less than its min {least:,}"
        )
    return RamNeed(min_bytes=least * MIB, recommended_bytes=recommended * MIB, source="manifest")
