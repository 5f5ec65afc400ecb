"""Probes for the processor and the RAM, with every limit that gives a process less.

Limits come from control groups, resource limits (ulimit), NUMA bindings and systems that do not overcommit.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from edgekit.errors import one_line
from edgekit.machine.gpus import chip_name
from edgekit.machine.surroundings import (
    Surroundings,
    bytes_of,
    number_in,
    number_of,
    pairs_of,
    text_of,
)
from edgekit.machine.types import Device, HostMemory, MemoryLimit, System, Vendor
from edgekit.units import KIB, format_bytes

# Lines of /proc/cpuinfo with the processor's name: Intel's and AMD's, then those of ARM boards and POWER machines.
_CPU_NAMES = ("model name", "Model", "Hardware", "cpu")


def processor_name(surroundings: Surroundings) -> str:
    """'AMD Ryzen 9 7950X 16-Core Processor'; the architecture if the system does not tell the name."""
    if surroundings.system is System.MACOS:
        return chip_name(surroundings)
    if surroundings.system is System.LINUX:
        cpuinfo = text_of(surroundings.root / "proc/cpuinfo") or ""
        for key in _CPU_NAMES:
            line = re.search(rf"^{key}\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
            if line and (name := one_line(line[1], 96)):
                return name
        # ARM boards: "Orange Pi 5 Plus"
        tree = text_of(surroundings.root / "proc/device-tree/model") or ""
        if name := one_line(tree.rstrip("\0"), 96):
            return name
    if surroundings.system is System.WINDOWS and (
        name := one_line(surroundings.processor_brand(), 96)
    ):
        return name
    return one_line(platform.processor() or platform.machine(), 96)


def core_count(surroundings: Surroundings) -> int | None:
    """The number of physical cores, but not more than this process may run on."""
    cores = surroundings.psutil().cpu_count(logical=False) or os.cpu_count()
    if surroundings.system is System.LINUX and hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
        return allowed if cores is None else min(cores, allowed)
    return cores


def find_host(surroundings: Surroundings) -> tuple[HostMemory, tuple[str, ...]]:
    """Total and available RAM with its limits, and notes on limits that could not be read."""
    memory = surroundings.psutil().virtual_memory()
    total_bytes = int(memory.total)
    swap_total_bytes, swap_free_bytes = _swap(surroundings)
    limits, notes = (
        cgroup_limits(surroundings.root) if surroundings.system is System.LINUX else ((), ())
    )
    host = HostMemory(
        total_bytes=total_bytes,
        free_bytes=max(0, min(int(memory.available), total_bytes)),
        swap_total_bytes=swap_total_bytes,
        swap_free_bytes=swap_free_bytes,
        limits=(
            *limits,
            *process_limits(surroundings.root),
            *bound_limits(surroundings.root),
            *commit_limits(surroundings),
        ),
    )
    return host, notes


# -- resource limits -----------------------------------------------------------------------------

ADDRESS_SPACE = "RLIMIT_AS (ulimit -v)"
# The name in /proc/self/limits, the line of /proc/self/status that counts against it, and how people set it.
# Both apply: a mapped file takes address space, allocated memory takes data size too (since Linux 4.7).
_RESOURCE_LIMITS = (
    ("Max address space", "VmSize", ADDRESS_SPACE),
    ("Max data size", "VmData", "RLIMIT_DATA (ulimit -d; mapped files do not count)"),
)


def process_limits(root: Path, *, process: int | str = "self") -> tuple[MemoryLimit, ...]:
    """Limits set with ulimit, which engines inherit. Empty without /proc: macOS does not enforce its limits."""
    limits_text = text_of(root / f"proc/{process}/limits") or ""
    status = pairs_of(root / f"proc/{process}/status", ":")
    limits = []
    for title, used_key, name in _RESOURCE_LIMITS:
        line = re.search(rf"^{title}\s+(\d+)\s", limits_text, re.MULTILINE)
        limit_bytes = number_in(line[1]) if line else None
        if limit_bytes is not None:
            used_bytes = _kib_line(status, used_key) or 0
            limits.append(MemoryLimit(name=name, limit_bytes=limit_bytes, used_bytes=used_bytes))
    return tuple(limits)


_NEVER_OVERCOMMIT = 2  # vm.overcommit_memory: allocations beyond CommitLimit fail


def commit_limits(surroundings: Surroundings) -> tuple[MemoryLimit, ...]:
    """The commit limit of a system that does not overcommit: Windows, and Linux in mode 2.

    https://docs.kernel.org/mm/overcommit-accounting.html. Weights mapped from their file do not count.
    """
    limit_bytes: int | None = None
    if surroundings.system is System.WINDOWS:
        if (page_file := surroundings.page_file()) is not None:
            limit_bytes, free_bytes = page_file  # it may grow, but too slowly to count on
            name = "commit limit of Windows (memory and page file; mapped files do not count)"
            used_bytes = max(0, limit_bytes - free_bytes)
    elif surroundings.system is System.LINUX:
        overcommit_mode = number_of(surroundings.root / "proc/sys/vm/overcommit_memory")
        if overcommit_mode == _NEVER_OVERCOMMIT:
            meminfo = pairs_of(surroundings.root / "proc/meminfo", ":")
            limit_bytes = _kib_line(meminfo, "CommitLimit")
            name = "CommitLimit (vm.overcommit_memory=2; mapped files do not count)"
            used_bytes = _kib_line(meminfo, "Committed_AS") or 0
    if limit_bytes is None:
        return ()
    return (MemoryLimit(name=name, limit_bytes=limit_bytes, used_bytes=used_bytes),)


def _swap(surroundings: Surroundings) -> tuple[int, int]:
    """Total and free swap, for display only: zero where the system does not say.

    On Linux psutil warns when there is no /proc/vmstat, and warnings cannot be silenced in one thread only.
    """
    if surroundings.system is System.LINUX:
        meminfo = pairs_of(surroundings.root / "proc/meminfo", ":")
        return _kib_line(meminfo, "SwapTotal") or 0, _kib_line(meminfo, "SwapFree") or 0
    try:
        swap = surroundings.psutil().swap_memory()
        return int(swap.total), int(swap.free)
    except (OSError, RuntimeError, ValueError):
        return 0, 0


def _kib_line(pairs: Mapping[str, str], name: str) -> int | None:
    """The value of one line of /proc/meminfo or status, in bytes: 4096 for '4 kB'."""
    kib = number_in(pairs.get(name, "").removesuffix("kB"))
    return None if kib is None else kib * KIB


# -- control groups ------------------------------------------------------------------------------
# https://docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/memory.html.

_MAX_DEPTH = 128  # groups inside groups; a pod of a nested cluster has about ten


class CgroupVersion(NamedTuple):
    name: str
    filesystem: str
    limits: tuple[str, ...]
    usage: str
    inactive_cache: str  # lines of memory.stat
    active_cache: str


# memory.high counts as a limit: beyond it nothing is killed, but everything is throttled to a crawl. v1's soft limit
# does not: it applies only while the whole machine is short of memory.
# Only inactive file pages count as free, as in Docker's and Kubernetes' working set: the kernel also drops active pages
# before it kills, but that slows down the programs that read them.
_V1 = CgroupVersion(
    name="cgroup v1",
    filesystem="cgroup",
    limits=("memory.limit_in_bytes",),
    usage="memory.usage_in_bytes",
    inactive_cache="total_inactive_file",
    active_cache="total_active_file",
)
_V2 = CgroupVersion(
    name="cgroup v2",
    filesystem="cgroup2",
    limits=("memory.max", "memory.high"),
    usage="memory.current",
    inactive_cache="inactive_file",
    active_cache="active_file",
)
_TREE_LIMIT = "hierarchical_memory_limit"  # of v1: the lowest limit up to the root


class _Mount(NamedTuple):
    filesystem: str
    options: frozenset[str]
    top: PurePosixPath  # the group that is mounted at `point`
    point: PurePosixPath


class ControlGroup(NamedTuple):
    """A control group that limits memory, and where it is mounted."""

    version: CgroupVersion
    path: PurePosixPath
    mount: _Mount

    @property
    def folder(self) -> PurePosixPath:
        """The group's files. A path outside the namespace ('/../x') leads to the mount point itself."""
        if ".." in self.path.parts or not self.path.is_relative_to(self.mount.top):
            return self.mount.point
        return self.mount.point / self.path.relative_to(self.mount.top)

    def folders_up(self) -> tuple[PurePosixPath, ...]:
        """The group's folder and those of the groups around it, up to the mount point."""
        depth = len(self.folder.parts) - len(self.mount.point.parts)
        return (self.folder, *self.folder.parents)[: min(depth, _MAX_DEPTH) + 1]


