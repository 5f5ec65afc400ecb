"""/sys/class/drm -> the graphics cards whose driver is loaded, and whether a program may open them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from edgekit.basis import Basis
from edgekit.machine.devices import known_bandwidth
from edgekit.machine.gpu_limit import default_working_set_bytes, working_set_because
from edgekit.machine.surroundings import (
    Findings,
    Surroundings,
    bytes_of,
    number_in,
    number_of,
    pairs_of,
    text_of,
)
from edgekit.machine.types import Device, HostMemory, System, Vendor
from edgekit.terminal import one_line
from edgekit.units import GIB, MIB, format_bytes


class DrmCard(NamedTuple):
    folder: Path  # /sys/class/drm/card0
    vendor: int
    device: int
    slot: str  # "0000:03:00.0"
    driver: str
    render: str  # "renderD128": what a program opens to compute; empty where it only shows pictures

    @property
    def files(self) -> Path:
        return self.folder / "device"


def drm_cards(root: Path, vendor: int) -> tuple[DrmCard, ...]:
    """Of one vendor, in the order of their slots."""
    folders = (root / "sys/class/drm").glob("card*")
    cards = (_card(folder) for folder in folders if re.fullmatch(r"card\d+", folder.name))
    mine = (card for card in cards if card is not None and card.vendor == vendor)
    return tuple(sorted(mine, key=lambda card: card.slot))


def drm_findings(
    here: Surroundings,
    vendor: int,
    name_of: Callable[[Surroundings, DrmCard], str],
    device_of: Callable[[Surroundings, DrmCard, str, int], Device | None],
) -> Findings:
    """The cards of one vendor that a program may use; the others are a note each."""
    if here.system is not System.LINUX:
        return Findings()
    devices: list[Device] = []
    notes: list[str] = []
    for index, card in enumerate(drm_cards(here.root, vendor)):
        name = name_of(here, card)
        device = device_of(here, card, name, index)
        note = closed_note(here.root, card, name)
        if note or device is None:
            notes.append(note or f"{name} ({card.slot}) does not report its memory: not counted.")
        else:
            devices.append(device)
    return Findings(devices=tuple(devices), notes=tuple(notes))


def _card(folder: Path) -> DrmCard | None:
    """Of a PCI device uevent tells DRIVER=amdgpu, PCI_ID=1002:744C, PCI_SLOT_NAME=0000:03:00.0."""
    told = pairs_of(folder / "device/uevent")
    vendor, _, device = told.get("PCI_ID", "").partition(":")
    numbers = number_in(f"0x{vendor}"), number_in(f"0x{device}")
    if numbers[0] is None or numbers[1] is None:
        return None
    render = min((path.name for path in (folder / "device/drm").glob("renderD*")), default="")
    return DrmCard(
        folder=folder,
        vendor=numbers[0],
        device=numbers[1],
        slot=told.get("PCI_SLOT_NAME", ""),
        driver=told.get("DRIVER", ""),
        render=render,
    )


def closed_note(root: Path, card: DrmCard, name: str) -> str:
    """Why a program could not open it, and what to do; empty where it could.

    A container sees every card of the machine in /sys, and in /dev only those it was given.
    """
    node = f"/dev/dri/{card.render}"
    path = root / node.removeprefix("/")
    what = f"{name} ({card.slot}) is in this machine, but not counted:"
    if not card.render:
        return f"{what} its driver ({card.driver or 'none'}) has no render node."
    if not path.exists():
        return f"{what} {node} does not exist. Fix: pass the device to the container (--device /dev/dri)."
    if not os.access(path, os.R_OK | os.W_OK):
        return f"{what} no permission to open {node}. Fix: join the groups render and video."
    return ""


_AMD_PCI_VENDOR = 0x1002
_MI300A = 0x74A0  # processor and card in one, with the card's kind of metrics
# kgd_pp_interface.h: gpu_metrics_v1_x are of cards, v2_x and v3_0 of integrated ones. Before
# Renoir there is no such file: those count as cards, with what the BIOS carved out for them.
_INTEGRATED_METRICS = (2, 3)


def find_amd(here: Surroundings) -> Findings:
    return drm_findings(here, _AMD_PCI_VENDOR, _amd_name, _amd_device)


def _amd_name(here: Surroundings, card: DrmCard) -> str:
    """Server cards tell it; of others libdrm's list has 'device, revision, name' a line."""
    told = one_line(text_of(card.files / "product_name") or "", 96)
    if told:
        return told
    revision = number_of(card.files / "revision") or 0
    for line in (text_of(here.root / "usr/share/libdrm/amdgpu.ids") or "").splitlines():
        device, _, rest = line.partition(",")
        number, found, name = rest.partition(",")
        if found and (device.strip(), number.strip()) == (f"{card.device:04X}", f"{revision:02X}"):
            return one_line(name, 96)
    return f"AMD GPU {card.device:04x}"


def _amd_device(here: Surroundings, card: DrmCard, name: str, index: int) -> Device | None:
    """An integrated GPU has memory that the BIOS carved out of the RAM (VRAM), and may map the rest (GTT). The driver
    allocates from the larger of the two first (apu_prefer_gtt).
    """
    total_bytes = number_of(card.files / "mem_info_vram_total")
    used_bytes = number_of(card.files / "mem_info_vram_used")
    mapped_bytes = number_of(card.files / "mem_info_gtt_total") or 0
    if _is_integrated(card) and (card.device == _MI300A or mapped_bytes > (total_bytes or 0)):
        return _amd_shared(here, card, name, index, mapped_bytes)
    if not total_bytes or used_bytes is None:
        return None
    parts = _parts(card)
    return Device(
        name=name,
        vendor=Vendor.AMD,
        index=index,
        total_bytes=total_bytes // parts,
        integrated=_is_integrated(card),
        free_bytes=max(0, total_bytes - used_bytes) // parts,
        bandwidth_bytes_per_s=known_bandwidth(name, total_bytes),
        partition=f"NPS{parts}" if parts > 1 else "",
        basis=Basis.EXACT if parts == 1 else Basis.MODELLED,
        because="amdgpu mem_info_vram_total and _used",
    )


