"""The processor's memory and what holds a process below it -> HostMemory."""

from __future__ import annotations

import os
import platform
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from edgekit.machine.gpus import chip_name
from edgekit.machine.surroundings import (
    Psutil,
    Surroundings,
    bytes_of,
    number_in,
    number_of,
    pairs_of,
    text_of,
)
from edgekit.machine.types import Device, HostMemory, MemoryLimit, System, Vendor
from edgekit.terminal import one_line
from edgekit.units import KIB, format_bytes


def find_host(here: Surroundings) -> tuple[HostMemory, tuple[str, ...]]:
    """What is available, never what is there; notes on limits that could not be read."""
    psutil = here.psutil()
    memory = psutil.virtual_memory()
    total_bytes = int(memory.total)
    swap_total_bytes, swap_free_bytes = _swap(psutil)
    limits, notes = cgroup_limits(here.root) if here.system is System.LINUX else ((), ())
    host = HostMemory(
        total_bytes=total_bytes,
        free_bytes=max(0, min(int(memory.available), total_bytes)),
        swap_total_bytes=swap_total_bytes,
        swap_free_bytes=swap_free_bytes,
        limits=(
            *limits,
            *process_limits(here.root),
            *bound_limits(here.root),
            *commit_limits(here),
        ),
    )
    return host, notes


