"""Detection of NVIDIA GPUs, their visibility, and limits of the address space."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.machine.trees import HOST, Answers, machine, recorded

from edgekit.machine.host import ADDRESS_SPACE
from edgekit.machine.nvidia import find_nvidia, visible_devices, within_address_space
from edgekit.machine.surroundings import Findings, Nvml, NvmlError, Surroundings
from edgekit.machine.types import Device, HostMemory, MemoryLimit, Process, System, Vendor
from edgekit.units import GIB, MIB, Basis

# -- nvidia -----------------------------------------------------------------------------------------

DRIVER = {"files": {"/proc/driver/nvidia/version": "NVRM version: 580\n"}}
TWO = "synthetic_two_cards_nvml"


def answers(name: str) -> Answers:
    result: Answers = recorded(name)["answers"]
    return result


def find(root: Path, recording: Answers, **environment: str) -> Findings:
    return find_nvidia(machine(root, DRIVER, answers=recording, environment=environment))


@pytest.mark.parametrize(
    ("name", "free_bytes", "users"),
    [
        ("h200_nvml", 150_109_880_320, ()),
        (
            "h200_busy_nvml",
            140_967_542_784,
            (Process(pid=485, name="python3", used_bytes=9_133_096_960),),
        ),
    ],
)
def test_find_nvidia_recorded_h200(
    tmp_path: Path, name: str, free_bytes: int, users: tuple[Process, ...]
) -> None:
    """The driver reports 150,754,820,096 bytes and keeps 644,939,776 of them: CUDA has the rest."""
    recording = recorded(name)
    total_bytes = 150_754_820_096 - 644_939_776
    assert total_bytes == recording["about"]["cuda"][0]["cuDeviceTotalMem"]
    assert find(tmp_path, recording["answers"]) == Findings(
        devices=(
            Device(
                name="NVIDIA H200",
                vendor=Vendor.NVIDIA,
                index=0,
                total_bytes=total_bytes,
                free_bytes=free_bytes,
                bandwidth_bytes_per_s=4_800 * 10**9,
                capability=(9, 0),
                fp32_flops=669 * 10**11,
                fp16_flops=1340 * 10**11,
                matrix_flops=9890 * 10**11,
                users=users,
                basis=Basis.EXACT,
                because="NVML",
            ),
        )
    )


def test_recorded_free_memory_of_nvml_equals_cudas() -> None:
    """Both were recorded while one empty context existed."""
    for name in ("h200_nvml", "h200_busy_nvml"):
        (cuda,) = recorded(name)["about"]["cuda"]
        assert cuda["cuMemGetInfo_free"] == cuda["nvml_free_beside_the_context"]


def test_bandwidth_of_a_card_not_in_the_table(tmp_path: Path) -> None:
    """6,016 bit x 3,201 MHz x 2 = 4.81 TB/s: the H200's own numbers under another name."""
    recording = answers("h200_nvml")
    recording["nvmlDeviceGetName"]["gpu0"] = "NVIDIA H9999"
    (device,) = find(tmp_path, recording).devices
    assert device.bandwidth_bytes_per_s == 6016 // 8 * 3201 * 10**6 * 2 == 4_814_304_000_000


def test_arithmetic_speed_of_a_card_not_in_the_table(tmp_path: Path) -> None:
    """132 x 128 cores at 1,980 MHz: the H200's own numbers under another name."""
    recording = answers("h200_nvml")
    recording["nvmlDeviceGetName"]["gpu0"] = "NVIDIA H9999"
    recording["nvmlDeviceGetNumGpuCores"] = {"gpu0": 132 * 128}
    recording["nvmlDeviceGetMaxClockInfo"]["gpu0,1"] = 1980
    (device,) = find(tmp_path, recording).devices
    fp32_flops = 132 * 128 * 2 * 1980 * 10**6
    assert device.fp32_flops == fp32_flops == 66_908_160_000_000
    assert (device.fp16_flops, device.matrix_flops) == (2 * fp32_flops, 16 * fp32_flops)


@pytest.mark.parametrize("cores", [0, -1, 10**9, {"error": 3}, "many", None])
def test_arithmetic_speed_from_implausible_core_counts_is_unknown(
    tmp_path: Path, cores: object
) -> None:
    recording = answers("h200_nvml")
    recording["nvmlDeviceGetName"]["gpu0"] = "NVIDIA H9999"
    recording["nvmlDeviceGetNumGpuCores"] = {"gpu0": cores}
    recording["nvmlDeviceGetMaxClockInfo"]["gpu0,1"] = 1980
    (device,) = find(tmp_path, recording).devices
    assert (device.fp32_flops, device.matrix_flops) == (None, None)


