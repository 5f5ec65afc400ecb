"""Machines with whole GiB of memory, so that the arithmetic of a test can be checked by hand."""

from __future__ import annotations

from typing import Any

from edgekit.machine.types import Device, HostMemory, Machine, System, Vendor
from edgekit.units import GIB


def host(gib: int, **more: Any) -> HostMemory:
    return HostMemory(total_bytes=gib * GIB, free_bytes=gib * GIB, **more)


def cpu(gib: int, system: System = System.LINUX) -> Machine:
    return Machine(name=f"{gib} GiB", system=system, host=host(gib))


def cards(*gib: float, ram: int | None = 64, system: System = System.LINUX) -> Machine:
    return Machine(
        name="cards",
        system=system,
        host=None if ram is None else host(ram),
        devices=tuple(
            Device(
                name=f"{size} GiB card",
                vendor=Vendor.NVIDIA,
                index=index,
                total_bytes=int(size * GIB),
                free_bytes=int(size * GIB),
                capability=(8, 9),
            )
            for index, size in enumerate(gib)
        ),
    )


def mac(gib: int, limit_gib: int | None = None) -> Machine:
    gpu = Device(
        name=f"Mac {gib}",
        vendor=Vendor.APPLE,
        total_bytes=gib * GIB,
        free_bytes=gib * GIB,
        unified=True,
        limit_bytes=None if limit_gib is None else limit_gib * GIB,
        limit_because="wired limit",
    )
    return Machine(name=f"Mac {gib}", system=System.MACOS, host=host(gib), devices=(gpu,))
