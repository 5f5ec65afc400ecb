"""The arithmetic speed of generations of GPUs, compared with the table of devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.machine.devices import DeviceKind, all_devices
from edgekit.machine.gpu_rates import (
    OTHER_RATES,
    RATES,
    amd_architecture,
    nvidia_generation,
    speed_of,
)
from edgekit.machine.types import Vendor


def test_speed_of_an_rtx_3090() -> None:
    speed = speed_of("ampere-geforce", 10_496, 1695)
    assert speed is not None
    assert speed.fp32_flops == 10_496 * 1695 * 10**6 * 2 == 35_581_440_000_000
    assert speed.matrix_flops == 2 * speed.fp32_flops


@pytest.mark.parametrize(
    ("generation", "cores", "mhz"),
    [("", 1024, 1000), ("ada", 0, 1000), ("ada", -1, 1000), ("ada", 10**6, 1000), ("ada", 1024, 10**4)],
)  # fmt: skip
def test_speed_of_implausible_gpus_is_unknown(generation: str, cores: int, mhz: int) -> None:
    assert speed_of(generation, cores, mhz) is None


@pytest.mark.parametrize(
    ("gfx", "architecture"),
    [
        (80003, "gcn"), (90000, "vega"), (90006, "vega"), (90008, "cdna1"), (90010, "cdna2"), (90012, "vega"),
        (90402, "cdna3"), (90500, "cdna4"), (100100, "rdna1"), (100300, "rdna2"), (110000, "rdna3"), (110003, "rdna3"),
        (110500, "rdna3.5"), (110501, "rdna3.5"), (120001, "rdna4"), (130000, ""), (70000, ""), (0, ""),
    ],
)  # fmt: skip
def test_amd_architecture(gfx: int, architecture: str) -> None:
    assert amd_architecture(gfx) == architecture


@pytest.mark.parametrize(
    ("capability", "name", "generation"),
    [
        ((8, 6), "NVIDIA GeForce RTX 3090", "ampere-geforce"), ((8, 6), "NVIDIA RTX A6000", "ampere"),
        ((7, 5), "NVIDIA GeForce GTX 1650", "turing-no-tensor"), ((7, 5), "NVIDIA GeForce RTX 2070", "turing-geforce"),
        ((7, 5), "Quadro RTX 4000", "turing"), ((9, 0), "NVIDIA H100", "hopper"), ((12, 1), "NVIDIA GB10", "blackwell"),
        ((11, 0), "NVIDIA Thor", "gb100"), ((6, 1), "NVIDIA GeForce GTX 1080", "pascal"), ((13, 0), "NVIDIA X", ""),
        ((3, 7), "Tesla K80", ""),
    ],
)  # fmt: skip
def test_nvidia_generation(capability: tuple[int, int], name: str, generation: str) -> None:
    assert nvidia_generation(capability, name) == generation


@given(st.tuples(st.integers(), st.integers()), st.text(max_size=40))
def test_nvidia_generation_has_a_rate_or_is_empty(capability: tuple[int, int], name: str) -> None:
    assert nvidia_generation(capability, name) in {"", *RATES}


def test_matrix_units_in_the_table_are_as_fast_as_their_generation() -> None:
    """Data sheets quote the two at slightly different clocks; H20 has fewer of them for export."""
    for device in all_devices():
        if device.matrix_flops is None or device.fp32_flops is None or device.capability is None:
            continue
        generation = nvidia_generation(device.capability, device.name.replace("T4", "Tesla"))
        known = {generation, f"{generation}-geforce"} & RATES.keys()
        known |= {"volta"} if device.capability == (7, 2) else set()  # Xavier
        ratios = {RATES[name].matrix for name in known}
        ratio = device.matrix_flops / device.fp32_flops
        assert device.name.startswith("H20 ") or any(
            ratio == pytest.approx(expected, rel=0.15) for expected in ratios
        ), (device.name, ratio, ratios)


def test_architectures_in_the_table_have_a_rate() -> None:
    for device in all_devices():
        if device.vendor in {Vendor.AMD, Vendor.INTEL}:
            assert device.architecture in OTHER_RATES, device.name
            if device.fp32_flops is not None and device.fp16_flops is not None:
                rate = OTHER_RATES[device.architecture]
                assert device.fp16_flops / device.fp32_flops == pytest.approx(rate.fp16, rel=0.01)
                if device.kind is DeviceKind.GPU:
                    matrix_flops = device.matrix_flops or 0
                    assert matrix_flops == pytest.approx(device.fp32_flops * rate.matrix, rel=0.01)
