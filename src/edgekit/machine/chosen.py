"""Devices of every maker and what hides some of them -> those that llama.cpp would use, and notes on the others.

AMD's and Intel's are modelled through Vulkan, which obeys GGML_VK_VISIBLE_DEVICES alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edgekit.machine.surroundings import Findings
from edgekit.machine.tree import printable
from edgekit.machine.types import Device, Vendor
from edgekit.machine.visible import Seen, hidden_note, visible

_VULKAN = "GGML_VK_VISIBLE_DEVICES"
_BY_VULKAN = (Vendor.AMD, Vendor.INTEL)
_ORDER = (
    f"{_VULKAN} is applied in the order of the PCI slots, AMD's GPUs first; vulkaninfo --summary shows "
    "Vulkan's own order."
)
_OF_ROCM = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")  # the second counts what the first left


def choose(devices: tuple[Device, ...], environment: Mapping[str, str]) -> Findings:
    seen = _visible(devices, environment)
    cards, left = _cards_first(seen.devices)
    rocm = _rocm_notes(devices, environment)
    return Findings(devices=cards, notes=(*seen.notes, *rocm, *left))


def _visible(devices: tuple[Device, ...], environment: Mapping[str, str]) -> Findings:
    """Vulkan numbers the cards of all makers in an order of its own: of several the note says so."""
    mine = tuple(device for device in devices if device.vendor in _BY_VULKAN)
    wish = environment.get(_VULKAN)
    if wish is None or not mine:
        return Findings(devices=devices)
    seen = tuple(Seen(replace(device, index=place)) for place, device in enumerate(mine))
    shown = visible(wish, seen)
    notes = hidden_note(_VULKAN, wish, seen, shown)
    if notes and shown:
        notes += (_ORDER,)
    others = (device for device in devices if device.vendor not in _BY_VULKAN)
    return Findings(devices=(*others, *(mine[one.index] for one in shown)), notes=notes)


def _rocm_notes(devices: tuple[Device, ...], environment: Mapping[str, str]) -> tuple[str, ...]:
    if not any(device.vendor is Vendor.AMD for device in devices):
        return ()
    return tuple(
        f"{name}={printable(environment[name])} applies to ROCm only: through Vulkan, as counted here, "
        f"llama.cpp sees every GPU. {_VULKAN} hides some from Vulkan."
        for name in _OF_ROCM
        if name in environment
    )


def _cards_first(
    devices: tuple[Device, ...],
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Beside a card, whosever it is, an integrated one stays unused: llama.cpp leaves it out too."""
    inside = tuple(device for device in devices if device.unified or device.integrated)
    cards = tuple(device for device in devices if device not in inside)
    if not cards or not inside:
        return devices, ()
    left = ", ".join(device.name for device in inside)
    return cards, (f"{left} is integrated and not used next to {cards[0].name}.",)
