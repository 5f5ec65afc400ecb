"""i915's and xe's files in /sys. All trees here are synthetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.machine.trees import HOST, machine, recorded

from edgekit.basis import Basis
from edgekit.machine.gpus import find_intel
from edgekit.machine.types import HostMemory
from edgekit.units import GIB, MIB

CARD = "/sys/class/drm/card1"


def arc(pci: str = "8086:E20B", *, window: int = 16 * GIB, tile: bool = False) -> dict[str, Any]:
    """A card behind a window of this size; its memory told by a file, or not."""
    tree = recorded("synthetic_arc_b580")
    files = tree["files"]
    files[f"{CARD}/device/uevent"] = f"DRIVER=xe\nPCI_ID={pci}\nPCI_SLOT_NAME=0000:04:00.0\n"
    first = files[f"{CARD}/device/resource"].splitlines()[:2]
    last = f"0x{2**38:016x} 0x{2**38 + window - 1:016x} 0x000000000014220c"
    files[f"{CARD}/device/resource"] = "\n".join([*first, last]) + "\n"
    if not tile:
        del files[f"{CARD}/device/tile0/physical_vram_size_bytes"]
    return tree


def test_a_card_under_xe(tmp_path: Path) -> None:
    """12 GiB by its file; a sixteenth is assumed to be taken, and the number says so."""
    seen = find_intel(machine(tmp_path, recorded("synthetic_arc_b580")))
    _, device = seen.devices
    assert (device.name, device.unified, device.basis) == ("Intel Arc B580", False, Basis.ASSUMED)
    assert (device.total_bytes, device.free_bytes) == (12 * GIB, 12 * GIB * 15 // 16)
    assert device.because.startswith("xe physical_vram_size_bytes;")
    assert seen.notes == ()


@pytest.mark.parametrize(
    ("pci", "window", "total_bytes"),
    [
        ("8086:E20B", 16 * GIB, 12 * GIB),  # B580: the window is the next power of two
        ("8086:E20B", 256 * MIB, 12 * GIB),  # without resizable BAR
        ("8086:E223", 32 * GIB, 32 * GIB),  # Arc Pro B70
        ("8086:56A0", 16 * GIB, 16 * GIB),  # A770, sold with 8 and with 16
        ("8086:56A0", 8 * GIB, 8 * GIB),
        ("8086:56A0", 256 * MIB, 8 * GIB),  # no telling which: the smaller
        ("8086:FFFF", 16 * GIB, 8 * GIB),  # unknown: more than half of its window is certain
    ],
)
def test_a_card_whose_driver_tells_nothing(
    tmp_path: Path, pci: str, window: int, total_bytes: int
) -> None:
    _, device = find_intel(machine(tmp_path, arc(pci, window=window))).devices
    assert device.total_bytes == total_bytes


def test_an_unknown_card_behind_a_small_window_is_a_note(tmp_path: Path) -> None:
    tree = arc("8086:FFFF", window=256 * MIB)
    tree["files"] = {path: text for path, text in tree["files"].items() if "card0" not in path}
    seen = find_intel(machine(tmp_path, tree))
    assert seen.devices == ()
    assert seen.notes == ("Intel GPU ffff (0000:04:00.0) does not report its memory: not counted.",)


def test_the_file_of_intels_own_i915(tmp_path: Path) -> None:
    tree = arc("8086:56C0")
    tree["files"][f"{CARD}/lmem_total_bytes"] = f"{15 * GIB}\n"
    _, device = find_intel(machine(tmp_path, tree)).devices
    assert (device.total_bytes, device.name) == (15 * GIB, "Intel Data Center GPU Flex 170")


@pytest.mark.parametrize(
    ("host", "limit_bytes"),
    [
        (HOST, 48 * GIB),  # three quarters of 64 GiB
        (HostMemory(total_bytes=4 * GIB, free_bytes=3 * GIB), 2 * GIB),  # a half of 4
    ],
)
def test_integrated_graphics(tmp_path: Path, host: HostMemory, limit_bytes: int) -> None:
    tree = arc()
    tree["files"] = {path: text for path, text in tree["files"].items() if "card1" not in path}
    (device,) = find_intel(machine(tmp_path, tree, host=host)).devices
    assert (device.unified, device.basis) == (True, Basis.MODELLED)
    assert (device.total_bytes, device.free_bytes) == (host.total_bytes, host.usable_bytes)
    assert device.limit_bytes == limit_bytes


@pytest.mark.parametrize("resource", ["", "0x0 0x0\n", "a b c\nd\ne f\n", "0x0\n0x0\n0x5\n", "\0"])
def test_garbage_for_a_window(tmp_path: Path, resource: str) -> None:
    tree = arc("8086:FFFF")
    tree["files"][f"{CARD}/device/resource"] = resource
    seen = find_intel(machine(tmp_path, tree))
    assert [device.name for device in seen.devices] == ["Intel integrated graphics"]
