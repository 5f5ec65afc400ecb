"""The processor's memory: what is available, within every limit; swap told and never counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.machine.trees import machine, plant, recorded

from edgekit.machine.host import find_host, process_limits
from edgekit.machine.surroundings import Surroundings
from edgekit.machine.types import System
from edgekit.units import GIB, KIB, MIB

HEAD = "Limit                     Soft Limit           Hard Limit           Units     \n"


def limits_text(address_space: str, data: str = "unlimited") -> str:
    return (
        f"{HEAD}Max data size             {data:<20} unlimited            bytes     \n"
        f"Max address space         {address_space:<20} unlimited            bytes     \n"
    )


@pytest.mark.parametrize(
    ("tree", "total_bytes", "free_bytes"),
    [
        ("h200_tree", 135_148_457_984, 134_601_003_008),
        ("hybrid_tree", 25_275_125_760, 24_658_558_976),
    ],
)
def test_recorded_machines(tmp_path: Path, tree: str, total_bytes: int, free_bytes: int) -> None:
    """MemAvailable of meminfo, in bytes; a container's limit above all there is changes nothing."""
    told = recorded(tree)
    host, notes = find_host(machine(tmp_path, told))
    assert (host.total_bytes, host.free_bytes, host.usable_bytes) == (
        total_bytes,
        free_bytes,
        free_bytes,
    )
    assert notes == ()
    assert f"MemTotal:       {total_bytes // KIB} kB" in told["files"]["/proc/meminfo"]


def said(total: int, available: int, swap: int = 0) -> dict[str, Any]:
    return {
        "psutil": {
            "virtual_memory": {"total": total, "available": available},
            "swap_memory": {"total": swap, "free": swap},
        }
    }


def test_swap_is_told_and_not_counted(tmp_path: Path) -> None:
    host, _ = find_host(machine(tmp_path, said(8 * GIB, 5 * GIB, swap=32 * GIB)))
    assert (host.swap_total_bytes, host.usable_bytes) == (32 * GIB, 5 * GIB)


@pytest.mark.parametrize(("available", "free"), [(9 * GIB, 8 * GIB), (-1, 0)])
def test_available_is_never_more_than_there_is(tmp_path: Path, available: int, free: int) -> None:
    host, _ = find_host(machine(tmp_path, said(8 * GIB, available)))
    assert host.free_bytes == free


def test_swap_that_cannot_be_read_is_no_failure(tmp_path: Path) -> None:
    class NoSwap:
        def virtual_memory(self) -> Any:
            return machine(tmp_path, said(8 * GIB, 5 * GIB)).psutil().virtual_memory()

        def swap_memory(self) -> Any:
            raise OSError("no /proc/vmstat")

        def cpu_count(self, logical: bool = True) -> int | None:  # noqa: FBT001, FBT002 - psutil's own
            return None

    host, _ = find_host(replace(machine(tmp_path), psutil=NoSwap))
    assert (host.swap_total_bytes, host.free_bytes) == (0, 5 * GIB)


@pytest.mark.parametrize(
    ("limits", "status", "wanted"),
    [
        (limits_text("unlimited"), "VmSize:\t  100 kB\n", []),
        (
            limits_text(str(4 * GIB)),
            "VmSize:\t  1024 kB\n",
            [("RLIMIT_AS (ulimit -v)", 4 * GIB - MIB)],
        ),
        (
            limits_text("unlimited", str(2 * GIB)),
            "VmSize:\t 9999 kB\nVmData:\t  2048 kB\n",
            [("RLIMIT_DATA (ulimit -d; mapped files do not count)", 2 * GIB - 2 * MIB)],
        ),
        (limits_text(str(GIB)), "", [("RLIMIT_AS (ulimit -v)", GIB)]),
        ("garbage\0\nMax address space\n", "VmSize: ten\n", []),
        ("", "", []),
    ],
)
def test_resource_limits(
    tmp_path: Path, limits: str, status: str, wanted: list[tuple[str, int]]
) -> None:
    root = plant(tmp_path, {"/proc/self/limits": limits, "/proc/self/status": status})
    assert [(limit.name, limit.left_bytes) for limit in process_limits(root)] == wanted


def test_this_machine_has_what_its_kernel_says() -> None:
    """No tree: the real psutil. MemAvailable moves while we look, by less than a tenth."""
    here = Surroundings()
    host, _ = find_host(here)
    assert 0 < host.free_bytes <= host.total_bytes
    if here.system is System.LINUX:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
        kib = {
            key: int(rest.split()[0]) for key, _, rest in (line.partition(":") for line in lines)
        }
        assert host.total_bytes == kib["MemTotal"] * KIB
        assert abs(host.free_bytes - kib["MemAvailable"] * KIB) < host.total_bytes // 10