def _is_integrated(card: DrmCard) -> bool:
    """The third byte of gpu_metrics, after its size, is the revision of its form."""
    header = bytes_of(card.files / "gpu_metrics", 4) or b""
    return card.device == _MI300A or (len(header) == 4 and header[2] in _INTEGRATED_METRICS)


def _parts(card: DrmCard) -> int:
    """NPS4: the memory of an MI300 cut in four, of which a program reaches one."""
    mode = (text_of(card.files / "current_memory_partition") or "").strip()
    number = mode.removeprefix("NPS")
    return int(number) if mode.startswith("NPS") and number in {"2", "4", "8"} else 1


def _amd_shared(
    here: Surroundings, card: DrmCard, name: str, index: int, mapped_bytes: int
) -> Device | None:
    """RADV makes one pool of both (radv_physical_device.c), and llama.cpp sums its heaps; a ROCm build sees the larger
    of the two alone. An MI300A's VRAM is the RAM itself: there GTT alone is the limit.
    """
    if here.host is None:
        return None
    kinds = ("gtt",) if card.device == _MI300A else ("gtt", "vram")
    free = {
        kind: (number_of(card.files / f"mem_info_{kind}_total") or 0)
        - (number_of(card.files / f"mem_info_{kind}_used") or 0)
        for kind in kinds
    }
    own_bytes = max(0, free.get("vram", 0))
    carved_out = f" and {format_bytes(own_bytes)} free of its own" if own_bytes else ""
    return Device(
        name=name,
        vendor=Vendor.AMD,
        index=index,
        total_bytes=here.host.total_bytes,
        free_bytes=here.host.usable_bytes,
        unified=True,
        limit_bytes=max(0, free["gtt"]) + own_bytes,
        limit_because=(
            f"amdgpu may map {format_bytes(mapped_bytes)} of the RAM (GTT, ttm.pages_limit), of which "
            f"{format_bytes(max(0, free['gtt']))} is free{carved_out}"
        ),
        own_bytes=own_bytes,
        bandwidth_bytes_per_s=known_bandwidth(name, here.host.total_bytes),
        because="shares the RAM (amdgpu mem_info_gtt_total)",
    )


_INTEL_PCI_VENDOR = 0x8086
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
    return drm_findings(here, _INTEL_PCI_VENDOR, _intel_name, _intel_device)


def _intel_name(_: Surroundings, card: DrmCard) -> str:
    if card.slot == _INTEGRATED_SLOT:
        return "Intel integrated graphics"
    return _CARDS.get(card.device, (f"Intel GPU {card.device:04x}",))[0]


def _intel_device(here: Surroundings, card: DrmCard, name: str, index: int) -> Device | None:
    if card.driver not in _DRIVERS:
        return None
    if card.slot == _INTEGRATED_SLOT:
        return None if here.host is None else _intel_shared(here.host, name, index)
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


def _intel_shared(host: HostMemory, name: str, index: int) -> Device:
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


def find_apple(here: Surroundings) -> Findings:
    """Nothing on a Mac with an Intel processor: its graphics are not looked at."""
    if here.system is not System.MACOS or _number(here, "hw.optional.arm64") != 1:
        return Findings()
    if here.host is None:
        why = "The GPU of this Mac shares the RAM, whose size could not be read."
        return Findings(notes=(why,))
    name = chip_name(here) or "Apple GPU"
    total_bytes = _number(here, "hw.memsize") or here.host.total_bytes
    limit_bytes, because = _limit(here, total_bytes)
    device = Device(
        name=name,
        vendor=Vendor.APPLE,
        total_bytes=total_bytes,
        free_bytes=min(here.host.usable_bytes, total_bytes),
        unified=True,
        limit_bytes=limit_bytes,
        limit_because=because,
        bandwidth_bytes_per_s=known_bandwidth(name, total_bytes),
        basis=Basis.MODELLED,  # macOS has no figure for memory that could be had without swapping
        because="shares the RAM (sysctl hw.memsize); free memory is modelled as free and inactive pages",
    )
    return Findings(devices=(device,))


def chip_name(here: Surroundings) -> str:
    """'Apple M3 Max'; empty where there is no such kernel."""
    return _text(here, "machdep.cpu.brand_string")


def _limit(here: Surroundings, total_bytes: int) -> tuple[int, str]:
    wired_mib = _number(here, "iogpu.wired_limit_mb")
    if wired_mib:
        because = f"iogpu.wired_limit_mb is set to {wired_mib}"
        return min(wired_mib * MIB, total_bytes), because
    limit_bytes = default_working_set_bytes(total_bytes, macos=_macos(here))
    return limit_bytes, working_set_because(limit_bytes, total_bytes)


def _macos(here: Surroundings) -> int:
    """'26.5.2' -> 26; 0 where it is unknown."""
    major = _text(here, "kern.osproductversion").partition(".")[0]
    return number_in(major) or 0


def _text(here: Surroundings, name: str) -> str:
    value = here.sysctl(name) or b""
    return one_line(value.split(b"\0")[0].decode("utf-8", "replace"), 96)


def _number(here: Surroundings, name: str) -> int | None:
    """Four or eight bytes, the least first: every Apple chip counts that way."""
    value = here.sysctl(name)
    return int.from_bytes(value, "little") if value and len(value) in {4, 8} else None
