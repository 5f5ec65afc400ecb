"""Probes for AMD, Intel and Apple GPUs: cards, and integrated GPUs with their share of the RAM.

AMD's and Intel's are read from /sys/class/drm (Linux), Apple's from sysctl (macOS).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from edgekit.errors import one_line
from edgekit.machine.devices import (
    default_working_set_bytes,
    known_bandwidth,
    mesa_heap_bytes,
    with_known_rates,
    working_set_because,
)
from edgekit.machine.gpu_rates import amd_architecture, speed_of
from edgekit.machine.surroundings import (
    Findings,
    Surroundings,
    bytes_of,
    number_in,
    number_of,
    pairs_of,
    text_of,
)
from edgekit.machine.types import Device, System, Vendor
from edgekit.units import GIB, MIB, Basis, format_bytes

_NAME_CHARS = 96


class DrmCard(NamedTuple):
    """A graphics card whose Linux driver is loaded."""

    files: Path  # /sys/class/drm/card0/device
    device: int
    slot: str  # "0000:03:00.0"
    driver: str
    render: str  # "renderD128", which programs open to compute; empty: a display-only card


def _drm_cards(root: Path, vendor: int) -> list[DrmCard]:
    """The cards of one vendor, in the order of their PCI slots."""
    cards = []
    for folder in (root / "sys/class/drm").glob("card*"):
        if not re.fullmatch(r"card\d+", folder.name):
            continue
        # uevent of a PCI device: DRIVER=amdgpu, PCI_ID=1002:744C, PCI_SLOT_NAME=0000:03:00.0
        files = folder / "device"
        uevent = pairs_of(files / "uevent")
        vendor_id, _, device_id = uevent.get("PCI_ID", "").partition(":")
        device = number_in(f"0x{device_id}")
        if number_in(f"0x{vendor_id}") != vendor or device is None:
            continue
        card = DrmCard(
            files=files,
            device=device,
            slot=uevent.get("PCI_SLOT_NAME", ""),
            driver=uevent.get("DRIVER", ""),
            render=min((path.name for path in (files / "drm").glob("renderD*")), default=""),
        )
        cards.append(card)
    return sorted(cards, key=lambda card: card.slot)


def _drm_findings(
    surroundings: Surroundings,
    vendor: int,
    name_of: Callable[[Surroundings, DrmCard], str],
    device_of: Callable[[Surroundings, DrmCard, str], Device | None],
) -> Findings:
    """The cards of one vendor that a program may use, and a note on each of the others."""
    if surroundings.system is not System.LINUX:
        return Findings()
    devices: list[Device] = []
    notes: list[str] = []
    for index, card in enumerate(_drm_cards(surroundings.root, vendor)):
        name = name_of(surroundings, card)
        device = device_of(surroundings, card, name)
        note = _unusable_note(surroundings.root, card, name)
        if note or device is None:
            notes.append(note or f"{name} ({card.slot}) does not report its memory: not counted.")
        else:
            devices.append(replace(device, index=index))
    return Findings(devices=tuple(devices), notes=tuple(notes))


def _unusable_note(root: Path, card: DrmCard, name: str) -> str:
    """Why a program cannot open the card, and what to do; empty if it can.

    A container sees every card of the machine in /sys, but in /dev only those that were passed to it.
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


def dedicated_slots(surroundings: Surroundings) -> frozenset[str]:
    """The PCI slots of AMD's and Intel's cards that have memory of their own."""
    cards = {
        card.slot: device
        for vendor, name_of, device_of in (
            (_AMD_PCI_VENDOR, _amd_name, _amd_device),
            (_INTEL_PCI_VENDOR, _intel_name, _intel_device),
        )
        for card in _drm_cards(surroundings.root, vendor)
        if (device := device_of(surroundings, card, name_of(surroundings, card))) is not None
    }
    return frozenset(
        slot for slot, device in cards.items() if not (device.unified or device.integrated)
    )


# -- AMD -----------------------------------------------------------------------------------------
# https://docs.kernel.org/gpu/amdgpu/driver-misc.html#gpu-memory-usage-information

