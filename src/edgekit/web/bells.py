"""Something happened in another thread -> whoever waits for it on the server's loop wakes up."""

from __future__ import annotations

import asyncio
from contextlib import suppress

PING_S = 10.0  # so long a stream of events says nothing


class Bell:
    """Wakes a listener on the server's loop, from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()

    def ring(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._rung.set)

    async def wait(self, timeout_s: float) -> bool:
        """Whether it rang. From now on it rings anew."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._rung.wait()
        rang = self._rung.is_set()
        self._rung.clear()
        return rang