def test_find_nvidia_two_cards(tmp_path: Path) -> None:
    """A program that both draws and computes on the 3090 is listed once; another one is unreadable."""
    first, second = find(tmp_path, answers(TWO), CUDA_DEVICE_ORDER="PCI_BUS_ID").devices
    assert (first.total_bytes, first.free_bytes) == (24 * GIB - 300 * MIB, 22 * GIB)
    assert (second.total_bytes, second.free_bytes) == (24 * GIB - 400 * MIB, 23 * GIB)
    assert (first.capability, second.capability) == ((8, 6), (8, 9))
    assert first.users == (
        Process(pid=1234, name="llama-server", used_bytes=1500 * MIB),
        Process(pid=77, name="", used_bytes=None),
    )


def test_different_cards_without_a_stated_order_are_a_note(tmp_path: Path) -> None:
    (note,) = find(tmp_path, answers(TWO)).notes
    assert "CUDA by speed" in note
    assert find(tmp_path, answers(TWO), CUDA_DEVICE_ORDER="PCI_BUS_ID").notes == ()
    alike = answers(TWO)
    alike["nvmlDeviceGetName"]["gpu1"] = alike["nvmlDeviceGetName"]["gpu0"]
    assert find(tmp_path, alike).notes == ()


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        ("0,1", [0, 1]),
        ("1,0", [1, 0]),
        (" 1 ", [1]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,-1,0", [1]),
        ("0,7,1", [0]),
        ("0,0,1", [0]),
        ("GPU-bbbb", [1]),
        ("gpu-bbbb", []),
        ("GPU-bbbbbbbb-0000-4000-8000-000000000002,0", [1, 0]),
        ("GPU-", []),
        ("GPU-ffff", []),
        ("\u0660", []),  # a digit, but not an ASCII one
    ],
)
def test_cuda_visible_devices_selects_and_orders_cards(
    tmp_path: Path, value: str, indices: list[int]
) -> None:
    findings = find(
        tmp_path, answers(TWO), CUDA_VISIBLE_DEVICES=value, CUDA_DEVICE_ORDER="PCI_BUS_ID"
    )
    assert [device.index for device in findings.devices] == indices
    assert len(findings.notes) == (len(indices) < 2)


def test_mig_card_is_replaced_by_its_first_slice(tmp_path: Path) -> None:
    """A program gets one slice, not the card: an eighth of the H100's 3,352 GB/s."""
    findings = find(tmp_path, answers("synthetic_mig_nvml"))
    (device,) = findings.devices
    assert (device.partition, device.total_bytes, device.free_bytes) == (
        "MIG 1g.10gb",
        10 * GIB,
        9 * GIB,
    )
    assert device.bandwidth_bytes_per_s == 3_352 * 10**9 // 8
    assert device.matrix_flops == 989e12 / 8
    assert "is split into 2 MIG slices" in findings.notes[0]
    assert "MIG-00000000" in findings.notes[0]


@pytest.mark.parametrize("value", ["MIG-22222222", "MIG-2"])
def test_mig_slice_is_chosen_by_uuid(tmp_path: Path, value: str) -> None:
    findings = find(tmp_path, answers("synthetic_mig_nvml"), CUDA_VISIBLE_DEVICES=value)
    assert [device.partition for device in findings.devices] == ["MIG 3g.40gb"]


def test_mig_card_without_slices_is_a_note(tmp_path: Path) -> None:
    recording = answers("synthetic_mig_nvml")
    recording["nvmlDeviceGetMaxMigDeviceCount"]["gpu0"] = 0
    findings = find(tmp_path, recording)
    assert findings.devices == ()
    assert "is in MIG mode but has no slice" in findings.notes[0]


def test_integrated_gpu_shares_the_ram(tmp_path: Path) -> None:
    (device,) = find(tmp_path, answers("synthetic_spark_nvml")).devices
    assert device.unified
    assert (device.total_bytes, device.free_bytes) == (HOST.total_bytes, HOST.usable_bytes)
    assert device.capability == (12, 1)
    assert device.bandwidth_bytes_per_s == 273 * 10**9
    assert device.matrix_flops == 119e12


def test_integrated_gpu_with_unreadable_ram_is_a_note(tmp_path: Path) -> None:
    surroundings = machine(tmp_path, DRIVER, answers=answers("synthetic_spark_nvml"), host=None)
    findings = find_nvidia(surroundings)
    assert findings.devices == ()
    assert "shares the RAM, whose size could not be read" in findings.notes[0]