def cgroup_limits(root: Path) -> tuple[tuple[MemoryLimit, ...], tuple[str, ...]]:
    """The limits of every control group up to the root, and notes on those that could not be read."""
    groups, unmounted = memory_groups(root)
    limits, notes = group_limits(root, groups)
    if len(groups) == 1 and groups[0].version is _V2 and not unmounted and not limits:
        # v1 reports the limits of groups above the mount point. v2 does not: there are such groups if its top is not
        # the root, if our path leaves the namespace ('/..'), or if it has files that the real root lacks.
        version, path, mount = groups[0]
        is_outside = ".." in path.parts or mount.top != PurePosixPath("/")
        if is_outside or (_under(root, mount.point) / "cgroup.events").exists():
            cut_off = (
                f"This process sees only part of the control groups ({version.name} "
                f"{one_line(str(mount.point))}), and no memory limit there: a limit set further up, on a pod or "
                "a service around this container, would not be visible."
            )
            notes = (*notes, cut_off)
    return limits, unmounted + notes


def memory_groups(root: Path) -> tuple[tuple[ControlGroup, ...], tuple[str, ...]]:
    """The groups this process is in, and notes on those that are not mounted here."""
    mounts = tuple(_mounts(root))
    groups, notes = [], []
    for version, path in _group_paths(root):
        candidates = [
            ControlGroup(version, path, mount)
            for mount in mounts
            if mount.filesystem == version.filesystem
            and (version is not _V1 or "memory" in mount.options)
        ]
        # Of several mounts, take the one that shows our group and the most of its ancestors; else the first.
        visible = [
            group
            for group in candidates
            if path.is_relative_to(group.mount.top) and _under(root, group.folder).is_dir()
        ]
        best = min(visible, key=lambda group: len(group.mount.top.parts), default=None)
        if candidates:
            groups.append(best or candidates[0])
        else:
            notes.append(
                f"This process is in a control group ({version.name} {one_line(str(path))}) that is not "
                "mounted here: a container's memory limit would not be visible."
            )
    return tuple(groups), tuple(notes)