_AMD_PCI_VENDOR = 0x1002
_MI300A = 0x74A0  # CPU and GPU in one, with the metrics of a card
# kgd_pp_interface.h: cards have gpu_metrics_v1_x, integrated GPUs v2_x and v3_0. GPUs before Renoir have no such file:
# they count as cards, with the memory that the BIOS carved out for them.
_INTEGRATED_METRICS = (2, 3)


def find_amd(surroundings: Surroundings) -> Findings:
    return _drm_findings(surroundings, _AMD_PCI_VENDOR, _amd_name, _amd_device)


def _amd_name(surroundings: Surroundings, card: DrmCard) -> str:
    """Server cards report their name; libdrm's list has lines of 'device, revision, name' for the others."""
    product = one_line(text_of(card.files / "product_name") or "", _NAME_CHARS)
    if product:
        return product
    revision = number_of(card.files / "revision") or 0
    for line in (text_of(surroundings.root / "usr/share/libdrm/amdgpu.ids") or "").splitlines():
        device, _, rest = line.partition(",")
        number, comma, name = rest.partition(",")
        if comma and (device.strip(), number.strip()) == (f"{card.device:04X}", f"{revision:02X}"):
            return one_line(name, _NAME_CHARS)
    return f"AMD GPU {card.device:04x}"


def _amd_device(surroundings: Surroundings, card: DrmCard, name: str) -> Device | None:
    """A card or an integrated GPU. The latter has memory that the BIOS carved out of the RAM (VRAM) and may map more
    (GTT); the driver allocates from the larger of the two first (apu_prefer_gtt).
    """
    total_bytes = number_of(card.files / "mem_info_vram_total")
    used_bytes = number_of(card.files / "mem_info_vram_used")
    mapped_bytes = number_of(card.files / "mem_info_gtt_total") or 0
    metrics = bytes_of(card.files / "gpu_metrics", 4) or b""  # two bytes of size, then its version
    is_integrated = len(metrics) == 4 and metrics[2] in _INTEGRATED_METRICS
    maps_more_than_it_has = mapped_bytes > (total_bytes or 0)
    if card.device == _MI300A or (is_integrated and maps_more_than_it_has):
        return _amd_integrated(surroundings, card, name, mapped_bytes)
    if not total_bytes or used_bytes is None:
        return None
    # NPS4: the memory of an MI300 is split into four parts, of which a program sees one.
    mode = re.fullmatch(
        r"NPS([248])", (text_of(card.files / "current_memory_partition") or "").strip()
    )
    partitions = int(mode[1]) if mode else 1
    device = Device(
        name=name,
        vendor=Vendor.AMD,
        total_bytes=total_bytes // partitions,
        integrated=is_integrated,
        free_bytes=max(0, total_bytes - used_bytes) // partitions,
        bandwidth_bytes_per_s=known_bandwidth(name, total_bytes),
        partition=f"NPS{partitions}" if partitions > 1 else "",
        basis=Basis.EXACT if partitions == 1 else Basis.MODELLED,
        because="amdgpu mem_info_vram_total and _used",
    )
    return _with_amd_rates(surroundings.root, card, with_known_rates(device, total_bytes))


def _amd_integrated(
    surroundings: Surroundings, card: DrmCard, name: str, mapped_bytes: int
) -> Device | None:
    """An integrated GPU, which may use its GTT and VRAM together; None if the size of the RAM is unknown.

    RADV pools both (radv_physical_device.c), and llama.cpp adds up its heaps; ROCm sees only the larger of the two.
    The VRAM of an MI300A is the RAM itself, so only GTT limits it.
    """
    if surroundings.host is None:
        return None
    free = {
        kind: max(
            0,
            (number_of(card.files / f"mem_info_{kind}_total") or 0)
            - (number_of(card.files / f"mem_info_{kind}_used") or 0),
        )
        for kind in ("gtt", "vram")
    }
    own_bytes = 0 if card.device == _MI300A else free["vram"]
    carved_out = f" and {format_bytes(own_bytes)} free of its own" if own_bytes else ""
    device = Device(
        name=name,
        vendor=Vendor.AMD,
        total_bytes=surroundings.host.total_bytes,
        free_bytes=surroundings.host.usable_bytes,
        unified=True,
        limit_bytes=free["gtt"] + own_bytes,
        limit_because=(
            f"amdgpu may map {format_bytes(mapped_bytes)} of the RAM (GTT, ttm.pages_limit), of which "
            f"{format_bytes(free['gtt'])} is free{carved_out}"
        ),
        own_bytes=own_bytes,
        bandwidth_bytes_per_s=known_bandwidth(name, surroundings.host.total_bytes),
        because="shares the RAM (amdgpu mem_info_gtt_total)",
    )
    device = with_known_rates(device, surroundings.host.total_bytes)
    return _with_amd_rates(surroundings.root, card, device)