@pytest.mark.parametrize("code", [3, 4, 15, 16, 18, 999, 4711])
def test_card_that_does_not_answer_is_a_note(tmp_path: Path, code: int) -> None:
    """Including "not supported" (3) from a card with its own memory: the host's is not used instead."""
    for function in ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo"):
        recording = answers(TWO)
        key = "0" if function.endswith("Index") else "gpu0"
        recording[function][key] = {"error": code}
        findings = find(tmp_path, recording)
        assert [device.index for device in findings.devices] == [1]
        assert findings.notes[0].startswith("NVIDIA GPU 0 does not answer and is not counted:")
        assert "Fix:" in findings.notes[0]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (4, "no permission"),
        (9, "the driver is not loaded"),
        (12, "docker run --gpus all"),
        (18, "reboot, or reload its kernel modules"),
        (999, "unknown error"),
    ],
)
def test_driver_that_does_not_answer_is_a_note(tmp_path: Path, code: int, words: str) -> None:
    findings = find(tmp_path, {"nvmlInit": {"": {"error": code}}})
    assert findings.devices == ()
    assert words in findings.notes[0]


@pytest.mark.parametrize("code", [9, 12])
@pytest.mark.parametrize("system", [System.WINDOWS, System.LINUX])
def test_missing_driver_on_windows_and_wsl_is_not_a_note(
    tmp_path: Path, code: int, system: System
) -> None:
    """Linux stands for WSL, where /dev/dxg exists for cards of any vendor."""
    tree = {"files": {"/dev/dxg": ""}}
    recording: Answers = {"nvmlInit": {"": {"error": code}}}
    assert find_nvidia(machine(tmp_path, tree, answers=recording, system=system)) == Findings()


@pytest.mark.parametrize("system", [System.LINUX, System.MACOS, System.OTHER])
def test_nvml_is_not_used_without_a_card(tmp_path: Path, system: System) -> None:
    def never() -> Nvml:
        raise AssertionError("NVML was used")

    surroundings = replace(machine(tmp_path, system=system), nvml=never)
    assert find_nvidia(surroundings) == Findings()


def test_card_without_driver_is_a_note(tmp_path: Path) -> None:
    slot = "/sys/bus/pci/devices/0000:01:00.0"
    sound = "/sys/bus/pci/devices/0000:01:00.1"
    files = {f"{slot}/vendor": "0x10de\n", f"{slot}/class": "0x030000\n"}
    findings = find_nvidia(machine(tmp_path, {"files": files}))
    assert "An NVIDIA GPU (0000:01:00.0) is in this machine, but not counted" in findings.notes[0]
    other = {f"{sound}/vendor": "0x10de\n", f"{sound}/class": "0x040300\n"}
    assert find_nvidia(machine(tmp_path / "sound", {"files": other})) == Findings()


@pytest.mark.parametrize(("count", "cards", "note_count"), [(0, 1, 1), (1, 1, 0), (1, 0, 0)])
def test_cards_without_permission_are_a_note(
    tmp_path: Path, count: int, cards: int, note_count: int
) -> None:
    """As seen on an H200 with /dev/nvidia0 unreadable: NVML counts no cards and returns no error."""
    tree = recorded("h200_tree")
    for card in range(cards):
        tree["files"][f"/proc/driver/nvidia/gpus/0000:00:0{card}.0/information"] = "Model: H200\n"
    recording = answers("h200_nvml")
    recording["nvmlDeviceGetCount"][""] = count
    findings = find_nvidia(machine(tmp_path, tree, answers=recording))
    assert (len(findings.devices), len(findings.notes)) == (count, note_count)
    assert all("you may not open them" in note for note in findings.notes)


def test_hanging_driver_is_a_note_after_the_deadline(tmp_path: Path) -> None:
    release = threading.Event()

    def hangs(function: str, *arguments: Any) -> Any:
        release.wait(30)

    surroundings = replace(machine(tmp_path, DRIVER), nvml=lambda: hangs, deadline_s=0.05)
    try:
        findings = find_nvidia(surroundings)
    finally:
        release.set()
    assert findings.devices == ()
    assert "did not answer within 0.05 s" in findings.notes[0]


@pytest.mark.parametrize("total", [0, -1, 2**64 - 1])
def test_card_with_an_impossible_memory_size_is_not_counted(tmp_path: Path, total: int) -> None:
    recording = answers(TWO)
    recording["nvmlDeviceGetMemoryInfo"]["gpu0"] = {"total": total, "free": 5, "used": 0}
    assert [device.index for device in find(tmp_path, recording).devices] == [1]


