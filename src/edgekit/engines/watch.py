"""Watches a running engine and stops it with a reason, before the system kills it without one."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self

from edgekit.engines.program import Ended, Resident
from edgekit.errors import NotFoundError, SourceError
from edgekit.machine.gpu_memory import MemoryInRam
from edgekit.machine.monitor import CRITICAL_BYTES, MemoryProbe
from edgekit.machine.nvidia import find_nvidia, nvml_message
from edgekit.machine.surroundings import Nvml, NvmlError, Surroundings
from edgekit.machine.types import MemoryLimit
from edgekit.units import MIB, format_bytes

EVERY_S = 0.5
# If unreclaimable memory exceeds this share of a limit and still rises, the engine is stopped.
LIMIT_PERCENT = 95
LITTLE_BYTES = 64 * MIB  # free memory of a GPU below which the next request may fail
# Drivers keep buffers for transfers in RAM: those of a running engine change by a few MiB, and a bill without them is
# at most this much too small. More is memory that did not fit on the card.
SPILL_BYTES = 256 * MIB
TRANSFER_BYTES = 512 * MIB

_MAX_FAILED_PROBES = 2  # in a row: then a GPU counts as gone


class Launched(Protocol):
    """How a program was started, as far as it is watched."""

    @property
    def environment(self) -> Mapping[str, str]: ...
    @property
    def uses_nvidia(self) -> bool: ...
    @property
    def ram_bytes(self) -> int | None: ...


class Watched(Protocol):
    """An engine that is running or loading."""

    @property
    def server(self) -> Launched: ...
    @property
    def files(self) -> MappedFiles: ...
    @property
    def pid(self) -> int: ...
    def maps(self, path: Path, /) -> bool: ...
    def resident(self) -> Resident | None: ...
    def poll(self) -> Ended | None: ...
    def stop(self, why: str = "") -> Ended: ...


def say_nothing(_: str) -> None:
    pass


class Watch:
    """Checks memory, GPUs and mapped files twice a second, in a thread, for a `with` block.

    `warn` is called once for each problem that does not end the engine.
    """

    def __init__(
        self,
        engine: Watched,
        *,
        warn: Callable[[str], None] = say_nothing,
        probes: Probes | None = None,
        every_s: float = EVERY_S,
        is_ready: bool = False,
    ) -> None:
        """`is_ready`: the engine has loaded its model, so the memory that GPUs' drivers keep in RAM should not grow."""
        self._reason = ""
        self._starved = False
        self._is_memory_short = False  # the reason to stop is a lack of memory
        self._engine = engine
        self._warn = warn
        self._probes = probes or probes_of(engine.server)
        self._every_s = every_s
        self._warned: set[str] = set()
        self._used: dict[str, int] = {}  # bytes used of each limit at the last check, by its name
        self._failed_probes: dict[str, int] = {}  # failed probes in a row, by device
        self._watches_spill = is_ready
        self._usual_bytes: int | None = None  # of the engine's GPU memory in RAM, at the first look
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="edgekit-watch", daemon=True)

    @property
    def reason(self) -> str:
        """Why the watch stopped the engine; empty if it did not."""
        self._settle()
        return self._reason

    @property
    def starved(self) -> bool:
        """True if it stopped the engine for lack of memory."""
        self._settle()
        return self._starved

    def _settle(self) -> None:
        """If the engine has ended, waits for the thread: it may still be recording why it stopped the engine."""
        if self._engine.poll() is not None and self._thread is not threading.current_thread():
            self._stop_event.set()
            if self._thread.is_alive():
                self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop_event.set()
        self._thread.join()

    def _watch(self) -> None:
        """The thread: checks until the engine ends, must be stopped, or the `with` block ends."""
        while self._engine.poll() is None:
            if why := self._reason_to_stop():
                if self._engine.stop(why).why == why:  # else another thread has stopped it
                    self._reason, self._starved = why, self._is_memory_short
                return
            if self._stop_event.wait(self._every_s):
                return

    def _reason_to_stop(self) -> str:
        """Why the engine must be stopped; empty if it can go on."""
        for check in (self._files, self._system, self._limits, self._devices, self._spill):
            try:
                if why := check():
                    self._is_memory_short = check in {self._system, self._limits}
                    return why
            except Exception as error:  # noqa: BLE001 - the other probes go on
                self._warn_once(f"{check.__name__.strip('_')} cannot be watched: {error}")
        return ""

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            self._warn(sentence)

    # Each check returns a reason to stop, or an empty string. A check that fails is reported by its name.

    def _files(self) -> str:
        """Stops if a mapped file was truncated; warns of other changes."""
        for change in self._engine.files.changes():
            what = f"{change.path} {change.what} while in use"
            if change.fatal and self._engine.maps(change.path):
                return f"stopped: {what}, and the missing part would crash the engine"
            self._warn_once(
                f"{what}: the engine continues with what it has loaded, but cannot be "
                "restarted from this file"
            )
        return ""

    def _system(self) -> str:
        """Stops if the machine is nearly out of memory."""
        available = self._probes.available_bytes()
        if available >= CRITICAL_BYTES:
            return ""
        return (
            f"stopped before the machine runs out of memory: {format_bytes(available)} "
            f"is available, and {format_bytes(CRITICAL_BYTES)} must stay free for other "
            f"programs{self._memory_text()}"
        )

    def _limits(self) -> str:
        """Stops if use is close to a memory limit and still rises."""
        for limit in self._probes.limits(self._engine.pid):
            before = self._used.get(limit.name, limit.used_bytes)
            self._used[limit.name] = limit.used_bytes
            is_over = limit.used_bytes * 100 > limit.limit_bytes * LIMIT_PERCENT
            if is_over and limit.used_bytes > before:
                return (
                    "stopped before the memory limit kills it: "
                    f"{format_bytes(limit.used_bytes)} of "
                    f"{format_bytes(limit.limit_bytes)} ({limit.name}) is in use, more "
                    f"than {LIMIT_PERCENT} % and rising{self._memory_text()}"
                )
        return ""

    def _devices(self) -> str:
        """Why to stop: a GPU is gone; "" if none is. Warns once of a GPU that is nearly full or cannot be watched."""
        for device in self._probes.devices():
            self._failed_probes[device.name] = (
                self._failed_probes.get(device.name, 0) + 1 if device.gone else 0
            )
            if self._failed_probes[device.name] >= _MAX_FAILED_PROBES:
                return f"stopped: {device.name} is no longer available: {device.gone}"
            if device.silent:
                self._warn_once(f"{device.name} cannot be watched: {device.silent}")
            elif device.free_bytes is not None and device.free_bytes < LITTLE_BYTES:
                self._warn_once(f"{device.name} has less than {format_bytes(LITTLE_BYTES)} left")
        return ""

    def _spill(self) -> str:
        """Warns once of memory that the driver moved from a full card to RAM; never stops the engine.

        What the bill puts into RAM may be in the driver's buffers when the engine is ready. If more is there than
        that, it has not fitted from the beginning.
        """
        if not self._watches_spill:
            return ""
        in_ram_bytes = self._probes.gpu_bytes_in_ram(self._engine.pid)
        if in_ram_bytes is None:
            return ""
        if self._usual_bytes is None:
            self._usual_bytes = in_ram_bytes
        planned_bytes, usual_bytes = self._engine.server.ram_bytes, self._usual_bytes
        if planned_bytes is not None:
            usual_bytes = min(usual_bytes, planned_bytes + TRANSFER_BYTES)
        spilled_bytes = in_ram_bytes - usual_bytes
        if spilled_bytes > SPILL_BYTES:
            self._watches_spill = False
            self._warn(
                f"the model no longer fits on the GPU: {format_bytes(spilled_bytes)} of it is in RAM, which is much "
                "slower; use a shorter context (-c) or a smaller quantisation (--quant)"
            )
        return ""

    def _memory_text(self) -> str:
        """What the engine uses, as the end of a message; empty if unknown."""
        memory = self._engine.resident()
        if memory is None or memory.anonymous_bytes is None or memory.file_bytes is None:
            return ""
        return (
            f"; the engine uses {format_bytes(memory.anonymous_bytes)} of private memory and "
            f"{format_bytes(memory.file_bytes)} of mapped files"
        )


