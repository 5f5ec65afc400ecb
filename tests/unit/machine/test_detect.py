"""All probes together: one Machine, and never an exception."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S
from tests.unit.machine.trees import machine, recorded

from edgekit.machine import detect
from edgekit.machine.surroundings import Nvml
from edgekit.machine.types import System, Vendor
from edgekit.units import GIB


def test_the_recorded_gpu_machine(tmp_path: Path) -> None:
    said = recorded("h200_nvml")["answers"]
    found = detect(machine(tmp_path, recorded("h200_tree"), answers=said))
    assert found.host is not None
    assert (found.name, found.system, found.notes) == ("this machine", System.LINUX, ())
    assert [device.name for device in found.devices] == ["NVIDIA H200"]
    assert found.host.usable_bytes == 134_601_003_008
    assert not found.what_if


def test_the_recorded_machine_without_a_card(tmp_path: Path) -> None:
    found = detect(machine(tmp_path, recorded("hybrid_tree")))
    assert (found.devices, found.notes) == ((), ())


def test_a_mac(tmp_path: Path) -> None:
    found = detect(machine(tmp_path, recorded("synthetic_mac"), system=System.MACOS))
    (device,) = found.devices
    assert (found.processor, found.cores) == ("Apple M3 Max", 14)
    assert (device.vendor, device.free_bytes, device.limit_bytes) == (
        Vendor.APPLE,
        24 * GIB,
        27 * GIB,
    )


def test_windows_says_what_it_does_not_look_for(tmp_path: Path) -> None:
    """Synthetic: no driver of NVIDIA's. AMD's and Intel's cards would not be found."""
    tree = {"psutil": recorded("synthetic_mac")["psutil"]}
    said: dict[str, Any] = {"nvmlInit": {"": {"error": 12}}}
    found = detect(machine(tmp_path, tree, answers=said, system=System.WINDOWS))
    assert found.devices == ()
    assert found.notes == (
        "On windows only NVIDIA GPUs are detected: describe others with --vram.",
    )


def test_inside_of_windows_too(tmp_path: Path) -> None:
    """Synthetic: WSL2 shows one device for the cards of every maker."""
    tree = {"psutil": recorded("synthetic_mac")["psutil"], "files": {"/dev/dxg": ""}}
    said: dict[str, Any] = {"nvmlInit": {"": {"error": 12}}}
    found = detect(machine(tmp_path, tree, answers=said))
    assert (found.devices, found.notes) == (
        (),
        ("In WSL2 only NVIDIA GPUs are detected: describe others with --vram.",),
    )


def test_the_memory_of_a_coherent_card_counts_once(tmp_path: Path) -> None:
    """Synthetic: the recorded H200 under another name, 20 GiB of a node without processors."""
    tree = recorded("h200_tree")
    kib = 20 * GIB // 1024
    node = "/sys/devices/system/node/node1"
    tree["files"][f"{node}/cpulist"] = "\n"
    tree["files"][f"{node}/meminfo"] = f"Node 1 MemTotal: {kib} kB\nNode 1 MemFree: {kib} kB\n"
    said = recorded("h200_nvml")["answers"]
    said["nvmlDeviceGetName"]["gpu0"] = "NVIDIA GH200 144G HBM3e"
    found = detect(machine(tmp_path, tree, answers=said))
    assert found.host is not None
    assert found.host.usable_bytes == 134_601_003_008 - 20 * GIB
    assert "counts it once, as the GPU's" in found.notes[0]


def test_integrated_graphics_beside_a_card(tmp_path: Path) -> None:
    tree = recorded("synthetic_rx7900xtx")
    tree["psutil"] = recorded("hybrid_tree")["psutil"]
    found = detect(machine(tmp_path, tree))
    assert [device.name for device in found.devices] == ["AMD Radeon RX 7900 XTX"]
    assert found.notes == (
        "AMD GPU 164e is integrated and not used next to AMD Radeon RX 7900 XTX.",
    )


def test_a_probe_that_fails_is_a_note_and_the_others_go_on(tmp_path: Path) -> None:
    def broken() -> Nvml:
        raise ImportError("pynvml is\nbroken")

    tree = recorded("synthetic_rx7900xtx")
    tree["files"]["/proc/driver/nvidia/version"] = "NVRM\n"
    tree["psutil"] = recorded("hybrid_tree")["psutil"]
    found = detect(replace(machine(tmp_path, tree), nvml=broken))
    assert [device.vendor for device in found.devices] == [Vendor.AMD]
    assert found.notes[0].startswith(
        "Detecting NVIDIA GPUs failed (ImportError: pynvml is broken), so none is counted."
    )


def test_memory_that_cannot_be_read_is_a_note(tmp_path: Path) -> None:
    found = detect(machine(tmp_path, {}))  # a psutil without an answer
    assert found.host is None
    assert "Detecting RAM failed" in found.notes[0]


def test_this_machine() -> None:
    found = detect()
    assert found.host is not None
    assert 0 < found.host.usable_bytes <= found.host.total_bytes
    assert found.cores is None or found.cores > 0


def test_asking_imports_no_more_than_it_needs() -> None:
    """A machine without an NVIDIA driver is not asked through NVML, and no device table is read."""
    if Path("/proc/driver/nvidia/version").exists() or sys.platform != "linux":
        pytest.skip("a machine with NVIDIA's driver, or not Linux")
    code = (
        "import sys; from edgekit.machine import detect; first = set(sys.modules); detect();"
        "print('psutil' in first, 'pynvml' in sys.modules)"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert done.stdout.split() == ["False", "False"]
