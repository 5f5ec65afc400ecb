"""A machine as it is sold: 'RTX 4090 · 24 GB · 64 GB RAM'."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from edgekit.errors import printable
from edgekit.machine.devices import device_like
from edgekit.machine.processors import processor_like
from edgekit.machine.types import Device, Machine
from edgekit.report.text import RAM, UNIFIED
from edgekit.units import GIB


def machine_label(machine: Machine) -> str:
    """'RTX 4090 · 24 GB · 64 GB RAM': names and sizes as on the box."""
    parts: list[str] = []
    for name, device in counted_devices(machine.devices):
        parts += _device_parts(device, name)
    if not machine.devices:
        parts.append(_processor(machine) or ("CPU" if machine.host else machine.name))
    if machine.host is not None and not any(device.unified for device in machine.devices):
        host = machine.host
        # A phone has its memory, although one app may use only a part of it; a container has no more than its limit.
        total_bytes = host.total_bytes if machine.is_phone else host.limited_total_bytes
        parts.append(f"{ram_gb(total_bytes)} GB {RAM}")
    return printable(" · ".join(parts))


def _processor(machine: Machine) -> str:
    """'Ryzen 7 7700'; of 'Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz' what identifies it; '' if unknown."""
    known = processor_like(machine.processor)
    if known is not None:
        return known.name
    name = re.sub(
        r"\([RTM]+\)|@.*| (?:CPU|Processor)\b.*", "", machine.processor, flags=re.IGNORECASE
    )
    return " ".join(name.split())


def counted_devices(devices: Sequence[Device]) -> Iterator[tuple[str, Device]]:
    """'2x RTX 3090', 'RTX 4090', each with one of its devices."""
    first = {device.name: device for device in reversed(devices)}
    for name, count in Counter(device.name for device in devices).items():
        yield f"{count}x {name}" if count > 1 else name, first[name]


def _device_parts(device: Device, name: str) -> Iterator[str]:
    """The name and the size as sold."""
    known = device_like(device.name, memory_bytes=device.total_bytes)
    size_gb = known.size_gb if known is not None else ram_gb(device.total_bytes)
    has_size = f"{size_gb} G" in name or f"{size_gb}G" in name
    if device.unified:
        yield known.model if known is not None and has_size else name
        yield f"{size_gb} GB {UNIFIED}"
    else:
        yield name
        if not has_size:
            yield f"{size_gb} GB each" if name != device.name else f"{size_gb} GB"


def ram_gb(total_bytes: int) -> int:
    """The size of memory modules: 62.7 GiB of RAM are sold as 64 GB, 15.5 as 16, 188 as 192."""
    gib = max(total_bytes / GIB, 1)
    step = 1 << max(math.floor(math.log2(gib)) - 4, 0)
    return math.ceil(gib / step) * step
