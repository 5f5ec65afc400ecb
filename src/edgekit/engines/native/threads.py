"""How many threads compute, where nobody says."""

from __future__ import annotations

import os

from edgekit.errors import UsageError

USUAL_THREADS = 8  # beyond, the memory's bandwidth is shared out, not won
MOST_THREADS = 1_024  # of any machine; each has buffers of its own


def usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # neither macOS nor Windows has it
        return os.cpu_count() or 1


def usual_threads(cores: int | None = None) -> int:
    """One for each core, up to a few. Without `cores`: those that this process may use."""
    return min(USUAL_THREADS, cores or usable_cores())


def check_threads(threads: int | None) -> None:
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise UsageError(
            f"the number of threads must be at least 1 (got {threads})"
            if threads < 1
            else f"the number of threads must be at most {MOST_THREADS:,} (got {threads:,})"
        )
