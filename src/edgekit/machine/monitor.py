"""Every limit on this process's memory -> whether one more buffer may be had, and whether to go on.

A buffer is reserved here before it is made. Beyond 85 % of any limit nothing more is given and work
in progress stops: an error with numbers in it comes before the kernel's killer, which says nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from edgekit.errors import MemoryPressureError
from edgekit.machine.host import group_limits, memory_groups, process_limits
from edgekit.machine.types import MemoryLimit
from edgekit.units import MB, format_bytes

BREAKER_PERCENT = 85
CRITICAL_BYTES = 256 * MB  # of the whole machine: below it the next program that asks gets killed
BUDGET = "memory budget"
RESIDENT = "memory budget (all of this process)"

_FRESH_S = 0.02  # how long a measurement counts for `check`, which is called between tiles
_SMALL_BYTES = MB  # an event loop asks for the vectors of a few texts, and must not be held
_COST_SHARE = 0.02  # and longer where measuring is slow: never more than this share of the time

# What to do about a limit, by how its name begins.
_ADVICE = (
    (RESIDENT, "raise the budget, or use a process that holds less memory"),
    (BUDGET, "raise the budget, or embed fewer or shorter texts at a time"),
    ("cgroup", "raise the memory limit of the container or service, or stop other programs in it"),
    ("RLIMIT_AS", "raise it (ulimit -v), or lower the memory budget"),
    ("RLIMIT_DATA", "raise it (ulimit -d), or lower the memory budget"),
)


def usable_bytes(limit_bytes: int, breaker_percent: int = BREAKER_PERCENT) -> int:
    """How much of a limit may be in use: what a plan may spend of a budget."""
    return limit_bytes * breaker_percent // 100


class Reservation:
    """Memory that was promised to somebody, until it is released: by hand, or at the end of a `with`."""

    __slots__ = ("_give_back", "size_bytes", "what")

    def __init__(
        self, what: str, size_bytes: int, give_back: Callable[[Reservation, int], None]
    ) -> None:
        self.what = what
        self.size_bytes = size_bytes  # 0 when it was released
        self._give_back = give_back

    def release(self) -> None:
        """Twice is as good as once."""
        self._give_back(self, 0)

    def shrink(self, size_bytes: int) -> None:
        """Keeps so much of it, without asking again: what was built is in memory already."""
        self._give_back(self, size_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What the machine said, and when."""

    limits: tuple[MemoryLimit, ...]
    available_bytes: int
    good_until_s: float


