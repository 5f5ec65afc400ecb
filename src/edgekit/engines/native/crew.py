"""Threads that share the steps of a round, each with its own buffers; progress; and numpy's own threads held back."""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.kernels.types import Floats
from edgekit.errors import MemoryPressureError

WAIT_S = 0.02  # how long the caller waits for the others before it looks up


@dataclass(frozen=True, slots=True)
class CrewMember:
    """The buffers of one thread."""

    packed: NDArray[np.uint8]  # a tile as it is in the file
    scratch: Floats  # unpacked rows, scores
    side: Floats  # rows of `up`


Checkpoint = Callable[[float], None]
"""Called between tiles with the share of the pass that is done; what it raises ends the pass."""

Step = Callable[[CrewMember, int, int], None]
Task = tuple[Step, int, int]  # a step, and which rows or tokens of it: first, last (excluded)
Pause = Callable[[int], None]


class Crew:
    """The calling thread is one of the workers; the others sleep between rounds."""

    def __init__(self, workers: Sequence[CrewMember]) -> None:
        self.workers = tuple(workers)
        others = self.workers[1:]
        self._tasks: deque[Task] = deque()
        self._stopping = False
        self._closing = False
        self._error: BaseException | None = None
        self._busy = 0  # of the others
        self._counting = threading.Lock()
        self._all_idle = _taken()
        self._wakeups = [_taken() for _ in others]
        self._threads: list[threading.Thread] = []
        for worker, wakeup in zip(others, self._wakeups, strict=True):
            thread = threading.Thread(
                target=self._serve, args=(worker, wakeup), name="edgekit-tiles", daemon=True
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
        self._busy = max(0, min(len(self._wakeups), len(tasks) - 1))
        helped = self._busy > 0
        for wakeup in self._wakeups[: self._busy]:
            wakeup.release()
        self._take_all(self.workers[0], pause)
        while helped:  # no buffer may be in use when a round ends, whatever ended it
            try:
                self._all_idle.acquire(timeout=WAIT_S)
                with self._counting:
                    if not self._busy:
                        break
                if not self._stopping:
                    pause(len(self._tasks))
            except BaseException as interruption:  # noqa: BLE001 - raised when all have stopped
                self._stop(interruption)
        self._all_idle.acquire(blocking=False)
        self._tasks.clear()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Returns when the threads have ended. Idempotent."""
        threads, self._threads = self._threads, []
        self._closing = True
        for wakeup in self._wakeups[: len(threads)]:
            wakeup.release()
        for thread in threads:
            thread.join()

    def _take_all(self, worker: CrewMember, pause: Pause | None) -> None:
        """Takes steps until none are left. An error is raised by run(), and stops all threads."""
        tasks = self._tasks
        try:
            while tasks and not self._stopping:
                try:
                    step, first, last = tasks.popleft()
                except IndexError:  # another thread took it
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

    def _serve(self, worker: CrewMember, wakeup: threading.Lock) -> None:
        while True:
            wakeup.acquire()
            if self._closing:
                return
            self._take_all(worker, None)
            with self._counting:
                self._busy -= 1
                if not self._busy:
                    self._all_idle.release()


def no_thread(error: RuntimeError) -> MemoryPressureError:
    """The error for "can't start new thread"."""
    return MemoryPressureError(
        f"cannot start another thread ({error}): use fewer (threads), or raise the limits "
        "(ulimit -u, ulimit -v, the container's pids)"
    )


def _taken() -> threading.Lock:
    """A locked lock: releasing it wakes the thread that waits for it."""
    lock = threading.Lock()
    lock.acquire()  # noqa: SIM115,RUF100 - released by the thread that wakes another
    return lock


REPORT_EVERY_S = 0.005  # looking at the clock is cheap, looking at the memory is not


class PassProgress:
    """How much of a call is done, reported to a checkpoint every few milliseconds. Work is counted in any unit."""

    def __init__(self, checkpoint: Checkpoint, total: int) -> None:
        self._checkpoint = checkpoint
        self._total = max(1, total)
        self._done = 0
        self._reported_at = 0.0
        self._round = 0
        self._tasks = 1

    def begin_round(self, work: int, tasks: int) -> None:
        """Of `tasks` tasks that do `work` together."""
        self._done += self._round
        self._round, self._tasks = work, max(1, tasks)

    def pause(self, tasks_left: int) -> None:
        """Between tasks: calls the checkpoint when it is time. What that raises ends the call."""
        now = time.monotonic()
        if now - self._reported_at >= REPORT_EVERY_S:
            here = self._round * (self._tasks - tasks_left) / self._tasks
            self._checkpoint(min(1.0, (self._done + here) / self._total))
            self._reported_at = time.monotonic()

    def finish(self) -> None:
        self._checkpoint(1.0)


# Where numpy's wheels have OpenBLAS: Linux and Windows, macOS on Intel.
_LIBRARIES = ("../numpy.libs/*openblas*", ".dylibs/*openblas*")


class _Blas(NamedTuple):
    get: Any
    set: Any


class _Holds:
    """How many passes want one thread, and how many threads there were before."""

    lock = threading.Lock()
    count = 0
    threads = 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Make numpy multiply in the calling thread only. No effect with a BLAS other than OpenBLAS."""
    blas = _find()
    if blas is None:
        yield
        return
    with _Holds.lock:
        if not _Holds.count:
            _Holds.threads = blas.get()
            blas.set(1)
        _Holds.count += 1
    try:
        yield
    finally:
        with _Holds.lock:
            _Holds.count -= 1
            if not _Holds.count:
                blas.set(_Holds.threads)


@functools.cache
def _find() -> _Blas | None:
    folder = Path(np.__file__).parent
    for place in _LIBRARIES:
        for path in sorted(folder.glob(place)):
            try:
                library = ctypes.CDLL(str(path))  # numpy has loaded it already
                return _Blas(
                    library.scipy_openblas_get_num_threads64_,
                    library.scipy_openblas_set_num_threads64_,
                )
            except (OSError, AttributeError):  # another build, with other names
                continue
    return None
