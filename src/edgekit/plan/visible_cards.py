"""A verdict -> the environment that keeps an engine to the cards it was judged for, in that order."""

from __future__ import annotations

from edgekit.bill.task import Placement
from edgekit.engines.budgets import devices_for
from edgekit.engines.llamacpp.types import SplitMode
from edgekit.machine.types import Machine, Vendor

# NVML counts cards by their place on the bus; CUDA the fastest first unless it is told otherwise.
AS_NVML_COUNTS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def visible_cards(way: Placement, machine: Machine, engine: str) -> dict[str, str]:
    """Empty where all cards are used, and alike or not told apart."""
    used = way.cards
    if not used or used[0].vendor is not Vendor.NVIDIA:
        return {}
    if leaves_some(way, machine, engine) and not any(card.partition for card in used):
        chosen = ",".join(str(card.index) for card in used)
        return {**AS_NVML_COUNTS, "CUDA_VISIBLE_DEVICES": chosen}
    seen = devices_for(machine, engine) if _by_number(way) else used
    alike = len({card.total_bytes for card in seen}) == 1
    return {} if alike else dict(AS_NVML_COUNTS)


def leaves_some(way: Placement, machine: Machine, engine: str) -> bool:
    """Whether the machine has cards that the engine is to leave alone."""
    return len(way.cards) < len(devices_for(machine, engine)) and not _by_number(way)


def _by_number(way: Placement) -> bool:
    """-sm none names its card by the number it has among all of them."""
    return getattr(way.setup, "split_mode", None) is SplitMode.NONE
