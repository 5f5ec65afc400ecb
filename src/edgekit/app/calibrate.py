"""`calibrate`: measure this machine once, and save what was measured for later answers.

All cores read memory, a file is written and read back, and llama.cpp is started for real, with the given model or with
a generated one. Other programs can lower a speed but not raise memory use, so speeds of a busy machine are shown but
not saved.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgekit.app.shared_speed import with_public_model
from edgekit.engines import engine_named, startable
from edgekit.engines.native.buffers import usable_cores
from edgekit.engines.program import (
    CalibrateOptions,
    CalibrateRequest,
    ComparedRow,
    EngineRun,
    Verification,
)
from edgekit.errors import EdgekitError, EngineError, MissingExtraError
from edgekit.machine.calibration import (
    change_calibration,
    device_key,
    host_key,
    installed_version,
    stored_text,
    today,
    watched,
    with_differences,
    with_engine,
    with_host,
)
from edgekit.machine.probes import detect
from edgekit.machine.types import (
    Calibration,
    Difference,
    Disk,
    EngineMeasured,
    EngineSpeed,
    HostMeasured,
    Machine,
)
from edgekit.model import OpenModel, open_model
from edgekit.sources.download import find_weights
from edgekit.sources.types import Reach
from edgekit.units import GIB, MIB, Basis, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What was measured now. None: it could not be measured, or was not saved; a note says why."""

    host: HostMeasured
    engine: EngineMeasured | None = None
    verification: Verification | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def has_results(self) -> bool:
        """Whether there is anything to save, such as a part of the bill that was outside its bounds."""
        differs = self.verification is not None and not self.verification.within
        return bool(self.host.bandwidth_bytes_per_s or self.host.disk or self.engine or differs)


def calibrate(
    reference: str | os.PathLike[str] | None = None,
    *,
    machine: Machine | None = None,
    tell: Callable[[str], None] = lambda _: None,
    options: CalibrateOptions | None = None,
) -> Calibrated:
    """Measures the machine and saves the results; writes nothing if nothing could be measured.

    With a model, raises EdgekitError if the engine cannot run it. Raises SourceError if the results cannot be written.
    """
    engine, *_ = startable("calibrate")
    measure_engine: Callable[[CalibrateRequest], EngineRun] | None = None
    run: EngineRun | None = None
    missing = ""
    try:
        measure_engine = engine.program("calibrate").calibrator()
    except EngineError as error:
        if reference is not None:
            raise
        missing = f"{engine.name} was not measured: {error}"
    opened: OpenModel | None = None
    if reference is not None:  # nothing is downloaded just to be measured
        weights = find_weights(reference, reach=Reach(network=False), several=True)
        opened = replace(open_model(weights.path), label=weights.label)
    machine = machine or detect()
    request = CalibrateRequest(
        opened=opened, machine=machine, options=options or CalibrateOptions(), tell=tell
    )
    host, notes = measure_host(request)
    if machine.host is not None and host.bandwidth_bytes_per_s is not None:
        # the expected speed is computed from the bandwidth just measured
        memory = replace(
            machine.host,
            bandwidth_bytes_per_s=host.bandwidth_bytes_per_s,
            bandwidth_because=f"measured on this machine on {host.date}",
            bandwidth_basis=Basis.EXACT,
        )
        request = replace(request, machine=replace(machine, host=memory))
    try:
        run = None if measure_engine is None else measure_engine(request)
    except (OSError, EdgekitError) as error:
        if reference is not None:
            raise
        missing = f"{engine.name} was not measured: {error}; give a model to measure it with"
    results = Remembered()
    if run is not None:
        pace = with_public_model(run.pace, opened)
        results = worth_keeping(run.verification, run.machine, pace)
        notes = (*notes, *run.notes, results.left_out)
    calibrated = Calibrated(
        host=host,
        engine=results.engine,
        verification=None if run is None else run.verification,
        notes=tuple(filter(None, (*notes, missing))),
    )
    if not calibrated.has_results:
        return calibrated
    problem = change_calibration(lambda old: results.added(with_host(old, host))).problem
    return replace(calibrated, notes=(*calibrated.notes, problem)) if problem else calibrated


# --- memory and disk

TOTAL_BYTES = GIB  # larger than the caches of most processors
QUICK_BYTES, QUICK_S = 512 * MIB, 0.2  # under a second together with the writing of the memory
LEAST_BYTES = 64 * MIB  # anything smaller may be read from a cache
FREE_SHARE = 8  # read at most an eighth of the free memory
LEAST_ROUNDS = 3
_NUMBER_BYTES = 8
IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})  # file systems without a disk