def _swap(psutil: Psutil) -> tuple[int, int]:
    """Told, never counted: so a failure to read it is no failure."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a container without /proc/vmstat
            swap = psutil.swap_memory()
            return int(swap.total), int(swap.free)
    except (OSError, RuntimeError, ValueError):
        return 0, 0


# Intel's and AMD's name, then how ARM boards and POWER machines say it.
_NAMES = ("model name", "Model", "Hardware", "cpu")


def processor_name(here: Surroundings) -> str:
    if here.system is System.MACOS:
        return chip_name(here)
    if here.system is System.LINUX:
        written = text_of(here.root / "proc/cpuinfo") or ""
        found = (re.search(rf"^{name}\s*:\s*(.+)$", written, re.MULTILINE) for name in _NAMES)
        name = next((one_line(name[1], 96) for name in found if name), "")
        if name:
            return name
    return one_line(platform.processor() or platform.machine(), 96)


def core_count(here: Surroundings) -> int | None:
    """Real cores, no more than this process may run on."""
    cores = here.psutil().cpu_count(logical=False) or os.cpu_count()
    if here.system is System.LINUX and hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
        return allowed if cores is None else min(cores, allowed)
    return cores


ADDRESS_SPACE = "RLIMIT_AS (ulimit -v)"
# Name in /proc/self/limits, what counts against it in /proc/self/status, and how people set it.
# Both hold: a mapped file takes address space, what is allocated takes data too (Linux 4.7).
_LIMITS = (
    ("Max address space", "VmSize", ADDRESS_SPACE),
    ("Max data size", "VmData", "RLIMIT_DATA (ulimit -d; mapped files do not count)"),
)


def process_limits(root: Path, *, process: int | str = "self") -> tuple[MemoryLimit, ...]:
    """Empty where there are none, and where there is no /proc: macOS does not hold to its own."""
    written = text_of(root / f"proc/{process}/limits") or ""
    used = pairs_of(root / f"proc/{process}/status", ":")
    limits = []
    for title, key, name in _LIMITS:
        found = re.search(rf"^{title}\s+(\d+)\s", written, re.MULTILINE)
        limit_bytes = number_in(found[1]) if found else None
        if limit_bytes is not None:
            used_kib = number_in(used.get(key, "").removesuffix("kB")) or 0
            limit = MemoryLimit(name=name, limit_bytes=limit_bytes, used_bytes=used_kib * KIB)
            limits.append(limit)
    return tuple(limits)


_NEVER_MORE = 2  # vm.overcommit_memory


def commit_limits(here: Surroundings) -> tuple[MemoryLimit, ...]:
    if here.system is System.WINDOWS:
        return _windows(here)
    return _linux(here) if here.system is System.LINUX else ()


def _linux(here: Surroundings) -> tuple[MemoryLimit, ...]:
    if number_of(here.root / "proc/sys/vm/overcommit_memory") != _NEVER_MORE:
        return ()
    told = pairs_of(here.root / "proc/meminfo", ":")
    limit, used = (
        number_in(told.get(name, "").removesuffix("kB")) for name in ("CommitLimit", "Committed_AS")
    )
    name = "CommitLimit (vm.overcommit_memory=2; mapped files do not count)"
    if limit is None:
        return ()
    return (MemoryLimit(name=name, limit_bytes=limit * KIB, used_bytes=(used or 0) * KIB),)


def _windows(here: Surroundings) -> tuple[MemoryLimit, ...]:
    """Memory and page file together; the page file may grow, but not while a program waits."""
    found = here.page_file()
    if found is None:
        return ()
    total_bytes, free_bytes = found
    name = "commit limit of Windows (memory and page file; mapped files do not count)"
    used_bytes = max(0, total_bytes - free_bytes)
    return (MemoryLimit(name=name, limit_bytes=total_bytes, used_bytes=used_bytes),)


_DEEPEST = 128  # groups inside groups; a pod of a nested cluster has about ten


class _Version(NamedTuple):
    name: str
    filesystem: str
    limits: tuple[str, ...]
    usage: str
    droppable: str  # of memory.stat
    reclaimable: str  # what the kernel drops too before it kills


# memory.high is a limit here: beyond it nothing is killed, but everything is throttled to a crawl.
# v1's soft limit is none: it counts only while the whole machine is short.
# What can be dropped is inactive_file alone, as Docker and Kubernetes count a working set: the
# kernel also drops active file pages before it kills, but at the cost of what reads them.
_V1 = _Version(
    name="cgroup v1",
    filesystem="cgroup",
    limits=("memory.limit_in_bytes",),
    usage="memory.usage_in_bytes",
    droppable="total_inactive_file",
    reclaimable="total_active_file",
)
_V2 = _Version(
    name="cgroup v2",
    filesystem="cgroup2",
    limits=("memory.max", "memory.high"),
    usage="memory.current",
    droppable="inactive_file",
    reclaimable="active_file",
)
_WHOLE_TREE = "hierarchical_memory_limit"  # v1 tells of groups above the container too


class _Mount(NamedTuple):
    filesystem: str
    options: frozenset[str]
    top: PurePosixPath  # which group of the hierarchy is seen at `point`
    point: PurePosixPath


class ControlGroup(NamedTuple):
    """A control group with a say over memory, and where its files are."""

    version: _Version
    path: PurePosixPath
    mount: _Mount


def cgroup_limits(root: Path) -> tuple[tuple[MemoryLimit, ...], tuple[str, ...]]:
    """Limits, and notes on what could not be read. Both empty where nothing limits."""
    groups, unseen = memory_groups(root)
    limits, notes = group_limits(root, groups)
    if len(groups) == 1 and not unseen and not limits and _is_cut(root, groups[0]):
        version, _, mount = groups[0]
        cut = (
            f"This process sees only part of the control groups ({version.name} "
            f"{one_line(str(mount.point))}), and no memory limit there: a limit set further up, on a pod or "
            "a service around this container, would not be visible."
        )
        notes = (*notes, cut)
    return limits, unseen + notes


def memory_groups(root: Path) -> tuple[tuple[ControlGroup, ...], tuple[str, ...]]:
    """Which groups this process is in, and notes on those that cannot be seen from here."""
    mounts = tuple(_mounts(root))
    groups, notes = [], []
    for version, path in _groups(root):
        mount = _mount_of(root, version, mounts, path)
        if mount is None:
            notes.append(
                f"This process is in a control group ({version.name} {one_line(str(path))}) that is not "
                "mounted here: a container's memory limit would not be visible."
            )
        else:
            groups.append(ControlGroup(version, path, mount))
    return tuple(groups), tuple(notes)


def group_limits(
    root: Path, groups: tuple[ControlGroup, ...], *, cache_is_used: bool = True
) -> tuple[tuple[MemoryLimit, ...], tuple[str, ...]]:
    """What the groups say now. Without `cache_is_used` no page of a file counts as used: right for
    one who reads the same files again and again, and whose pages the kernel therefore calls active.
    """
    limits: list[MemoryLimit] = []
    notes: list[str] = []
    for version, path, mount in groups:
        dropped = (
            (version.droppable,) if cache_is_used else (version.droppable, version.reclaimable)
        )
        counted = _Counted(root, version, dropped)
        for folder in _upwards(mount, path):
            _read(counted, folder, limits, notes)
        _read_hidden(counted, _inside(mount, path), limits)
    return tuple(limits), tuple(notes)


def _groups(root: Path) -> Iterator[tuple[_Version, PurePosixPath]]:
    """Lines of 'number:controllers:path'; no controllers is v2."""
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
    """Lines of '41 31 0:38 /top /point rw - cgroup2 source options'; proc(5)."""
    for line in (text_of(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = (part.split() for part in line.partition(" - "))
        if len(before) < 5 or len(after) < 3 or not after[0].startswith("cgroup"):
            continue
        yield _Mount(
            filesystem=after[0],
            options=frozenset(after[2].split(",")),
            top=PurePosixPath(_unescaped(before[3])),
            point=PurePosixPath(_unescaped(before[4])),
        )


def _unescaped(text: str) -> str:
    """Blanks in a path are written as backslash 040."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _mount_of(
    root: Path, version: _Version, mounts: tuple[_Mount, ...], group: PurePosixPath
) -> _Mount | None:
    """Of several the one that shows our group and most of those above; else the first of its kind."""
    fits = [mount for mount in mounts if mount.filesystem == version.filesystem]
    if version is _V1:
        fits = [mount for mount in fits if "memory" in mount.options]
    ours = [mount for mount in fits if group.is_relative_to(mount.top)]
    shown = [mount for mount in ours if _in(root, _inside(mount, group)).is_dir()]
    first = next(iter(fits), None)
    return min(shown, key=lambda mount: len(mount.top.parts), default=first)


