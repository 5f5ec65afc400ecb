"""Budgets as engines build them: a card, or the RAM, less a reserve. Which of them an engine uses is in its folder."""

from __future__ import annotations

from edgekit.errors import HardwareError
from edgekit.machine.types import (
    HOST,
    Budget,
    Device,
    HostMemory,
    Machine,
    Pool,
    Vendor,
    pool_of,
)


def devices_of(machine: Machine, vendors: tuple[Vendor, ...]) -> tuple[Device, ...]:
    """The machine's devices of the first of these vendors that it has any of: an engine uses one vendor at a time."""
    for vendor in vendors:
        found = tuple(one for one in machine.devices if one.vendor is vendor)
        if found:
            return found
    return ()


def names_of(cards: tuple[Device, ...]) -> str:
    """'2x RTX 4090 + RTX 3060'."""
    counts: dict[str, int] = {}
    for card in cards:
        counts[card.name] = counts.get(card.name, 0) + 1
    return " + ".join(f"{count}x {name}" if count > 1 else name for name, count in counts.items())


def known_ram(machine: Machine) -> HostMemory:
    """Raises HardwareError where its size is unknown."""
    if machine.host is None:
        raise HardwareError("RAM unknown: add --ram 32G")
    return machine.host


def card_budget(pool: Pool, device: Device, reserve_bytes: int, because: str) -> Budget:
    return Budget(
        name=device.name,
        pools=frozenset({pool}),
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        reserve_bytes=reserve_bytes,
        because=because,
    )


def ram_budget(
    host: HostMemory, devices: tuple[Device, ...], reserve_bytes: int, because: str
) -> Budget:
    """The RAM, with the pools of the GPUs that share it."""
    shared = {pool_of(place): one for place, one in enumerate(devices) if one.unified}
    limits = [one.limit_bytes for one in shared.values() if one.limit_bytes is not None]
    own_bytes = sum(one.own_bytes for one in shared.values())
    return Budget(
        name="unified memory" if shared else "RAM",
        pools=frozenset({*shared, HOST}),
        total_bytes=host.whole_bytes + own_bytes,
        free_bytes=host.usable_bytes + own_bytes,
        reserve_bytes=reserve_bytes,
        because=because,
        limit_bytes=sum(limits) if limits and len(limits) == len(shared) else None,
        limit_because=next((one.limit_because for one in shared.values()), ""),
        gpu_only_bytes=own_bytes,
    )
