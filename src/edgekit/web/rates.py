"""How often one client may ask: a bucket each that fills by the second, in a table of constant size."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

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