def _is_cut(root: Path, group: ControlGroup) -> bool:
    """Groups above what is mounted: a top that is no root, a path out of the namespace ('/..'), or a
    root with files that the real one does not have. v1 tells the limits above (_read_hidden).
    """
    mount = group.mount
    if mount.filesystem != _V2.filesystem:
        return False
    outside = ".." in group.path.parts or mount.top != PurePosixPath("/")
    return outside or (_in(root, mount.point) / "cgroup.events").exists()


def _in(root: Path, path: PurePosixPath) -> Path:
    return root / str(path).lstrip("/")


def _inside(mount: _Mount, group: PurePosixPath) -> PurePosixPath:
    """Where the group's files are. A path out of the namespace ('/../x') leads to what is mounted."""
    if ".." in group.parts or not group.is_relative_to(mount.top):
        return mount.point
    return mount.point / group.relative_to(mount.top)


def _upwards(mount: _Mount, group: PurePosixPath) -> Iterator[PurePosixPath]:
    own = _inside(mount, group)
    depth = len(own.parts) - len(mount.point.parts)
    yield from (own, *own.parents)[: min(depth, _DEEPEST) + 1]


class _Counted(NamedTuple):
    """How the files of a group are read."""

    root: Path
    version: _Version
    dropped: tuple[str, ...]  # lines of memory.stat that do not count as used


