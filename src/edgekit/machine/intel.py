"""i915's and xe's files in /sys -> Intel's cards, and integrated graphics, which share the RAM.

Neither driver shows an ordinary user how much of a card's memory is in use: what is free is assumed, and marked so.
"""

from __future__ import annotations

from edgekit.basis import Basis
from edgekit.machine.bandwidth import known_bandwidth
from edgekit.machine.drm import DrmCard, drm_findings
from edgekit.machine.surroundings import Findings, Surroundings
from edgekit.machine.tree import number_in, number_of, text_of
from edgekit.machine.types import Device, HostMemory, Vendor
from edgekit.units import GIB

_VENDOR = 0x8086
_DRIVERS = ("i915", "xe")
_INTEGRATED_SLOT = "0000:00:02.0"  # on every processor with graphics; cards sit behind a bridge
_MEMORY_BAR = 2  # xe_bars.h, LMEM_BAR
_WHOLE_BAR_BYTES = 2 * GIB  # a smaller window (256 MiB) is a BIOS without resizable BAR
# The driver keeps 1/128 (8,128 of an A750's 8,192 MiB are left), the desktop some hundred MiB.
_KEPT = 16
_HEAP_SMALL_BYTES = 4 * GIB  # anv_device.c: of 4 GiB or less a half, of more three quarters

# PCI id: name, and the sizes it was sold with in GiB. i915 of the plain kernel tells none, and the
# window (BAR) is the next power of two, so that a card of 12 shows 16.
_CARDS = {
    0x5690: ("Intel Arc A770M", (16,)),
    0x5691: ("Intel Arc A730M", (12,)),
    0x5692: ("Intel Arc A550M", (8,)),
    0x56A0: ("Intel Arc A770", (8, 16)),
    0x56A1: ("Intel Arc A750", (8,)),
    0x56A2: ("Intel Arc A580", (8,)),
    0x56A5: ("Intel Arc A380", (6,)),
    0x56A6: ("Intel Arc A310", (4,)),
    0x56C0: ("Intel Data Center GPU Flex 170", (16,)),
    0xE20B: ("Intel Arc B580", (12,)),
    0xE20C: ("Intel Arc B570", (10,)),
    0xE211: ("Intel Arc Pro B60", (24,)),
    0xE212: ("Intel Arc Pro B50", (16,)),
    0xE223: ("Intel Arc Pro B70", (32,)),
}


def find_intel(here: Surroundings) -> Findings:
    return drm_findings(here, _VENDOR, _name, _device)


def _name(_: Surroundings, card: DrmCard) -> str:
    if card.slot == _INTEGRATED_SLOT:
        return "Intel integrated graphics"
    return _CARDS.get(card.device, (f"Intel GPU {card.device:04x}",))[0]


def _device(here: Surroundings, card: DrmCard, name: str, index: int) -> Device | None:
    if card.driver not in _DRIVERS:
        return None
    if card.slot == _INTEGRATED_SLOT:
        return None if here.host is None else _shared(here.host, name, index)
    total_bytes, source = _memory(card)
    if not total_bytes:
        return None
    return Device(
        name=name,
        vendor=Vendor.INTEL,
        index=index,
        total_bytes=total_bytes,
        free_bytes=total_bytes - total_bytes // _KEPT,
        bandwidth_bytes_per_s=known_bandwidth(name, total_bytes),
        basis=Basis.ASSUMED,
        because=f"{source}; the driver does not show how much is in use: 1/{_KEPT} is assumed",
    )


def mesa_heap_bytes(ram_bytes: int) -> tuple[int, str]:
    """What Mesa's Vulkan driver calls the heap of an integrated GPU, and why."""
    part, whole = (1, 2) if ram_bytes <= _HEAP_SMALL_BYTES else (3, 4)
    return (
        ram_bytes * part // whole,
        f"Mesa's Vulkan driver lets the GPU use {part}/{whole} of the RAM",
    )


def _shared(host: HostMemory, name: str, index: int) -> Device:
    limit_bytes, limit_because = mesa_heap_bytes(host.total_bytes)
    return Device(
        name=name,
        vendor=Vendor.INTEL,
        index=index,
        total_bytes=host.total_bytes,
        free_bytes=host.usable_bytes,
        unified=True,
        limit_bytes=limit_bytes,
        limit_because=limit_because,
        basis=Basis.MODELLED,
        because="shares the RAM",
    )


def _memory(card: DrmCard) -> tuple[int, str]:
    """What a file says; else what cards of this number are sold with; else the half of its window."""
    tiles = [number_of(path) or 0 for path in card.files.glob("tile*/physical_vram_size_bytes")]
    if sum(tiles):
        return sum(tiles), "xe physical_vram_size_bytes"
    told = number_of(card.folder / "lmem_total_bytes")
    if told:
        return told, "i915 lmem_total_bytes"
    window_bytes = _window_bytes(card)
    sizes = [size * GIB for size in _CARDS.get(card.device, ("", ()))[1]]
    if sizes:
        fits = [size for size in sizes if size <= window_bytes]
        return max(fits, default=min(sizes)), "its PCI id"
    if window_bytes >= _WHOLE_BAR_BYTES:
        return window_bytes // 2, "half of its PCI window (BAR), the minimum it can have"
    return 0, ""


def _window_bytes(card: DrmCard) -> int:
    """Lines of 'start end flags', one for each BAR."""
    lines = (text_of(card.files / "resource") or "").splitlines()
    if len(lines) <= _MEMORY_BAR:
        return 0
    start, end = [*(number_in(word) for word in lines[_MEMORY_BAR].split()), None, None][:2]
    return end - start + 1 if start and end and end > start else 0
