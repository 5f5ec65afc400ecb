"""A device as its driver names and sizes it -> how fast its memory is read, where the table knows."""

from __future__ import annotations


def known_bandwidth(name: str, memory_bytes: int) -> int | None:
    """Bytes a second. The size tells chips of one name apart: an M3 Max of 36 GB has 300 GB/s, one of 48 has 400."""
    from edgekit.machine.devices import device_like

    row = device_like(name, memory_bytes=memory_bytes)
    return None if row is None else row.bandwidth_bytes_per_s
