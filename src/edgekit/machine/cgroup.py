"""The control groups a process is in -> what they leave it of memory: every limit up to the root of the tree.

https://docs.kernel.org/admin-guide/cgroup-v2.html, and cgroup-v1/memory.html beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from edgekit.machine.tree import number_in, number_of, pairs_of, printable, text_of
from edgekit.machine.types import MemoryLimit

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
            f"{printable(str(mount.point))}), and no memory limit there: a limit set further up, on a pod or "
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
                f"This process is in a control group ({version.name} {printable(str(path))}) that is not "
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
                f"{folder / name} contains {printable(text)!r}, which is not a limit: ignored."
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
