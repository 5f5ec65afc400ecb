"""A machine -> how fast a plain program reads its memory with all cores, and the disk for temporary files."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.engines.program import CalibrateRequest
from edgekit.errors import EdgekitError, MissingExtraError
from edgekit.machine.calibration import host_key, today, told_text, watched
from edgekit.machine.types import Disk, HostMeasured
from edgekit.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

TOTAL_BYTES = GIB  # beyond the caches of most processors
LEAST_BYTES = 64 * MIB  # less is read from a cache on any machine
FREE_SHARE = 8  # an eighth of what is free at most
SECONDS = 1.0
LEAST_TURNS = 3
_NUMBER_BYTES = 8

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})


def measure_host(request: CalibrateRequest) -> tuple[HostMeasured, tuple[str, ...]]:
    """And why something of it is missing."""
    bandwidth, without_bandwidth = _bandwidth(request)
    folder = request.options.folder or Path(tempfile.gettempdir())
    disk, without_disk = _disk(folder, request.tell)
    row = HostMeasured(
        host=host_key(request.machine), date=today(), bandwidth_bytes_per_s=bandwidth, disk=disk
    )
    return row, (without_bandwidth, without_disk)


def _bandwidth(request: CalibrateRequest) -> tuple[int | None, str]:
    options, host = request.options, request.machine.host
    size = options.read_bytes or read_bytes(None if host is None else host.usable_bytes)
    if not size:
        return None, "memory bandwidth was not measured: too little free memory"
    threads = thread_count()
    try:
        require_numpy()
        request.tell(f"reading {format_bytes(size)} of memory with {threads} threads")
        with watched() as others:
            found = memory_bandwidth(size, threads=threads, seconds=options.read_seconds)
    except (MissingExtraError, MemoryError) as error:
        return None, f"memory bandwidth was not measured: {error}"
    if others.share > options.busy_share:
        return (
            None,
            f"memory bandwidth was {found / 1e9:.1f} GB/s, which was not saved: {others.note}",
        )
    return found, ""


def _disk(folder: Path, tell: Callable[[str], None]) -> tuple[Disk | None, str]:
    """As the streaming engine measures it before it spills."""
    kind = _filesystem(folder)
    if kind in IN_MEMORY:
        return None, f"{folder} is in RAM ({kind}), so its speed is not that of a disk"
    try:
        require_numpy()
        from edgekit.engines.native.run.gate import measure

        tell(f"writing and reading a test file in {folder}")
        speed = measure(folder)
    except (OSError, EdgekitError) as error:
        return None, f"disk speed was not measured: {error}"
    return Disk(
        folder=told_text(str(folder)),
        read_bytes_per_s=max(1, int(speed.read_bytes_per_s)),
        write_bytes_per_s=max(1, int(speed.write_bytes_per_s)),
        date=today(),
    ), ""


def _filesystem(folder: Path) -> str:
    """Its kind as the system names it; '' where it does not say."""
    import psutil

    try:
        real = folder.resolve()
        mounts = {Path(one.mountpoint): one.fstype for one in psutil.disk_partitions(all=True)}
    except OSError:
        return ""
    return next((mounts[one] for one in (real, *real.parents) if one in mounts), "")


# --- memory


def thread_count() -> int:
    """As many as may run at once."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_bytes(free_bytes: int | None) -> int:
    """How much to read; 0 where too little is free to tell memory from caches."""
    most = TOTAL_BYTES if free_bytes is None else min(TOTAL_BYTES, free_bytes // FREE_SHARE)
    return most if most >= LEAST_BYTES else 0


def require_numpy() -> None:
    try:
        import numpy  # noqa: F401, ICN001 - only whether it is here
    except ImportError as error:
        raise MissingExtraError("numpy is needed: pip install 'edgekit-models[embed]'") from error


def memory_bandwidth(
    total_bytes: int = TOTAL_BYTES, *, threads: int | None = None, seconds: float = SECONDS
) -> int:
    """The best of several turns: what else runs only takes. Raises MissingExtraError without numpy.

    Every thread writes its part first, so that it lies near the core that reads it.
    """
    require_numpy()
    import numpy as np

    threads = threads or thread_count()
    length = max(1, total_bytes // threads // _NUMBER_BYTES)
    readers = _Readers(threads, lambda: np.ones(length, np.int64))
    try:
        return _best(readers, threads * length * _NUMBER_BYTES, seconds)
    finally:
        readers.end()


def _best(readers: _Readers, size_bytes: int, seconds: float) -> int:
    end, times = time.monotonic() + seconds, [readers.turn() for _ in range(LEAST_TURNS)]
    while time.monotonic() < end:
        times.append(readers.turn())
    return int(size_bytes / max(min(times), 1e-9))


class _Readers:
    """Threads that wait for each other, read their parts once, and wait again. numpy lets go of Python meanwhile."""

    def __init__(self, count: int, make: Callable[[], Numbers]) -> None:
        self._gate = threading.Barrier(count + 1)
        self._threads = [
            threading.Thread(target=self._read, args=(make,), daemon=True) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()
        self._pass()  # all parts are written

    def turn(self) -> float:
        """Seconds until the last was done."""
        begin = time.perf_counter()
        self._pass()
        self._pass()
        return time.perf_counter() - begin

    def end(self) -> None:
        """Wherever they wait."""
        self._gate.abort()
        for thread in self._threads:
            thread.join()

    def _pass(self) -> None:
        try:
            self._gate.wait()
        except threading.BrokenBarrierError as error:
            raise MemoryError("not enough memory for the read and write test") from error

    def _read(self, make: Callable[[], Numbers]) -> None:
        try:
            part = make()
        except MemoryError:
            self._gate.abort()
            return
        with suppress(threading.BrokenBarrierError):
            self._gate.wait()
            while True:
                self._gate.wait()
                part.max()  # read-only, and the quickest that numpy has
                self._gate.wait()
