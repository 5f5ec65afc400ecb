"""A verdict -> the environment that keeps an engine to the cards it was judged for, in that order."""

from __future__ import annotations

from edgekit.bill.task import Placement
from edgekit.engines import engine_named
from edgekit.machine.types import Machine, Vendor

# NVML counts cards by their place on the bus; CUDA the fastest first unless it is told otherwise.
AS_NVML_COUNTS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def visible_cards(placement: Placement, machine: Machine, engine: str) -> dict[str, str]:
    """Empty where all cards are used, and alike or not told apart."""
    used = placement.cards
    if not used or used[0].vendor is not Vendor.NVIDIA:
        return {}
    if leaves_some(placement, machine, engine) and not any(card.partition for card in used):
        chosen = ",".join(str(card.index) for card in used)
        return {**AS_NVML_COUNTS, "CUDA_VISIBLE_DEVICES": chosen}
    seen = engine_named(engine).devices(machine) if placement.by_number else used
    alike = len({card.total_bytes for card in seen}) == 1
    return {} if alike else dict(AS_NVML_COUNTS)


def leaves_some(placement: Placement, machine: Machine, engine: str) -> bool:
    """Whether the machine has cards that the engine must not use. A card that is named by number hides no other."""
    every = engine_named(engine).devices(machine)
    return len(placement.cards) < len(every) and not placement.by_number