def _read(
    counted: _Counted, folder: PurePosixPath, limits: list[MemoryLimit], notes: list[str]
) -> None:
    here, version = _in(counted.root, folder), counted.version
    for name in version.limits:
        text = text_of(here / name)
        if text is None or text.strip() == "max" or _is_boundless(text):
            continue
        limit_bytes = number_in(text)
        if limit_bytes is None:
            notes.append(
                f"{folder / name} contains {one_line(text)!r}, which is not a limit: ignored."
            )
            continue
        title = f"{version.name} {folder / name}"
        used_bytes = _used_bytes(here, counted)
        limits.append(MemoryLimit(name=title, limit_bytes=limit_bytes, used_bytes=used_bytes or 0))
        if used_bytes is None:
            notes.append(
                f"{folder / version.usage} cannot be read: all memory of {title} counts as free."
            )


def _is_boundless(text: str) -> bool:
    """v1 has no word for it: the largest number of pages, in bytes, which depends on the page."""
    return text.strip().isdecimal() and number_in(text) is None


def _used_bytes(folder: Path, counted: _Counted) -> int | None:
    usage = number_of(folder / counted.version.usage)
    if usage is None:
        return None
    told = pairs_of(folder / "memory.stat", " ")
    droppable = sum(number_in(told.get(name, "")) or 0 for name in counted.dropped)
    return max(0, usage - droppable)


def _read_hidden(counted: _Counted, folder: PurePosixPath, limits: list[MemoryLimit]) -> None:
    """A limit above what is mounted here; of its use only our own share is known."""
    here, version = _in(counted.root, folder), counted.version
    whole = number_in(pairs_of(here / "memory.stat", " ").get(_WHOLE_TREE, ""))
    seen = min((limit.limit_bytes for limit in limits), default=None)
    if version is _V1 and whole is not None and (seen is None or whole < seen):
        title = f"{version.name} {folder / 'memory.stat'} {_WHOLE_TREE}"
        used_bytes = _used_bytes(here, counted) or 0
        limits.append(MemoryLimit(name=title, limit_bytes=whole, used_bytes=used_bytes))


