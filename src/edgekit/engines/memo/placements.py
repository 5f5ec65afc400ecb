"""The memory that a tier may use: the machine's largest card, or its RAM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgekit.bill.spill import Store
from edgekit.bill.types import Load, Placement, Task
from edgekit.engines.choices import card_budget
from edgekit.engines.memo.estimate import MemoSetup
from edgekit.errors import HardwareError, UsageError
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
    setup: MemoSetup = task.start.setup or MemoSetup()
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