_CORES_PER_CU = 64


def _with_amd_rates(root: Path, card: DrmCard, device: Device) -> Device:
    """The device with what amdkfd reports about its arithmetic speed, if it is not in the table.

    https://github.com/torvalds/linux/blob/master/drivers/gpu/drm/amd/amdkfd/kfd_topology.c: node_show
    """
    if device.fp32_flops is not None or not card.render:
        return device
    for file in sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")):
        properties = {key: number_in(value) or 0 for key, value in pairs_of(file, " ").items()}
        if f"renderD{properties.get('drm_render_minor')}" != card.render:
            continue
        architecture = amd_architecture(properties.get("gfx_target_version", 0))
        units = properties.get("simd_count", 0) // max(properties.get("simd_per_cu", 0), 1)
        mhz = properties.get("max_engine_clk_fcompute", 0)
        speed = speed_of(architecture, units * _CORES_PER_CU, mhz)
        rates = {} if speed is None else speed._asdict()
        return replace(device, architecture=device.architecture or architecture, **rates)
    return device


# -- Intel ---------------------------------------------------------------------------------------
# Neither i915 nor xe shows unprivileged users how much of a card's memory is in use, so free memory is assumed.

_INTEL_PCI_VENDOR = 0x8086
_INTEL_DRIVERS = ("i915", "xe")
_INTEGRATED_SLOT = "0000:00:02.0"  # on every processor with graphics; cards are behind a bridge
_MEMORY_BAR = 2  # xe_bars.h, LMEM_BAR
_WHOLE_BAR_BYTES = 2 * GIB  # a smaller BAR (256 MiB) means a BIOS without resizable BAR
# The driver reserves 1/128 (8,128 of an A750's 8,192 MiB are left), a desktop a few hundred MiB.
_RESERVED_SHARE = 16

