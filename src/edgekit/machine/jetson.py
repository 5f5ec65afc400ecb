"""A board with an NVIDIA chip whose GPU shares the RAM (Jetson) -> that device.

Older Jetsons have no NVML: the device tree tells the board.
"""

from __future__ import annotations

import re

from edgekit.machine.bandwidth import known_bandwidth
from edgekit.machine.surroundings import Surroundings
from edgekit.machine.tree import printable, text_of
from edgekit.machine.types import Device, System, Vendor
from edgekit.machine.visible import DeviceCount, Seen

# https://developer.nvidia.com/cuda-gpus: Nano and TX1, TX2, Xavier, Orin, Thor.
_CAPABILITIES = {
    "tegra210": (5, 3),
    "tegra186": (6, 2),
    "tegra194": (7, 2),
    "tegra234": (8, 7),
    "tegra264": (11, 0),
}


def find_jetson(here: Surroundings) -> DeviceCount:
    chip = _chip(here)
    if here.system is not System.LINUX or chip is None:
        return DeviceCount()
    if here.host is None:
        why = "The GPU of this board shares the RAM, whose size could not be read."
        return DeviceCount(notes=(why,))
    name = _board(here) or f"NVIDIA {chip}"
    device = Device(
        name=name,
        vendor=Vendor.NVIDIA,
        total_bytes=here.host.total_bytes,
        free_bytes=here.host.usable_bytes,
        unified=True,
        bandwidth_bytes_per_s=known_bandwidth(_sold_as(name), here.host.total_bytes),
        capability=_CAPABILITIES.get(chip),
        because="shares the RAM (device tree)",
    )
    return DeviceCount(seen=(Seen(device=device),))


def _chip(here: Surroundings) -> str | None:
    """'tegra234' out of names that end with a NUL; a container hides the tree and shows the chip's family."""
    names = text_of(here.root / "proc/device-tree/compatible") or ""
    found = re.search(r"nvidia,(tegra\d{3})\b", names)
    if found:
        return found[1]
    family = text_of(here.root / "sys/devices/soc0/family") or ""
    return "tegra" if family.strip().lower() == "tegra" else None


def _sold_as(board: str) -> str:
    """'NVIDIA Jetson AGX Orin Developer Kit' -> 'NVIDIA Jetson AGX Orin'."""
    return re.sub(r"( Engineering Reference)? Developer Kit", "", board)


def _board(here: Surroundings) -> str:
    places = ("proc/device-tree/model", "sys/devices/soc0/machine")
    names = (printable(text_of(here.root / place) or "", 96) for place in places)
    return next((name for name in names if name), "")