_NUMBERS = re.compile(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*", re.ASCII)
# Beside their processor, whose kernel counts the card's memory as a node of its own.
_COHERENT = ("GH200", "GB200", "GB300")
_AVAILABLE = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")  # all of MemAvailable


class _Node(NamedTuple):
    number: int
    folder: Path

    @property
    def has_processor(self) -> bool:
        return bool((text_of(self.folder / "cpulist") or "").strip())

    def bytes_of(self, *names: str) -> int:
        """Lines of 'Node 0 MemTotal:  131980916 kB'."""
        told = pairs_of(self.folder / "meminfo", ":")
        lines = (told.get(f"Node {self.number} {name}", "") for name in names)
        return sum(number_in(line.removesuffix("kB")) or 0 for line in lines) * KIB


def bound_limits(root: Path) -> tuple[MemoryLimit, ...]:
    """What a process bound to some of the nodes can have; empty for one that may use all."""
    nodes = tuple(_nodes(root))
    return tuple(_limits(nodes, root)) if len(nodes) > 1 else ()


def without_gpu_memory(
    host: HostMemory, devices: tuple[Device, ...], root: Path
) -> tuple[HostMemory, tuple[str, ...]]:
    """A GH200's card shows its memory as a node without processors: it is the card's, not the host's."""
    if not any(name in device.name for device in devices for name in _COHERENT):
        return host, ()
    cards = [node for node in _nodes(root) if not node.has_processor]
    total_bytes = sum(node.bytes_of("MemTotal") for node in cards)
    if not 0 < total_bytes < host.total_bytes:
        return host, ()
    free_bytes = sum(node.bytes_of(*_AVAILABLE) for node in cards)
    why = (
        f"Linux reports {format_bytes(total_bytes)} of the GPU's memory as RAM (NUMA nodes without a CPU); "
        "EdgeKit counts it once, as the GPU's."
    )
    rest = replace(
        host,
        total_bytes=host.total_bytes - total_bytes,
        free_bytes=max(0, min(host.free_bytes - free_bytes, host.total_bytes - total_bytes)),
    )
    return rest, (why,)


def _limits(nodes: tuple[_Node, ...], root: Path) -> Iterator[MemoryLimit]:
    for title, written in (("cpuset.mems", _allowed(root)), ("numactl --membind", _policy(root))):
        bound = _numbers(written)
        mine = [node for node in nodes if node.number in bound]
        limit_bytes = sum(node.bytes_of("MemTotal") for node in mine)
        others = any(node.bytes_of("MemTotal") for node in nodes if node not in mine)
        if limit_bytes and others:
            free_bytes = sum(node.bytes_of("MemFree", "Inactive(file)") for node in mine)
            yield MemoryLimit(
                name=f"memory of NUMA node {written} ({title})",
                limit_bytes=limit_bytes,
                used_bytes=max(0, limit_bytes - free_bytes),
            )


def _nodes(root: Path) -> Iterator[_Node]:
    for folder in sorted((root / "sys/devices/system/node").glob("node*")):
        number = number_in(folder.name.removeprefix("node"))
        if number is not None:
            yield _Node(number, folder)


def _allowed(root: Path) -> str:
    return pairs_of(root / "proc/self/status", ":").get("Mems_allowed_list", "")


def _policy(root: Path) -> str:
    """'55d0 bind:0 file=...', or bind=static:0: every mapping tells it, so the first is enough."""
    first = bytes_of(root / "proc/self/numa_maps", 4096) or b""
    found = re.match(rb"[0-9a-f]+ bind(?:=\w+)?:([0-9,-]+)\s", first)
    return found[1].decode() if found else ""


def _numbers(written: str) -> frozenset[int]:
    """'0-2,5' -> 0, 1, 2, 5."""
    if _NUMBERS.fullmatch(written) is None:
        return frozenset()
    ends = (part.partition("-") for part in written.split(","))
    pairs = ((int(first), int(last or first)) for first, _, last in ends)
    return frozenset(number for first, last in pairs for number in range(first, last + 1))


_CACHE = (
    "The file cache counts as free memory, but on a GPU that shares the RAM CUDA may not get it at once. "
    "If a model fails to load: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches."
)
_HUGE_PAGES = (
    "Huge pages are reserved here: on a GPU that shares the RAM llama.cpp counts only the free huge pages "
    "as free memory. Fix: sysctl vm.nr_hugepages=0."
)


def shared_memory_notes(
    host: HostMemory | None, devices: tuple[Device, ...], root: Path
) -> tuple[str, ...]:
    shared = tuple(device for device in devices if device.unified)
    if host is None or not shared:
        return ()
    notes = _container_note(host, shared[0])
    if any(device.vendor is Vendor.NVIDIA for device in shared):
        huge_pages = pairs_of(root / "proc/meminfo", ":").get("HugePages_Total", "")
        notes += (_CACHE, _HUGE_PAGES) if number_in(huge_pages) else (_CACHE,)
    return (*notes, *(_loss_note(device) for device in shared if device.vendor is Vendor.AMD))


def _loss_note(device: Device) -> str:
    """RADV calls two thirds of the pool the device's own (radv_physical_device.c)."""
    safe_bytes = (device.limit_bytes or 0) * 2 // 3
    return (
        f"Beyond {format_bytes(safe_bytes)}, two thirds of what {device.name} may use, some models "
        "crash with a lost Vulkan device."
    )


def _container_note(host: HostMemory, device: Device) -> tuple[str, ...]:
    """EdgeKit counts the GPU's part against the limit; the kernel does not."""
    if host.tightest is None or not host.tightest.name.startswith("cgroup"):
        return ()
    why = (
        f"The kernel does not apply {host.tightest.name} to what {device.name} takes of the shared memory. "
        "EdgeKit counts it against the limit anyway: beyond it the whole machine runs short of memory."
    )
    return (why,)
