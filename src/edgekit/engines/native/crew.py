"""A crew of threads that share the tasks of a round, progress reports, and a switch for numpy's own threads."""

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

WAIT_S = 0.02  # the caller calls `pause` this often while it waits for the other threads


@dataclass(frozen=True, slots=True)
class CrewMember:
    """The buffers of one thread."""

    packed: NDArray[np.uint8]  # a tile of weights, as in the file
    scratch: Floats  # unpacked rows, or scores of attention
    side: Floats  # results of `up`


Checkpoint = Callable[[float], None]
"""Called between tiles with the completed share of the pass. An exception from it ends the pass."""

Step = Callable[[CrewMember, int, int], None]
Task = tuple[Step, int, int]  # a step and its range of rows or tokens: first, last (excluded)
Pause = Callable[[int], None]  # called with the number of tasks that have not begun


class Crew:
    """Threads that run the tasks of a round. The calling thread is one of them; the others sleep between rounds."""

    def __init__(self, workers: Sequence[CrewMember]) -> None:
        self.workers = tuple(workers)
        helpers = self.workers[1:]
        self._tasks: deque[Task] = deque()
        self._stopping = False
        self._closing = False
        self._error: BaseException | None = None
        self._busy = 0  # threads besides the caller's that are still working
        self._counting = threading.Lock()
        self._all_idle = _locked_lock()
        self._wakeups = [_locked_lock() for _ in helpers]
        self._threads: list[threading.Thread] = []
        for worker, wakeup in zip(helpers, self._wakeups, strict=True):
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
        """Runs all tasks, in any order, on all threads. Returns or raises when every thread is idle again.

        Between tasks and while waiting, this thread calls `pause` with the number of tasks that have not begun. An
        exception from `pause`, or in any thread, stops the round.
        """
        self._tasks.extend(tasks)
        self._stopping = False
        self._busy = max(0, min(len(self._wakeups), len(tasks) - 1))
        has_help = self._busy > 0
        for wakeup in self._wakeups[: self._busy]:
            wakeup.release()
        self._run_tasks(self.workers[0], pause)
        while has_help:  # no buffer may be in use when a round ends, whatever ended it
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

    def _run_tasks(self, worker: CrewMember, pause: Pause | None) -> None:
        """Runs tasks until none are left. An error stops all threads, and run() raises it."""
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
            self._run_tasks(worker, None)
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


def _locked_lock() -> threading.Lock:
    """A locked lock: releasing it wakes the thread that waits for it."""
    lock = threading.Lock()
    lock.acquire()  # noqa: SIM115,RUF100 - released by the thread that wakes another
    return lock


REPORT_EVERY_S = 0.005  # looking at the clock is cheap, looking at the memory is not


class PassProgress:
    """Reports to a checkpoint every few milliseconds how much of a call is done. Work is counted in any unit."""

    def __init__(self, checkpoint: Checkpoint, total: int) -> None:
        self._checkpoint = checkpoint
        self._total = max(1, total)
        self._done = 0  # work of the rounds before this one
        self._reported_at = 0.0
        self._round_work = 0
        self._tasks = 1  # of this round

    def begin_round(self, work: int, tasks: int) -> None:
        """Begins a round of `tasks` tasks, which do `work` together."""
        self._done += self._round_work  # of the round before
        self._round_work, self._tasks = work, max(1, tasks)

    def pause(self, tasks_left: int) -> None:
        """Calls the checkpoint if enough time has passed. An exception from the checkpoint ends the call."""
        now = time.monotonic()
        if now - self._reported_at >= REPORT_EVERY_S:
            done_in_round = self._round_work * (self._tasks - tasks_left) / self._tasks
            self._checkpoint(min(1.0, (self._done + done_in_round) / self._total))
            self._reported_at = time.monotonic()

    def finish(self) -> None:
        self._checkpoint(1.0)


# Where numpy's wheels keep OpenBLAS: on Linux and Windows, and on macOS for Intel.
_LIBRARIES = ("../numpy.libs/*openblas*", ".dylibs/*openblas*")


class _Blas(NamedTuple):
    """OpenBLAS's functions that get and set its number of threads."""

    get: Any
    set: Any


class _BlasThreads:
    """How many blocks of one_thread() are active, and how many threads OpenBLAS had before the first."""

    lock = threading.Lock()
    count = 0
    threads = 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside the block, numpy multiplies in the calling thread only. No effect with a BLAS other than OpenBLAS."""
    blas = _find_blas()
    if blas is None:
        yield
        return
    with _BlasThreads.lock:
        if not _BlasThreads.count:
            _BlasThreads.threads = blas.get()
            blas.set(1)
        _BlasThreads.count += 1
    try:
        yield
    finally:
        with _BlasThreads.lock:
            _BlasThreads.count -= 1
            if not _BlasThreads.count:
                blas.set(_BlasThreads.threads)


@functools.cache
def _find_blas() -> _Blas | None:
    folder = Path(np.__file__).parent
    for pattern in _LIBRARIES:
        for path in sorted(folder.glob(pattern)):
            try:
                library = ctypes.CDLL(str(path))  # numpy has loaded it already
                return _Blas(
                    library.scipy_openblas_get_num_threads64_,
                    library.scipy_openblas_set_num_threads64_,
                )
            except (OSError, AttributeError):  # another build, with other names
                continue
    return None