def measure_host(request: CalibrateRequest) -> tuple[HostMeasured, tuple[str, ...]]:
    """Memory bandwidth and disk speed, and a note for each that could not be measured."""
    bandwidth, without_bandwidth = _bandwidth(request)
    folder = request.options.folder or Path(tempfile.gettempdir())
    disk, without_disk = _disk(folder, request.tell)
    row = HostMeasured(
        host=host_key(request.machine), date=today(), bandwidth_bytes_per_s=bandwidth, disk=disk
    )
    return row, (without_bandwidth, without_disk)


def measure_memory(machine: Machine) -> Machine:
    """The machine with the RAM bandwidth measured now, in less than a second on an idle machine.

    The bandwidth is saved as `calibrate` saves it. If it could not be measured, a note says why. Raises SourceError if
    it cannot be written.
    """
    options = CalibrateOptions(read_bytes=_quick_bytes(machine), read_seconds=QUICK_S)
    request = CalibrateRequest(
        machine=machine, opened=None, options=options, tell=lambda _line: None
    )
    bytes_per_s, problem = _bandwidth(request)
    if bytes_per_s is not None:
        row = HostMeasured(host=host_key(machine), date=today(), bandwidth_bytes_per_s=bytes_per_s)
        problem = change_calibration(lambda before: with_host(before, row)).problem
        if machine.host is not None:
            host = replace(
                machine.host,
                bandwidth_bytes_per_s=bytes_per_s,
                bandwidth_because="measured now",
                bandwidth_basis=Basis.EXACT,
            )
            machine = replace(machine, host=host)
    return replace(machine, notes=(*machine.notes, problem)) if problem else machine


def _quick_bytes(machine: Machine) -> int:
    free_bytes = None if machine.host is None else machine.host.usable_bytes
    return min(QUICK_BYTES, read_bytes(free_bytes))


def _bandwidth(request: CalibrateRequest) -> tuple[int | None, str]:
    """The memory's bytes per second, or None and the reason why there is no figure to save."""
    options, host = request.options, request.machine.host
    size_bytes = options.read_bytes or read_bytes(None if host is None else host.usable_bytes)
    if not size_bytes:
        return None, "memory bandwidth was not measured: too little free memory"
    threads = usable_cores()
    try:
        require_numpy()
        request.tell(f"reading {format_bytes(size_bytes)} of memory with {threads} threads")
        with watched() as other_load:
            bytes_per_s = memory_bandwidth(size_bytes, threads, seconds=options.read_seconds)
    except (MissingExtraError, MemoryError) as error:
        return None, f"memory bandwidth was not measured: {error}"
    if other_load.share > options.busy_share:
        bandwidth = f"memory bandwidth was {bytes_per_s / 1e9:.1f} GB/s"
        return None, f"{bandwidth}, which was not saved: {other_load.note}"
    return bytes_per_s, ""


def _disk(folder: Path, tell: Callable[[str], None]) -> tuple[Disk | None, str]:
    """Read and write speed, measured as the built-in engine does before it spills the cache to disk.

    Or None, and the reason why there is no figure to save.
    """
    kind = _filesystem(folder)
    if kind in IN_MEMORY:
        return None, f"{folder} is in RAM ({kind}), so its speed is not that of a disk"
    try:
        require_numpy()
        from edgekit.engines.native.cache import measure

        tell(f"writing and reading a test file in {folder}")
        speed = measure(folder)
    except (OSError, EdgekitError) as error:
        return None, f"disk speed was not measured: {error}"
    return Disk(
        folder=stored_text(str(folder)),
        read_bytes_per_s=max(1, int(speed.read_bytes_per_s)),
        write_bytes_per_s=max(1, int(speed.write_bytes_per_s)),
        date=today(),
    ), ""


def _filesystem(folder: Path) -> str:
    """The file system's type as the system names it; '' if unknown."""
    import psutil

    try:
        real = folder.resolve()
        mounts = {
            Path(partition.mountpoint): partition.fstype
            for partition in psutil.disk_partitions(all=True)
        }
    except OSError:
        return ""
    return next((mounts[path] for path in (real, *real.parents) if path in mounts), "")


