"""Threads that share the steps of a round: each has its own buffers, and takes a step when it is free."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.arrays import Floats
from edgekit.errors import MemoryPressureError

WAIT_S = 0.02  # how long the caller waits for the others before it looks up


@dataclass(frozen=True, slots=True)
class CrewMember:
    """The buffers of one thread."""

    packed: NDArray[np.uint8]  # a tile as it is in the file
    scratch: Floats  # unpacked rows, scores
    side: Floats  # rows of `up`


Step = Callable[[CrewMember, int, int], None]
Task = tuple[Step, int, int]  # a step, and which rows or tokens of it: first, last (excluded)
Pause = Callable[[int], None]


class Crew:
    """The calling thread is one of the workers; the others sleep between rounds."""

    def __init__(self, workers: Sequence[CrewMember]) -> None:
        self.first, *others = workers
        self._tasks: deque[Task] = deque()
        self._stopping = False
        self._closing = False
        self._error: BaseException | None = None
        self._busy = 0  # of the others
        self._counting = threading.Lock()
        self._all_idle = _taken()
        self._bells = [_taken() for _ in others]
        self._threads: list[threading.Thread] = []
        for worker, bell in zip(others, self._bells, strict=True):
            thread = threading.Thread(
                target=self._serve, args=(worker, bell), name="edgekit-tiles", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                self.close()
                raise no_thread(error) from error
            self._threads.append(thread)

    def run(self, tasks: Sequence[Task], pause: Pause) -> None:
        """All tasks, in any order, on all threads. Returns or raises when every thread is idle again.

        `pause` is called here between tasks and while waiting, with the number of tasks not begun;
        what it raises stops the round, as does an error in any thread.
        """
        self._tasks.extend(tasks)
        self._stopping = False
        self._busy = max(0, min(len(self._bells), len(tasks) - 1))
        helped = self._busy > 0
        for bell in self._bells[: self._busy]:
            bell.release()
        self._take_all(self.first, pause)
        if helped:
            self._wait(pause)
        self._tasks.clear()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Returns when the threads have gone. Twice is as good as once."""
        threads, self._threads = self._threads, []
        self._closing = True
        for bell in self._bells[: len(threads)]:
            bell.release()
        for thread in threads:
            thread.join()

    def _take_all(self, worker: CrewMember, pause: Pause | None) -> None:
        """Steps until there are no more; an error is kept for the caller, and stops everybody."""
        tasks = self._tasks
        try:
            while tasks and not self._stopping:
                try:
                    step, first, last = tasks.popleft()
                except IndexError:  # another thread was quicker
                    return
                step(worker, first, last)
                if pause is not None:
                    pause(len(tasks))
        except BaseException as error:  # noqa: BLE001 - goes to the caller of run()
            self._stop(error)

    def _stop(self, error: BaseException) -> None:
        self._stopping = True
        if self._error is None:
            self._error = error

    def _wait(self, pause: Pause) -> None:
        """Nobody's buffers may be in use when a round ends, whatever ended it."""
        while True:
            try:
                self._all_idle.acquire(timeout=WAIT_S)
                with self._counting:
                    if not self._busy:
                        break
                if not self._stopping:
                    pause(len(self._tasks))
            except BaseException as error:  # noqa: BLE001 - raised when all have stopped
                self._stop(error)
        self._all_idle.acquire(blocking=False)

    def _serve(self, worker: CrewMember, bell: threading.Lock) -> None:
        while True:
            bell.acquire()
            if self._closing:
                return
            self._take_all(worker, None)
            with self._counting:
                self._busy -= 1
                if not self._busy:
                    self._all_idle.release()


def no_thread(error: RuntimeError) -> MemoryPressureError:
    """What "can't start new thread" means."""
    return MemoryPressureError(
        f"cannot start another thread ({error}): use fewer (threads), or raise the limits "
        "(ulimit -u, ulimit -v, the container's pids)"
    )


def _taken() -> threading.Lock:
    """A lock as a bell: who waits takes it, who rings gives it back."""
    lock = threading.Lock()
    lock.acquire()  # noqa: SIM115,RUF100 - released by whoever rings
    return lock
