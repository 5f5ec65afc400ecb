"""How much an engine reads at once.

Engines tokenize every request as soon as it comes, each in a thread of its own, with some 50 bytes of memory for each
character: 32 prompts of a megabyte took llama.cpp 1.9 GB. Images are decoded at once, too. So requests wait here until
the engine has read those before them: it has when it answers, or after a time, because without streaming the first byte
of an answer comes with its last.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class ReadTurns:
    """The requests to one engine that have not had their first byte. Used from one event loop."""

    most: int  # bytes or pixels of all of them together; one alone may have more
    most_s: float  # that a turn lasts
    reading: int = 0
    line: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)

    async def take(self, size: int) -> ReadTurn:
        """Waits for its turn; the requests are served in order."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.line.append((size, turn))
        self._advance()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self.line = deque(entry for entry in self.line if entry[1] is not turn)
            else:  # the client left as its turn came
                self.reading -= size
            self._advance()
            raise
        taken = ReadTurn(self, size)
        taken.timer = asyncio.get_running_loop().call_later(self.most_s, taken.end)
        return taken

    def give_back(self, size: int) -> None:
        self.reading -= size
        self._advance()

    def _advance(self) -> None:
        while self.line:
            size, turn = self.line[0]
            if self.reading and self.reading + size > self.most:
                return
            self.line.popleft()
            if not turn.done():
                self.reading += size
                turn.set_result(None)


@dataclass(slots=True)
class ReadTurn:
    """The turn of one request."""

    turns: ReadTurns
    size: int
    is_over: bool = False
    timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """The engine has read the request. Idempotent."""
        if not self.is_over:
            self.is_over = True
            if self.timer is not None:
                self.timer.cancel()
            self.turns.give_back(self.size)