def read_bytes(free_bytes: int | None) -> int:
    """How much memory to read; 0 if too little is free to exceed the caches."""
    size_bytes = TOTAL_BYTES if free_bytes is None else min(TOTAL_BYTES, free_bytes // FREE_SHARE)
    return size_bytes if size_bytes >= LEAST_BYTES else 0


def require_numpy() -> None:
    try:
        import numpy  # noqa: F401, ICN001 - only whether it is here
    except ImportError as error:
        raise MissingExtraError("numpy is needed: pip install 'edgekit-models[embed]'") from error


def memory_bandwidth(total_bytes: int, threads: int, *, seconds: float) -> int:
    """Bytes per second at which the threads together read this much memory, in the fastest round.

    Other programs can only slow a round down, so rounds are repeated for `seconds` and the fastest counts.

    Each thread allocates its own part first, so that the part is close to the core that reads it. In each round all
    threads read their parts at the same time; numpy releases the GIL while it reads. Raises MissingExtraError without
    numpy.
    """
    require_numpy()
    import numpy as np

    length = max(1, total_bytes // threads // _NUMBER_BYTES)
    gate = threading.Barrier(threads + 1)  # all threads start and finish a round together

    def read() -> None:
        try:
            part = np.ones(length, np.int64)
        except MemoryError:
            gate.abort()
            return
        with suppress(threading.BrokenBarrierError):
            gate.wait()  # until every thread has written its part
            while True:
                gate.wait()  # until a round begins
                part.max()  # numpy's fastest operation that only reads
                gate.wait()  # until every thread has read its part

    def round_seconds() -> float:
        begin = time.perf_counter()
        gate.wait()
        gate.wait()
        return time.perf_counter() - begin

    readers = [threading.Thread(target=read, daemon=True) for _ in range(threads)]
    for reader in readers:
        reader.start()
    try:
        gate.wait()  # until every thread has written its part
        deadline, times = time.monotonic() + seconds, [round_seconds() for _ in range(LEAST_ROUNDS)]
        while time.monotonic() < deadline:
            times.append(round_seconds())
    except threading.BrokenBarrierError as error:
        raise MemoryError("not enough memory for the read and write test") from error
    finally:
        gate.abort()
        for reader in readers:
            reader.join()
    return int(threads * length * _NUMBER_BYTES / max(min(times), 1e-9))


# --- what a real load of a model measured

LEAST_VOCABULARY = 100_000  # most current models have more, and need more memory for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """The results of one run to save."""

    engine: EngineMeasured | None = None  # None: the overhead could not be measured
    differences: tuple[Difference, ...] = ()
    left_out: str = ""  # why the overhead is not saved
    problem: str = ""  # a note that the stored file was damaged and moved away

    def added(self, calibration: Calibration) -> Calibration:
        """The calibration with these results added."""
        if self.engine is not None:
            calibration = with_engine(calibration, self.engine)
        return with_differences(calibration, self.differences)


def remember_load(verification: Verification, machine: Machine) -> Remembered:
    """Save what `edgekit verify --load` measured. Raises SourceError if it cannot be written."""
    results = worth_keeping(verification, machine)
    if results.engine is None and not results.differences:
        return results
    return replace(results, problem=change_calibration(results.added).problem)


def remember_rows(
    label: str, rows: Iterable[ComparedRow], *, engine: str, version: str
) -> tuple[Difference, ...]:
    """Save the predictions that were wrong by more than their bounds. Raises SourceError if they cannot be written.

    `version` is what the engine itself reports.
    """
    differences = differences_of(label, rows, engine, version)
    if differences:
        change_calibration(lambda before: with_differences(before, differences))
    return differences


def worth_keeping(
    verification: Verification, machine: Machine, pace: EngineSpeed | None = None
) -> Remembered:
    """The results of a real load that later answers can use. Writes nothing."""
    name, overhead, left_out = verification.estimate.engine, verification.beside_bytes, ""
    if overhead is not None and verification.vocabulary < LEAST_VOCABULARY:
        # most of the overhead is token tables, so a small vocabulary says little about other models
        left_out = (
            f"{name}'s memory overhead was {format_bytes(overhead)}, which was "
            f"not saved: {verification.label} has a vocabulary of only {verification.vocabulary:,} tokens, "
            "and a larger one takes more memory; run `edgekit calibrate` without a model to "
            "measure it"
        )
        overhead = None
    engine: EngineMeasured | None = None
    if overhead is not None or pace is not None:
        through = verification.answer.through
        cards = engine_named(name).devices(machine) if verification.on_devices else ()
        engine = EngineMeasured(
            engine=name,
            through=through,
            version=stored_text(installed_version(through) or verification.answer.version),
            host=host_key(machine),
            device=device_key(machine, cards),
            date=today(),
            overhead_bytes=overhead,
            overhead_label="" if overhead is None else stored_text(verification.label),
            samples=0 if overhead is None else 1,
            pace=pace,
        )
    return Remembered(
        engine=engine,
        differences=differences_of(
            verification.label, verification.rows, name, verification.answer.version
        ),
        left_out=left_out,
    )


def differences_of(
    label: str, rows: Iterable[ComparedRow], engine: str, version: str
) -> tuple[Difference, ...]:
    """The rows whose measured bytes are outside the bounds of the prediction."""
    return tuple(
        Difference(
            label=stored_text(label),
            part=row.part,
            predicted_bytes=row.predicted_bytes,
            measured_bytes=row.measured.middle_bytes,
            engine=engine,
            version=stored_text(version),
            date=today(),
        )
        for row in rows
        if not row.within
    )