class Monitor:
    """Counts what is reserved, measures what is used, and says no in time. For any number of threads."""

    def __init__(
        self,
        *,
        budget_bytes: int | None = None,
        own_process: bool = False,
        breaker_percent: int = BREAKER_PERCENT,
        critical_bytes: int = CRITICAL_BYTES,
        root: Path = Path("/"),
    ) -> None:
        """`own_process`: the budget is for the whole process, interpreter and libraries included.

        Otherwise it is for what is reserved here: a guest does not answer for its host.
        The control groups are those of this moment; their limits are read again each time.
        """
        self._budget_bytes = budget_bytes
        self._own_process = own_process
        self._percent = breaker_percent
        self._critical_bytes = critical_bytes
        self._root = root
        self._groups, _ = memory_groups(root)
        self._lock = threading.RLock()
        self._reserved_bytes = 0
        self._peak_bytes = 0
        # The least that was ever in use under each limit: what others hold, at most.
        self._least_used: dict[str, int] = {}
        self._measured = self._measure()

    @property
    def reserved_bytes(self) -> int:
        return self._reserved_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that was reserved at one time."""
        return self._peak_bytes

    @property
    def limits(self) -> tuple[MemoryLimit, ...]:
        """Every limit as it is now, the one with the least room first."""
        with self._lock:
            return tuple(sorted(self._limits(self._fresh()), key=self._room_bytes))

    @property
    def usable_bytes(self) -> int | None:
        """What could be reserved now, below every breaker; None where nothing limits."""
        rooms = [max(0, self._room_bytes(limit)) for limit in self.limits]
        return min(rooms, default=None)

    def can_allocate(self, size_bytes: int) -> bool:
        with self._lock:
            return self._objection("", size_bytes, self._fresh()) is None

    def try_allocate(self, size_bytes: int, what: str) -> Reservation:
        """Reserves it, or MemoryPressureError: who asked for how much, and what is in the way."""
        if size_bytes < 0:
            raise ValueError(f"{what}: a reservation of {size_bytes} bytes")
        with self._lock:
            # What is reserved is counted to the byte; only what others use may be 20 ms old.
            measured = self._recent() if size_bytes < _SMALL_BYTES else self._fresh()
            objection = self._objection(what, size_bytes, measured)
            if objection is not None:
                raise MemoryPressureError(objection)
            self._reserved_bytes += size_bytes
            self._peak_bytes = max(self._peak_bytes, self._reserved_bytes)
        return Reservation(what, size_bytes, self._give_back)

    def is_critical(self) -> bool:
        """Whether the whole machine is nearly out of memory."""
        with self._lock:
            return self._recent().available_bytes < self._critical_bytes

    def check(self) -> None:
        """MemoryPressureError when work should stop. Cheap enough to be called between tiles."""
        with self._lock:
            objection = self._objection("", 0, self._recent())
        if objection is not None:
            raise MemoryPressureError(objection)

    def _give_back(self, reservation: Reservation, keep_bytes: int) -> None:
        with self._lock:
            kept = min(keep_bytes, reservation.size_bytes)
            self._reserved_bytes -= reservation.size_bytes - kept
            reservation.size_bytes = kept

    def _objection(self, what: str, size_bytes: int, measured: _Measured) -> str | None:
        """Why so much more may not be had; None: it may."""
        tightest = min(self._limits(measured), key=self._room_bytes, default=None)
        if tightest is not None and self._room_bytes(tightest) < size_bytes:
            return self._over_the_limit(what, size_bytes, tightest)
        left = measured.available_bytes - size_bytes
        if left < self._critical_bytes:
            return self._too_little_left(what, size_bytes, measured.available_bytes)
        return None

    def _room_bytes(self, limit: MemoryLimit) -> int:
        """Below its breaker; less than nothing when that is passed already."""
        return usable_bytes(limit.limit_bytes, self._percent) - limit.used_bytes

    def _limits(self, measured: _Measured) -> Iterator[MemoryLimit]:
        """With what is reserved: a reserved page may not have been touched, and so not measured."""
        if self._budget_bytes is not None:
            yield MemoryLimit(
                name=BUDGET, limit_bytes=self._budget_bytes, used_bytes=self._reserved_bytes
            )
        for limit in measured.limits:
            expected = self._least_used[limit.name] + self._reserved_bytes
            yield replace(limit, used_bytes=max(limit.used_bytes, expected))

    def _recent(self) -> _Measured:
        if time.monotonic() >= self._measured.good_until_s:
            self._fresh()
        return self._measured

    def _fresh(self) -> _Measured:
        self._measured = self._measure()
        return self._measured

    def _measure(self) -> _Measured:
        import psutil

        begin_s = time.monotonic()
        groups, _ = group_limits(self._root, self._groups, cache_is_used=False)
        limits = [*groups, *process_limits(self._root)]
        if self._own_process and self._budget_bytes is not None:
            resident = psutil.Process().memory_info().rss
            limits.append(
                MemoryLimit(name=RESIDENT, limit_bytes=self._budget_bytes, used_bytes=resident)
            )
        for limit in limits:
            least = self._least_used.get(limit.name, limit.used_bytes)
            self._least_used[limit.name] = min(least, limit.used_bytes)
        available_bytes = psutil.virtual_memory().available
        now_s = time.monotonic()
        return _Measured(
            limits=tuple(limits),
            available_bytes=available_bytes,
            good_until_s=now_s + max(_FRESH_S, (now_s - begin_s) / _COST_SHARE),
        )

    def _over_the_limit(self, what: str, size_bytes: int, limit: MemoryLimit) -> str:
        most = usable_bytes(limit.limit_bytes, self._percent)
        return (
            f"{_asked(what, size_bytes)}{format_bytes(limit.used_bytes)} of "
            f"{format_bytes(limit.limit_bytes)} ({limit.name}) is in use, "
            f"{format_bytes(self._reserved_bytes)} of it reserved here, and the safety limit "
            f"is {self._percent} % ({format_bytes(most)}); {_advice(limit.name)}"
        )

    def _too_little_left(self, what: str, size_bytes: int, available_bytes: int) -> str:
        return (
            f"{_asked(what, size_bytes)}the machine has {format_bytes(available_bytes)} "
            f"of memory available, and {format_bytes(self._critical_bytes)} must stay "
            f"free for other programs ({format_bytes(self._reserved_bytes)} reserved "
            "here); close some of them, or use a smaller memory budget"
        )


def _asked(what: str, size_bytes: int) -> str:
    return f"{what} needs {format_bytes(size_bytes)}, but " if what else "stopped: "


def _advice(name: str) -> str:
    return next((advice for begin, advice in _ADVICE if name.startswith(begin)), "raise it")
