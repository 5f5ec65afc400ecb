"""RAM, and the limits that let a process use less of it."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.machine.trees import machine, plant, recorded

from edgekit.machine.host import (
    bound_limits,
    cgroup_limits,
    commit_limits,
    find_host,
    process_limits,
    shared_memory_notes,
    without_gpu_memory,
)
from edgekit.machine.surroundings import Surroundings
from edgekit.machine.types import Device, HostMemory, MemoryLimit, System, Vendor
from edgekit.units import GIB, KIB, MIB

# -- ram --------------------------------------------------------------------------------------------

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
def test_find_host_of_recorded_machines(
    tmp_path: Path, tree: str, total_bytes: int, free_bytes: int
) -> None:
    """MemAvailable of meminfo, in bytes; a container limit above all the RAM changes nothing."""
    recording = recorded(tree)
    host, notes = find_host(machine(tmp_path, recording))
    assert (host.total_bytes, host.free_bytes, host.usable_bytes) == (
        total_bytes,
        free_bytes,
        free_bytes,
    )
    assert notes == ()
    assert f"MemTotal:       {total_bytes // KIB} kB" in recording["files"]["/proc/meminfo"]


def psutil_answers(total: int, available: int, swap: int = 0) -> dict[str, Any]:
    return {
        "psutil": {
            "virtual_memory": {"total": total, "available": available},
            "swap_memory": {"total": swap, "free": swap},
        }
    }


def test_find_host_does_not_count_swap(tmp_path: Path) -> None:
    swap = {"/proc/meminfo": "SwapTotal: 33554432 kB\nSwapFree: 1024 kB\n"}
    linux = machine(tmp_path / "linux", psutil_answers(8 * GIB, 5 * GIB) | {"files": swap})
    mac = machine(tmp_path / "mac", psutil_answers(8 * GIB, 5 * GIB, swap=32 * GIB))
    for surroundings, free_bytes in ((linux, MIB), (replace(mac, system=System.MACOS), 32 * GIB)):
        host, _ = find_host(surroundings)
        assert (host.swap_total_bytes, host.swap_free_bytes) == (32 * GIB, free_bytes)
        assert host.usable_bytes == 5 * GIB


@pytest.mark.parametrize(("available", "free"), [(9 * GIB, 8 * GIB), (-1, 0)])
def test_find_host_free_memory_is_between_zero_and_the_total(
    tmp_path: Path, available: int, free: int
) -> None:
    host, _ = find_host(machine(tmp_path, psutil_answers(8 * GIB, available)))
    assert host.free_bytes == free


def test_find_host_with_unreadable_swap(tmp_path: Path) -> None:
    class NoSwap:
        def virtual_memory(self) -> Any:
            return machine(tmp_path, psutil_answers(8 * GIB, 5 * GIB)).psutil().virtual_memory()

        def swap_memory(self) -> Any:
            raise OSError("no swap")

        def cpu_count(self, logical: bool = True) -> int | None:  # noqa: FBT001, FBT002 - psutil's own
            return None

    host, _ = find_host(replace(machine(tmp_path), psutil=NoSwap, system=System.MACOS))
    assert (host.swap_total_bytes, host.free_bytes) == (0, 5 * GIB)


@pytest.mark.parametrize(
    ("limits", "status", "expected"),
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
def test_process_limits(
    tmp_path: Path, limits: str, status: str, expected: list[tuple[str, int]]
) -> None:
    root = plant(tmp_path, {"/proc/self/limits": limits, "/proc/self/status": status})
    assert [(limit.name, limit.left_bytes) for limit in process_limits(root)] == expected


def test_find_host_on_this_machine() -> None:
    """The real psutil: MemAvailable may change meanwhile, by less than a tenth of the RAM."""
    surroundings = Surroundings()
    host, _ = find_host(surroundings)
    assert 0 < host.free_bytes <= host.total_bytes
    if surroundings.system is System.LINUX:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
        kib = {
            key: int(rest.split()[0]) for key, _, rest in (line.partition(":") for line in lines)
        }
        assert host.total_bytes == kib["MemTotal"] * KIB
        assert abs(host.free_bytes - kib["MemAvailable"] * KIB) < host.total_bytes // 10


# -- commit -----------------------------------------------------------------------------------------


def meminfo(limit: str, used: str) -> str:
    return f"MemTotal: 9 kB\nCommitLimit:  {limit} kB\nCommitted_AS:  {used} kB\n"


@pytest.mark.parametrize(
    ("mode", "limit", "used", "left"),
    [
        ("2\n", "8388608", "3145728", [5 * GIB]),  # 8 GiB less 3
        ("2\n", "100", "200", [0]),
        ("2\n", "100", "?", [100 * KIB]),
        ("2\n", "?", "1", []),
        ("0\n", "100", "50", []),
        ("1\n", "100", "50", []),
        ("", "100", "50", []),
    ],
)
def test_commit_limits_on_linux(
    tmp_path: Path, mode: str, limit: str, used: str, left: list[int]
) -> None:
    files = {"/proc/sys/vm/overcommit_memory": mode, "/proc/meminfo": meminfo(limit, used)}
    result = commit_limits(machine(tmp_path, {"files": files}))
    assert [limit.left_bytes for limit in result] == left
    assert all("vm.overcommit_memory=2" in limit.name for limit in result)


@pytest.mark.parametrize(
    ("page_file", "left"), [((40 * GIB, 12 * GIB), [12 * GIB]), ((GIB, 2 * GIB), [GIB]), (None, [])]
)
def test_commit_limits_on_windows(
    tmp_path: Path, page_file: tuple[int, int] | None, left: list[int]
) -> None:
    surroundings = replace(machine(tmp_path, system=System.WINDOWS), page_file=lambda: page_file)
    assert [limit.left_bytes for limit in commit_limits(surroundings)] == left


def test_commit_limits_on_macos_do_not_exist(tmp_path: Path) -> None:
    assert commit_limits(machine(tmp_path, system=System.MACOS)) == ()


def test_page_file_of_this_machine_only_on_windows() -> None:
    """Two sizes on Windows, the free one no larger; nothing elsewhere."""
    result = Surroundings().page_file()
    assert (result is not None) == (sys.platform == "win32")
    assert result is None or 0 < result[1] <= result[0]


# -- cgroup -----------------------------------------------------------------------------------------

V2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
NONE_V1 = "9223372036854771712\n"  # (2^63 - 1) rounded down to a page of 4 KiB
NONE_V1_64K = "9223372036854710272\n"  # and to one of 64 KiB, as on some ARM and POWER machines


def v2_group(path: str, limit: str, *, used: int = 0, inactive: int = 0) -> dict[str, str]:
    folder = f"/sys/fs/cgroup{path}"
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.high": "max\n",
        f"{folder}/memory.current": f"{used}\n",
        f"{folder}/memory.stat": f"anon 1\ninactive_file {inactive}\nactive_file 5\n",
    }


def v1_group(path: str, limit: str, *, used: int = 0, inactive: int = 0) -> dict[str, str]:
    folder = f"/sys/fs/cgroup/memory{path}"
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{used}\n",
        f"{folder}/memory.stat": f"inactive_file 3\ntotal_inactive_file {inactive}\n",
    }


def test_cgroup_limits_of_a_recorded_v2_machine(tmp_path: Path) -> None:
    """The parent group has 128 GiB; 753,709,056 of the 835,620,864 bytes in use can be dropped."""
    limits, notes = cgroup_limits(plant(tmp_path, recorded("h200_tree")["files"]))
    assert notes == ()
    assert [(limit.name, limit.limit_bytes, limit.used_bytes) for limit in limits] == [
        ("cgroup v2 /sys/fs/cgroup/a/memory.max", 128 * GIB, 835_620_864 - 753_709_056)
    ]


def test_cgroup_limits_of_a_recorded_v1_machine_without_limit(tmp_path: Path) -> None:
    assert cgroup_limits(plant(tmp_path, recorded("hybrid_tree")["files"])) == ((), ())


def test_cgroup_limits_without_cgroups(tmp_path: Path) -> None:
    assert cgroup_limits(tmp_path) == ((), ())


# name: /proc/self/cgroup, mountinfo, files -> (limit, left), least left first
GROUP_CASES = {
    "one group": (
        "0::/box\n",
        V2,
        v2_group("/box", str(8 * GIB), used=3 * GIB, inactive=GIB),
        [(8 * GIB, 8 * GIB - (3 * GIB - GIB))],
    ),
    "the parent is tighter": (
        "0::/pod/box\n",
        V2,
        {
            **v2_group("/pod", str(4 * GIB), used=3 * GIB),
            **v2_group("/pod/box", str(8 * GIB), used=GIB),
        },
        [(4 * GIB, GIB), (8 * GIB, 7 * GIB)],
    ),
    "only the root of three has a limit": (
        "0::/a/b/c\n",
        V2,
        {**v2_group("/a", str(2 * GIB)), **v2_group("/a/b", "max"), **v2_group("/a/b/c", "max")},
        [(2 * GIB, 2 * GIB)],
    ),
    "namespace: our group is its root": (
        "0::/\n",
        V2,
        v2_group("", str(2 * GIB), used=GIB),
        [(2 * GIB, GIB)],
    ),
    "outside the namespace: the mounted group counts": (
        "0::/../other\n",
        V2,
        v2_group("", str(2 * GIB)),
        [(2 * GIB, 2 * GIB)],
    ),
    "v1": (
        "4:memory:/box\n0::/\n",
        V1 + V2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified "),
        v1_group("/box", str(8 * GIB), used=3 * GIB, inactive=2 * GIB),
        [(8 * GIB, 7 * GIB)],
    ),
    "v1 of Docker: the container's group is mounted at the top": (
        "4:cpu,memory:/docker/abc\n",
        V1.replace("0:32 / ", "0:32 /docker/abc "),
        v1_group("", str(GIB), used=MIB),
        [(GIB, GIB - MIB)],
    ),
    "v1 without a limit": ("4:memory:/box\n", V1, v1_group("/box", NONE_V1.strip()), []),
    "v1 without a limit, pages of 64 KiB": (
        "4:memory:/box\n",
        V1,
        v1_group("/box", NONE_V1_64K.strip()),
        [],
    ),
    "used up": ("0::/box\n", V2, v2_group("/box", str(GIB), used=2 * GIB), [(GIB, 0)]),
    "two mounts: the one that includes the parents counts": (
        "0::/pod/box\n",
        V2.replace("0:26 / ", "0:26 /pod/box ").replace("/sys/fs/cgroup ", "/mine ") + V2,
        {
            **v2_group("/pod", str(4 * GIB)),
            **v2_group("/pod/box", str(8 * GIB)),
            "/mine/memory.max": f"{8 * GIB}\n",
        },
        [(4 * GIB, 4 * GIB), (8 * GIB, 8 * GIB)],
    ),
    "two mounts: the first shows another group": (
        "0::/pod/box\n",
        V2.replace("0:26 / ", "0:26 /other ").replace("/sys/fs/cgroup ", "/other ")
        + V2.replace("0:26 / ", "0:26 /pod "),
        {"/other/memory.max": f"{GIB}\n", **v2_group("/box", str(8 * GIB))},
        [(8 * GIB, 8 * GIB)],
    ),
    "space in the mount path": (
        "0::/\n",
        V2.replace("/sys/fs/cgroup ", "/sys/my\\040groups "),
        {"/sys/my groups/memory.max": f"{GIB}\n", "/sys/my groups/memory.current": "0\n"},
        [(GIB, GIB)],
    ),
}


@pytest.mark.parametrize("name", GROUP_CASES)
def test_cgroup_limits(tmp_path: Path, name: str) -> None:
    groups, mounts, files, expected = GROUP_CASES[name]
    proc = {"/proc/self/cgroup": groups, "/proc/self/mountinfo": mounts}
    limits, notes = cgroup_limits(plant(tmp_path, {**proc, **files}))
    assert notes == ()
    results = [(limit.limit_bytes, limit.left_bytes) for limit in limits]
    assert sorted(results, key=lambda pair: pair[1]) == expected


def test_tightest_cgroup_limit_decides_what_is_usable(tmp_path: Path) -> None:
    groups, mounts, files, _ = GROUP_CASES["the parent is tighter"]
    proc = {"/proc/self/cgroup": groups, "/proc/self/mountinfo": mounts}
    limits, _ = cgroup_limits(plant(tmp_path, {**proc, **files}))
    host = HostMemory(total_bytes=64 * GIB, free_bytes=60 * GIB, limits=limits)
    assert host.usable_bytes == GIB
    assert host.tightest is not None
    assert host.tightest.name == "cgroup v2 /sys/fs/cgroup/pod/memory.max"


def test_cgroup_memory_high_is_a_limit(tmp_path: Path) -> None:
    """Beyond memory.high the group is throttled, so a model that needs more does not fit."""
    files = v2_group("/box", str(8 * GIB), used=GIB)
    files["/sys/fs/cgroup/box/memory.high"] = f"{6 * GIB}\n"
    proc = {"/proc/self/cgroup": "0::/box\n", "/proc/self/mountinfo": V2}
    limits, _ = cgroup_limits(plant(tmp_path, {**proc, **files}))
    assert [limit.left_bytes for limit in limits] == [7 * GIB, 5 * GIB]


def test_cgroup_v1_limit_above_the_container(tmp_path: Path) -> None:
    """The pod's group is not mounted, but memory.stat states the smallest limit of the tree."""
    files = v1_group("", str(8 * GIB), used=GIB)
    files["/sys/fs/cgroup/memory/memory.stat"] += f"hierarchical_memory_limit {3 * GIB}\n"
    mounts = V1.replace("0:32 / ", "0:32 /pod/box ")
    proc = {"/proc/self/cgroup": "4:memory:/pod/box\n", "/proc/self/mountinfo": mounts}
    limits, _ = cgroup_limits(plant(tmp_path, {**proc, **files}))
    assert [limit.left_bytes for limit in limits] == [7 * GIB, 2 * GIB]


