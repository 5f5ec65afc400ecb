"""An engine at work -> stopped in order, with the reason, before something worse stops it without one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from edgekit.engines.llamacpp.run.files import MappedFiles
from edgekit.engines.llamacpp.run.probes import ProbedDevice, Probes, probes_of
from edgekit.engines.llamacpp.run.types import Ended, Launch
from edgekit.engines.llamacpp.verify.types import Resident
from edgekit.machine.monitor import CRITICAL_BYTES
from edgekit.machine.types import MemoryLimit
from edgekit.units import MIB, format_bytes

EVERY_S = 0.5
LIMIT_PERCENT = 95  # of a limit, by what cannot be dropped: beyond it and rising, the end is near
LITTLE_BYTES = 64 * MIB  # of a GPU: what the next request wants may not be there

_LOOKS = 2  # a GPU is gone when it is twice in a row


class Watched(Protocol):
    """An engine that is up, or loading."""

    @property
    def launch(self) -> Launch: ...
    @property
    def files(self) -> MappedFiles: ...
    @property
    def pid(self) -> int: ...
    def resident(self) -> Resident | None: ...
    def poll(self) -> Ended | None: ...
    def stop(self, why: str = "") -> Ended: ...


def say_nothing(_: str) -> None:
    pass


class Watch:
    """Looks at memory, GPUs and the files behind the mapping twice a second, in a thread, for a `with` block.

    `warn` hears once of each thing that is wrong and does not end the engine.
    """

    def __init__(
        self,
        engine: Watched,
        *,
        warn: Callable[[str], None] = say_nothing,
        probes: Probes | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self._reason = ""
        self._starved = False
        self._is_lacking = False  # memory, and nothing else is wrong
        self._engine = engine
        self._warn = warn
        self._probes = probes or probes_of(engine.launch)
        self._every_s = every_s
        self._said: set[str] = set()
        self._used: dict[str, int] = {}  # of each limit, at the last look
        self._gone: dict[str, int] = {}  # looks in a row
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="edgekit-watch", daemon=True)

    @property
    def reason(self) -> str:
        """Why it stopped the engine; empty: it did not."""
        self._settle()
        return self._reason

    @property
    def starved(self) -> bool:
        """Whether it stopped the engine for lack of memory."""
        self._settle()
        return self._starved

    def _settle(self) -> None:
        """Who ended an engine that has just ended is known when the thread is through."""
        if self._engine.poll() is not None and self._thread is not threading.current_thread():
            self._over.set()
            if self._thread.is_alive():
                self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while self._engine.poll() is None:
            if why := self._look():
                if self._engine.stop(why).why == why:  # else somebody was faster
                    self._reason, self._starved = why, self._is_lacking
                return
            if self._over.wait(self._every_s):
                return

    def _look(self) -> str:
        """Why to stop; empty: go on."""
        for question in (self._files, self._system, self._limits, self._devices):
            try:
                if why := question():
                    self._is_lacking = question in {self._system, self._limits}
                    return why
            except Exception as error:  # noqa: BLE001 - a probe that fails must not end the watch over the others
                self._once(f"{question.__name__.strip('_')} cannot be watched: {error}")
        return ""

    def _once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._warn(sentence)

    def _files(self) -> str:
        for change in self._engine.files.changes():
            told = f"{change.path} {change.what} while in use"
            if change.fatal and self._engine.launch.maps(change.path):
                return f"stopped: {told}, and the missing part would crash the engine"
            self._once(
                f"{told}: the engine continues with what it has loaded, but cannot be "
                "restarted from this file"
            )
        return ""

    def _system(self) -> str:
        available = self._probes.available_bytes()
        if available >= CRITICAL_BYTES:
            return ""
        return (
            f"stopped before the machine runs out of memory: {format_bytes(available)} "
            f"is available, and {format_bytes(CRITICAL_BYTES)} must stay free for other "
            f"programs{self._holding()}"
        )

    def _limits(self) -> str:
        for limit in self._probes.limits(self._engine.pid):
            before = self._used.get(limit.name, limit.used_bytes)
            self._used[limit.name] = limit.used_bytes
            if _is_over(limit) and limit.used_bytes > before:
                return (
                    "stopped before the memory limit kills it: "
                    f"{format_bytes(limit.used_bytes)} of "
                    f"{format_bytes(limit.limit_bytes)} ({limit.name}) is in use, more "
                    f"than {LIMIT_PERCENT} % and rising{self._holding()}"
                )
        return ""

    def _devices(self) -> str:
        for device in self._probes.devices():
            self._gone[device.name] = self._gone.get(device.name, 0) + 1 if device.gone else 0
            if self._gone[device.name] >= _LOOKS:
                return f"stopped: {device.name} is no longer available: {device.gone}"
            self._note(device)
        return ""

    def _note(self, device: ProbedDevice) -> None:
        if device.silent:
            self._once(f"{device.name} cannot be watched: {device.silent}")
        elif device.free_bytes is not None and device.free_bytes < LITTLE_BYTES:
            self._once(f"{device.name} has less than {format_bytes(LITTLE_BYTES)} left")

    def _holding(self) -> str:
        held = self._engine.resident()
        if held is None or held.anonymous_bytes is None or held.file_bytes is None:
            return ""
        return (
            f"; the engine uses {format_bytes(held.anonymous_bytes)} of private memory and "
            f"{format_bytes(held.file_bytes)} of mapped files"
        )


def _is_over(limit: MemoryLimit) -> bool:
    return limit.used_bytes * 100 > limit.limit_bytes * LIMIT_PERCENT
