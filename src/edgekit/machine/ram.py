"""The processor's memory and what holds a process below it -> HostMemory."""

from __future__ import annotations

import warnings

from edgekit.machine.cgroup import cgroup_limits
from edgekit.machine.commit import commit_limits
from edgekit.machine.numa import bound_limits
from edgekit.machine.process_limits import process_limits
from edgekit.machine.surroundings import Psutil, Surroundings
from edgekit.machine.types import HostMemory, System


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
