"""The table of devices: its rows, the names people and drivers use, and bounds on the memory."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recorded import TRUTH
from tests.thoroughness import LONG, sampled

from edgekit.errors import UsageError
from edgekit.machine import devices
from edgekit.machine.devices import (
    DeviceKind,
    KnownDevice,
    all_devices,
    device_like,
    find_device,
    usual_devices,
    words_of,
)
from edgekit.machine.types import Vendor
from edgekit.units import GIB, MIB, Basis

ROOT = Path(__file__).parents[3]
GB_S = 10**9
TFLOPS = 10**12


def rows_of(kind: DeviceKind) -> Sequence[KnownDevice]:
    """The devices of a kind, or a sample of them if there are many."""
    rows = [device for device in all_devices() if device.kind is kind]
    return sampled(rows, each=5) if len(rows) > 50 else rows


@pytest.mark.parametrize("kind", DeviceKind)
def test_device_rows_are_consistent(kind: DeviceKind) -> None:
    assert rows_of(kind)
    for device in rows_of(kind):
        check_row(device)


def check_row(device: KnownDevice) -> None:
    assert 0 < device.usable_bytes <= device.memory_bytes
    assert device.memory_bytes <= device.size_gb * GIB * 1.003  # "277" is 277.55
    assert device.memory_bytes >= min(device.size_gb * 0.89 * GIB, device.size_gb * GIB - 600 * MIB)
    assert device.source
    assert device.unified == (device.kind is not DeviceKind.GPU)
    assumed = device.app_limit is not None and device.app_limit.assumed
    known = Basis.EXACT if device.kind is DeviceKind.MAC else Basis.MODELLED
    assert device.basis is (Basis.ASSUMED if assumed else known)
    if device.bandwidth_bytes_per_s is not None:
        assert 17 * GB_S <= device.bandwidth_bytes_per_s <= 8000 * GB_S
    assert find_device(device.name) is find_device(device.id) == device
    assert (device.vendor is Vendor.APPLE) >= (device.kind is DeviceKind.MAC)


def test_device_names_and_ids_are_unique() -> None:
    names = [words_of(device.name) for device in all_devices()]
    assert len(set(names)) == len(names) > 400
    assert len({device.id for device in all_devices()}) == len(names)


@pytest.mark.parametrize("kind", DeviceKind)
def test_device_like_finds_every_alias(kind: DeviceKind) -> None:
    for device in rows_of(kind):
        for name in (device.model, *device.also):
            result = device_like(f"{name} {device.size_gb}GB", memory_bytes=device.memory_bytes)
            assert result is not None, (name, device.id)
            assert result.memory_bytes == device.memory_bytes, (name, device.id)


# The smallest total that CUDA was seen to report, in GiB rounded to two decimals: 0.005 may be missing.
LEAST_LOGGED = {
    "RTX 3080": 9.78, "Tesla K80": 11.17, "RTX 4080": 15.57, "RTX 4090": 23.64, "RTX 5090": 31.34, "H100": 79.10,
    "Quadro RTX 8000": 47.46, "RTX 4070 Laptop": 7.62, "GH200 144GB": 142.50, "DGX Spark": 119.18,
}  # fmt: skip


@pytest.mark.parametrize(("name", "gib"), LEAST_LOGGED.items())
def test_usable_memory_is_never_more_than_a_logged_total(name: str, gib: float) -> None:
    assert find_device(name).usable_bytes <= (gib - 0.005) * GIB


@pytest.mark.parametrize(
    ("name", "memory", "usable"),
    [  # less 400 MiB and 0.75 %
        ("RTX 4080", 16_376, 15_853),
        ("TITAN RTX", 24_576, 23_991),
        ("Tesla P4", 7_680, 7_222),
        ("Tesla M60", 7_680, 7_222),
        ("Tesla M40 24GB", 23_040, 22_467),
        ("RTX 4090 48GB", 49_140, 48_371),
        ("RTX 2080 Ti 22GB", 22_528, 21_959),
    ],
)
def test_usable_memory_without_a_log_is_modelled(name: str, memory: int, usable: int) -> None:
    device = find_device(name)
    assert (device.memory_bytes // MIB, device.usable_bytes // MIB) == (memory, usable)


# The size on the box less 600 MiB or 7.5 %, whichever is more: a lower bound of what Linux reports.
@pytest.mark.parametrize(
    ("name", "mib"),
    [("Jetson Nano", 3_496), ("Jetson Orin Nano 4GB", 3_496), ("Jetson Orin NX 8GB", 7_577),
     ("Jetson Orin NX 16GB", 15_155), ("Raspberry Pi 5 4GB", 3_496), ("Raspberry Pi 5 16GB", 15_155)],
)  # fmt: skip
def test_memory_of_small_boards(name: str, mib: int) -> None:
    assert find_device(name).memory_bytes == mib * MIB


# nvidia-smi's total and the smallest total that CUDA was seen to report, MiB
LOGGED = {
    "GTX 1650": (4_096, 3_712), "GTX 1660 Ti": (6_144, 5_747), "T4": (15_360, 14_904),
    "RTX 5060 Ti 16GB": (16_311, 15_825), "L4": (23_034, 22_553), "A10G": (23_028, 22_471),
    "RTX 3090": (24_576, 24_121), "RTX 4090": (24_564, 24_048), "RTX 5090": (32_607, 32_087),
    "A100 40GB": (40_960, 40_320), "L40S": (46_068, 45_399), "RTX A6000": (49_140, 48_399),
    "A100 80GB": (81_920, 81_034), "H100": (81_559, 80_993), "RTX PRO 6000": (97_887, 97_244),
    "GH200 96GB": (97_871, 96_762), "H200": (143_771, 143_068), "B200": (183_359, 182_625),
    "B300": (275_040, 274_109), "Tesla K80": (11_441, 11_432),
    "MI300X": (196_290, 196_290),
}  # fmt: skip


@pytest.mark.parametrize(("name", "logged"), LOGGED.items())
def test_memory_of_cards_is_what_drivers_logged(name: str, logged: tuple[int, int]) -> None:
    device = find_device(name)
    assert (device.memory_bytes // MIB, device.usable_bytes // MIB) == logged


def test_modelled_memory_is_never_more_than_the_recorded_one() -> None:
    cards = [
        device
        for device in all_devices()
        if device.kind is DeviceKind.GPU and device.vendor is Vendor.NVIDIA
    ]
    pairs = [
        (devices._usable_bytes(card.kind, card.vendor, card.memory_bytes), card) for card in cards
    ]
    assert all(modelled <= card.usable_bytes for modelled, card in pairs)
    assert sum(modelled < card.usable_bytes for modelled, card in pairs) >= 29
    for card in cards:
        if card.name.startswith(("RTX", "GTX")) and "ECC on" not in card.source:
            assert (
                devices._reported_bytes(card.kind, card.vendor, card.size_gb) <= card.memory_bytes
            )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("\uff14\uff10\uff19\uff10", "RTX 4090"),  # full-width digits
        ("RTX 4090 24GB", "RTX 4090"),
        ("rtx_4090", "RTX 4090"),
        ("4090 laptop", "RTX 4090 Laptop"),
        ("RTX 4090 mobile", "RTX 4090 Laptop"),
        ("gtx 1080ti", "GTX 1080 Ti"),
        ("RTX 3060", "RTX 3060"),
        ("3060 8g", "RTX 3060 8GB"),
        ("4060 Ti 16 GiB", "RTX 4060 Ti 16GB"),
        ("h100", "H100"),
        ("H100 80GB", "H100"),
        ("A100-80GB", "A100 80GB"),
        ("40GB A100", "A100 40GB"),
        ("a10g", "A10G"),
        ("a10", "A10"),
        ("L40", "L40"),
        ("GB200", "GB200"),
        ("mi300x", "MI300X"),
        ("7900xtx", "RX 7900 XTX"),
        ("Radeon RX 7900 XTX", "RX 7900 XTX"),
        ("arc b580", "Arc B580"),
        ("m3-max-64", "M3 Max 64GB"),
        ("M3 Max 64GB", "M3 Max 64GB"),
        ("Apple M3 Max 64 GB", "M3 Max 64GB"),
        ("m3max64gb", "M3 Max 64GB"),
        ("MacBook Pro M3 Max 36GB", "M3 Max 36GB"),
        ("Mac Studio M3 Ultra 512GB", "M3 Ultra 512GB"),
        ("iphone 16 pro", "iPhone 16 Pro"),
        ("Google Pixel 9 Pro", "Pixel 9 Pro"),
        ("phone-8", "phone-8"),
        ("phone 8 GB", "phone-8"),
        ("dgx spark", "DGX Spark"),
        ("gb10", "DGX Spark"),
        ("orin nano super", "Jetson Orin Nano Super"),
        ("agx orin 64", "Jetson AGX Orin 64GB"),
        ("strix halo 128", "Ryzen AI Max+ 395 128GB"),
        ("Ryzen AI Max+ 395 64GB", "Ryzen AI Max+ 395 64GB"),
        ("Ryzen AI Max 385 32GB", "Ryzen AI Max 385 32GB"),
        ("RTX 4090 48GB", "RTX 4090 48GB"),
        ("2080ti 22g", "RTX 2080 Ti 22GB"),
        ("2080 Ti", "RTX 2080 Ti"),
        ("W6800", "PRO W6800"),
        ("Radeon Pro V620", "PRO V620"),
        ("V620", "PRO V620"),
        ("W6600", "PRO W6600"),
        ("GTX 1650 Mobile", "GTX 1650"),
        ("GTX 1650 Ti", "GTX 1650 Ti"),
        ("GTX 1650 Ti Mobile", "GTX 1650 Ti"),
        ("RTX 2070 laptop", "RTX 2070"),
        ("k80", "Tesla K80"),
        ("H20-3e", "H20 141GB"),
        ("mi300a", "MI300A"),
        ("RTX A1000", "RTX A1000"),
        ("780m 32", "Radeon 780M 32GB"),
        ("Radeon 890M 64GB", "Radeon 890M 64GB"),
        ("Ryzen 7 8840U 16GB", "Radeon 780M 16GB"),
        ("Intel Arc 140V 32GB", "Arc 140V 32GB"),
        ("lunar lake 16", "Arc 140V 16GB"),
        ("Snapdragon X Elite 16GB", "Snapdragon X Elite 16GB"),
        ("raspberry pi 5 8gb", "Raspberry Pi 5 8GB"),
        ("Jetson Nano", "Jetson Nano"),
        ("iPad Pro M4 8GB", "iPad Pro M4 8GB"),
        ("iphone 16e", "iPhone 16e"),
        ("Samsung Galaxy S24", "Galaxy S24"),
    ],
)
def test_find_device(text: str, name: str) -> None:
    assert find_device(text).name == name


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("A100", "'A100' comes in several sizes: A100 40GB, A100 80GB"),
        ("4060 ti", "RTX 4060 Ti 8GB, RTX 4060 Ti 16GB"),
        ("Apple M3 Max", "M3 Max 36GB, M3 Max 48GB, M3 Max 64GB, M3 Max 96GB, M3 Max 128GB"),
        ("phone", "phone-4, phone-6, phone-8, phone-12, phone-16"),
        ("RTX 6000", "did you mean RTX PRO 6000, RTX 6000 Ada, RTX A6000"),
        ("iphone 99", "did you mean iPhone"),
        ("RTX 4090 40GB", "did you mean RTX 4090"),
        ("RX 580", "RX 580 4GB, RX 580 8GB"),
        ("Radeon RX 480", "RX 480 4GB, RX 480 8GB"),
        ("rx 570", "RX 570 4GB, RX 570 8GB"),
        ("5500 xt", "RX 5500 XT 4GB, RX 5500 XT 8GB"),
        ("RX 6500 XT", "RX 6500 XT 4GB, RX 6500 XT 8GB"),
        ("Radeon Pro 5500M", "Radeon Pro 5500M 4GB, Radeon Pro 5500M 8GB"),
        ("GTX 1060", "GTX 1060 3GB, GTX 1060 5GB, GTX 1060 6GB"),
        ("RTX 3050 Laptop", "RTX 3050 Laptop 4GB, RTX 3050 Laptop 6GB"),
        ("RTX A2000 mobile", "RTX A2000 Laptop 4GB, RTX A2000 Laptop 8GB"),
        ("T1000", "T1000 4GB, T1000 8GB"),
        ("P100", "P100 12GB, P100 16GB"),
        ("M40", "Tesla M40 12GB, Tesla M40 24GB"),
        ("GH200", "GH200 96GB, GH200 144GB"),
        ("H20", "H20 96GB, H20 141GB"),
        ("raspberry pi 5", "Raspberry Pi 5 4GB, Raspberry Pi 5 8GB, Raspberry Pi 5 16GB"),
        ("GTX 780M", "unknown device"),
        ("RTX 3060 Ti laptop", "unknown device"),  # does not exist
        ("rtx 4900", "RTX 4090"),
        ("Voodoo 2", "unknown device 'Voodoo 2'; for example RTX 4090, H100"),
        ("nvidia", "for example"),
        ("", "unknown device ''; for example"),
        ("\x00\x1b[31m", r"unknown device '\x00\x1b[31m'; for example"),
        ("x" * 10_000, f"unknown device '{'x' * 40}'; for example"),
    ],
)
def test_find_device_of_unknown_or_ambiguous_names(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_device(text)
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 250


@settings(max_examples=100 if LONG else 40)
@given(st.text() | st.text(alphabet="rtxm34 09-gbGB+\x00"))
def test_find_device_of_any_text_is_a_device_or_a_printable_error(text: str) -> None:
    device_like(text)
    assert answer(text).isprintable()


def answer(text: str) -> str:
    try:
        return find_device(text).name
    except UsageError as error:
        return str(error)


@pytest.mark.parametrize(
    ("reported", "mib", "name", "gb_s"),
    [
        ("NVIDIA H200", 143_771, "H200", 4800),
        ("NVIDIA H100 80GB HBM3", None, "H100", 3352),
        ("NVIDIA H100 PCIe", None, "H100 PCIe", 2039),
        ("NVIDIA A100-SXM4-40GB", None, "A100 40GB", 1555),
        ("NVIDIA A100 80GB PCIe", None, "A100 80GB PCIe", 1935),
        ("NVIDIA GeForce RTX 3090", None, "RTX 3090", 936.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, "RTX 4090 Laptop", 576),
        ("NVIDIA GeForce RTX 2080 with Max-Q Design", None, "RTX 2080 Max-Q", 384),
        ("NVIDIA GeForce RTX 3080", 10_240, "RTX 3080", 760.3),
        ("NVIDIA GeForce RTX 3080", 12_288, "RTX 3080 12GB", 912.4),
        ("NVIDIA GeForce RTX 3080", None, "RTX 3080", None),  # two chips of that name
        ("NVIDIA GeForce RTX 4060 Ti", None, "RTX 4060 Ti 8GB", 288),  # one chip, two sizes
        ("NVIDIA GeForce RTX 4090", 49_140, "RTX 4090 48GB", 1008),  # more memory soldered on
        ("NVIDIA GeForce RTX 4090", 24_564, "RTX 4090", 1008),
        ("NVIDIA GeForce RTX 4090", None, "RTX 4090", 1008),
        ("NVIDIA A10", 24_564, "A10", 600.2),  # ECC off
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None, "RTX PRO 6000 Server", 1597),
        ("NVIDIA GH200 480GB", 97_871, "GH200 96GB", 4000),
        ("NVIDIA GH200 480GB", None, "GH200 96GB", 4000),
        ("NVIDIA GH200 144G HBM3e", None, "GH200 144GB", 4900),
        ("NVIDIA H20", 97_871, "H20 96GB", 4000),
        ("NVIDIA H20", 143_771, "H20 141GB", 4800),
        ("NVIDIA GB10", None, "DGX Spark", 273),
        ("NVIDIA Jetson AGX Orin Developer Kit", 62_827, "Jetson AGX Orin 64GB", 204.8),
        ("Tesla T4", None, "T4", 320),
        ("Tesla V100-SXM2-16GB", None, "V100 16GB", 897),
        ("AMD Instinct MI300X", None, "MI300X", 5300),
        ("AMD Radeon RX 7900 XTX", None, "RX 7900 XTX", 960),
        ("Intel(R) Arc(TM) B580 Graphics", None, "Arc B580", 456),
        ("Apple M4", None, "M4 16GB", 120),
        ("Apple M3 Max", None, "M3 Max 36GB", None),
        ("Apple M3 Max", 36 * 1024, "M3 Max 36GB", 300),
        ("Apple M3 Max", 64 * 1024, "M3 Max 64GB", 400),
    ],
)
def test_device_like_of_driver_names(
    reported: str, mib: int | None, name: str, gb_s: float | None
) -> None:
    device = device_like(reported, memory_bytes=None if mib is None else mib * MIB)
    assert device is not None
    assert device.name == name
    assert device.bandwidth_bytes_per_s == (None if gb_s is None else round(gb_s * GB_S))


@pytest.mark.parametrize(
    "reported",
    ["", "GPU", "Orin", "NVIDIA Graphics Device", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "llvmpipe",
     "Apple M9 Max", "RTX 6000", "NVIDIA GeForce GTX 780M", "\udcff" * 5000],
)  # fmt: skip
def test_device_like_does_not_guess(reported: str) -> None:
    assert device_like(reported) is None


# From developer.nvidia.com/cuda-gpus
@pytest.mark.parametrize(
    ("capability", "names"),
    [
        ((7, 0), "V100 16GB, V100 32GB"),
        ((7, 5), "T4, RTX 2080 Ti, GTX 1660 SUPER, Quadro RTX 4000"),
        ((8, 0), "A100 40GB, A100 80GB, A30"),
        ((8, 6), "A10, A10G, A40, RTX A6000, RTX 3060, RTX 3080, RTX 3090"),
        ((8, 7), "Orin NX 16"),
        ((8, 9), "L4, L40, L40S, RTX 6000 Ada, RTX 4060 Ti 16GB, RTX 4070, RTX 4080, RTX 4090"),
        ((9, 0), "H100 80GB, H100 NVL, H20 96GB, H20 141GB, GH200 96GB, GH200 144GB, H200"),
        ((10, 0), "B200, GB200"),
        ((10, 3), "B300"),
        ((11, 0), "Jetson Thor"),
        ((12, 0), "RTX 5070 Ti, RTX 5080, RTX 5090, RTX PRO 6000"),
        ((12, 1), "DGX Spark"),
    ],
)
def test_compute_capability_of_devices(capability: tuple[int, int], names: str) -> None:
    for name in names.split(", "):
        assert find_device(name).capability == capability


def test_every_nvidia_device_since_turing_has_a_compute_capability() -> None:
    for device in all_devices():
        modern = device.vendor is Vendor.NVIDIA and device.released >= "2018-09"
        before = device.name.startswith(("Quadro P", "GTX 10", "Jetson Nano"))
        assert (device.capability is not None) >= (modern and not before), device.name
        assert (device.capability is not None) <= (device.vendor is Vendor.NVIDIA)


@pytest.mark.parametrize(
    ("name", "gb_s"),
    [("m1-8", 68.25), ("m3-pro-36", 150), ("m3-max-36", 300), ("m3-max-96", 300), ("m3-max-48", 400), ("m3-max-128", 400),
     ("m3-ultra-96", 819), ("m4-16", 120), ("m4-pro-24", 273), ("m4-max-36", 410), ("m4-max-128", 546), ("mi300x", 5300),
     ("mi325x", 6000), ("4090", 1008), ("5090", 1792), ("iphone 16 pro", 60), ("Jetson AGX Orin 32GB", 204.8),
     ("Arc Pro B70", 608), ("RX 580 4GB", 224), ("RX 580 8GB", 256), ("Raspberry Pi 5 4GB", 17), ("MI300A", 5300)],
)  # fmt: skip
def test_bandwidth_of_devices(name: str, gb_s: float) -> None:
    assert find_device(name).bandwidth_bytes_per_s == round(gb_s * GB_S)


# Data sheets, white papers and Apple's core counts: (FP32, FP16 vector, FP16 matrix) in TFLOPS.
@pytest.mark.parametrize(
    ("name", "fp32", "fp16", "matrix"),
    [("RTX 3090", 35.6, 35.6, 71), ("RTX 4090", 82.6, 82.6, 165), ("RTX 5090", 104.8, 104.8, 209.5),
     ("RTX 3080", 29.8, 29.8, 59.5), ("RTX A6000", 38.7, 38.7, 154.8), ("L40S", 91.6, 91.6, 362), ("L40", 90.5, 90.5, 181),
     ("L4", 30.3, 30.3, 121), ("A10G", 35, 35, 70), ("T4", 8.1, 16.2, 65), ("V100 32GB", 14, 28, 112),
     ("A100 80GB", 19.5, 78, 312), ("H100", 67, 134, 989), ("RTX PRO 6000", 126, 126, 503.8), ("P100 16GB", 9.3, 18.7, None),
     ("P40", 11.8, 11.8 / 64, None), ("GTX 1660 Ti", 5.4, 10.9, None), ("RX 7900 XTX", 61.4, 122.8, 122.8),
     ("RX 9070 XT", 48.7, 97.3, 195), ("RX 6800 XT", 20.7, 41.5, None), ("RX 580 8GB", 6.2, 6.2, None),
     ("MI50 32GB", 13.3, 26.5, None), ("MI100", 23.1, 46.1, 184.6), ("MI250X", 23.9, 47.9, 191.5),
     ("MI300X", 163.4, 163.4, 1307.4), ("MI355X", 157.3, 157.3, 2516.6), ("Arc A770", 17.2, 34.4, 137.6),
     ("Arc B580", 14.6, 29.2, 116.7), ("M1 Max 64GB", 7.96, 7.96, None), ("M3 Max 128GB", 14.1, 14.1, None),
     ("Jetson AGX Orin 64GB", 5.3, 10.6, 42.6), ("DGX Spark", 29.7, 29.7, 119), ("Ryzen AI Max+ 395 128GB", 29.7, 59.4, 59.4)],
)  # fmt: skip
def test_arithmetic_speed_of_devices(
    name: str, fp32: float, fp16: float, matrix: float | None
) -> None:
    device = find_device(name)
    assert device.fp32_flops == pytest.approx(fp32 * TFLOPS, rel=0.02)
    assert device.fp16_flops == pytest.approx(fp16 * TFLOPS, rel=0.02)
    assert device.matrix_flops == (matrix and pytest.approx(matrix * TFLOPS, rel=0.02))


def test_arithmetic_speeds_are_plausible() -> None:
    for device in all_devices():
        if device.fp32_flops is None or device.fp16_flops is None:
            assert (device.fp32_flops, device.fp16_flops, device.matrix_flops) == (None, None, None)
            continue
        assert 0.2 * TFLOPS < device.fp32_flops < 200 * TFLOPS, device.name
        assert 1 / 64 <= device.fp16_flops / device.fp32_flops * 1.01 <= 4.1, device.name
        assert device.bandwidth_bytes_per_s is not None, device.name
        # Operations per byte of memory bandwidth.
        assert 5 <= device.fp32_flops / device.bandwidth_bytes_per_s <= 120, device.name
        if device.matrix_flops is not None:
            assert device.matrix_flops >= 1.9 * device.fp32_flops, device.name
            assert 30 <= device.matrix_flops / device.bandwidth_bytes_per_s <= 1000, device.name


def test_every_usual_device_with_a_gpu_has_an_arithmetic_speed() -> None:
    for device in all_devices():
        if device.has_gpu and (device.usual or device.kind in {DeviceKind.GPU, DeviceKind.BOARD}):
            assert device.fp32_flops is not None or device.name == "MI308X", device.name


def test_nvidia_devices_have_matrix_units_by_capability() -> None:
    without = ("GTX 16", "T4 ", "T400", "T500", "T600", "T1000", "Quadro T")
    for device in all_devices():
        if device.vendor is Vendor.NVIDIA:
            expected = device.capability is not None and not device.name.startswith(without)
            assert (device.matrix_flops is not None) == expected, device.name


def test_amd_and_intel_gpus_have_an_architecture() -> None:
    for device in all_devices():
        is_amd_or_intel = device.vendor in {Vendor.AMD, Vendor.INTEL}
        assert bool(device.architecture) == is_amd_or_intel, device.name
    assert find_device("RX 7900 XTX").architecture == "rdna3"
    assert find_device("MI300X").architecture == "cdna3"
    assert find_device("Arc B580").architecture == "battlemage"


def test_device_like_has_an_arithmetic_speed_only_if_all_sizes_share_it() -> None:
    for name, memory_bytes, tflops in (
        ("M3 Max", None, None),
        ("M3 Max", 36 * GIB, 10.6),
        ("RTX 4060 Ti", None, 22.1),
    ):
        device = device_like(name, memory_bytes=memory_bytes)
        assert device is not None
        assert device.fp32_flops == (tflops and tflops * TFLOPS)


def test_usual_devices_are_a_few_dozen_sorted_by_memory() -> None:
    usual = usual_devices()
    assert 40 <= len(usual) <= 90
    assert [device.usable_bytes for device in usual] == sorted(
        device.usable_bytes for device in usual
    )
    assert {device.kind for device in usual} == set(DeviceKind)
    assert {device.vendor for device in usual} == set(Vendor)


def test_usual_devices_exclude_rebuilt_and_multi_gpu_boards() -> None:
    words = ("rebuilt", "one of its", "one of the board", "four of them")
    unusual = [device for device in all_devices() if any(word in device.source for word in words)]
    unusual_names = {device.name for device in unusual}
    assert unusual_names >= {
        "RTX 4090 48GB",
        "RTX 2080 Ti 22GB",
        "Tesla K80",
        "Tesla M60",
        "A16",
        "MI250",
    }
    assert not any(device.usual for device in unusual)


def test_importing_devices_does_not_read_the_table() -> None:
    code = "import edgekit.machine.devices as d; print(d.all_devices.cache_info().currsize)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert result.stdout.strip() == b"0"


def test_collected_tsv_equals_the_output_of_the_tool() -> None:
    collection = TRUTH / "devices.json"
    if not collection.exists():
        pytest.skip("the collection of devices is not part of the project; set EDGEKIT_TRUTH")
    spec = importlib.util.spec_from_file_location("device_table", ROOT / "tools/device_table.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    expected = tool.collected(json.loads(collection.read_text(encoding="utf-8")))
    assert (tool.DATA / "collected.tsv").read_text(encoding="utf-8") == expected


@pytest.mark.parametrize(
    ("text", "kind", "size_gb"),
    [
        ("Mac mini 16GB", DeviceKind.MAC, 16),
        ("MacBook Air 24 GB", DeviceKind.MAC, 24),
        ("Mac", DeviceKind.MAC, None),
        ("phone 32GB", DeviceKind.PHONE, None),
        ("ryzen 64GB", DeviceKind.APU, None),
        ("24GB card", DeviceKind.GPU, 24),
    ],
)
def test_suggestions_match_the_kind_and_memory_in_the_text(
    text: str, kind: DeviceKind, size_gb: int | None
) -> None:
    with pytest.raises(UsageError) as caught:
        find_device(text)
    names = str(caught.value).partition("did you mean ")[2].rstrip("?").split(", ")
    suggested = [find_device(name) for name in names]
    assert {device.kind for device in suggested} == {kind}
    assert size_gb is None or {device.size_gb for device in suggested} == {size_gb}
