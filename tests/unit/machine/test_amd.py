"""amdgpu's files in /sys. All trees here are synthetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.machine.trees import HOST, machine, recorded

from edgekit.basis import Basis
from edgekit.machine.gpus import find_amd
from edgekit.machine.surroundings import Findings
from edgekit.machine.types import Device, System, Vendor
from edgekit.units import GIB, MIB

CARD = "/sys/class/drm/card1/device"
SMALL = "/sys/class/drm/card0/device"


def radeon(**changed: str) -> dict[str, Any]:
    tree = recorded("synthetic_rx7900xtx")
    tree["files"].update({f"{CARD}/{name}": text for name, text in changed.items()})
    return tree


def only(tree: dict[str, Any], card: str) -> dict[str, Any]:
    """Without the other one."""
    tree["files"] = {path: text for path, text in tree["files"].items() if card not in path}
    return tree


def test_a_card(tmp_path: Path) -> None:
    """24,560 MiB, of which 560 are taken."""
    assert find_amd(machine(tmp_path, only(radeon(), "card0"))) == Findings(
        devices=(
            Device(
                name="AMD Radeon RX 7900 XTX",
                vendor=Vendor.AMD,
                index=0,
                total_bytes=24_560 * MIB,
                free_bytes=24_000 * MIB,
                bandwidth_bytes_per_s=960 * 10**9,
                basis=Basis.EXACT,
                because="amdgpu mem_info_vram_total and _used",
            ),
        ),
    )


def test_integrated_graphics_alone_map_the_hosts_memory(tmp_path: Path) -> None:
    """GTT (32 GiB, 30 MiB of it taken) is more than the carve-out (512 MiB, 40 taken): one pool of both."""
    (device,) = find_amd(machine(tmp_path, only(radeon(), "card1"))).devices
    assert device.unified
    assert (device.total_bytes, device.free_bytes) == (HOST.total_bytes, HOST.usable_bytes)
    assert device.limit_bytes == 32 * GIB - 30 * MIB + 512 * MIB - 40 * MIB


def test_strix_halo(tmp_path: Path) -> None:
    """96 GiB mappable less 1 GiB, and 4 GiB of its own less 300 MiB; a host of 64 GiB still gives no more than it has."""
    (device,) = find_amd(machine(tmp_path, recorded("synthetic_strix_halo"))).devices
    assert (device.name, device.unified) == ("AMD Radeon 8060S", True)
    assert (device.limit_bytes, device.free_bytes) == (99 * GIB - 300 * MIB, 50 * GIB)
    assert device.bandwidth_bytes_per_s == 256 * 10**9
    assert device.own_bytes == 4 * GIB - 300 * MIB
    assert (
        "may map 96.00 GiB of the RAM (GTT, ttm.pages_limit), of which 95.00 GiB is free"
        in device.limit_because
    )


def test_a_carve_out_larger_than_gtt_is_a_memory_of_its_own(tmp_path: Path) -> None:
    """96 GiB set in the BIOS are gone from the host: two memories, not one."""
    tree = recorded("synthetic_strix_halo")
    tree["files"][f"{CARD}/mem_info_vram_total"] = f"{96 * GIB}\n"
    tree["files"][f"{CARD}/mem_info_gtt_total"] = f"{16 * GIB}\n"
    (device,) = find_amd(machine(tmp_path, tree)).devices
    assert (device.unified, device.integrated) == (False, True)
    assert (device.total_bytes, device.free_bytes) == (96 * GIB, 96 * GIB - 300 * MIB)


def test_mi300a_is_one_memory_whatever_its_metrics_say(tmp_path: Path) -> None:
    tree = only(radeon(gpu_metrics="x\0\x01\x05", mem_info_vram_total=f"{96 * GIB}\n"), "card0")
    tree["files"][f"{CARD}/uevent"] = (
        "DRIVER=amdgpu\nPCI_ID=1002:74A0\nPCI_SLOT_NAME=0000:01:00.0\n"
    )
    (device,) = find_amd(machine(tmp_path, tree)).devices
    assert (device.unified, device.limit_bytes) == (True, 32 * GIB - 100 * MIB)


def test_an_old_integrated_one_counts_with_its_carve_out(tmp_path: Path) -> None:
    """Without gpu_metrics nothing tells it from a card: its own part is the least it has."""
    tree = only(radeon(), "card1")
    del tree["files"][f"{SMALL}/gpu_metrics"]
    (device,) = find_amd(machine(tmp_path, tree)).devices
    assert (device.unified, device.total_bytes) == (False, 512 * MIB)


def test_a_memory_cut_in_four(tmp_path: Path) -> None:
    tree = radeon(current_memory_partition="NPS4\n", product_name="AMD Instinct MI300X\n")
    (device,) = find_amd(machine(tmp_path, only(tree, "card0"))).devices
    assert (device.partition, device.basis) == ("NPS4", Basis.MODELLED)
    assert (device.total_bytes, device.free_bytes) == (24_560 * MIB // 4, 24_000 * MIB // 4)


@pytest.mark.parametrize(("said", "parts"), [("NPS1\n", 1), ("NPS9\n", 1), ("NPS\n", 1), ("x", 1)])
def test_a_memory_that_is_not_cut(tmp_path: Path, said: str, parts: int) -> None:
    tree = only(radeon(current_memory_partition=said), "card0")
    (device,) = find_amd(machine(tmp_path, tree)).devices
    assert device.total_bytes == 24_560 * MIB // parts


@pytest.mark.parametrize("garbage", ["", "many\n", "-5\n", "0\n", f"{2**63}\n"])
def test_a_card_that_does_not_tell_its_memory_is_a_note(tmp_path: Path, garbage: str) -> None:
    seen = find_amd(machine(tmp_path, only(radeon(mem_info_vram_total=garbage), "card0")))
    assert seen.devices == ()
    assert seen.notes[0].endswith("does not report its memory: not counted.")


def test_a_container_that_was_not_given_the_card(tmp_path: Path) -> None:
    """/sys shows every card of the machine; /dev only those that were passed in."""
    tree = only(only(radeon(), "card0"), "/dev/dri")
    seen = find_amd(machine(tmp_path, tree))
    assert seen.devices == ()
    assert "/dev/dri/renderD128 does not exist" in seen.notes[0]


def test_a_driver_that_does_not_compute(tmp_path: Path) -> None:
    tree = only(only(radeon(), "card0"), "renderD")
    assert "has no render node" in find_amd(machine(tmp_path, tree)).notes[0]


def test_not_on_other_systems(tmp_path: Path) -> None:
    assert find_amd(machine(tmp_path, radeon(), system=System.WINDOWS)) == Findings()
