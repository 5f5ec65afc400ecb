"""A board whose GPU shares the processor's memory, told by its device tree. Synthetic."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.machine.trees import Answers, machine, recorded

from edgekit.machine.nvidia import find_nvidia
from edgekit.machine.surroundings import Findings
from edgekit.machine.types import HostMemory
from edgekit.units import GIB

HOST = HostMemory(total_bytes=61 * GIB, free_bytes=55 * GIB)
COMPATIBLE = "/proc/device-tree/compatible"


def test_an_orin(tmp_path: Path) -> None:
    (device,) = find_nvidia(machine(tmp_path, recorded("synthetic_orin"), host=HOST)).devices
    assert device.name == "NVIDIA Jetson AGX Orin Developer Kit"
    assert (device.unified, device.total_bytes, device.free_bytes) == (True, 61 * GIB, 55 * GIB)
    assert device.capability == (8, 7)
    assert device.bandwidth_bytes_per_s == 204_800_000_000


def test_in_a_container_the_chip_tells_its_family(tmp_path: Path) -> None:
    soc = "/sys/devices/soc0"
    files = {f"{soc}/family": "Tegra\n", f"{soc}/machine": "NVIDIA Orin NX Developer Kit\n"}
    (device,) = find_nvidia(machine(tmp_path, {"files": files}, host=HOST)).devices
    assert (device.name, device.capability) == ("NVIDIA Orin NX Developer Kit", None)


def test_a_driver_that_lacks_its_library_is_no_matter(tmp_path: Path) -> None:
    tree = recorded("synthetic_orin")
    tree["files"]["/dev/nvidiactl"] = ""
    said: Answers = {"nvmlInit": {"": {"error": 12}}}
    seen = find_nvidia(machine(tmp_path, tree, answers=said, host=HOST))
    assert (len(seen.devices), seen.notes) == (1, ())


def test_hidden_by_the_variable_of_cuda(tmp_path: Path) -> None:
    here = machine(
        tmp_path, recorded("synthetic_orin"), host=HOST, environment={"CUDA_VISIBLE_DEVICES": ""}
    )
    assert find_nvidia(here).devices == ()


@pytest.mark.parametrize(
    "compatible", ["raspberrypi,5-model-b\0brcm,bcm2712\0", "nvidia,tegra\0", "", "\0\0"]
)
def test_other_boards(tmp_path: Path, compatible: str) -> None:
    here = machine(tmp_path, {"files": {COMPATIBLE: compatible}}, host=HOST)
    assert find_nvidia(here) == Findings()


def test_a_board_whose_memory_could_not_be_read(tmp_path: Path) -> None:
    seen = find_nvidia(machine(tmp_path, recorded("synthetic_orin"), host=None))
    assert seen.devices == ()
    assert "shares the RAM, whose size could not be read" in seen.notes[0]
