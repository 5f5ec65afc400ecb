"""Notes on a memory that GPU and processor share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.machine.trees import plant

from edgekit.machine.host import shared_memory_notes
from edgekit.machine.types import Device, HostMemory, MemoryLimit, Vendor
from edgekit.units import GIB

HOST = HostMemory(total_bytes=64 * GIB, free_bytes=50 * GIB)
CACHE, HUGE, LOSS, CONTAINER = (
    "drop_caches",
    "vm.nr_hugepages=0",
    "40.00 GiB",
    "memory.max to what",
)


def device(vendor: Vendor, *, unified: bool = True) -> Device:
    return Device(
        name="GPU",
        vendor=vendor,
        total_bytes=64 * GIB,
        free_bytes=50 * GIB,
        unified=unified,
        limit_bytes=60 * GIB,  # two thirds are 40
    )


@pytest.mark.parametrize(
    ("vendor", "meminfo", "words"),
    [
        (Vendor.NVIDIA, "HugePages_Total:       0\n", [CACHE]),
        (Vendor.NVIDIA, "HugePages_Total:    1024\n", [CACHE, HUGE]),
        (Vendor.NVIDIA, "HugePages_Total:    many\n", [CACHE]),
        (Vendor.AMD, "HugePages_Total:    1024\n", [LOSS]),
        (Vendor.INTEL, "", []),
        (Vendor.APPLE, "", []),
    ],
)
def test_by_maker(tmp_path: Path, vendor: Vendor, meminfo: str, words: list[str]) -> None:
    root = plant(tmp_path, {"/proc/meminfo": meminfo})
    notes = shared_memory_notes(HOST, (device(vendor),), root)
    assert [word in note for word, note in zip(words, notes, strict=True)] == [True] * len(words)


@pytest.mark.parametrize(("limit", "told"), [(8, 1), (60, 0)])
def test_a_container_does_not_hold_the_gpus_half(tmp_path: Path, limit: int, told: int) -> None:
    name = "cgroup v2 /sys/fs/cgroup/box/memory.max"
    held = MemoryLimit(name=name, limit_bytes=limit * GIB, used_bytes=0)
    host = HostMemory(total_bytes=64 * GIB, free_bytes=50 * GIB, limits=(held,))
    notes = shared_memory_notes(host, (device(Vendor.INTEL),), tmp_path)
    assert len(notes) == told
    assert all(CONTAINER in note for note in notes)


def test_nothing_of_a_card_with_its_own_memory(tmp_path: Path) -> None:
    cards = (device(Vendor.NVIDIA, unified=False),)
    assert shared_memory_notes(HOST, cards, tmp_path) == ()
    assert shared_memory_notes(None, (device(Vendor.NVIDIA),), tmp_path) == ()