# PCI id: name, and the sizes it was sold with in GiB. The mainline kernel's i915 does not report the size, and the BAR
# is the next power of two: a card of 12 GiB shows 16.
_INTEL_CARDS = {
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


def find_intel(surroundings: Surroundings) -> Findings:
    return _drm_findings(surroundings, _INTEL_PCI_VENDOR, _intel_name, _intel_device)


def _intel_name(_: Surroundings, card: DrmCard) -> str:
    if card.slot == _INTEGRATED_SLOT:
        return "Intel integrated graphics"
    return _INTEL_CARDS.get(card.device, (f"Intel GPU {card.device:04x}",))[0]


def _intel_device(surroundings: Surroundings, card: DrmCard, name: str) -> Device | None:
    """A card or an integrated GPU; None if its driver is unknown or its memory cannot be determined."""
    if card.driver not in _INTEL_DRIVERS:
        return None
    if card.slot == _INTEGRATED_SLOT:
        if surroundings.host is None:
            return None
        limit_bytes, limit_because = mesa_heap_bytes(surroundings.host.total_bytes)
        return Device(
            name=name,
            vendor=Vendor.INTEL,
            total_bytes=surroundings.host.total_bytes,
            free_bytes=surroundings.host.usable_bytes,
            unified=True,
            limit_bytes=limit_bytes,
            limit_because=limit_because,
            basis=Basis.MODELLED,
            because="shares the RAM",
        )
    total_bytes, source = _intel_memory(card)
    if not total_bytes:
        return None
    device = Device(
        name=name,
        vendor=Vendor.INTEL,
        total_bytes=total_bytes,
        free_bytes=total_bytes - total_bytes // _RESERVED_SHARE,
        bandwidth_bytes_per_s=known_bandwidth(name, total_bytes),
        basis=Basis.ASSUMED,
        because=f"{source}; the driver does not show how much is in use: 1/{_RESERVED_SHARE} is assumed",
    )
    return with_known_rates(device, total_bytes)


def _intel_memory(card: DrmCard) -> tuple[int, str]:
    """Memory and its source: the driver's figure, else the size that cards of this PCI id have, else half the BAR."""
    tiles = sum(number_of(path) or 0 for path in card.files.glob("tile*/physical_vram_size_bytes"))
    if tiles:
        return tiles, "xe physical_vram_size_bytes"
    if total_bytes := number_of(card.files.parent / "lmem_total_bytes"):
        return total_bytes, "i915 lmem_total_bytes"
    window_bytes = 0
    bars = (text_of(card.files / "resource") or "").splitlines()  # each line is 'start end flags'
    if len(bars) > _MEMORY_BAR:
        addresses = [number_in(word) or 0 for word in bars[_MEMORY_BAR].split()]
        if len(addresses) > 1 and 0 < addresses[0] < addresses[1]:
            window_bytes = addresses[1] - addresses[0] + 1
    sizes = [size * GIB for size in _INTEL_CARDS.get(card.device, ("", ()))[1]]
    if sizes:
        fitting = (size for size in sizes if size <= window_bytes)
        return max(fitting, default=min(sizes)), "its PCI id"
    if window_bytes >= _WHOLE_BAR_BYTES:
        return window_bytes // 2, "half of its PCI window (BAR), the minimum it can have"
    return 0, ""


# -- Apple ---------------------------------------------------------------------------------------


def find_apple(surroundings: Surroundings) -> Findings:
    """The GPU of an Apple chip; nothing on a Mac with an Intel processor."""
    if (
        surroundings.system is not System.MACOS
        or _sysctl_number(surroundings, "hw.optional.arm64") != 1
    ):
        return Findings()
    if surroundings.host is None:
        return Findings(
            notes=("The GPU of this Mac shares the RAM, whose size could not be read.",)
        )
    name = chip_name(surroundings) or "Apple GPU"
    total_bytes = _sysctl_number(surroundings, "hw.memsize") or surroundings.host.total_bytes
    wired_mib = _sysctl_number(surroundings, "iogpu.wired_limit_mb")
    if wired_mib:
        limit_bytes = min(wired_mib * MIB, total_bytes)
        limit_because = f"iogpu.wired_limit_mb is set to {wired_mib}"
    else:
        version = _sysctl_text(surroundings, "kern.osproductversion")  # "26.5.2"
        macos = number_in(version.partition(".")[0]) or 0
        limit_bytes = default_working_set_bytes(total_bytes, macos=macos)
        limit_because = working_set_because(limit_bytes, total_bytes)
    device = Device(
        name=name,
        vendor=Vendor.APPLE,
        total_bytes=total_bytes,
        free_bytes=min(surroundings.host.usable_bytes, total_bytes),
        unified=True,
        limit_bytes=limit_bytes,
        limit_because=limit_because,
        bandwidth_bytes_per_s=known_bandwidth(name, total_bytes),
        basis=Basis.MODELLED,  # macOS does not report memory available without swapping
        because="shares the RAM (sysctl hw.memsize); free memory is modelled as free and inactive pages",
    )
    return Findings(devices=(with_known_rates(device, total_bytes),))


def chip_name(surroundings: Surroundings) -> str:
    """'Apple M3 Max'; empty on other systems."""
    return _sysctl_text(surroundings, "machdep.cpu.brand_string")


def _sysctl_text(surroundings: Surroundings, name: str) -> str:
    value = surroundings.sysctl(name) or b""
    return one_line(value.split(b"\0")[0].decode("utf-8", "replace"), _NAME_CHARS)


def _sysctl_number(surroundings: Surroundings, name: str) -> int | None:
    """A sysctl of four or eight bytes, little-endian as on every Apple chip."""
    value = surroundings.sysctl(name)
    return int.from_bytes(value, "little") if value and len(value) in {4, 8} else None