def group_limits(
    root: Path, groups: tuple[ControlGroup, ...], *, cache_is_used: bool = True
) -> tuple[tuple[MemoryLimit, ...], tuple[str, ...]]:
    """The current limits of these groups and the groups around them, and notes on files that could not be read.

    Active file pages count as used unless `cache_is_used` is False: that is for a program that reads the same files
    repeatedly, which makes the kernel consider their pages active.
    """
    limits: list[MemoryLimit] = []
    notes: list[str] = []
    for group in groups:
        version = group.version
        droppable = (version.inactive_cache, *(() if cache_is_used else (version.active_cache,)))
        for folder in group.folders_up():
            for name in version.limits:
                text = text_of(_under(root, folder) / name)
                if text is None:
                    continue
                limit_bytes = number_in(text)
                if limit_bytes is None:
                    # No limit: v2 writes "max", v1 a number that is larger than any memory.
                    if text.strip() != "max" and not text.strip().isdecimal():
                        notes.append(
                            f"{folder / name} contains {one_line(text)!r}, which is not a limit: ignored."
                        )
                    continue
                title = f"{version.name} {folder / name}"
                used_bytes = _used_bytes(_under(root, folder), version, droppable)
                limits.append(
                    MemoryLimit(name=title, limit_bytes=limit_bytes, used_bytes=used_bytes or 0)
                )
                if used_bytes is None:
                    notes.append(
                        f"{folder / version.usage} cannot be read: all memory of {title} counts as free."
                    )
        if version is _V1:  # it also reports the lowest limit of the groups above the mount point
            files = _under(root, group.folder)
            tree_limit_bytes = number_in(pairs_of(files / "memory.stat", " ").get(_TREE_LIMIT, ""))
            if tree_limit_bytes is not None and all(
                tree_limit_bytes < limit.limit_bytes for limit in limits
            ):
                title = f"{version.name} {group.folder / 'memory.stat'} {_TREE_LIMIT}"
                used_bytes = _used_bytes(files, version, droppable) or 0
                limits.append(
                    MemoryLimit(name=title, limit_bytes=tree_limit_bytes, used_bytes=used_bytes)
                )
    return tuple(limits), tuple(notes)


