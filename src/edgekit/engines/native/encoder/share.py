"""How much of a call is done, told to whoever asked, not more often than every few milliseconds."""

from __future__ import annotations

import time

from edgekit.engines.native.types import Checkpoint

EVERY_S = 0.005  # a look at the clock is cheap, a look at the memory is not


class WorkShare:
    """Counts work in any unit, of which a call has `total`."""

    def __init__(self, checkpoint: Checkpoint, total: int) -> None:
        self._checkpoint = checkpoint
        self._total = max(1, total)
        self._done = 0
        self._told_at = 0.0
        self._round = 0
        self._tasks = 1

    def begin(self, work: int, tasks: int) -> None:
        """A round of so many tasks that will do so much work."""
        self._done += self._round
        self._round, self._tasks = work, max(1, tasks)

    def pause(self, tasks_left: int) -> None:
        """Between tasks: calls the checkpoint when it is time, and lets through what that raises."""
        now = time.monotonic()
        if now - self._told_at >= EVERY_S:
            here = self._round * (self._tasks - tasks_left) / self._tasks
            self._checkpoint(min(1.0, (self._done + here) / self._total))
            self._told_at = time.monotonic()

    def finish(self) -> None:
        self._checkpoint(1.0)
