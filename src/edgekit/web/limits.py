"""How much one client may do: requests per second, calls at once, long calls in order."""

from __future__ import annotations

import asyncio
import ipaddress
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from edgekit.web.failures import TooManyError

MAX_CLIENTS = 4096  # some 1 MB; the one that has been silent longest is forgotten, and starts anew


class Rates:
    """Buckets of one second's worth, and of one request at least."""

    def __init__(self, per_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._full = max(1.0, per_s)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = (
            OrderedDict()
        )  # what is in, since when

    def __len__(self) -> int:
        return len(self._buckets)

    def has(self, client: str) -> bool:
        """Whether one could be taken. Nothing is."""
        return self._level(network_of(client)) >= 1

    def take(self, client: str) -> bool:
        """Whether there was one to take."""
        key = network_of(client)
        level = self._level(key)
        taken = level >= 1
        self._buckets[key] = (level - taken, self._clock())
        self._buckets.move_to_end(key)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return taken

    def _level(self, key: str) -> float:
        if key not in self._buckets:
            return self._full
        level, since_s = self._buckets[key]
        return min(self._full, level + (self._clock() - since_s) * self._per_s)


def network_of(client: str) -> str:
    """Who has one IPv6 address has 2^64 of them: they share a bucket."""
    if ":" not in client:
        return client
    address = ipaddress.IPv6Address(client.partition("%")[0])
    return str(address.ipv4_mapped or int(address) >> 64)


class Places:
    """For any number of threads."""

    def __init__(self, *, most: int, each: int) -> None:
        self._most, self._each = most, each
        self._taken: Counter[str] = Counter()
        self._freed = threading.Condition()

    def __len__(self) -> int:
        return self._taken.total()

    def enter(self, client: str, *, timeout_s: float = 0.0) -> bool:
        """Whether there was one, now or in time."""
        key = network_of(client)
        with self._freed:
            return self._freed.wait_for(lambda: self._has_taken(key), timeout_s)

    def leave(self, client: str) -> None:
        key = network_of(client)
        with self._freed:
            self._taken[key] -= 1
            if not self._taken[key]:
                del self._taken[key]
            self._freed.notify_all()

    @contextmanager
    def taken(self, client: str, told: str) -> Iterator[None]:
        """Raises TooManyError with these words where there is none."""
        if not self.enter(client):
            raise TooManyError(told)
        try:
            yield
        finally:
            self.leave(client)

    def _has_taken(self, key: str) -> bool:
        free = len(self) < self._most and self._taken[key] < self._each
        if free:
            self._taken[key] += 1
        return free


LONG_EACH = (
    8  # more than may wait for other servers (models.py), so that those do not stop the others
)


class ClientTurns:
    """On the server's loop. A client is forgotten when none of its calls is left."""

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, client: str) -> asyncio.Semaphore:
        """Entered when it is this client's turn."""
        return self._turns.setdefault(network_of(client), asyncio.Semaphore(LONG_EACH))
