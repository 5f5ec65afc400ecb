"""What the probes make of a machine."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S
from tests.unit.machine.trees import machine, recorded

from edgekit.machine.probes import choose, detect
from edgekit.machine.surroundings import Nvml
from edgekit.machine.types import Device, System, Vendor
from edgekit.units import GIB

# -- detect -----------------------------------------------------------------------------------------


def test_detect_recorded_gpu_machine(tmp_path: Path) -> None:
    text = recorded("h200_nvml")["answers"]
    result = detect(machine(tmp_path, recorded("h200_tree"), answers=text))
    assert result.host is not None
    assert (result.name, result.system, result.notes) == ("this machine", System.LINUX, ())
    assert [device.name for device in result.devices] == ["NVIDIA H200"]
    assert result.host.usable_bytes == 134_601_003_008
    assert not result.what_if


def test_detect_recorded_machine_without_gpu(tmp_path: Path) -> None:
    result = detect(machine(tmp_path, recorded("hybrid_tree")))
    assert (result.devices, result.notes) == ((), ())


def test_detect_mac(tmp_path: Path) -> None:
    result = detect(machine(tmp_path, recorded("synthetic_mac"), system=System.MACOS))
    (device,) = result.devices
    assert (result.processor, result.cores) == ("Apple M3 Max", 14)
    assert (device.vendor, device.free_bytes, device.limit_bytes) == (
        Vendor.APPLE,
        24 * GIB,
        27 * GIB,
    )


def test_detect_windows_note(tmp_path: Path) -> None:
    """Synthetic: no driver of NVIDIA's. AMD's and Intel's cards would not be found."""
    tree = {"psutil": recorded("synthetic_mac")["psutil"]}
    fields: dict[str, Any] = {"nvmlInit": {"": {"error": 12}}}
    result = detect(machine(tmp_path, tree, answers=fields, system=System.WINDOWS))
    assert result.devices == ()
    assert result.notes == (
        "On windows only NVIDIA GPUs are detected: describe others with --vram.",
    )


def test_detect_wsl_note(tmp_path: Path) -> None:
    """Synthetic: WSL2 shows one device for the cards of every maker."""
    tree = {"psutil": recorded("synthetic_mac")["psutil"], "files": {"/dev/dxg": ""}}
    fields: dict[str, Any] = {"nvmlInit": {"": {"error": 12}}}
    result = detect(machine(tmp_path, tree, answers=fields))
    assert (result.devices, result.notes) == (
        (),
        ("In WSL2 only NVIDIA GPUs are detected: describe others with --vram.",),
    )


def test_detect_coherent_gpu_memory_counts_once(tmp_path: Path) -> None:
    """Synthetic: the recorded H200 under another name, 20 GiB of a node without processors."""
    tree = recorded("h200_tree")
    kib = 20 * GIB // 1024
    node = "/sys/devices/system/node/node1"
    tree["files"][f"{node}/cpulist"] = "\n"
    tree["files"][f"{node}/meminfo"] = f"Node 1 MemTotal: {kib} kB\nNode 1 MemFree: {kib} kB\n"
    text = recorded("h200_nvml")["answers"]
    text["nvmlDeviceGetName"]["gpu0"] = "NVIDIA GH200 144G HBM3e"
    result = detect(machine(tmp_path, tree, answers=text))
    assert result.host is not None
    assert result.host.usable_bytes == 134_601_003_008 - 20 * GIB
    assert "counts it once, as the GPU's" in result.notes[0]


def test_detect_integrated_gpu_next_to_a_card(tmp_path: Path) -> None:
    tree = recorded("synthetic_rx7900xtx")
    tree["psutil"] = recorded("hybrid_tree")["psutil"]
    result = detect(machine(tmp_path, tree))
    assert [device.name for device in result.devices] == ["AMD Radeon RX 7900 XTX"]
    assert result.notes == (
        "AMD GPU 164e is integrated and not used next to AMD Radeon RX 7900 XTX.",
    )