def _used_bytes(folder: Path, version: CgroupVersion, droppable: tuple[str, ...]) -> int | None:
    """Memory in use by a group, without file pages that the kernel can drop; None if it cannot be read."""
    usage = number_of(folder / version.usage)
    if usage is None:
        return None
    stat = pairs_of(folder / "memory.stat", " ")
    return max(0, usage - sum(number_in(stat.get(name, "")) or 0 for name in droppable))


def _group_paths(root: Path) -> Iterator[tuple[CgroupVersion, PurePosixPath]]:
    """The version and path of each group this process is in, from lines of 'number:controllers:path'.

    v2 lists no controllers; of v1 only the group of the memory controller counts.
    """
    for line in (text_of(root / "proc/self/cgroup") or "").splitlines():
        _, first, rest = line.partition(":")
        controllers, second, path = rest.partition(":")
        if not (first and second):
            continue
        if not controllers:
            yield _V2, PurePosixPath(path)
        elif "memory" in controllers.split(","):
            yield _V1, PurePosixPath(path)


def _mounts(root: Path) -> Iterator[_Mount]:
    """The mounts of control groups, from lines of '41 31 0:38 /top /point rw - cgroup2 source options'; proc(5)."""
    for line in (text_of(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = (part.split() for part in line.partition(" - "))
        if len(before) < 5 or len(after) < 3 or not after[0].startswith("cgroup"):
            continue
        # A blank in a path is written as \040.
        top, point = (
            re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path) for path in before[3:5]
        )
        yield _Mount(
            filesystem=after[0],
            options=frozenset(after[2].split(",")),
            top=PurePosixPath(top),
            point=PurePosixPath(point),
        )


def _under(root: Path, path: PurePosixPath) -> Path:
    """An absolute path of the machine whose files are below `root`."""
    return root / str(path).lstrip("/")


# -- NUMA nodes ----------------------------------------------------------------------------------
# https://docs.kernel.org/admin-guide/numastat.html; set_mempolicy(2), cpuset(7).

_NODE_LIST = re.compile(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*", re.ASCII)
# GPUs on the same board as their CPU: the kernel counts their memory as a node without a processor.
_COHERENT = ("GH200", "GB200", "GB300")
# The parts of MemAvailable.
_AVAILABLE = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")


class _Node(NamedTuple):
    number: int
    folder: Path

    def bytes_of(self, *names: str) -> int:
        """The sum of these figures of the node, from lines of 'Node 0 MemTotal:  131980916 kB'."""
        meminfo = pairs_of(self.folder / "meminfo", ":")
        return sum(_kib_line(meminfo, f"Node {self.number} {name}") or 0 for name in names)


def _nodes(root: Path) -> Iterator[_Node]:
    """The NUMA nodes of the machine."""
    for folder in sorted((root / "sys/devices/system/node").glob("node*")):
        number = number_in(folder.name.removeprefix("node"))
        if number is not None:
            yield _Node(number, folder)


def bound_limits(root: Path) -> tuple[MemoryLimit, ...]:
    """The memory of the NUMA nodes that this process is bound to; empty if it may use all nodes."""
    nodes = tuple(_nodes(root))
    if len(nodes) < 2:
        return ()
    allowed = pairs_of(root / "proc/self/status", ":").get("Mems_allowed_list", "")
    # '55d0 bind:0 file=...' or 'bind=static:0': every mapping has the policy, so the first is enough.
    numa_maps = bytes_of(root / "proc/self/numa_maps", 4096) or b""
    policy = re.match(rb"[0-9a-f]+ bind(?:=\w+)?:([0-9,-]+)\s", numa_maps)
    limits = []
    bindings = (
        ("cpuset.mems", allowed),
        ("numactl --membind", policy[1].decode() if policy else ""),
    )
    for title, node_list in bindings:
        numbers = _node_numbers(node_list)
        bound = [node for node in nodes if node.number in numbers]
        limit_bytes = sum(node.bytes_of("MemTotal") for node in bound)
        if limit_bytes and any(node.bytes_of("MemTotal") for node in nodes if node not in bound):
            free_bytes = sum(node.bytes_of("MemFree", "Inactive(file)") for node in bound)
            limit = MemoryLimit(
                name=f"memory of NUMA node {node_list} ({title})",
                limit_bytes=limit_bytes,
                used_bytes=max(0, limit_bytes - free_bytes),
            )
            limits.append(limit)
    return tuple(limits)


def _node_numbers(node_list: str) -> frozenset[int]:
    """'0-2,5' -> 0, 1, 2, 5."""
    if _NODE_LIST.fullmatch(node_list) is None:
        return frozenset()
    numbers: set[int] = set()
    for part in node_list.split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def without_gpu_memory(
    host: HostMemory, devices: tuple[Device, ...], root: Path
) -> tuple[HostMemory, tuple[str, ...]]:
    """The host without the memory of a GH200, which Linux shows as a node without a processor."""
    if not any(name in device.name for device in devices for name in _COHERENT):
        return host, ()
    gpu_nodes = [
        node for node in _nodes(root) if not (text_of(node.folder / "cpulist") or "").strip()
    ]
    total_bytes = sum(node.bytes_of("MemTotal") for node in gpu_nodes)
    if not 0 < total_bytes < host.total_bytes:
        return host, ()
    free_bytes = sum(node.bytes_of(*_AVAILABLE) for node in gpu_nodes)
    note = (
        f"Linux reports {format_bytes(total_bytes)} of the GPU's memory as RAM (NUMA nodes without a CPU); "
        "EdgeKit counts it once, as the GPU's."
    )
    without_gpu = replace(
        host,
        total_bytes=host.total_bytes - total_bytes,
        free_bytes=max(0, min(host.free_bytes - free_bytes, host.total_bytes - total_bytes)),
    )
    return without_gpu, (note,)


# -- unified memory ------------------------------------------------------------------------------

_CACHE_NOTE = (
    "The file cache counts as free memory, but on a GPU that shares the RAM CUDA may not get it at once. "
    "If a model fails to load: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches."
)
_HUGE_PAGES_NOTE = (
    "Huge pages are reserved here: on a GPU that shares the RAM llama.cpp counts only the free huge pages "
    "as free memory. Fix: sysctl vm.nr_hugepages=0."
)


def shared_memory_notes(
    host: HostMemory | None, devices: tuple[Device, ...], root: Path
) -> tuple[str, ...]:
    """Notes on the figures of a GPU that shares the RAM: containers, file caches, lost devices."""
    shared = tuple(device for device in devices if device.unified)
    if host is None or not shared:
        return ()
    notes = []
    if host.tightest is not None and host.tightest.name.startswith("cgroup"):
        notes.append(
            f"The kernel does not apply {host.tightest.name} to what {shared[0].name} takes of the shared "
            "memory. EdgeKit counts it against the limit anyway: beyond it the whole machine runs short of memory."
        )
    if any(device.vendor is Vendor.NVIDIA for device in shared):
        notes.append(_CACHE_NOTE)
        if number_in(pairs_of(root / "proc/meminfo", ":").get("HugePages_Total", "")):
            notes.append(_HUGE_PAGES_NOTE)
    for device in shared:
        if device.vendor is Vendor.AMD:
            # RADV calls two thirds of the pool the device's own (radv_physical_device.c).
            safe_bytes = (device.limit_bytes or 0) * 2 // 3
            notes.append(
                f"Beyond {format_bytes(safe_bytes)}, two thirds of what {device.name} may use, some models "
                "crash with a lost Vulkan device."
            )
    return tuple(notes)
