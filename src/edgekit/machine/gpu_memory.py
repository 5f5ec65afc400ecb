"""How much memory of a process a GPU's driver keeps in RAM: for transfers, and what no longer fits on the card.

Linux: Documentation/gpu/drm-usage-stats.rst, amdgpu_fdinfo.c and xe_drm_client.c of the kernel. Windows: the counters
of the task manager.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from edgekit.machine.gpus import dedicated_slots
from edgekit.machine.pdh import ProcessMemory
from edgekit.machine.surroundings import Surroundings, bytes_of, family
from edgekit.machine.types import System
from edgekit.units import GIB, KIB, MIB

_INFO_BYTES = 8 * KIB  # an entry of a GPU with eight engines has 2 KiB
_MAX_FILES = 4096  # open files of a process that are looked at
_MAX_PROCESSES = 64  # of an engine: itself and its children
_LEAST_ON_CARD = 64 * MIB  # a process with less on a GPU does not compute on it
# amdgpu: gtt, cpu; xe: gtt, system; i915: system0. Regions of a card are vram, vram0, local0.
_IN_RAM = re.compile(r"drm-(resident|total|memory)-(gtt|cpu|system)\d*")
_KINDS = ("resident", "total", "memory")  # the preferred one first; old kernels have only the last
_SIZE = re.compile(r"\s*(\d{1,15})(?:\s+([KMG])iB)?\s*", re.ASCII)
_UNITS = {None: 1, "K": KIB, "M": MIB, "G": GIB}
_INSTANCE = re.compile(r"pid_(\d{1,10})_luid_", re.ASCII)


class MemoryInRam:
    """The memory that GPUs' drivers keep in RAM for a process and its children."""

    def __init__(self, here: Surroundings) -> None:
        self._here = here
        is_linux = here.system is System.LINUX
        self._slots = dedicated_slots(here) if is_linux else frozenset[str]()

    def look(self, pid: int) -> int | None:
        """The bytes now; None if no driver tells, or if GPU and CPU share one memory."""
        pids = family(pid, self._here.psutil())[:_MAX_PROCESSES]
        if self._here.system is System.WINDOWS:
            return _in_counters(self._here.gpu_process_memory(), frozenset(pids))
        if not self._slots:
            return None
        clients: dict[tuple[str, str], int] = {}
        for process in pids:
            clients |= _clients(self._here.root / "proc" / str(process) / "fdinfo", self._slots)
        return sum(clients.values()) if clients else None


def _clients(folder: Path, slots: frozenset[str]) -> dict[tuple[str, str], int]:
    """Bytes in RAM by the slot of a card and the number of a client, which several open files may share."""
    clients: dict[tuple[str, str], int] = {}
    with suppress(OSError):  # the process is gone
        for path in islice(folder.iterdir(), _MAX_FILES):
            data = bytes_of(path, _INFO_BYTES) or b""
            if b"drm-driver:" not in data:
                continue
            parts = (line.partition(":") for line in data.decode(errors="replace").splitlines())
            values = {key: value.strip() for key, _, value in parts}
            slot = values.get("drm-pdev", "")
            if slot in slots:
                clients[slot, values.get("drm-client-id", path.name)] = _bytes_in_ram(values)
    return clients


def _bytes_in_ram(values: Mapping[str, str]) -> int:
    """The sum over the regions in RAM, of the first kind of figure that a client has."""
    sums: dict[str, int] = {}
    for key, value in values.items():
        name, size = _IN_RAM.fullmatch(key), _SIZE.fullmatch(value)
        if name and size:
            sums[name[1]] = sums.get(name[1], 0) + int(size[1]) * _UNITS[size[2]]
    return next((sums[kind] for kind in _KINDS if kind in sums), 0)


def _in_counters(memory: Mapping[str, ProcessMemory], pids: frozenset[int]) -> int | None:
    """Shared memory of the processes on cards on which they compute; None if there is none.

    Graphics in the processor have hardly any memory of their own: what a process has there is all shared.
    """
    sizes = [
        size.shared_bytes
        for name, size in memory.items()
        if (match := _INSTANCE.match(name))
        and int(match[1]) in pids
        and size.dedicated_bytes >= _LEAST_ON_CARD
    ]
    return sum(sizes) if sizes else None
