"""Control groups: every limit from our own group up to the root, with what is used of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.machine.trees import plant, recorded

from edgekit.machine.host import cgroup_limits
from edgekit.machine.types import HostMemory
from edgekit.units import GIB, MIB

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


def test_the_recorded_v2_machine(tmp_path: Path) -> None:
    """The group above ours has 128 GiB; of 835,620,864 bytes used, 753,709,056 can be dropped."""
    limits, notes = cgroup_limits(plant(tmp_path, recorded("h200_tree")["files"]))
    assert notes == ()
    assert [(limit.name, limit.limit_bytes, limit.used_bytes) for limit in limits] == [
        ("cgroup v2 /sys/fs/cgroup/a/memory.max", 128 * GIB, 835_620_864 - 753_709_056)
    ]


def test_the_recorded_v1_machine_has_no_limit(tmp_path: Path) -> None:
    assert cgroup_limits(plant(tmp_path, recorded("hybrid_tree")["files"])) == ((), ())


def test_no_control_groups_at_all(tmp_path: Path) -> None:
    assert cgroup_limits(tmp_path) == ((), ())


# name: /proc/self/cgroup, mountinfo, files -> what is left, smallest first
CASES = {
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
    "only the root of three says something": (
        "0::/a/b/c\n",
        V2,
        {**v2_group("/a", str(2 * GIB)), **v2_group("/a/b", "max"), **v2_group("/a/b/c", "max")},
        [(2 * GIB, 2 * GIB)],
    ),
    "a namespace: our group is its root": (
        "0::/\n",
        V2,
        v2_group("", str(2 * GIB), used=GIB),
        [(2 * GIB, GIB)],
    ),
    "outside of the namespace: what is mounted counts": (
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
    "two mounts: the one that shows the groups above": (
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
    "a blank in the path of the mount": (
        "0::/\n",
        V2.replace("/sys/fs/cgroup ", "/sys/my\\040groups "),
        {"/sys/my groups/memory.max": f"{GIB}\n", "/sys/my groups/memory.current": "0\n"},
        [(GIB, GIB)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_groups_leave(tmp_path: Path, name: str) -> None:
    groups, mounts, files, wanted = CASES[name]
    told = {"/proc/self/cgroup": groups, "/proc/self/mountinfo": mounts}
    limits, notes = cgroup_limits(plant(tmp_path, {**told, **files}))
    assert notes == ()
    found = [(limit.limit_bytes, limit.left_bytes) for limit in limits]
    assert sorted(found, key=lambda pair: pair[1]) == wanted


def test_the_tightest_is_the_one_with_the_least_left(tmp_path: Path) -> None:
    groups, mounts, files, _ = CASES["the parent is tighter"]
    told = {"/proc/self/cgroup": groups, "/proc/self/mountinfo": mounts}
    limits, _ = cgroup_limits(plant(tmp_path, {**told, **files}))
    host = HostMemory(total_bytes=64 * GIB, free_bytes=60 * GIB, limits=limits)
    assert host.usable_bytes == GIB
    assert host.tightest is not None
    assert host.tightest.name == "cgroup v2 /sys/fs/cgroup/pod/memory.max"


def test_high_is_a_limit(tmp_path: Path) -> None:
    """Beyond it everything is throttled, so a model that needs more does not fit."""
    files = v2_group("/box", str(8 * GIB), used=GIB)
    files["/sys/fs/cgroup/box/memory.high"] = f"{6 * GIB}\n"
    told = {"/proc/self/cgroup": "0::/box\n", "/proc/self/mountinfo": V2}
    limits, _ = cgroup_limits(plant(tmp_path, {**told, **files}))
    assert [limit.left_bytes for limit in limits] == [7 * GIB, 5 * GIB]


def test_v1_tells_of_limits_above_the_container(tmp_path: Path) -> None:
    """The group of the pod is not mounted here, but the smallest limit of the tree is told."""
    files = v1_group("", str(8 * GIB), used=GIB)
    files["/sys/fs/cgroup/memory/memory.stat"] += f"hierarchical_memory_limit {3 * GIB}\n"
    mounts = V1.replace("0:32 / ", "0:32 /pod/box ")
    told = {"/proc/self/cgroup": "4:memory:/pod/box\n", "/proc/self/mountinfo": mounts}
    limits, _ = cgroup_limits(plant(tmp_path, {**told, **files}))
    assert [limit.left_bytes for limit in limits] == [7 * GIB, 2 * GIB]


@pytest.mark.parametrize("garbage", ["", "lots", "-1", "1e9", "12 GiB", "\0\0", "maximum"])
def test_garbage_is_told_and_not_counted(tmp_path: Path, garbage: str) -> None:
    told = {"/proc/self/cgroup": "0::/box\n", "/proc/self/mountinfo": V2}
    limits, notes = cgroup_limits(plant(tmp_path, {**told, **v2_group("/box", garbage)}))
    assert limits == ()
    assert len(notes) == 1
    assert notes[0].startswith("/sys/fs/cgroup/box/memory.max contains")


def test_a_limit_whose_use_cannot_be_read_still_holds(tmp_path: Path) -> None:
    files = v2_group("/box", str(GIB))
    del files["/sys/fs/cgroup/box/memory.current"]
    told = {"/proc/self/cgroup": "0::/box\n", "/proc/self/mountinfo": V2}
    limits, notes = cgroup_limits(plant(tmp_path, {**told, **files}))
    assert [limit.left_bytes for limit in limits] == [GIB]
    assert "memory.current cannot be read" in notes[0]


def test_groups_that_are_not_mounted_are_told(tmp_path: Path) -> None:
    limits, notes = cgroup_limits(plant(tmp_path, {"/proc/self/cgroup": "0::/box\n"}))
    assert limits == ()
    assert "a container's memory limit would not be visible" in notes[0]


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "told"),
    [
        ("0::/box\n", V2, v2_group("/box", "max"), 0),
        ("0::/\n", V2, {}, 0),  # the real root
        ("0::/\n", V2, {"/sys/fs/cgroup/cgroup.events": "populated 1\n"}, 1),  # of a namespace
        ("0::/pod/box\n", V2.replace("0:26 / ", "0:26 /pod/box "), v2_group("", "max"), 1),
        ("0::/\n", V2.replace("0:26 / ", "0:26 /../.. "), v2_group("", "max"), 1),
        ("0::/../other\n", V2, v2_group("", "max"), 1),
        ("0::/../other\n", V2, v2_group("", str(GIB)), 0),  # one limit is seen, and holds
        ("4:memory:/\n0::/\n", V1 + V2, {"/sys/fs/cgroup/cgroup.events": "populated 1\n"}, 0),
    ],
)
def test_limits_above_what_is_mounted_cannot_be_seen(
    tmp_path: Path, groups: str, mounts: str, files: dict[str, str], told: int
) -> None:
    said = {"/proc/self/cgroup": groups, "/proc/self/mountinfo": mounts}
    _, notes = cgroup_limits(plant(tmp_path, {**said, **files}))
    assert len(notes) == told
    assert all("would not be visible" in note for note in notes)


@given(groups=st.text(), mounts=st.text(), limit=st.text())
def test_no_text_makes_it_raise(groups: str, mounts: str, limit: str) -> None:
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
