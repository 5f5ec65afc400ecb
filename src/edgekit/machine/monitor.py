"""Memory at run time: `Monitor` guards this process, `MemoryProbe` measures any process.

A Monitor is asked for every buffer before it is allocated. Beyond 85 % of any limit it refuses further buffers and
stops work in progress, so that users see an error with numbers instead of the kernel's out-of-memory killer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import psutil

from edgekit.errors import MemoryPressureError
from edgekit.machine.host import group_limits, memory_groups, process_limits
from edgekit.machine.surroundings import Surroundings
from edgekit.machine.types import MemoryLimit
from edgekit.units import MB, format_bytes

BREAKER_PERCENT = 85
CRITICAL_BYTES = 256 * MB  # with less available memory on the machine, the kernel may kill programs
BUDGET = "memory budget"
RESIDENT = "memory budget (all of this process)"

_FRESH_S = 0.02  # how long a measurement is used by `check`, which is called between tiles
# The share of time that may be spent on measuring: a slow measurement is used longer.
_COST_SHARE = 0.02
_SMALL_BYTES = MB  # smaller requests use an old measurement, so as not to block an event loop

# Prefix of a limit's name -> advice.
_ADVICE = (
    (RESIDENT, "raise the budget, or use a process that holds less memory"),
    (BUDGET, "raise the budget, or embed fewer or shorter texts at a time"),
    ("cgroup", "raise the memory limit of the container or service, or stop other programs in it"),
    ("RLIMIT_AS", "raise it (ulimit -v), or lower the memory budget"),
    ("RLIMIT_DATA", "raise it (ulimit -d), or lower the memory budget"),
)


def usable_bytes(limit_bytes: int) -> int:
    """How much of a limit may be in use."""
    return limit_bytes * BREAKER_PERCENT // 100


@dataclass(slots=True, eq=False)
class Reservation:
    """Memory reserved until it is released, at the latest at the end of a `with` block."""

    size_bytes: int  # 0 once it is released
    _resize: Callable[[Reservation, int], None]

    def release(self) -> None:
        """Idempotent."""
        self._resize(self, 0)

    def shrink(self, size_bytes: int) -> None:
        """Reduce it to `size_bytes`."""
        self._resize(self, size_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """A measurement, and how long it may be used."""

    limits: tuple[MemoryLimit, ...]
    available_bytes: int
    good_until_s: float


class Monitor:
    """Counts reservations, measures memory in use, and refuses before a limit is reached. Thread-safe."""

    def __init__(
        self,
        *,
        budget_bytes: int | None = None,
        own_process: bool = False,
        critical_bytes: int = CRITICAL_BYTES,
        root: Path = Path("/"),
    ) -> None:
        """`own_process`: the budget covers the whole process, with interpreter and libraries.

        Otherwise it covers only the reservations, as for a library inside another program.
        """
        self._budget_bytes = budget_bytes
        self._own_process = own_process
        self._critical_bytes = critical_bytes
        self._probe = MemoryProbe(Surroundings(root=root))
        self._lock = threading.RLock()
        self.reserved_bytes = 0
        self.peak_reserved_bytes = 0
        # The lowest use measured so far under each limit, taken as the use without our reservations.
        self._least_used: dict[str, int] = {}
        self._measure()

    @property
    def limits(self) -> tuple[MemoryLimit, ...]:
        """All limits with their current use, the tightest first."""
        with self._lock:
            return tuple(sorted(self._limits(self._measure()), key=self._remaining_bytes))

    @property
    def usable_bytes(self) -> int | None:
        """The bytes that could be reserved now; None if there is no limit."""
        remaining = [max(0, self._remaining_bytes(limit)) for limit in self.limits]
        return min(remaining, default=None)

    def try_allocate(self, size_bytes: int, what: str) -> Reservation:
        """Reserve memory for `what`. Raises MemoryPressureError with the numbers and the limit."""
        if size_bytes < 0:
            raise ValueError(f"{what}: a reservation of {size_bytes} bytes")
        with self._lock:
            # Reservations are counted to the byte; only the use by others may be 20 ms old.
            measured = self._recent_measurement() if size_bytes < _SMALL_BYTES else self._measure()
            self._require(what, size_bytes, measured)
            self.reserved_bytes += size_bytes
            self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return Reservation(size_bytes, self._resize)

    def check(self) -> None:
        """Raises MemoryPressureError if work should stop. Cheap enough to be called between tiles."""
        with self._lock:
            self._require("", 0, self._recent_measurement())

    def _resize(self, reservation: Reservation, size_bytes: int) -> None:
        """Reduce a reservation; it never grows."""
        with self._lock:
            new_bytes = min(size_bytes, reservation.size_bytes)
            self.reserved_bytes -= reservation.size_bytes - new_bytes
            reservation.size_bytes = new_bytes

    def _require(self, what: str, size_bytes: int, measured: _Measured) -> None:
        """Raises MemoryPressureError if these additional bytes may not be used."""
        need = f"{what} needs {format_bytes(size_bytes)}, but " if what else "stopped: "
        limit = min(self._limits(measured), key=self._remaining_bytes, default=None)
        if limit is not None and self._remaining_bytes(limit) < size_bytes:
            matching_advice = (text for prefix, text in _ADVICE if limit.name.startswith(prefix))
            advice = next(matching_advice, "raise it")
            raise MemoryPressureError(
                f"{need}{format_bytes(limit.used_bytes)} of "
                f"{format_bytes(limit.limit_bytes)} ({limit.name}) is in use, "
                f"{format_bytes(self.reserved_bytes)} of it reserved here, and the safety limit "
                f"is {BREAKER_PERCENT} % ({format_bytes(usable_bytes(limit.limit_bytes))}); {advice}"
            )
        if measured.available_bytes - size_bytes < self._critical_bytes:
            raise MemoryPressureError(
                f"{need}the machine has {format_bytes(measured.available_bytes)} "
                f"of memory available, and {format_bytes(self._critical_bytes)} must stay "
                f"free for other programs ({format_bytes(self.reserved_bytes)} reserved "
                "here); close some of them, or use a smaller memory budget"
            )

    def _remaining_bytes(self, limit: MemoryLimit) -> int:
        """Bytes that may still be used; negative if too much is already in use."""
        return usable_bytes(limit.limit_bytes) - limit.used_bytes

    def _limits(self, measured: _Measured) -> Iterator[MemoryLimit]:
        """Limits with reservations counted as used: reserved pages that are untouched do not show in measurements."""
        if self._budget_bytes is not None:
            yield MemoryLimit(
                name=BUDGET, limit_bytes=self._budget_bytes, used_bytes=self.reserved_bytes
            )
        for limit in measured.limits:
            expected = self._least_used[limit.name] + self.reserved_bytes
            yield replace(limit, used_bytes=max(limit.used_bytes, expected))

    def _recent_measurement(self) -> _Measured:
        """The last measurement, renewed if it is too old."""
        if time.monotonic() >= self._measured.good_until_s:
            self._measure()
        return self._measured

    def _measure(self) -> _Measured:
        """Measure now, and note the minimum use under each limit."""
        begin_s = time.monotonic()
        limits = [*self._probe.limits()]
        if self._own_process and self._budget_bytes is not None:
            resident = psutil.Process().memory_info().rss
            limits.append(
                MemoryLimit(name=RESIDENT, limit_bytes=self._budget_bytes, used_bytes=resident)
            )
        for limit in limits:
            least = self._least_used.get(limit.name, limit.used_bytes)
            self._least_used[limit.name] = min(least, limit.used_bytes)
        available_bytes = self._probe.available_bytes()
        now_s = time.monotonic()
        self._measured = _Measured(
            limits=tuple(limits),
            available_bytes=available_bytes,
            good_until_s=now_s + max(_FRESH_S, (now_s - begin_s) / _COST_SHARE),
        )
        return self._measured


class MemoryProbe:
    """The limits on a process's memory, and the memory available on the machine."""

    def __init__(self, surroundings: Surroundings) -> None:
        """Finds the control groups once; their limits are read each time."""
        self._surroundings = surroundings
        self._groups, _ = memory_groups(surroundings.root)

    def limits(self, process: int | str = "self") -> tuple[MemoryLimit, ...]:
        """The current limits, with file pages not counted as used."""
        groups, _ = group_limits(self._surroundings.root, self._groups, cache_is_used=False)
        return (*groups, *process_limits(self._surroundings.root, process=process))

    def available_bytes(self) -> int:
        """Memory available on the whole machine without swapping."""
        return int(self._surroundings.psutil().virtual_memory().available)
