"""How much text an engine reads at once.

Engines tokenize every request as soon as it comes, each in a thread of its own, with some 50 bytes of memory for each
character: 32 prompts of a megabyte took llama.cpp 1.9 GB. So requests wait here until those before them have been
answered, as far as their first byte.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class ReadTurns:
    """The requests to one engine that have not had their first byte. Used from one event loop."""

    most_bytes: int  # of all of them together; one alone may have more
    reading_bytes: int = 0
    line: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)

    async def take(self, size_bytes: int) -> ReadTurn:
        """Waits for its turn; the requests are served in order."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.line.append((size_bytes, turn))
        self._advance()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self.line = deque(entry for entry in self.line if entry[1] is not turn)
            else:  # the client left as its turn came
                self.reading_bytes -= size_bytes
            self._advance()
            raise
        return ReadTurn(self, size_bytes)

    def give_back(self, size_bytes: int) -> None:
        self.reading_bytes -= size_bytes
        self._advance()

    def _advance(self) -> None:
        while self.line:
            size_bytes, turn = self.line[0]
            if self.reading_bytes and self.reading_bytes + size_bytes > self.most_bytes:
                return
            self.line.popleft()
            if not turn.done():
                self.reading_bytes += size_bytes
                turn.set_result(None)


@dataclass(slots=True)
class ReadTurn:
    """The turn of one request."""

    turns: ReadTurns
    size_bytes: int
    is_over: bool = False

    def end(self) -> None:
        """The engine has read the request. Idempotent."""
        if not self.is_over:
            self.is_over = True
            self.turns.give_back(self.size_bytes)
