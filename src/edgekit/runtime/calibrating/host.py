"""A machine -> how fast its memory and the disk for temporary files are."""

from __future__ import annotations

import tempfile
from pathlib import Path

from edgekit.errors import EdgekitError, MissingExtraError
from edgekit.machine.busy import watched
from edgekit.machine.calibration import host_key, today, told_text
from edgekit.machine.measured import Disk, HostMeasured
from edgekit.runtime.calibrating.memory import (
    memory_bandwidth,
    read_bytes,
    require_numpy,
    thread_count,
)
from edgekit.runtime.calibrating.types import Bench, Tell
from edgekit.units import format_bytes

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})


def measure_host(bench: Bench) -> tuple[HostMeasured, tuple[str, ...]]:
    """And why something of it is missing."""
    bandwidth, without_bandwidth = _bandwidth(bench)
    folder = bench.options.folder or Path(tempfile.gettempdir())
    disk, without_disk = _disk(folder, bench.tell)
    row = HostMeasured(
        host=host_key(bench.machine), date=today(), bandwidth_bytes_per_s=bandwidth, disk=disk
    )
    return row, (without_bandwidth, without_disk)


def _bandwidth(bench: Bench) -> tuple[int | None, str]:
    options, host = bench.options, bench.machine.host
    size = options.read_bytes or read_bytes(None if host is None else host.usable_bytes)
    if not size:
        return None, "memory bandwidth was not measured: too little free memory"
    threads = thread_count()
    try:
        require_numpy()
        bench.tell(f"reading {format_bytes(size)} of memory with {threads} threads")
        with watched() as others:
            found = memory_bandwidth(size, threads=threads, seconds=options.read_seconds)
    except (MissingExtraError, MemoryError) as error:
        return None, f"memory bandwidth was not measured: {error}"
    if others.share > options.busy_share:
        return (
            None,
            f"memory bandwidth was {found / 1e9:.1f} GB/s, which was not saved: {others.told}",
        )
    return found, ""


def _disk(folder: Path, tell: Tell) -> tuple[Disk | None, str]:
    """As the streaming engine measures it before it spills."""
    kind = _filesystem(folder)
    if kind in IN_MEMORY:
        return None, f"{folder} is in RAM ({kind}), so its speed is not that of a disk"
    try:
        require_numpy()
        from edgekit.runtime.stream.gate import measure

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