# --- mapped files


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    path: Path
    what: str  # "was cut from 4,198,400 to 0 bytes"
    fatal: bool = False  # reading the missing part kills the process that maps it


class MappedFiles:
    """The engine's files, kept open: a mapped file differs from a new file of the same name. Must be closed."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Raises NotFoundError or SourceError if one cannot be opened."""
        self._lock = threading.Lock()  # a closed descriptor may already be another file's
        self._open_files: list[tuple[Path, int, os.stat_result]] = []
        try:
            for path in paths:
                descriptor = _open_file(path)
                self._open_files.append((path, descriptor, os.fstat(descriptor)))
        except BaseException:
            self.close()
            raise
        self.size_bytes = sum(before.st_size for _, _, before in self._open_files)

    def changes(self) -> tuple[FileChange, ...]:
        """The worst change of each file since it was opened; none once closed."""
        with self._lock:
            changes = [
                _change(path, os.fstat(descriptor), before)
                for path, descriptor, before in self._open_files
            ]
        return tuple(change for change in changes if change is not None)

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            while self._open_files:
                os.close(self._open_files.pop()[1])


def _open_file(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except FileNotFoundError as error:
        raise NotFoundError(f"no such file: {path}") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be opened: {error.strerror or error}") from error


def _change(path: Path, now: os.stat_result, before: os.stat_result) -> FileChange | None:
    """What happened to an open file since `before`, the most serious first; None if nothing did."""
    if now.st_size < before.st_size:
        cut = f"was truncated from {before.st_size:,} to {now.st_size:,} bytes"
        return FileChange(path=path, what=cut, fatal=True)
    if now.st_mtime_ns != before.st_mtime_ns:
        return FileChange(path=path, what="was written to")
    at_path = None
    with suppress(OSError):
        at_path = path.stat()
    if at_path is None:
        return FileChange(path=path, what="was deleted")
    if not os.path.samestat(at_path, now):
        return FileChange(path=path, what="was replaced by another file")
    return None


# --- probes

_DRIVER_S = 3.0  # for a driver to answer; a healthy one needs milliseconds
# nvml.h: not found, lost, reset required. Other errors do not mean that the GPU is gone.
_GONE = frozenset({6, 15, 16})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedDevice:
    """A GPU now. `gone`: why it is no longer available. `silent`: why its state is unknown."""

    name: str
    free_bytes: int | None = None
    gone: str = ""
    silent: str = ""


def _unknown(_pid: int) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """How the memory limits, free memory and GPUs of an engine's process are read."""

    limits: Callable[[int], tuple[MemoryLimit, ...]]
    available_bytes: Callable[[], int]
    devices: Callable[[], tuple[ProbedDevice, ...]]  # those that hold layers
    # of the engine's memory, what GPUs' drivers keep in RAM; None: unknown, or the GPU shares the RAM
    gpu_bytes_in_ram: Callable[[int], int | None] = _unknown


def probes_of(launch: Launched, here: Surroundings | None = None) -> Probes:
    """The probes for a program started by this launch."""
    here = here or Surroundings()
    # A program stays in the control groups of the process that started it.
    memory = MemoryProbe(here)
    # Variables such as CUDA_VISIBLE_DEVICES: ours, overridden by those of the launch.
    visible = replace(here, environment={**here.environment, **launch.environment})
    return Probes(
        limits=memory.limits,
        available_bytes=memory.available_bytes,
        devices=NvidiaProbe(visible).look if launch.uses_nvidia else tuple,
        gpu_bytes_in_ram=MemoryInRam(here).look,
    )


@dataclass(slots=True)
class NvidiaProbe:
    """NVIDIA's GPUs, queried in a thread: a driver that hangs must not block the other probes."""

    here: Surroundings
    _nvml: Nvml | None = None
    _indexes: tuple[int, ...] = ()
    _query: threading.Thread | None = None
    _answers: queue.SimpleQueue[tuple[ProbedDevice, ...]] = field(default_factory=queue.SimpleQueue)

    def look(self) -> tuple[ProbedDevice, ...]:
        """The GPUs now. A driver that does not answer in time is reported as silent."""
        if self._query is None or not self._query.is_alive():
            self._query = threading.Thread(
                target=lambda: self._answers.put(self._query_devices()),
                name="edgekit-nvml",
                daemon=True,
            )
            self._query.start()
        try:
            return self._answers.get(timeout=_DRIVER_S)
        except queue.Empty:
            return _silent_driver(f"no answer for {_DRIVER_S:g} s")

    def _query_devices(self) -> tuple[ProbedDevice, ...]:
        """The free memory of each visible GPU; finds the GPUs at the first call."""
        try:
            if self._nvml is None:
                detected = find_nvidia(self.here)
                if not detected.devices:
                    return _silent_driver(" ".join(detected.notes) or "no GPU found")
                self._indexes = tuple(device.index for device in detected.devices)
                nvml = self.here.nvml()
                nvml("nvmlInit")
                self._nvml = nvml
            return tuple(_probe_gpu(self._nvml, index) for index in self._indexes)
        except NvmlError as error:
            return _silent_driver(nvml_message(error.code))


def _silent_driver(why: str) -> tuple[ProbedDevice, ...]:
    """The answer if the driver tells nothing about its GPUs."""
    return (ProbedDevice(name="the NVIDIA driver", silent=why),)


def _probe_gpu(nvml: Nvml, index: int) -> ProbedDevice:
    """One GPU now; gone or silent if the driver reports an error for it."""
    name = f"GPU {index}"
    try:
        memory: Any = nvml("nvmlDeviceGetMemoryInfo", nvml("nvmlDeviceGetHandleByIndex", index))
    except NvmlError as error:
        why = nvml_message(error.code)
        if error.code in _GONE:
            return ProbedDevice(name=name, gone=why)
        return ProbedDevice(name=name, silent=why)
    return ProbedDevice(name=name, free_bytes=int(memory.free))
