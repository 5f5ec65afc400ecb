"""Machines described by --device, --ram and --vram."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import LONG

from edgekit.engines.llamacpp.placements import budgets_with as llamacpp_budgets
from edgekit.errors import UsageError
from edgekit.machine.devices import DeviceKind, all_devices, find_device
from edgekit.machine.types import System, Vendor
from edgekit.machine.what_if import machine_of, what_if_machine
from edgekit.units import GIB, MIB, Basis

RTX_4090 = 24_048 * MIB  # the driver reports 24,564
RTX_3090 = 24_121 * MIB  # the driver reports 24,576
RTX_3060 = 12_288 * MIB - 400 * MIB - 12_288 * MIB * 75 // 10_000  # modelled: no log


@pytest.mark.parametrize("cpu", ["x86_64", "aarch64"])
@pytest.mark.parametrize(
    ("description", "is_arm"),
    [
        ({"devices": ["2x RTX 3090"], "ram": "64G"}, False),
        ({"vram": "24G", "ram": "64G"}, False),
        ({"devices": ["Ryzen AI Max+ 395 128GB"]}, False),
        ({"devices": ["Snapdragon X Elite 32GB"]}, True),
        ({"devices": ["m3-max-64"]}, True),
        ({"devices": ["DGX Spark"]}, True),
        ({"devices": ["GH200 96GB"], "ram": "480G"}, True),
        ({"devices": ["GH200 96GB", "RTX 4090"]}, True),
        ({"ram": "64G"}, False),  # whatever this machine has
    ],
)
def test_processor_architecture_follows_the_devices(
    *, description: dict[str, Any], is_arm: bool, cpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: cpu)
    assert what_if_machine(**description).arm == is_arm


@pytest.mark.parametrize(
    ("texts", "name", "cards"),
    [
        (["RTX 4090"], "RTX 4090", [RTX_4090]),
        (["2x RTX 3090"], "2x RTX 3090", [RTX_3090] * 2),
        (["2 x RTX 3090"], "2x RTX 3090", [RTX_3090] * 2),
        (["2X rtx3090"], "2x RTX 3090", [RTX_3090] * 2),
        (["2\u00d73090"], "2x RTX 3090", [RTX_3090] * 2),
        (["RTX 4090,RTX 3090"], "RTX 4090 + RTX 3090", [RTX_4090, RTX_3090]),
        (["RTX 4090 + RTX 3060"], "RTX 4090 + RTX 3060", [RTX_4090, RTX_3060]),
        (["4090+2x3060"], "RTX 4090 + 2x RTX 3060", [RTX_4090, RTX_3060, RTX_3060]),
        (["RTX 4090", "RTX 3090"], "RTX 4090 + RTX 3090", [RTX_4090, RTX_3090]),
        (["4090", "2x 4090"], "3x RTX 4090", [RTX_4090] * 3),
    ],
)
def test_cards_by_name(texts: list[str], name: str, cards: list[int]) -> None:
    machine = what_if_machine(devices=texts)
    assert (machine.name, machine.what_if, machine.host) == (name, True, None)
    assert [card.total_bytes for card in machine.devices] == cards
    assert [card.free_bytes for card in machine.devices] == cards
    assert [card.index for card in machine.devices] == list(range(len(cards)))
    assert not any(card.unified for card in machine.devices)
    assert any("system RAM unknown" in note for note in machine.notes)


@pytest.mark.parametrize(
    ("text", "count"),
    [("7900 XTX", 1), ("7900XTX", 1), ("RX 7900 XTX", 1), ("7900 XTX x2", 2), ("7900 XTX x 2", 2)],
)
def test_name_that_looks_like_a_number_of_cards(text: str, count: int) -> None:
    cards = what_if_machine(devices=(text,)).devices
    assert [card.name for card in cards] == ["RX 7900 XTX"] * count


def test_card_from_the_table() -> None:
    card = what_if_machine(devices=["rtx 4090"], ram="64G").devices[0]
    assert (card.vendor, card.capability) == (Vendor.NVIDIA, (8, 9))
    assert card.bandwidth_bytes_per_s == 1008 * 10**9
    assert card.basis is Basis.MODELLED
    assert card.because == "RTX 4090: the driver reports 24,564 MiB and keeps 516 MiB for itself"


@pytest.mark.parametrize(
    ("description", "name", "ram", "cards"),
    [
        ({"ram": "32G", "vram": "24G,24G"}, "2x 24 GiB GPU + 32 GiB RAM", 32, [24, 24]),
        ({"ram": "32 GB", "vram": "2x24g"}, "2x 24 GiB GPU + 32 GiB RAM", 32, [24, 24]),
        ({"vram": "24GiB, 12 GiB"}, "24 GiB GPU + 12 GiB GPU", None, [24, 12]),
        ({"ram": "1.5G"}, "1.50 GiB RAM", 1.5, []),
        ({"ram": "64g", "devices": ["2x 3090"]}, "2x RTX 3090 + 64 GiB RAM", 64, None),
    ],
)
def test_ram_and_vram_sizes(
    description: dict[str, Any], name: str, ram: float | None, cards: list[int] | None
) -> None:
    machine = what_if_machine(**description)
    assert machine.name == name
    assert (machine.host and machine.host.total_bytes) == (ram and ram * GIB)
    assert (machine.host and machine.host.free_bytes) == (ram and ram * GIB)
    if cards is not None:
        assert [card.free_bytes for card in machine.devices] == [size * GIB for size in cards]
        assert all(card.vendor is Vendor.NVIDIA for card in machine.devices)
        assert all(card.basis is Basis.ASSUMED for card in machine.devices)
    assert any("otherwise idle" in note for note in machine.notes)


@pytest.mark.parametrize(
    ("text", "system", "total", "limit"),
    [
        ("m3-max-64", System.MACOS, 64 * GIB, 48 * GIB),  # three quarters
        ("m3-max-36", System.MACOS, 36 * GIB, 27 * GIB),
        # logged on macOS 26, the oldest that an M5 runs
        ("m5-max-128", System.MACOS, 128 * GIB, 115_448_725_504),
        ("m4-max-128", System.MACOS, 128 * GIB, 96 * GIB),  # may run macOS 15
        ("dgx spark", System.LINUX, 122_035 * MIB, None),
        ("jetson agx orin 64", System.LINUX, 62_827 * MIB, None),
        ("Ryzen AI Max+ 395 128GB", None, 127_936 * MIB, 63_968 * MIB),  # half, as the kernel logs
        ("Radeon 780M 32GB", None, 29_491 * MIB, 29_491 * MIB // 2),  # 900/1000 of 32 GiB
        ("Jetson Nano", System.LINUX, (4096 - 600) * MIB, None),
    ],
)
def test_unified_memory_of_devices(
    text: str, system: System | None, total: int, limit: int | None
) -> None:
    machine = what_if_machine(devices=[text])
    assert machine.host is not None
    (gpu,) = machine.devices
    assert machine.host.total_bytes == machine.host.free_bytes == gpu.total_bytes == total
    assert gpu.unified
    assert (gpu.limit_bytes, bool(gpu.limit_because)) == (limit, limit is not None)
    assert machine.host.bandwidth_bytes_per_s == gpu.bandwidth_bytes_per_s
    assert system in {None, machine.system}


@pytest.mark.parametrize(
    ("text", "platform", "share", "because"),
    [
        ("Strix Halo 128GB", "linux", (1, 2), "ttm.pages_limit"),
        ("Strix Halo 128GB", "win32", (1, 2), "Windows lets the GPU use half"),
        ("Arc 140V 16GB", "linux", (3, 4), "Mesa's Vulkan driver lets the GPU use 3/4"),
        ("Arc 140V 16GB", "win32", (1, 2), "Windows lets the GPU use half"),
    ],
)
def test_gpu_limit_by_system(
    text: str,
    platform: str,
    share: tuple[int, int],
    because: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    (gpu,) = what_if_machine(devices=[text]).devices
    assert gpu.limit_bytes == gpu.total_bytes * share[0] // share[1]
    assert because in gpu.limit_because


@pytest.mark.parametrize(
    ("text", "size", "app_mib"),
    [
        ("phone-8", 8, 4096),
        ("iPhone 14 Pro", 6, 4005),  # 4.20 GB
        ("iPhone 15 Pro", 8, 5722),  # 6 GB
        ("iPhone 17 Pro", 12, 8583),  # 9 GB
        ("Pixel 9 Pro", 16, 12_288),
        ("iPad Pro M4 16GB", 16, 11_444),  # 12 GB
    ],
)
def test_phone_memory_is_the_limit_of_one_app(text: str, size: int, app_mib: int) -> None:
    machine = what_if_machine(devices=[text])
    assert machine.host is not None
    assert (machine.devices, machine.system) == ((), System.OTHER)
    assert machine.host.total_bytes == size * GIB
    assert machine.host.usable_bytes == app_mib * MIB
    (budget,) = llamacpp_budgets(machine, ())
    assert budget.available_bytes == app_mib * MIB  # the system's share is already excluded
    assert any("one app" in note or "kills an app" in note for note in machine.notes)


def test_phone_limits_have_sources() -> None:
    phones = [device for device in all_devices() if device.kind is DeviceKind.PHONE]
    assert phones
    for device in phones:
        assert device.app_limit is not None
        assert device.app_limit.app_bytes == device.usable_bytes < device.memory_bytes
        assert device.app_limit.source
        assert (device.basis is Basis.ASSUMED) == device.app_limit.assumed


@pytest.mark.parametrize(
    ("text", "total", "system"),
    [
        ("Raspberry Pi 5 8GB", 7_577 * MIB, System.LINUX),  # 925/1000 of 8 GiB
        ("Snapdragon X Elite 32GB", 29_491 * MIB, None),  # 900/1000 of 32 GiB
    ],
)
def test_machine_without_modelled_gpu(text: str, total: int, system: System | None) -> None:
    machine = what_if_machine(devices=[text])
    assert machine.host is not None
    assert (machine.devices, machine.host.free_bytes) == ((), total)
    assert machine.host.bandwidth_bytes_per_s == find_device(text).bandwidth_bytes_per_s
    assert any("runs on the CPU" in note for note in machine.notes)
    assert system in {None, machine.system}


def test_ram_equal_to_the_unified_memory_is_accepted() -> None:
    assert what_if_machine(devices=["m3-max-64"], ram="64G").name == "M3 Max 64GB"
    assert what_if_machine(devices=["dgx spark"], ram="128 GB").name == "DGX Spark"


@pytest.mark.parametrize(
    ("description", "sentence"),
    [
        ({}, "describe a machine with --device, --ram, --vram or --cpu"),
        ({"ram": "0"}, "--ram: '0' is too small"),
        ({"ram": "24"}, "--ram: '24' is too small: needs a unit, such as 24G"),
        ({"ram": "-1"}, "--ram: must not be negative (got -1)"),
        ({"ram": "1e99"}, "--ram: '1e99' is not a size"),
        ({"ram": "abc"}, "--ram: 'abc' is not a size"),
        ({"ram": ""}, "--ram: '' is not a size"),
        ({"ram": "4000000T"}, "--ram: '4000000T' is too large"),
        ({"ram": "9" * 5000}, "is not a size"),
        ({"vram": ""}, "--vram is empty"),
        ({"vram": "24G,"}, "--vram is empty, or ends with a comma"),
        ({"vram": "24G,abc"}, "--vram: 'abc' is not a size"),
        ({"vram": "0,24G"}, "--vram: '0' is too small"),
        ({"vram": ",".join(["1G"] * 65)}, "65 GPUs; the limit is 64"),
        ({"vram": "1G," * 1000}, "is too long"),
        ({"devices": [""]}, "--device is empty"),
        ({"devices": ["4090,"]}, "--device is empty, or ends with a comma"),
        ({"devices": ["0x 4090"]}, "'0x 4090': the number of GPUs must be 1 to 64"),
        ({"devices": ["-1x 4090"]}, "'-1x 4090': the number of GPUs must be 1 to 64"),
        ({"devices": ["999999x 4090"]}, "the number of GPUs must be 1 to 64"),
        ({"devices": ["9" * 1900 + "x 4090"]}, "the number of GPUs must be 1 to 64"),
        ({"devices": ["64x 4090", "4090"]}, "65 GPUs; the limit is 64"),
        ({"devices": ["x" * 10_000]}, "is too long"),
        ({"devices": ["2x"]}, "unknown device '2x'"),
        ({"devices": ["2x A100"]}, "'A100' comes in several sizes: A100 40GB, A100 80GB"),
        ({"devices": ["2x m3-max-64"]}, "M3 Max 64GB is a complete machine"),
        ({"devices": ["4090, m3-max-64"]}, "M3 Max 64GB is a complete machine"),
        ({"devices": ["m3-max-64"], "ram": "32G"}, "--ram: M3 Max 64GB has 64 GiB of unified memory"),
        ({"devices": ["m3-max-64"], "vram": "8G"}, "--device and --vram both describe the GPUs"),
        ({"devices": ["4090"], "vram": "24G"}, "give one of them"),
    ],
)  # fmt: skip
def test_invalid_description_is_a_usage_error(description: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        what_if_machine(**description)
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 250


@settings(max_examples=100 if LONG else 40)
@given(st.lists(st.text(max_size=40), max_size=3), st.none() | st.text(), st.none() | st.text())
def test_any_description_is_a_machine_or_a_printable_error(
    devices: Sequence[str], ram: str | None, vram: str | None
) -> None:
    assert answer(devices, ram, vram).isprintable()


def answer(devices: Sequence[str], ram: str | None, vram: str | None) -> str:
    try:
        return what_if_machine(devices=devices, ram=ram, vram=vram).name
    except UsageError as error:
        return str(error)


@pytest.mark.parametrize(
    ("platform", "system"),
    [("linux", System.LINUX), ("win32", System.WINDOWS), ("freebsd14", System.OTHER)],
)
def test_system_defaults_to_this_one(
    platform: str, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert what_if_machine(devices=["4090"]).system is system
    assert what_if_machine(ram="16G").system is system
    assert what_if_machine(devices=["m4-16"]).system is System.MACOS


def test_system_with_cards_described_on_a_mac_is_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert what_if_machine(devices=["4090"]).system is System.LINUX
    assert what_if_machine(ram="16G").system is System.MACOS


def test_machine_of_every_device() -> None:
    for device in all_devices():
        machine = machine_of(device)
        usable_bytes = machine.host.usable_bytes if machine.host else machine.devices[0].free_bytes
        assert (machine.name, usable_bytes) == (device.name, device.usable_bytes)
        assert bool(machine.devices) == device.has_gpu
        assert device.has_gpu <= (device.kind is not DeviceKind.PHONE)
    assert machine_of(find_device("4090")).devices == what_if_machine(devices=["4090"]).devices


# -- processors and the speed of the RAM ---------------------------------------------------------


def test_processor_and_ram_describe_the_host() -> None:
    machine = what_if_machine(devices=["RTX 4090"], ram="2x16G DDR5-6000", cpu="ryzen 7700")
    assert machine.name == "RTX 4090 + Ryzen 7 7700 + 32 GiB RAM"
    assert (machine.processor, machine.cores, machine.arm) == ("Ryzen 7 7700", 8, False)
    assert {"avx2", "avx512_vnni"} <= machine.instructions
    assert machine.host is not None
    assert machine.host.total_bytes == 32 * GIB
    assert machine.host.bandwidth_bytes_per_s == 2 * 6000 * 8 * 10**6
    assert machine.host.bandwidth_because == "2 channels of DDR5-6000, --ram"
    assert machine.host.bandwidth_basis is Basis.MODELLED


def test_processor_with_a_plain_size_assumes_its_official_speed() -> None:
    machine = what_if_machine(ram="768G", cpu="EPYC 9654")
    assert machine.host is not None
    assert machine.host.bandwidth_bytes_per_s == 12 * 4800 * 8 * 10**6
    assert machine.host.bandwidth_basis is Basis.ASSUMED


def test_plain_size_alone_has_no_bandwidth() -> None:
    machine = what_if_machine(ram="32G")
    assert machine.host is not None
    assert machine.host.bandwidth_bytes_per_s is None
    assert (machine.processor, machine.cores, machine.instructions) == ("", None, frozenset())


def test_arm_processor_makes_an_arm_machine() -> None:
    assert what_if_machine(ram="128G", cpu="Altra Q80-30").arm
    assert what_if_machine(ram="8G", cpu="Raspberry Pi 5").arm


def test_processor_next_to_a_card_without_ram() -> None:
    machine = what_if_machine(devices=["RTX 4090"], cpu="i7-12700K")
    assert machine.host is None
    assert (machine.processor, machine.cores) == ("Core i7-12700K", 12)


def test_complete_machine_has_the_instructions_of_its_processor() -> None:
    machine = what_if_machine(devices=["Raspberry Pi 5 8GB"])
    assert (machine.cores, machine.instructions) == (4, frozenset({"neon", "dotprod"}))


def test_speed_of_the_ram_of_an_apu() -> None:
    machine = what_if_machine(devices=["Radeon 780M 32GB"], ram="32G DDR5-4800")
    assert machine.host is not None
    assert machine.host.bandwidth_bytes_per_s == 2 * 4800 * 8 * 10**6
    assert machine.devices[0].bandwidth_bytes_per_s is None  # its GPU reads the RAM


@pytest.mark.parametrize(
    ("description", "sentence"),
    [
        ({"cpu": "Ryzen 7 7700"}, '--cpu: the RAM is unknown: add --ram, such as --ram "32G DDR5-5200"'),
        ({"cpu": "Ryzen 7 7701", "ram": "32G"}, "unknown processor 'Ryzen 7 7701'"),
        ({"cpu": "Ryzen 7 7700", "ram": "32G DDR4-3200"}, "Ryzen 7 7700 takes DDR5, not DDR4"),
        ({"cpu": "", "ram": "32G"}, "unknown processor ''"),
        ({"cpu": "Ryzen 7 7700", "devices": ["m3-max-64"]}, "M3 Max 64GB is a complete machine"),
        ({"devices": ["m3-max-64"], "ram": "64G DDR5-6000"}, "the memory of M3 Max 64GB is soldered"),
        ({"ram": "2x100M DDR5-6000"}, "--ram: '2x100M DDR5-6000' is too small"),
        ({"ram": "64x4000000G DDR5-6000"}, "is too large"),
    ],
)  # fmt: skip
def test_invalid_processor_or_ram_is_a_usage_error(
    description: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        what_if_machine(**description)
    assert sentence in str(caught.value)
