"""How much of the CPU other programs use while something is measured."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_NOT_BUSY = frozenset({"idle", "iowait", "guest", "guest_nice"})  # guests are in "user" already


@dataclass(slots=True)
class Others:
    share: float = 0.0  # of all cores, from 0 to 1; set at the end of the block

    @property
    def note(self) -> str:
        return (
            f"other programs used {self.share * 100:.0f} % of the CPU; measure again when the "
            "machine is idle"
        )


@contextmanager
def watched() -> Iterator[Others]:
    """On Windows the time of child processes is unknown: nothing counts as other programs'."""
    others = Others()
    begin, busy_s, own_s = time.monotonic(), _busy_s(), _own_s()
    yield others
    passed_s = max(time.monotonic() - begin, 1e-3) * (os.cpu_count() or 1)
    taken_s = (_busy_s() - busy_s) - (_own_s() - own_s)
    others.share = 0.0 if sys.platform == "win32" else min(1.0, max(0.0, taken_s / passed_s))


def _busy_s() -> float:
    """Of all cores, by all programs."""
    import psutil

    times = psutil.cpu_times()._asdict()
    return float(sum(value for name, value in times.items() if name not in _NOT_BUSY))


def _own_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