@pytest.mark.parametrize("garbage", ["", "lots", "-1", "1e9", "12 GiB", "\0\0", "maximum"])
def test_cgroup_invalid_limit_is_a_note(tmp_path: Path, garbage: str) -> None:
    proc = {"/proc/self/cgroup": "0::/box\n", "/proc/self/mountinfo": V2}
    limits, notes = cgroup_limits(plant(tmp_path, {**proc, **v2_group("/box", garbage)}))
    assert limits == ()
    assert len(notes) == 1
    assert notes[0].startswith("/sys/fs/cgroup/box/memory.max contains")


def test_cgroup_limit_with_unreadable_usage_counts_in_full(tmp_path: Path) -> None:
    files = v2_group("/box", str(GIB))
    del files["/sys/fs/cgroup/box/memory.current"]
    proc = {"/proc/self/cgroup": "0::/box\n", "/proc/self/mountinfo": V2}
    limits, notes = cgroup_limits(plant(tmp_path, {**proc, **files}))
    assert [limit.left_bytes for limit in limits] == [GIB]
    assert "memory.current cannot be read" in notes[0]


def test_cgroup_not_mounted_is_a_note(tmp_path: Path) -> None:
    limits, notes = cgroup_limits(plant(tmp_path, {"/proc/self/cgroup": "0::/box\n"}))
    assert limits == ()
    assert "a container's memory limit would not be visible" in notes[0]


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "note_count"),
    [
        ("0::/box\n", V2, v2_group("/box", "max"), 0),
        ("0::/\n", V2, {}, 0),  # the real root
        # the root of a namespace
        ("0::/\n", V2, {"/sys/fs/cgroup/cgroup.events": "populated 1\n"}, 1),
        ("0::/pod/box\n", V2.replace("0:26 / ", "0:26 /pod/box "), v2_group("", "max"), 1),
        ("0::/\n", V2.replace("0:26 / ", "0:26 /../.. "), v2_group("", "max"), 1),
        ("0::/../other\n", V2, v2_group("", "max"), 1),
        ("0::/../other\n", V2, v2_group("", str(GIB)), 0),  # one limit is visible
        ("4:memory:/\n0::/\n", V1 + V2, {"/sys/fs/cgroup/cgroup.events": "populated 1\n"}, 0),
    ],
)
def test_cgroup_limit_above_the_mount_is_a_note(
    tmp_path: Path, groups: str, mounts: str, files: dict[str, str], note_count: int
) -> None:
    proc = {"/proc/self/cgroup": groups, "/proc/self/mountinfo": mounts}
    _, notes = cgroup_limits(plant(tmp_path, {**proc, **files}))
    assert len(notes) == note_count
    assert all("would not be visible" in note for note in notes)


