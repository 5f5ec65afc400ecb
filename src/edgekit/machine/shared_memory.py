"""A GPU that shares the RAM -> notes on what the figures leave out: file caches and containers."""

from __future__ import annotations

from pathlib import Path

from edgekit.machine.tree import number_in, pairs_of
from edgekit.machine.types import Device, HostMemory, Vendor
from edgekit.units import format_bytes

_CACHE = (
    "The file cache counts as free memory, but on a GPU that shares the RAM CUDA may not get it at once. "
    "If a model fails to load: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches."
)
_HUGE_PAGES = (
    "Huge pages are reserved here: on a GPU that shares the RAM llama.cpp counts only the free huge pages "
    "as free memory. Fix: sysctl vm.nr_hugepages=0."
)


def shared_memory_notes(
    host: HostMemory | None, devices: tuple[Device, ...], root: Path
) -> tuple[str, ...]:
    shared = tuple(device for device in devices if device.unified)
    if host is None or not shared:
        return ()
    notes = _container_note(host, shared[0])
    if any(device.vendor is Vendor.NVIDIA for device in shared):
        huge_pages = pairs_of(root / "proc/meminfo", ":").get("HugePages_Total", "")
        notes += (_CACHE, _HUGE_PAGES) if number_in(huge_pages) else (_CACHE,)
    return (*notes, *(_loss_note(device) for device in shared if device.vendor is Vendor.AMD))


def _loss_note(device: Device) -> str:
    """RADV calls two thirds of the pool the device's own (radv_physical_device.c)."""
    safe_bytes = (device.limit_bytes or 0) * 2 // 3
    return (
        f"Beyond {format_bytes(safe_bytes)}, two thirds of what {device.name} may use, some models "
        "crash with a lost Vulkan device."
    )


def _container_note(host: HostMemory, device: Device) -> tuple[str, ...]:
    """EdgeKit counts the GPU's part against the limit; the kernel does not."""
    if host.tightest is None or not host.tightest.name.startswith("cgroup"):
        return ()
    why = (
        f"The kernel does not apply {host.tightest.name} to what {device.name} takes of the shared memory. "
        "EdgeKit counts it against the limit anyway: beyond it the whole machine runs short of memory."
    )
    return (why,)
