"""detect and choose: the machine as the probes see it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.control_groups import enter, own_group
from tests.patience import PATIENCE_S
from tests.unit.machine.trees import machine, recorded

from edgekit.machine.host import CgroupVersion
from edgekit.machine.probes import choose, detect
from edgekit.machine.surroundings import Nvml
from edgekit.machine.types import Device, System, Vendor
from edgekit.units import GIB, MIB

# -- detect -----------------------------------------------------------------------------------------


def test_detect_recorded_gpu_machine(tmp_path: Path) -> None:
    answers = recorded("h200_nvml")["answers"]
    result = detect(machine(tmp_path, recorded("h200_tree"), answers=answers))
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
    """Synthetic: no NVIDIA driver; cards of AMD and Intel would not be found."""
    tree = {"psutil": recorded("synthetic_mac")["psutil"]}
    answers: dict[str, Any] = {"nvmlInit": {"": {"error": 12}}}
    result = detect(machine(tmp_path, tree, answers=answers, system=System.WINDOWS))
    assert result.devices == ()
    assert result.notes == (
        "On windows only NVIDIA GPUs are detected: describe others with --vram.",
    )


def test_detect_wsl_note(tmp_path: Path) -> None:
    """Synthetic: WSL2 shows one device for the cards of all vendors."""
    tree = {"psutil": recorded("synthetic_mac")["psutil"], "files": {"/dev/dxg": ""}}
    answers: dict[str, Any] = {"nvmlInit": {"": {"error": 12}}}
    result = detect(machine(tmp_path, tree, answers=answers))
    assert (result.devices, result.notes) == (
        (),
        ("In WSL2 only NVIDIA GPUs are detected: describe others with --vram.",),
    )


def test_detect_coherent_gpu_memory_counts_once(tmp_path: Path) -> None:
    """Synthetic: the recorded H200 under another name, and a NUMA node of 20 GiB without processors."""
    tree = recorded("h200_tree")
    kib = 20 * GIB // 1024
    node = "/sys/devices/system/node/node1"
    tree["files"][f"{node}/cpulist"] = "\n"
    tree["files"][f"{node}/meminfo"] = f"Node 1 MemTotal: {kib} kB\nNode 1 MemFree: {kib} kB\n"
    answers = recorded("h200_nvml")["answers"]
    answers["nvmlDeviceGetName"]["gpu0"] = "NVIDIA GH200 144G HBM3e"
    result = detect(machine(tmp_path, tree, answers=answers))
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
    result = detect(machine(tmp_path, {}))  # psutil has no data
    assert result.host is None
    assert "Detecting RAM failed" in result.notes[0]


def test_detect_this_machine() -> None:
    result = detect()
    assert result.host is not None
    assert 0 < result.host.usable_bytes <= result.host.total_bytes
    assert result.cores is None or result.cores > 0


def test_detect_imports_neither_psutil_nor_pynvml_without_need() -> None:
    """Importing probes does not import psutil, and detect without an NVIDIA driver not pynvml."""
    if Path("/proc/driver/nvidia/version").exists() or sys.platform != "linux":
        pytest.skip("a machine with NVIDIA's driver, or not Linux")
    code = (
        "import sys; from edgekit.machine.probes import detect; first = set(sys.modules); detect();"
        "print('psutil' in first, 'pynvml' in sys.modules)"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert done.stdout.split() == ["False", "False"]


# -- detect in a child process with a real limit ----------------------------------------------------

linux = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")

DETECT = """
import json
from edgekit.machine.probes import detect
host = detect().host
print(json.dumps({"usable": host.usable_bytes, "free": host.free_bytes,
                  "tightest": host.tightest.name if host.tightest else ""}))
"""


def output_of(code: str) -> dict[str, Any]:
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@linux
@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_detect_with_a_resource_limit(kind: str) -> None:
    limit = 2 * GIB
    set_it = f"import resource; resource.setrlimit(resource.{kind}, ({limit}, {limit}))"
    host = output_of(f"{set_it}\n{DETECT}")
    assert 0 < host["usable"] < limit < host["free"]
    assert host["tightest"].startswith(kind)


@pytest.fixture
def group() -> Iterator[tuple[CgroupVersion, Path]]:
    """A new control group inside the current one."""
    yield from own_group("limits")


@linux
def test_detect_in_a_control_group(group: tuple[CgroupVersion, Path]) -> None:
    version, folder = group
    (folder / version.limits[0]).write_text(str(256 * MIB))
    host = output_of(enter(folder) + DETECT)
    assert 0 < host["usable"] < 256 * MIB < host["free"]
    assert host["tightest"] == f"{version.name} {folder / version.limits[0]}"


# -- choose -----------------------------------------------------------------------------------------


def device(name: str, vendor: Vendor) -> Device:
    return Device(name=name, vendor=vendor, total_bytes=1, free_bytes=1)


RTX = device("RTX", Vendor.NVIDIA)
RADEON = device("Radeon", Vendor.AMD)
RYZEN = replace(device("Ryzen", Vendor.AMD), unified=True)
CARVE_OUT = replace(device("Carve-out", Vendor.AMD), integrated=True)  # with its own memory
ARC = device("Arc", Vendor.INTEL)
UHD = replace(device("UHD", Vendor.INTEL), unified=True)


@pytest.mark.parametrize(
    ("devices", "chosen"),
    [
        ((RADEON, RYZEN), [RADEON]),
        ((RADEON, CARVE_OUT), [RADEON]),
        ((RYZEN, ARC), [ARC]),  # of another vendor
        ((CARVE_OUT, ARC, UHD), [ARC]),
        ((RTX, UHD), [RTX]),
        ((RTX, RADEON, ARC), [RTX, RADEON, ARC]),
        ((CARVE_OUT,), [CARVE_OUT]),
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
    ("value", "chosen", "notes"),
    [
        ("0,1", [RTX, RADEON, ARC], 0),
        ("1", [RTX, ARC], 2),
        ("1,0", [RTX, ARC, RADEON], 0),
        ("", [RTX], 1),
        ("9", [RTX], 1),
    ],
)
def test_choose_by_vulkan_variable(value: str, chosen: list[Device], notes: int) -> None:
    """The NVIDIA card is used with CUDA, so it stays."""
    result = choose((RTX, RADEON, ARC), {"GGML_VK_VISIBLE_DEVICES": value})
    assert (list(result.devices), len(result.notes)) == (chosen, notes)


def test_choose_integrated_by_vulkan_variable() -> None:
    result = choose((RADEON, RYZEN), {"GGML_VK_VISIBLE_DEVICES": "1"})
    assert result.devices == (RYZEN,)


@pytest.mark.parametrize("name", ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_choose_notes_rocm_variables(name: str) -> None:
    result = choose((RADEON,), {name: ""})
    assert result.devices == (RADEON,)
    assert result.notes[0].startswith(f"{name}= applies to ROCm only")
    assert choose((ARC,), {name: ""}).notes == ()
