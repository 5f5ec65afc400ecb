"""A system that promises no more memory than it has -> how much it still promises: Linux in mode 2, and Windows.

https://docs.kernel.org/mm/overcommit-accounting.html. Weights that are mapped from their file need no promise.
"""

from __future__ import annotations

from edgekit.machine.surroundings import Surroundings
from edgekit.machine.tree import number_in, number_of, pairs_of
from edgekit.machine.types import MemoryLimit, System
from edgekit.units import KIB

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
