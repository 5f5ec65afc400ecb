"""Limits per client: connections, requests per second, calls at once, long calls in turn."""

from __future__ import annotations

import asyncio
import ipaddress
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from weakref import WeakValueDictionary

MAX_CONNECTIONS = 256
CONNECTIONS_EACH = 96  # a browser opens six; everyone behind a proxy is one client
MAX_CLIENTS = 4096  # about 1 MB; the client that was silent longest is forgotten and starts afresh
# More than may wait for other servers (models.py), so that those do not block a client's other calls.
LONG_EACH = 8


def network_of(client: str) -> str:
    """The key of a client. An IPv6 client usually has all addresses of a /64, so these count as one client."""
    if ":" not in client:
        return client
    address = ipaddress.IPv6Address(client.partition("%")[0])
    return str(address.ipv4_mapped or int(address) >> 64)


class Rates:
    """A token bucket per client: one second's worth of requests, at least one."""

    def __init__(self, per_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._full = per_s, max(1.0, per_s)
        self._clock = clock
        # By client: the tokens left, and when that was computed.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def has(self, client: str) -> bool:
        """Whether `take` would succeed."""
        return self._level(network_of(client)) >= 1

    def take(self, client: str) -> bool:
        """Count a request; False if the client has sent too many."""
        key = network_of(client)
        level = self._level(key)
        is_allowed = level >= 1
        self._buckets[key] = (level - is_allowed, self._clock())
        self._buckets.move_to_end(key)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return is_allowed

    def _level(self, key: str) -> float:
        """The tokens in the bucket now."""
        if key not in self._buckets:
            return self._full
        level, since_s = self._buckets[key]
        return min(self._full, level + (self._clock() - since_s) * self._per_s)


class Places:
    """A semaphore with a limit in all and one per client. Thread-safe."""

    def __init__(self, *, in_all: int, per_client: int) -> None:
        self._in_all, self._per_client = in_all, per_client
        self._taken: Counter[str] = Counter()
        self._freed = threading.Condition()

    def __len__(self) -> int:
        return self._taken.total()

    def enter(self, client: str, *, timeout_s: float = 0.0) -> bool:
        """Takes a place. Returns False if none was free or became free in time."""
        key = network_of(client)

        def is_free() -> bool:
            return len(self) < self._in_all and self._taken[key] < self._per_client

        with self._freed:
            if not self._freed.wait_for(is_free, timeout_s):
                return False
            self._taken[key] += 1
            return True

    def leave(self, client: str) -> None:
        with self._freed:
            self._taken -= Counter([network_of(client)])  # removes a client that has none left
            self._freed.notify_all()


class ClientTurns:
    """A semaphore per client for long calls, on the server's loop; dropped with the client's last call."""

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, client: str) -> asyncio.Semaphore:
        return self._turns.setdefault(network_of(client), asyncio.Semaphore(LONG_EACH))
