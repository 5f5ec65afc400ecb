"""Nodes of memory: a process bound to some of them, and a card's memory that Linux counts as the host's. Synthetic."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.machine.trees import plant

from edgekit.machine.host import bound_limits, without_gpu_memory
from edgekit.machine.types import Device, HostMemory, Vendor
from edgekit.units import GIB, KIB


def node(
    number: int, total: int, free: int, *, inactive: int = 0, cpus: str = ""
) -> dict[str, str]:
    """A node of so many GiB."""
    folder = f"/sys/devices/system/node/node{number}"
    sizes = {"MemTotal": total, "MemFree": free, "Inactive(file)": inactive, "Active(file)": 1}
    lines = [f"Node {number} {name}:  {size * GIB // KIB} kB" for name, size in sizes.items()]
    return {f"{folder}/meminfo": "\n".join(lines) + "\n", f"{folder}/cpulist": f"{cpus}\n"}


TWO = {**node(0, 64, 50, inactive=4, cpus="0-31"), **node(1, 64, 60, cpus="32-63")}


@pytest.mark.parametrize(
    ("allowed", "policy", "wanted"),
    [
        ("0-1", "default", []),
        ("0,1", "prefer:0", []),
        ("0", "default", [("memory of NUMA node 0 (cpuset.mems)", 54)]),
        ("1", "default", [("memory of NUMA node 1 (cpuset.mems)", 60)]),
        ("0-1", "bind:1", [("memory of NUMA node 1 (numactl --membind)", 60)]),
        ("0-1", "bind=static:0", [("memory of NUMA node 0 (numactl --membind)", 54)]),
        ("0-1", "bind:0-1", []),
        ("7", "default", []),  # a node that is not there binds to nothing
        ("0-", "bind:x", []),
        ("", "", []),
    ],
)
def test_a_bound_process(
    tmp_path: Path, allowed: str, policy: str, wanted: list[tuple[str, int]]
) -> None:
    told = {
        "/proc/self/status": f"Name:\tpython\nMems_allowed_list:\t{allowed}\n",
        "/proc/self/numa_maps": f"55d0af000 {policy} file=/usr/bin/python3 mapped=2 N0=2\n",
    }
    limits = bound_limits(plant(tmp_path, {**TWO, **told}))
    assert [(limit.name, limit.left_bytes // GIB) for limit in limits] == wanted
    assert all(limit.limit_bytes == 64 * GIB for limit in limits)


def test_a_machine_without_nodes(tmp_path: Path) -> None:
    assert bound_limits(plant(tmp_path, {"/proc/self/status": "Mems_allowed_list:\t0\n"})) == ()


@pytest.fixture(scope="module")
def small_machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(tmp_path_factory.mktemp("machine"), node(0, 8, 4))


@given(allowed=st.text(), policy=st.text(), meminfo=st.text())
def test_no_text_makes_it_raise(
    small_machine: Path, allowed: str, policy: str, meminfo: str
) -> None:
    files = {
        "/proc/self/status": f"Mems_allowed_list:\t{allowed}\n",
        "/proc/self/numa_maps": f"55d0 {policy}",
        "/sys/devices/system/node/node1/meminfo": meminfo,
    }
    limits = bound_limits(plant(small_machine, files))
    assert all(limit.left_bytes >= 0 for limit in limits)


HOST = HostMemory(total_bytes=576 * GIB, free_bytes=550 * GIB)
GH200 = {**node(0, 480, 455, cpus="0-71"), **node(1, 96, 94)}


def card(name: str) -> Device:
    return Device(name=name, vendor=Vendor.NVIDIA, total_bytes=96 * GIB, free_bytes=94 * GIB)


@pytest.mark.parametrize("name", ["NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA GB300"])
def test_the_memory_of_a_card_is_not_the_hosts(tmp_path: Path, name: str) -> None:
    """Of 576 GiB 96 are the card's; of 550 free 94 and the 1 that holds files."""
    host, (note,) = without_gpu_memory(HOST, (card(name),), plant(tmp_path, GH200))
    assert (host.total_bytes, host.free_bytes) == (480 * GIB, 455 * GIB)
    assert note.startswith("Linux reports 96.00 GiB of the GPU")


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("NVIDIA H200", GH200),  # a node without processors may be memory in a slot (CXL)
        ("NVIDIA GH200 480GB", TWO),
        ("NVIDIA GH200 480GB", {}),
        ("NVIDIA GH200 480GB", node(1, 999, 1)),  # more than there is
    ],
)
def test_other_machines_keep_theirs(tmp_path: Path, name: str, files: dict[str, str]) -> None:
    assert without_gpu_memory(HOST, (card(name),), plant(tmp_path, files)) == (HOST, ())
