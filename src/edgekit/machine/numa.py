"""The nodes that a machine's memory is cut into (NUMA) -> a limit for a process bound to some, and a host without a
GPU's own memory.

https://docs.kernel.org/admin-guide/numastat.html; set_mempolicy(2), cpuset(7).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from edgekit.machine.tree import bytes_of, number_in, pairs_of, text_of
from edgekit.machine.types import Device, HostMemory, MemoryLimit
from edgekit.units import KIB, format_bytes

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
