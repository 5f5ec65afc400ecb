"""Calls that compute for seconds: of one client a few at once, the others in the order in which they came."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from edgekit.web.rates import network_of

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