def test_detect_failing_probe_is_a_note(tmp_path: Path) -> None:
    def broken() -> Nvml:
        raise ImportError("pynvml is\nbroken")

    tree = recorded("synthetic_rx7900xtx")
    tree["files"]["/proc/driver/nvidia/version"] = "NVRM\n"
    tree["psutil"] = recorded("hybrid_tree")["psutil"]
    result = detect(replace(machine(tmp_path, tree), nvml=broken))
    assert [device.vendor for device in result.devices] == [Vendor.AMD]
    assert result.notes[0].startswith(
        "Detecting NVIDIA GPUs failed (ImportError: pynvml is broken), so none is counted."
    )


def test_detect_unreadable_ram_is_a_note(tmp_path: Path) -> None:
    result = detect(machine(tmp_path, {}))  # a psutil without an answer
    assert result.host is None
    assert "Detecting RAM failed" in result.notes[0]


def test_detect_this_machine() -> None:
    result = detect()
    assert result.host is not None
    assert 0 < result.host.usable_bytes <= result.host.total_bytes
    assert result.cores is None or result.cores > 0


def test_detect_imports() -> None:
    """A machine without an NVIDIA driver is not asked through NVML, and no device table is read."""
    if Path("/proc/driver/nvidia/version").exists() or sys.platform != "linux":
        pytest.skip("a machine with NVIDIA's driver, or not Linux")
    code = (
        "import sys; from edgekit.machine.probes import detect; first = set(sys.modules); detect();"
        "print('psutil' in first, 'pynvml' in sys.modules)"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert done.stdout.split() == ["False", "False"]


# -- chosen -----------------------------------------------------------------------------------------


def device(name: str, vendor: Vendor) -> Device:
    return Device(name=name, vendor=vendor, total_bytes=1, free_bytes=1)


RTX = device("RTX", Vendor.NVIDIA)
RADEON = device("Radeon", Vendor.AMD)
RYZEN = replace(device("Ryzen", Vendor.AMD), unified=True)
CARVED = replace(device("Carved", Vendor.AMD), integrated=True)  # with a memory of its own
ARC = device("Arc", Vendor.INTEL)
UHD = replace(device("UHD", Vendor.INTEL), unified=True)


@pytest.mark.parametrize(
    ("devices", "chosen"),
    [
        ((RADEON, RYZEN), [RADEON]),
        ((RADEON, CARVED), [RADEON]),
        ((RYZEN, ARC), [ARC]),  # of another maker
        ((CARVED, ARC, UHD), [ARC]),
        ((RTX, UHD), [RTX]),
        ((RTX, RADEON, ARC), [RTX, RADEON, ARC]),
        ((CARVED,), [CARVED]),
        ((RYZEN, UHD), [RYZEN, UHD]),
        ((), []),
    ],
)
def test_choose_cards_before_integrated(devices: tuple[Device, ...], chosen: list[Device]) -> None:
    result = choose(devices, {})
    assert list(result.devices) == chosen
    assert len(result.notes) == (len(chosen) < len(devices))
    assert all(f"not used next to {chosen[0].name}" in note for note in result.notes)


@pytest.mark.parametrize(
    ("wanted", "chosen", "notes"),
    [
        ("0,1", [RTX, RADEON, ARC], 0),
        ("1", [RTX, ARC], 2),
        ("1,0", [RTX, ARC, RADEON], 0),
        ("", [RTX], 1),
        ("9", [RTX], 1),
    ],
)
def test_choose_by_vulkan_variable(wanted: str, chosen: list[Device], notes: int) -> None:
    """NVIDIA's card is CUDA's: it stays."""
    result = choose((RTX, RADEON, ARC), {"GGML_VK_VISIBLE_DEVICES": wanted})
    assert (list(result.devices), len(result.notes)) == (chosen, notes)


def test_choose_integrated_by_vulkan_variable() -> None:
    result = choose((RADEON, RYZEN), {"GGML_VK_VISIBLE_DEVICES": "1"})
    assert result.devices == (RYZEN,)


@pytest.mark.parametrize("name", ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_choose_rocm_variables_are_notes(name: str) -> None:
    result = choose((RADEON,), {name: ""})
    assert result.devices == (RADEON,)
    assert result.notes[0].startswith(f"{name}= applies to ROCm only")
    assert choose((ARC,), {name: ""}).notes == ()