@pytest.mark.parametrize("system", [System.WINDOWS, System.LINUX])
@pytest.mark.parametrize(
    ("total", "free", "left"),
    [
        (12 * GIB, 12_091 * MIB, 11_067 * MIB),  # an RTX 3080, WSL2: CUDA had 10.84 GiB, 11,100 MiB
        (32_607 * MIB, 32_000 * MIB, 32_000 * MIB - 13 * GIB // 10),  # an RTX 5090: CUDA had 30.12
        (8 * GIB, 900 * MIB, 0),
    ],
)
def test_windows_and_wsl_use_part_of_the_free_memory(
    tmp_path: Path, system: System, total: int, free: int, left: int
) -> None:
    """There NVML's total is CUDA's, but less is free. Linux stands for WSL. The 32,000 MiB free are synthetic."""
    recording = answers("h200_nvml")
    recording["nvmlDeviceGetMemoryInfo"]["gpu0"] = {"total": total, "free": free, "used": 0}
    surroundings = machine(tmp_path, {"files": {"/dev/dxg": ""}}, answers=recording, system=system)
    findings = find_nvidia(surroundings)
    (device,) = findings.devices
    assert (device.total_bytes, device.free_bytes, device.basis) == (total, left, Basis.ASSUMED)
    assert "spills into RAM" in findings.notes[0]


def test_free_memory_is_at_most_the_total(tmp_path: Path) -> None:
    recording = answers(TWO)
    recording["nvmlDeviceGetMemoryInfo"]["gpu0"]["free"] = 99 * GIB
    assert find(tmp_path, recording).devices[0].free_bytes == 24 * GIB - 300 * MIB


def test_old_driver_without_memory_v2_has_the_total_of_v1(tmp_path: Path) -> None:
    recording = answers(TWO)
    recording["nvmlDeviceGetMemoryInfo_v2"]["gpu0"] = {"error": 13}
    first = find(tmp_path, recording).devices[0]
    assert (first.total_bytes, first.free_bytes) == (24 * GIB, 22 * GIB)


def test_nvml_functions_without_a_driver_are_errors() -> None:
    """Without a driver they fail with an error code, as in a recording."""
    nvml = Surroundings().nvml()
    for function in ("nvmlDeviceGetCount", "nvmlSystemGetDriverVersion"):
        with pytest.raises(NvmlError):
            nvml(function)
    with pytest.raises(NvmlError):
        nvml("nvmlDeviceGetMemoryInfo_v2", None)
    with pytest.raises(NvmlError) as caught:
        nvml("nvmlNoSuchFunction")
    assert caught.value.code == 13


def test_recorded_functions_exist_in_pynvml() -> None:
    import pynvml

    named = {*recorded("h200_nvml")["answers"], *answers(TWO), *answers("synthetic_mig_nvml")}
    assert [name for name in sorted(named) if not hasattr(pynvml, name)] == [
        "nvmlDeviceGetMemoryInfo_v2"  # in pynvml, an argument of nvmlDeviceGetMemoryInfo
    ]


# -- jetson -----------------------------------------------------------------------------------------

JETSON_HOST = HostMemory(total_bytes=61 * GIB, free_bytes=55 * GIB)
COMPATIBLE = "/proc/device-tree/compatible"


def test_jetson_orin(tmp_path: Path) -> None:
    (device,) = find_nvidia(machine(tmp_path, recorded("synthetic_orin"), host=JETSON_HOST)).devices
    assert device.name == "NVIDIA Jetson AGX Orin Developer Kit"
    assert (device.unified, device.total_bytes, device.free_bytes) == (True, 61 * GIB, 55 * GIB)
    assert device.capability == (8, 7)
    assert device.bandwidth_bytes_per_s == 204_800_000_000
    assert device.matrix_flops is not None


def test_jetson_in_a_container(tmp_path: Path) -> None:
    soc = "/sys/devices/soc0"
    files = {f"{soc}/family": "Tegra\n", f"{soc}/machine": "NVIDIA Orin NX Developer Kit\n"}
    (device,) = find_nvidia(machine(tmp_path, {"files": files}, host=JETSON_HOST)).devices
    assert (device.name, device.capability) == ("NVIDIA Orin NX Developer Kit", None)


def test_jetson_without_nvml_library(tmp_path: Path) -> None:
    tree = recorded("synthetic_orin")
    tree["files"]["/dev/nvidiactl"] = ""
    recording: Answers = {"nvmlInit": {"": {"error": 12}}}
    findings = find_nvidia(machine(tmp_path, tree, answers=recording, host=JETSON_HOST))
    assert (len(findings.devices), findings.notes) == (1, ())


def test_jetson_hidden_by_cuda_visible_devices(tmp_path: Path) -> None:
    surroundings = machine(
        tmp_path,
        recorded("synthetic_orin"),
        host=JETSON_HOST,
        environment={"CUDA_VISIBLE_DEVICES": ""},
    )
    assert find_nvidia(surroundings).devices == ()


@pytest.mark.parametrize(
    "compatible", ["raspberrypi,5-model-b\0brcm,bcm2712\0", "nvidia,tegra\0", "", "\0\0"]
)
def test_other_boards_are_not_jetsons(tmp_path: Path, compatible: str) -> None:
    surroundings = machine(tmp_path, {"files": {COMPATIBLE: compatible}}, host=JETSON_HOST)
    assert find_nvidia(surroundings) == Findings()


def test_jetson_with_unreadable_ram_is_a_note(tmp_path: Path) -> None:
    findings = find_nvidia(machine(tmp_path, recorded("synthetic_orin"), host=None))
    assert findings.devices == ()
    assert "shares the RAM, whose size could not be read" in findings.notes[0]


# -- visible_devices -------------------------------------------------------------------------------

CARDS = tuple(
    Device(
        name=f"card {index}",
        vendor=Vendor.NVIDIA,
        index=index,
        uuids=(f"GPU-{index}f",),
        total_bytes=1,
        free_bytes=1,
    )
    for index in range(12)
)


@given(st.text() | st.text(alphabet="0123456789,-GPU "))
def test_visible_devices_are_existing_devices_without_duplicates(value: str) -> None:
    shown = visible_devices("IT", value, CARDS).devices
    assert len({device.index for device in shown}) == len(shown)
    assert all(device in CARDS for device in shown)


@given(st.lists(st.integers(0, 11), unique=True))
def test_visible_devices_keep_the_given_order(indices: list[int]) -> None:
    shown = visible_devices("IT", ",".join(map(str, indices)), CARDS).devices
    assert [device.index for device in shown] == indices


def test_visible_devices_without_the_variable_are_all() -> None:
    assert visible_devices("IT", None, CARDS).devices == CARDS


# -- address space ----------------------------------------------------------------------------------


def card(*, unified: bool = False) -> Device:
    return Device(
        name="RTX 3090",
        vendor=Vendor.NVIDIA,
        total_bytes=24 * GIB,
        free_bytes=22 * GIB,
        because="NVML",
        unified=unified,
    )


def host(left: int, name: str = ADDRESS_SPACE) -> HostMemory:
    limit = MemoryLimit(name=name, limit_bytes=(left + 1) * GIB, used_bytes=GIB)
    return HostMemory(total_bytes=64 * GIB, free_bytes=60 * GIB, limits=(limit,))


@pytest.mark.parametrize(
    ("left", "cards", "free"),
    [
        (40, 1, [22]),  # 27 GiB would be left for it
        (35, 1, [22]),
        (33, 1, [20]),
        (14, 1, [1]),
        (13, 1, []),  # cuInit fails
        (5, 1, []),
        (43, 2, [15, 15]),
        (57, 2, [22, 22]),
    ],
)
def test_within_address_space_limits_the_free_memory(
    left: int, cards: int, free: list[int]
) -> None:
    findings = within_address_space((card(),) * cards, host(left))
    assert [device.free_bytes for device in findings.devices] == [size * GIB for size in free]
    assert len(findings.notes) == (free != [22] * cards)
    assert all("ulimit -v unlimited" in note for note in findings.notes)


def test_within_address_space_reason() -> None:
    (device,) = within_address_space((card(),), host(33)).devices
    assert (device.basis, device.because) == (
        Basis.MODELLED,
        "NVML, within RLIMIT_AS (ulimit -v)",
    )


def test_within_address_space_unified() -> None:
    """With unified memory, the limit applies to the GPU's share of it."""
    (device,) = within_address_space((card(unified=True),), host(33)).devices
    assert (device.limit_bytes, device.limit_because) == (20 * GIB, ADDRESS_SPACE)


@pytest.mark.parametrize(
    "ram",
    [
        None,
        HostMemory(total_bytes=GIB, free_bytes=GIB),
        host(1, "RLIMIT_DATA (ulimit -d; mapped files do not count)"),
        host(1, "cgroup v2 /sys/fs/cgroup/box/memory.max"),
    ],
)
def test_within_address_space_without_limit(ram: HostMemory | None) -> None:
    assert within_address_space((card(),), ram) == Findings(devices=(card(),))


def test_within_address_space_without_cards() -> None:
    assert within_address_space((), host(1)) == Findings()
