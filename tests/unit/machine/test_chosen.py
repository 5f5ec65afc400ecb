"""Which devices llama.cpp uses: cards before what is integrated, and those that Vulkan is let see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgekit.machine.probes import choose
from edgekit.machine.types import Device, Vendor


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
def test_cards_first(devices: tuple[Device, ...], chosen: list[Device]) -> None:
    found = choose(devices, {})
    assert list(found.devices) == chosen
    assert len(found.notes) == (len(chosen) < len(devices))
    assert all(f"not used next to {chosen[0].name}" in note for note in found.notes)


@pytest.mark.parametrize(
    ("wish", "chosen", "notes"),
    [
        ("0,1", [RTX, RADEON, ARC], 0),
        ("1", [RTX, ARC], 2),
        ("1,0", [RTX, ARC, RADEON], 0),
        ("", [RTX], 1),
        ("9", [RTX], 1),
    ],
)
def test_the_variable_of_vulkan(wish: str, chosen: list[Device], notes: int) -> None:
    """NVIDIA's card is CUDA's: it stays."""
    found = choose((RTX, RADEON, ARC), {"GGML_VK_VISIBLE_DEVICES": wish})
    assert (list(found.devices), len(found.notes)) == (chosen, notes)


def test_integrated_graphics_alone_by_the_variable() -> None:
    found = choose((RADEON, RYZEN), {"GGML_VK_VISIBLE_DEVICES": "1"})
    assert found.devices == (RYZEN,)


@pytest.mark.parametrize("name", ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_the_variables_of_rocm_are_told_and_hide_nothing(name: str) -> None:
    found = choose((RADEON,), {name: ""})
    assert found.devices == (RADEON,)
    assert found.notes[0].startswith(f"{name}= applies to ROCm only")
    assert choose((ARC,), {name: ""}).notes == ()