@given(groups=st.text(), mounts=st.text(), limit=st.text())
def test_cgroup_limits_never_raise(groups: str, mounts: str, limit: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = {
            "/proc/self/cgroup": f"0::/box\n{groups}",
            "/proc/self/mountinfo": f"{V2}{mounts}",
            "/sys/fs/cgroup/box/memory.max": limit,
            "/sys/fs/cgroup/box/memory.current": limit,
            "/sys/fs/cgroup/box/memory.stat": limit,
        }
        limits, _ = cgroup_limits(plant(Path(folder), files))
    assert all(each.left_bytes >= 0 for each in limits)


# -- numa -------------------------------------------------------------------------------------------


def node(
    number: int, total: int, free: int, *, inactive: int = 0, cpus: str = ""
) -> dict[str, str]:
    """A NUMA node with these sizes in GiB."""
    folder = f"/sys/devices/system/node/node{number}"
    sizes = {"MemTotal": total, "MemFree": free, "Inactive(file)": inactive, "Active(file)": 1}
    lines = [f"Node {number} {name}:  {size * GIB // KIB} kB" for name, size in sizes.items()]
    return {f"{folder}/meminfo": "\n".join(lines) + "\n", f"{folder}/cpulist": f"{cpus}\n"}


TWO_NODES = {**node(0, 64, 50, inactive=4, cpus="0-31"), **node(1, 64, 60, cpus="32-63")}


@pytest.mark.parametrize(
    ("allowed", "policy", "expected"),
    [
        ("0-1", "default", []),
        ("0,1", "prefer:0", []),
        ("0", "default", [("memory of NUMA node 0 (cpuset.mems)", 54)]),
        ("1", "default", [("memory of NUMA node 1 (cpuset.mems)", 60)]),
        ("0-1", "bind:1", [("memory of NUMA node 1 (numactl --membind)", 60)]),
        ("0-1", "bind=static:0", [("memory of NUMA node 0 (numactl --membind)", 54)]),
        ("0-1", "bind:0-1", []),
        ("7", "default", []),  # a node that does not exist is ignored
        ("0-", "bind:x", []),
        ("", "", []),
    ],
)
def test_bound_limits(
    tmp_path: Path, allowed: str, policy: str, expected: list[tuple[str, int]]
) -> None:
    proc = {
        "/proc/self/status": f"Name:\tpython\nMems_allowed_list:\t{allowed}\n",
        "/proc/self/numa_maps": f"55d0af000 {policy} file=/usr/bin/python3 mapped=2 N0=2\n",
    }
    limits = bound_limits(plant(tmp_path, {**TWO_NODES, **proc}))
    assert [(limit.name, limit.left_bytes // GIB) for limit in limits] == expected
    assert all(limit.limit_bytes == 64 * GIB for limit in limits)


def test_bound_limits_without_nodes(tmp_path: Path) -> None:
    assert bound_limits(plant(tmp_path, {"/proc/self/status": "Mems_allowed_list:\t0\n"})) == ()


@pytest.fixture(scope="module")
def small_machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(tmp_path_factory.mktemp("machine"), node(0, 8, 4))


@given(allowed=st.text(), policy=st.text(), meminfo=st.text())
def test_bound_limits_never_raise(
    small_machine: Path, allowed: str, policy: str, meminfo: str
) -> None:
    files = {
        "/proc/self/status": f"Mems_allowed_list:\t{allowed}\n",
        "/proc/self/numa_maps": f"55d0 {policy}",
        "/sys/devices/system/node/node1/meminfo": meminfo,
    }
    limits = bound_limits(plant(small_machine, files))
    assert all(limit.left_bytes >= 0 for limit in limits)


GRACE_HOST = HostMemory(total_bytes=576 * GIB, free_bytes=550 * GIB)
GH200 = {**node(0, 480, 455, cpus="0-71"), **node(1, 96, 94)}


def numa_card(name: str) -> Device:
    return Device(name=name, vendor=Vendor.NVIDIA, total_bytes=96 * GIB, free_bytes=94 * GIB)


@pytest.mark.parametrize("name", ["NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA GB300"])
def test_without_gpu_memory_of_a_coherent_gpu(tmp_path: Path, name: str) -> None:
    """96 of the 576 GiB are the GPU's, and 94 + 1 (pages of files) of the 550 GiB free."""
    host, (note,) = without_gpu_memory(GRACE_HOST, (numa_card(name),), plant(tmp_path, GH200))
    assert (host.total_bytes, host.free_bytes) == (480 * GIB, 455 * GIB)
    assert note.startswith("Linux reports 96.00 GiB of the GPU")


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("NVIDIA H200", GH200),  # a node without processors may be memory in a slot (CXL)
        ("NVIDIA GH200 480GB", TWO_NODES),
        ("NVIDIA GH200 480GB", {}),
        ("NVIDIA GH200 480GB", node(1, 999, 1)),  # more than the host has
    ],
)
def test_without_gpu_memory_of_other_machines(
    tmp_path: Path, name: str, files: dict[str, str]
) -> None:
    assert without_gpu_memory(GRACE_HOST, (numa_card(name),), plant(tmp_path, files)) == (
        GRACE_HOST,
        (),
    )


# -- shared memory ----------------------------------------------------------------------------------

SHARED_HOST = HostMemory(total_bytes=64 * GIB, free_bytes=50 * GIB)
CACHE, HUGE, LOSS, CONTAINER = (
    "drop_caches",
    "vm.nr_hugepages=0",
    "40.00 GiB",
    "memory.max to what",
)


def device(vendor: Vendor, *, unified: bool = True) -> Device:
    return Device(
        name="GPU",
        vendor=vendor,
        total_bytes=64 * GIB,
        free_bytes=50 * GIB,
        unified=unified,
        limit_bytes=60 * GIB,  # two thirds is 40 GiB
    )


@pytest.mark.parametrize(
    ("vendor", "meminfo", "words"),
    [
        (Vendor.NVIDIA, "HugePages_Total:       0\n", [CACHE]),
        (Vendor.NVIDIA, "HugePages_Total:    1024\n", [CACHE, HUGE]),
        (Vendor.NVIDIA, "HugePages_Total:    many\n", [CACHE]),
        (Vendor.AMD, "HugePages_Total:    1024\n", [LOSS]),
        (Vendor.INTEL, "", []),
        (Vendor.APPLE, "", []),
    ],
)
def test_shared_memory_notes_by_vendor(
    tmp_path: Path, vendor: Vendor, meminfo: str, words: list[str]
) -> None:
    root = plant(tmp_path, {"/proc/meminfo": meminfo})
    notes = shared_memory_notes(SHARED_HOST, (device(vendor),), root)
    assert [word in note for word, note in zip(words, notes, strict=True)] == [True] * len(words)


@pytest.mark.parametrize(("limit", "note_count"), [(8, 1), (60, 0)])
def test_shared_memory_notes_in_a_container(tmp_path: Path, limit: int, note_count: int) -> None:
    name = "cgroup v2 /sys/fs/cgroup/box/memory.max"
    memory_limit = MemoryLimit(name=name, limit_bytes=limit * GIB, used_bytes=0)
    host = HostMemory(total_bytes=64 * GIB, free_bytes=50 * GIB, limits=(memory_limit,))
    notes = shared_memory_notes(host, (device(Vendor.INTEL),), tmp_path)
    assert len(notes) == note_count
    assert all(CONTAINER in note for note in notes)


def test_shared_memory_notes_only_for_unified_memory_and_a_known_host(tmp_path: Path) -> None:
    cards = (device(Vendor.NVIDIA, unified=False),)
    assert shared_memory_notes(SHARED_HOST, cards, tmp_path) == ()
    assert shared_memory_notes(None, (device(Vendor.NVIDIA),), tmp_path) == ()
