"""raised_limit: how much unified memory a GPU may use, and the command that raises the limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.machine.trees import HOST, recorded
from tests.unit.machine.trees import machine as planted
from tests.unit.plan.machines import cards, cpu, mac

from edgekit.machine.devices import raised_limit
from edgekit.machine.gpus import find_amd
from edgekit.machine.types import Machine, System, Vendor
from edgekit.machine.what_if import what_if_machine
from edgekit.units import GIB, MIB


@pytest.mark.parametrize(
    ("gib", "limit_gib", "mib"),
    [
        (8, 5, None),  # 8 - 3 is not more than now
        (16, 10, 13 * 1024),  # 3 GiB stay with macOS
        (32, 21, 28 * 1024),  # an eighth stays with macOS
        (64, 48, 57_344),
        (64, 60, None),  # already higher
    ],
)
def test_raised_limit_on_macos(gib: int, limit_gib: int, mib: int | None) -> None:
    raised = raised_limit(mac(gib, limit_gib))
    assert (None if raised is None else raised.how) == (
        None if mib is None else f"sudo sysctl iogpu.wired_limit_mb={mib}"
    )
    if raised is not None and mib is not None:
        (gpu,) = raised.machine.devices
        assert gpu.limit_bytes == raised.limit_bytes == mib * MIB
        assert "until the next restart" in raised.note


def test_raised_limit_sentence() -> None:
    raised = raised_limit(mac(64, 48))
    assert raised is not None
    assert raised.sentence("fits at 32K") == (
        "sudo sysctl iogpu.wired_limit_mb=57344 lets the GPU use 56.00 GiB instead of 48.00 GiB "
        "(until the next restart): fits at 32K"
    )


def test_raised_limit_of_strix_halo_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """124.94 GiB less an eighth, in whole GiB: 109 GiB, or 109 x 262,144 pages."""
    monkeypatch.setattr("sys.platform", "linux")
    raised = raised_limit(what_if_machine(devices=["Strix Halo 128GB"]))
    assert raised is not None
    assert raised.how == "sudo amd-ttm --set 109"
    assert raised.setting == f"ttm.pages_limit={109 * 262_144}"
    assert (raised.before_bytes, raised.limit_bytes) == (63_968 * MIB, 109 * GIB)
    assert raised.machine.devices[0].limit_bytes == 109 * GIB
    assert raised.setting in raised.note
    assert raised_limit(raised.machine) is None


def test_raised_limit_of_strix_halo_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    raised = raised_limit(what_if_machine(devices=["Strix Halo 128GB"]))
    assert raised is not None
    assert not raised.setting
    assert "Variable Graphics Memory" in raised.how
    assert raised.limit_bytes == 127_936 * MIB * 3 // 4


def test_raised_limit_includes_the_carve_out(tmp_path: Path) -> None:
    """56 of 64 GiB can be mapped, and the carve-out adds 4 GiB less 300 MiB. The recorded GTT of 96 GiB is more."""
    tree = recorded("synthetic_strix_halo")
    assert raised_limit(apu(tmp_path / "a", tree)) is None
    gtt = next(path for path in tree["files"] if path.endswith("mem_info_gtt_total"))
    tree["files"][gtt] = f"{32 * GIB}\n"
    raised = raised_limit(apu(tmp_path / "b", tree))
    assert raised is not None
    assert raised.how == "sudo amd-ttm --set 56"
    assert raised.before_bytes == (31 + 4) * GIB - 300 * MIB
    assert raised.limit_bytes == (56 + 4) * GIB - 300 * MIB


def apu(root: Path, tree: dict[str, Any]) -> Machine:
    devices = find_amd(planted(root, tree)).devices
    return Machine(name="APU", system=System.LINUX, host=HOST, devices=devices)


@pytest.mark.parametrize(
    "machine",
    [
        mac(64),
        cpu(64),
        cards(24),
        replace(mac(64, 48), host=None),
        what_if_machine(devices=["DGX Spark"]),
        what_if_machine(devices=["Jetson AGX Orin 64GB"]),
        replace(
            mac(64, 48),
            system=System.LINUX,
            devices=(replace(mac(64, 48).devices[0], vendor=Vendor.INTEL),),
        ),
    ],
)
def test_raised_limit_is_none_without_a_limit_to_raise(machine: Machine) -> None:
    assert raised_limit(machine) is None


def test_raised_limit_changes_only_the_limit() -> None:
    raised = raised_limit(mac(64, 48))
    assert raised is not None
    assert raised.machine.host == mac(64, 48).host
    (before,), (after,) = mac(64, 48).devices, raised.machine.devices
    assert replace(after, limit_bytes=48 * GIB, limit_because=before.limit_because) == before
