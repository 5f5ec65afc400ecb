"""The memory that a tier may use: the machine's largest card, or its RAM; and the guard on its size.

The guard: a download above 0.8 of the memory does not fit, above 0.65 it is tight; a machine below the tier's minimum
RAM does not run it, one below the recommended RAM is tight.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from edgekit.bill.spill import Store
from edgekit.bill.types import Load, Placement, Task
from edgekit.catalog.tiers import Tier, layout_for
from edgekit.engines.choices import card_budget
from edgekit.engines.memo.estimate import MemoSetup, RamNeed
from edgekit.errors import HardwareError, NotFoundError, UsageError
from edgekit.machine.types import DEVICE, HOST, Budget, Device, HostMemory, Machine, Vendor
from edgekit.units import MIB, format_bytes

OS_RESERVE_BYTES = 1536 * MIB  # of RAM; cards have no reserve
MOST_USERS = 1024


def devices(machine: Machine) -> tuple[Device, ...]:
    """The card with the most free memory: a tier runs on one."""
    return tuple(sorted(_cards(machine), key=lambda one: -one.free_bytes)[:1])


def budgets(machine: Machine) -> tuple[Budget, ...]:
    """The card, then the RAM; a tier uses one of them. Raises HardwareError if no memory is known."""
    found = tuple(card_budget(DEVICE, card, 0, "") for card in devices(machine))
    if machine.host is not None:
        found += (_ram(machine, machine.host),)
    if not found:
        raise HardwareError(f"the memory of {machine.name} is unknown: give --ram or --vram")
    return found


def capacity_bytes(machine: Machine) -> int:
    """Bytes of the larger memory: a tier is never split."""
    return max(one.available_bytes for one in budgets(machine))


def placements(task: Task) -> Iterator[Placement]:
    """Placements, the card first. Its second budget is the RAM to which pages of its cache can be spilled."""
    setup = MemoSetup.of(task.start.setup or MemoSetup())
    every = budgets(task.machine)
    for place, budget in enumerate(every):
        on_card = HOST not in budget.pools
        yield Placement(
            setup=replace(setup, pool=DEVICE if on_card else HOST),
            budgets=every[place:],
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
    others = len(_cards(machine)) - 1
    if HOST not in budget.pools and others:
        rest = "the other one is" if others == 1 else f"the other {others} are"
        yield f"a tier runs on one GPU: {rest} not counted"
    if budget.limit_bytes is not None:
        yield budget.limit_because


def _cards(machine: Machine) -> list[Device]:
    return [one for one in machine.devices if not one.unified and not one.integrated]


def _ram(machine: Machine, host: HostMemory) -> Budget:
    """A Mac's GPU may wire only part of the RAM; an app on a phone may use only part of it."""
    limits = [
        (one.limit_bytes, "the GPU may use {} of it")
        for one in machine.devices
        if one.vendor is Vendor.APPLE and one.limit_bytes is not None
    ]
    if machine.is_phone:
        limits += [(one.left_bytes, one.name + ": {} of it") for one in host.limits]
    limit, because = min(limits, default=(None, ""))
    return Budget(
        name=machine.name,
        pools=frozenset({HOST}),
        total_bytes=host.total_bytes if machine.is_phone else host.whole_bytes,
        free_bytes=host.free_bytes if machine.is_phone else host.usable_bytes,
        reserve_bytes=OS_RESERVE_BYTES,
        because="for the system",
        limit_bytes=limit,
        limit_because="" if limit is None else because.format(format_bytes(limit)),
    )


def load_for_users(load: Load, users: int, _native_tokens: int) -> Load:
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


def ram_need(tier: Tier, memory: Budget, manifest: RamNeed | None = None) -> RamNeed:
    """From the manifest; without one, the tier's minimum RAM, plus a compressed cache of the whole window."""
    if manifest is not None:
        return manifest
    if tier.min_ram_bytes is not None and HOST in memory.pools:
        least, source = tier.min_ram_bytes, "the tier's minimum RAM"
    else:
        least = tier.weights_bytes + tier.working_bytes + memory.reserve_bytes
        source = "weights, working set" if memory.reserve_bytes else "weights and working set"
        source += " and the system reserve" if memory.reserve_bytes else ""
    cache = tier.bytes_per_token(layout_for(tier.window)) * tier.window
    return RamNeed(
        min_bytes=least,
        recommended_bytes=least + cache,
        source=f"{source}; recommended with the compressed cache of {tier.window:,} tokens",
    )


def assess(tier: Tier, memory: Budget, manifest: RamNeed | None = None) -> RamFit:
    """Judges the size of the memory; free memory is compared with the bill elsewhere."""
    need = ram_need(tier, memory, manifest)
    weights, whole = tier.weights_bytes, max(0, memory.total_bytes - memory.reserve_bytes)
    share = f"{weights * 100 / whole:.1f} %" if whole else "more than all"
    size = f"the download of {format_bytes(weights)} is {share} of {format_bytes(whole)}"
    has = f"the machine has {format_bytes(memory.total_bytes)}"
    if weights * 100 > whole * WONT_FIT_PERCENT:
        level, why = RamLevel.WONT_FIT, f"{size}, more than {WONT_FIT_PERCENT} %"
    elif memory.total_bytes < need.min_bytes:
        level, why = RamLevel.WONT_FIT, f"{format_bytes(need.min_bytes)} is needed, {has}"
    elif weights * 100 > whole * TIGHT_PERCENT:
        level, why = RamLevel.TIGHT, f"{size}, more than {TIGHT_PERCENT} %"
    elif memory.total_bytes < need.recommended_bytes:
        level = RamLevel.TIGHT
        why = f"{format_bytes(need.recommended_bytes)} is recommended, {has}"
    else:
        level, why = RamLevel.FITS, f"{size}, at most {TIGHT_PERCENT} %"
    return RamFit(level=level, need=need, because=why)


def least_total_bytes(tier: Tier, memory: Budget, manifest: RamNeed | None = None) -> int:
    """The smallest memory of this kind in which the guard allows the tier."""
    least = ram_need(tier, memory, manifest).min_bytes
    return max(least, -(-tier.weights_bytes * 100 // WONT_FIT_PERCENT) + memory.reserve_bytes)


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
    found = read.get("ramBudgetMb") if isinstance(read, dict) else None
    if not isinstance(found, dict):
        raise UsageError(f"{path}: ramBudgetMb with min and recommended is missing")
    numbers = []
    for name in ("min", "recommended"):
        value = found.get(name)
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
