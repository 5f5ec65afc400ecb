"""macOS. The sysctl values are synthetic; the working sets are what people's engines logged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.machine.trees import machine, recorded

from edgekit.basis import Basis
from edgekit.machine.gpu_limit import default_working_set_bytes
from edgekit.machine.gpus import find_apple
from edgekit.machine.surroundings import Findings, Surroundings
from edgekit.machine.types import System
from edgekit.units import GIB, MIB

# GiB of memory: recommendedMaxWorkingSetSize in MB (10^6), as llama.cpp logs it; in public logs of
# macOS before 26 (its GPU family ends with Metal3) ...
LOGGED = {
    8: 5726.63,  # M1
    16: 11453.25,  # M1 Pro, M3, M4
    24: 17179.89,  # M2, M3
    32: 22906.50,  # M1 Pro, M2 Max
    36: 28991.03,  # M3 Max
    48: 38654.71,  # M3 Max
    64: 51539.61,  # M1 Max, M2 Max
    96: 77309.41,  # M2 Max: 73,728 MiB
    128: 103079.22,  # M3 Max, M4 Max
    256: 223338.30,  # M3 Ultra: 208 GiB
    512: 498216.21,  # M3 Ultra: 464 GiB
}
# ... and since (Metal4), where iogpu.wired_limit_mb was left alone.
LOGGED_26 = {
    16: 12713.12,  # M3, M4
    18: 14302.25,  # M3 Pro
    24: 19069.67,  # M4, M5 Pro
    32: 26800.60,  # M4
    36: 30150.67,  # M3 Max
    48: 40200.90,  # M4 Pro
    64: 55662.79,  # M3 Max
    128: 115448.73,  # M3 Max, M4 Max, M5 Max
}


@pytest.mark.parametrize("gib", LOGGED)
def test_working_sets_that_were_logged(gib: int) -> None:
    assert f"{default_working_set_bytes(gib * GIB) / 1e6:.2f}" == f"{LOGGED[gib]:.2f}"


@pytest.mark.parametrize("gib", LOGGED_26)
def test_working_sets_that_were_logged_since_macos_26(gib: int) -> None:
    assert f"{default_working_set_bytes(gib * GIB, macos=26) / 1e6:.2f}" == f"{LOGGED_26[gib]:.2f}"


@pytest.mark.parametrize(("gib", "exact"), [(48, 40_200_896_512), (64, 55_662_788_608)])
def test_working_sets_that_mlx_told_to_the_byte(gib: int, exact: int) -> None:
    """Rounded up to a page of 16 KiB: 0.78 x 48 GiB = 40,200,893,890.56."""
    assert default_working_set_bytes(gib * GIB, macos=26) == exact


@given(total=st.integers(GIB, 1024 * GIB), more=st.integers(0, 64 * GIB))
def test_a_working_set_grows_with_the_memory_and_stays_within_it(total: int, more: int) -> None:
    for macos in (0, 15, 26):
        share = default_working_set_bytes(total, macos=macos)
        assert total // 2 < share < total
        assert share <= default_working_set_bytes(total + more, macos=macos)
    if total <= 256 * GIB:  # of larger ones there is no log since 26: the smaller holds
        assert default_working_set_bytes(total) <= default_working_set_bytes(total, macos=26)


@pytest.mark.parametrize(
    ("gib", "least"), [(192, 144 * GIB), (256, 208 * GIB), (512, 512 * GIB * 84 // 100)]
)
def test_sizes_that_macos_26_was_not_logged_with(gib: int, least: int) -> None:
    """The smaller of 84 % and all but 48 GiB."""
    found = default_working_set_bytes(gib * GIB, macos=26)
    assert 0 <= found - least < 16384  # rounded up to a page


def mac(**changed: Any) -> dict[str, Any]:
    tree = recorded("synthetic_mac")
    tree["sysctl"].update({name.replace("__", "."): value for name, value in changed.items()})
    return tree


def test_a_mac(tmp_path: Path) -> None:
    (device,) = find_apple(machine(tmp_path, mac(), system=System.MACOS)).devices
    assert (device.name, device.unified, device.basis) == ("Apple M3 Max", True, Basis.MODELLED)
    assert (device.total_bytes, device.free_bytes) == (36 * GIB, 36 * GIB)  # of HOST's 50 free
    assert device.bandwidth_bytes_per_s == 300 * 10**9
    assert device.limit_bytes == 27 * GIB  # three quarters: no version is told here


@pytest.mark.parametrize(
    ("version", "limit_bytes"),
    [
        ("15.6.1", 27 * GIB),
        ("26.5.2", default_working_set_bytes(36 * GIB, macos=26)),
        ("", 27 * GIB),
        ("beta", 27 * GIB),
    ],
)
def test_the_limit_follows_the_version(tmp_path: Path, version: str, limit_bytes: int) -> None:
    here = machine(tmp_path, mac(kern__osproductversion=version), system=System.MACOS)
    (device,) = find_apple(here).devices
    assert (device.limit_bytes, device.basis) == (limit_bytes, Basis.MODELLED)


def test_a_wired_limit_that_was_set(tmp_path: Path) -> None:
    here = machine(tmp_path, mac(iogpu__wired_limit_mb=30_000), system=System.MACOS)
    (device,) = find_apple(here).devices
    assert (device.limit_bytes, device.basis) == (30_000 * MIB, Basis.MODELLED)
    assert "free and inactive pages" in device.because
    assert device.limit_because == "iogpu.wired_limit_mb is set to 30000"


def test_a_wired_limit_beyond_the_memory(tmp_path: Path) -> None:
    here = machine(tmp_path, mac(iogpu__wired_limit_mb=10**6), system=System.MACOS)
    assert find_apple(here).devices[0].limit_bytes == 36 * GIB


def test_an_intel_mac_has_none(tmp_path: Path) -> None:
    here = machine(tmp_path, mac(hw__optional__arm64=0), system=System.MACOS)
    assert find_apple(here) == Findings()


def test_a_mac_whose_memory_could_not_be_read(tmp_path: Path) -> None:
    seen = find_apple(machine(tmp_path, mac(), system=System.MACOS, host=None))
    assert (seen.devices, len(seen.notes)) == ((), 1)


def test_not_on_other_systems(tmp_path: Path) -> None:
    assert find_apple(machine(tmp_path, mac())) == Findings()


def test_the_real_sysctl_knows_no_name_that_is_none() -> None:
    """On a Mac it answers; elsewhere there is no such kernel."""
    assert Surroundings().sysctl("edgekit.no.such.name") is None
