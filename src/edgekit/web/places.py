"""How many may do something at once: in all, and of one client. Whoever finds no place is told so, and never waits."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from edgekit.web.failures import TooManyError
from edgekit.web.rates import network_of


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
