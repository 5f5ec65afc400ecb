"""amdgpu's files in /sys -> AMD's cards, and integrated GPUs with the part of the RAM that they may map.

https://docs.kernel.org/gpu/amdgpu/driver-misc.html#gpu-memory-usage-information
"""

from __future__ import annotations

from edgekit.basis import Basis
from edgekit.machine.bandwidth import known_bandwidth
from edgekit.machine.drm import DrmCard, drm_findings
from edgekit.machine.surroundings import Findings, Surroundings
from edgekit.machine.tree import bytes_of, number_of, printable, text_of
from edgekit.machine.types import Device, Vendor
from edgekit.units import format_bytes

_VENDOR = 0x1002
_MI300A = 0x74A0  # processor and card in one, with the card's kind of metrics
# kgd_pp_interface.h: gpu_metrics_v1_x are of cards, v2_x and v3_0 of integrated ones. Before
# Renoir there is no such file: those count as cards, with what the BIOS carved out for them.
_INTEGRATED_METRICS = (2, 3)


def find_amd(here: Surroundings) -> Findings:
    return drm_findings(here, _VENDOR, _name, _device)


def _name(here: Surroundings, card: DrmCard) -> str:
    """Server cards tell it; of others libdrm's list has 'device, revision, name' a line."""
    told = printable(text_of(card.files / "product_name") or "", 96)
    if told:
        return told
    revision = number_of(card.files / "revision") or 0
    for line in (text_of(here.root / "usr/share/libdrm/amdgpu.ids") or "").splitlines():
        device, _, rest = line.partition(",")
        number, found, name = rest.partition(",")
        if found and (device.strip(), number.strip()) == (f"{card.device:04X}", f"{revision:02X}"):
            return printable(name, 96)
    return f"AMD GPU {card.device:04x}"


def _device(here: Surroundings, card: DrmCard, name: str, index: int) -> Device | None:
    """An integrated GPU has memory that the BIOS carved out of the RAM (VRAM), and may map the rest (GTT). The driver
    allocates from the larger of the two first (apu_prefer_gtt).
    """
    total_bytes = number_of(card.files / "mem_info_vram_total")
    used_bytes = number_of(card.files / "mem_info_vram_used")
    mapped_bytes = number_of(card.files / "mem_info_gtt_total") or 0
    if _is_integrated(card) and (card.device == _MI300A or mapped_bytes > (total_bytes or 0)):
        return _shared(here, card, name, index, mapped_bytes)
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


def _shared(
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
