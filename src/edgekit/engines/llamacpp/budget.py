"""What llama.cpp may use of a machine: its cards and the RAM, each less a reserve."""

from __future__ import annotations

from edgekit.engines.budgets import card_budget, devices_of, known_ram, ram_budget
from edgekit.machine.types import (
    Budget,
    Device,
    Machine,
    System,
    Vendor,
    pool_of,
    together_bytes,
)
from edgekit.units import GIB

RESERVE_BYTES = GIB
WINDOWS_RESERVE_BYTES = 2 * GIB  # the desktop's compositor takes its share

# The most trusted first: CUDA, Metal, then Vulkan.
VENDORS = (Vendor.NVIDIA, Vendor.APPLE, Vendor.AMD, Vendor.INTEL)
BACKENDS = {Vendor.NVIDIA: "cuda", Vendor.APPLE: "metal"}  # of others: Vulkan


def devices(machine: Machine) -> tuple[Device, ...]:
    return devices_of(machine, VENDORS)


def backend_name(card: Device) -> str:
    """The backend that computes on the card."""
    return BACKENDS.get(card.vendor, "vulkan")


def budgets(machine: Machine) -> tuple[Budget, ...]:
    """With all its devices. Raises HardwareError where it has none and its RAM is unknown."""
    cards = devices(machine)
    if not cards:
        known_ram(machine)
    return budgets_with(machine, cards)


def capacity_bytes(machine: Machine) -> int:
    """The most that weights may take, in all memories together."""
    return together_bytes(budgets_with(machine, devices(machine)))


def budgets_with(machine: Machine, cards: tuple[Device, ...]) -> tuple[Budget, ...]:
    """One for each card and one for the RAM, each with the reserve. RAM of unknown size is not judged."""
    reserve, because = _reserve(machine)
    found = [
        card_budget(pool_of(place), card, reserve, because)
        for place, card in enumerate(cards)
        if not card.unified
    ]
    if machine.host is not None:
        found.append(ram_budget(machine.host, cards, reserve, because))
    return tuple(found)


def _reserve(machine: Machine) -> tuple[int, str]:
    if machine.is_phone and machine.host is not None and machine.host.tightest is not None:
        return 0, machine.host.tightest.name  # the limit already excludes the system's share
    if machine.system is System.WINDOWS:
        return WINDOWS_RESERVE_BYTES, "2 GiB for Windows"
    return RESERVE_BYTES, "1 GiB reserve"
