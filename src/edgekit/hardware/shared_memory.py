"""A GPU that shares the processor's memory -> notes on what the figures cannot hold: caches and containers."""

from __future__ import annotations

from pathlib import Path

from edgekit.hardware.tree import number_in, pairs_of
from edgekit.hardware.types import Accelerator, HostMemory, Vendor
from edgekit.units import format_bytes

_CACHE = (
    "Memory that holds read files counts as free, but CUDA may not get it at once on a GPU that "
    "shares the processor's. Where a model fails to load: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches."
)
_HUGE_PAGES = (
    "Huge pages are reserved here: on a GPU that shares the processor's memory llama.cpp takes the free ones "
    "for all the memory there is. What to do: sysctl vm.nr_hugepages=0."
)


def shared_memory_notes(
    host: HostMemory | None, devices: tuple[Accelerator, ...], root: Path
) -> tuple[str, ...]:
    shared = tuple(device for device in devices if device.unified)
    if host is None or not shared:
        return ()
    notes = _container_note(host, shared[0])
    if any(device.vendor is Vendor.NVIDIA for device in shared):
        huge_pages = pairs_of(root / "proc/meminfo", ":").get("HugePages_Total", "")
        notes += (_CACHE, _HUGE_PAGES) if number_in(huge_pages) else (_CACHE,)
    return (*notes, *(_loss_note(device) for device in shared if device.vendor is Vendor.AMD))


def _loss_note(device: Accelerator) -> str:
    """RADV calls two thirds of the pool the device's own (radv_physical_device.c)."""
    safe_bytes = (device.limit_bytes or 0) * 2 // 3
    return (
        f"Beyond {format_bytes(safe_bytes)}, two thirds of what {device.name} may take, some models "
        "lose the device under Vulkan."
    )


def _container_note(host: HostMemory, device: Accelerator) -> tuple[str, ...]:
    """We count the GPU's half against the limit; the kernel does not."""
    if host.tightest is None or not host.tightest.name.startswith("cgroup"):
        return ()
    why = (
        f"{host.tightest.name} does not hold what {device.name} takes of the shared memory: here it "
        "is counted against the limit, but beyond it nothing stops cleanly, the whole machine runs short."
    )
    return (why,)
