"""A machine -> the memories that a tier may lie in, the best first: its largest card, then its RAM."""

from __future__ import annotations

from edgekit.engines.memo.types import OS_RESERVE_BYTES, MemoryKind, TierMemory
from edgekit.engines.spill import Store
from edgekit.errors import HardwareError
from edgekit.machine.types import Device, HostMemory, Machine, Vendor
from edgekit.units import format_bytes


def card_memory(
    total_bytes: int, *, name: str = "card", host_bytes: int | None = None
) -> TierMemory:
    """A card that nothing else uses, and what the host beside it has free."""
    return TierMemory(
        name=name,
        kind=MemoryKind.CARD,
        total_bytes=total_bytes,
        free_bytes=total_bytes,
        store=Store.NVME if host_bytes is None else Store.HOST_RAM,
        store_room_bytes=None if host_bytes is None else max(0, host_bytes - OS_RESERVE_BYTES),
    )


def ram_memory(total_bytes: int, *, name: str = "RAM", free_bytes: int | None = None) -> TierMemory:
    """A phone, a Mac, a processor, of which all is free unless `free_bytes` says otherwise."""
    free = total_bytes if free_bytes is None else free_bytes
    return TierMemory(name=name, kind=MemoryKind.RAM, total_bytes=total_bytes, free_bytes=free)


def memories_of(machine: Machine) -> tuple[TierMemory, ...]:
    """Where a tier is looked for, in this order. Raises HardwareError where no memory is known."""
    cards = [one for one in machine.devices if not one.unified and not one.integrated]
    found = []
    if cards:
        found.append(_card(machine, cards))
    if machine.host is not None:
        found.append(_ram(machine, machine.host))
    if not found:
        raise HardwareError(f"the memory of {machine.name} is unknown: give --ram or --vram")
    return tuple(found)


def _card(machine: Machine, cards: list[Device]) -> TierMemory:
    card = max(cards, key=lambda one: one.free_bytes)
    others = len(cards) - 1
    note = f"a tier runs on one GPU: the other {others} are not counted"
    room = None if machine.host is None else machine.host.usable_bytes - OS_RESERVE_BYTES
    return TierMemory(
        name=card.name,
        kind=MemoryKind.CARD,
        total_bytes=card.total_bytes,
        free_bytes=card.free_bytes,
        store=Store.NVME if room is None else Store.HOST_RAM,
        store_room_bytes=None if room is None else max(0, room),
        notes=(note,) if others else (),
    )


def _ram(machine: Machine, host: HostMemory) -> TierMemory:
    """Of a Mac the GPU may wire a part only; of a phone one app may hold a part only."""
    limits = [
        (one.limit_bytes, "the GPU may use {} of it")
        for one in machine.devices
        if one.vendor is Vendor.APPLE and one.limit_bytes is not None
    ]
    if machine.is_phone:
        limits += [(one.left_bytes, one.name + ": {} of it") for one in host.limits]
    limit, told = min(limits, default=(None, ""))
    return TierMemory(
        name=machine.name,
        kind=MemoryKind.RAM,
        total_bytes=host.total_bytes if machine.is_phone else host.whole_bytes,
        free_bytes=host.free_bytes if machine.is_phone else host.usable_bytes,
        limit_bytes=limit,
        notes=() if limit is None else (told.format(format_bytes(limit)),),
    )
