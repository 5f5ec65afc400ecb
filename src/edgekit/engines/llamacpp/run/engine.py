"""Starts llama.cpp in a child process until it is ready (`start`), reads its reports, and explains how it ended."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from edgekit.engines.llamacpp.child import LOADED
from edgekit.engines.llamacpp.run import binding
from edgekit.engines.llamacpp.run.binding import NO_DEVICES, resident_at, resident_of, start_child
from edgekit.engines.llamacpp.run.engine_log import EngineLog, LoggedAllocations, is_complaint
from edgekit.engines.llamacpp.run.launch import Launch, make_settings
from edgekit.engines.llamacpp.run.watch import MappedFiles, Probes, Watch, say_nothing
from edgekit.engines.process import (
    Message,
    check_port,
    connectable,
    in_address,
    in_use,
    signal_name,
)
from edgekit.engines.program import Ended, Resident
from edgekit.errors import EngineError, MemoryPressureError, MissingExtraError
from edgekit.machine.surroundings import number_in, pairs_of
from edgekit.units import GIB, format_bytes

GRACE_S = 5.0  # between asking the engine to end and killing it

_LINE_CHARS = 400
_LAST_LINES = 24
_SHOWN_LINES = 3
_MOST_WARNINGS = 64
_WARNING = re.compile(r"[\d.]+ [WE] ")
_JOIN_S = 2.0  # in case a grandchild keeps a pipe open
_END_POLL_S = 0.05
_POLL_S = 0.1
_TELL_S = 1.0  # minimum time between two progress messages
_STEPS = 10
_HEALTH_S = 5.0
_LOG_S = 10.0  # for a finished log to arrive on a busy machine
_BIND_FAILED = "couldn't bind"
_CANNOT_ROLL = (
    "this model's KV cache cannot roll: run it without a rolling window or, if it has "
    "sliding-window layers, with a full-size cache for them (--swa-full)"
)
_NO_DRAFTS = "the draft model does not work with this model: run it without"
# Features that llama.cpp skips with only a warning: words of that warning, our message, and whether it was requested.
_SKIPPED_FEATURES: tuple[tuple[str, str, Callable[[Launch], bool]], ...] = (
    ("KV cache shifting is not supported", _CANNOT_ROLL, lambda launch: launch.rolls),
    ("ctx_shift is not supported", _CANNOT_ROLL, lambda launch: launch.rolls),
    ("failed to initialize speculative", _NO_DRAFTS, lambda launch: launch.is_drafted),
    ("speculative decoding not supported", _NO_DRAFTS, lambda launch: launch.is_drafted),
)


class EngineProcess:
    """The engine's process, from start to end; as a context manager, it is stopped at the end of the block."""

    address: str  # once it is ready: "http://127.0.0.1:8080"
    version: str  # the versions of xllamacpp and of the llama.cpp in it
    allocations: LoggedAllocations  # at the precision of its log
    idle: Resident | None  # memory with its library loaded, but not the model

    def __init__(self, launch: Launch) -> None:
        """Starts the process. UsageError, NotFoundError or SourceError for an impossible launch, else EngineError."""
        settings = make_settings(launch)
        self.launch = launch
        self.files = MappedFiles(launch.files)
        self.log = EngineLog()
        self._stop_reason = ""
        self._ended: Ended | None = None
        self._lock = threading.Lock()  # guards `_ended`
        self._stopping = threading.Lock()
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.warnings: list[str] = []  # logged while loading
        self._log_read = threading.Event()
        self._oom_kills = _oom_kills()
        try:
            self._child = start_child(
                "serve",
                settings,
                environment=launch.environment if launch.setup.has_device else NO_DEVICES,
                on_line=self._read_line,
                title=launch.title,
            )
        except BaseException:
            self.files.close()
            raise

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def last_words(self) -> str:
        """While loading, the first errors in its log; later, its last errors or lines."""
        if not self._log_read.is_set():
            return self.log.last_words()
        lines = self.recent
        shown = [line for line in lines if is_complaint(line)] or lines
        return " | ".join(shown[-_SHOWN_LINES:])

    @property
    def recent(self) -> list[str]:
        """The last lines of its log."""
        return list(self._last_lines)

    def message(self, timeout_s: float) -> Message | None:
        """The child's next message; None on timeout."""
        try:
            return self._child.message(timeout_s)
        except EOFError:  # it is about to end
            self._child.wait(timeout_s)
            return None

    def has_log(self, timeout_s: float) -> bool:
        """True if `log` holds everything logged while loading. Later lines are about requests."""
        return self._log_read.wait(timeout_s)

    def resident(self) -> Resident | None:
        """Its resident memory; None if it is gone or the system does not tell."""
        return None if self.poll() is not None else resident_of(self.pid)

    def poll(self) -> Ended | None:
        """How the process ended; None while it runs."""
        with self._lock:
            if self._ended is None and self._child.exit_code is not None:
                self._ended = self._end()
            return self._ended

    def wait(self, timeout_s: float | None = None) -> Ended | None:
        """Waits for the process to end; None on timeout."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (ended := self.poll()) is None:
            wait_s = _END_POLL_S
            if deadline is not None:
                wait_s = min(wait_s, deadline - time.monotonic())
            if wait_s <= 0:
                return None
            self._child.wait(wait_s)
        return ended

    def stop(self, why: str = "", *, grace_s: float = GRACE_S) -> Ended:
        """Asks it to end, and kills its whole process group if it does not. Idempotent."""
        with self._stopping:
            if (ended := self.poll()) is not None:
                return ended
            self._stop_reason = why or "stopped on request"
            self._child.ask_to_end()
            self._child.wait(grace_s)
            while (ended := self.poll()) is None:
                self._child.kill()
                self._child.wait()
            return ended

    def _end(self) -> Ended:
        """How the process ended, with the most likely cause if nothing stopped it on purpose."""
        code = self._child.close(_JOIN_S)
        killed = None if code >= 0 else signal_name(-code)
        why = self._stop_reason
        if not why:  # the engine ended by itself
            why = f"llama.cpp died of {killed}" if killed else f"llama.cpp exited (code {code})"
            changes = self.files.changes()
            fatal_changes = (
                change for change in changes if change.fatal and self.launch.maps(change.path)
            )
            fatal_change = next(fatal_changes, None)
            if fatal_change is not None:
                why += f": {fatal_change.path} {fatal_change.what} while it was in use"
            elif (
                killed == "SIGKILL"
                and self._oom_kills is not None
                and (_oom_kills() or 0) > self._oom_kills
            ):
                why += (
                    ": the kernel killed processes because the machine ran out of memory, probably "
                    "including this one"
                )
            elif killed == "SIGKILL":
                why += ": killed by another program, or by a memory limit outside this container"
        self.files.close()
        return Ended(
            exit_code=None if killed else code,
            signal=killed,
            why=why,
            last_words=self.last_words,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _read_line(self, line: str) -> None:
        """Keeps the last lines of the log; while loading, also its figures and warnings."""
        line = line[:_LINE_CHARS].rstrip()
        if line == LOADED:
            self._log_read.set()
        elif line:
            self._last_lines.append(line)
            if not self._log_read.is_set():
                self.log.add(line)
                if len(self.warnings) < _MOST_WARNINGS and _WARNING.match(line):
                    self.warnings.append(line)


def _oom_kills() -> int | None:
    """The kernel's count of out-of-memory kills; None if it does not count them."""
    return number_in(pairs_of(Path("/proc/vmstat"), " ").get("oom_kill", ""))


# --- starting the engine


def start(
    launch: Launch,
    *,
    tell: Callable[[str], None] = say_nothing,
    recheck: Callable[[], None] | None = None,
    probes: Probes | None = None,
) -> EngineProcess:
    """Starts an engine until it is ready, or cleans up completely. `recheck` is called just before loading, and raises
    if the model no longer fits. `tell` receives progress messages. UsageError for a port that is taken,
    MissingExtraError without an engine, MemoryPressureError if memory runs out meanwhile, otherwise EngineError with
    its last log lines.
    """
    if not binding.has_xllamacpp():
        raise MissingExtraError(f"llama.cpp is not installed: {binding.INSTALL_XLLAMACPP}")
    check_port(launch.at.host, launch.at.port)
    if recheck is not None:
        recheck()
    process = EngineProcess(launch)
    try:
        with Watch(process, warn=tell, probes=probes) as watch:
            try:
                _make_ready(process, _load(process, tell))
            except EngineError as error:
                if watch.starved:
                    raise MemoryPressureError(watch.reason or str(error)) from error
                raise
    except BaseException:
        process.stop()
        raise
    return process


def health(address: str, timeout_s: float = _HEALTH_S) -> int | None:
    """The HTTP status: 200 if ready, 503 while loading; None: no answer."""
    connection = http.client.HTTPConnection(address.partition("://")[2], timeout=timeout_s)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _load(process: EngineProcess, tell: Callable[[str], None]) -> list[Message]:
    """Reads the child's messages: first its version, last its address."""
    launch = process.launch
    started_s = time.monotonic()
    deadline, next_message_s = started_s + launch.timeout_s, started_s + _TELL_S
    progress = Progress(title=launch.title, size_bytes=process.files.size_bytes, tell=tell)
    messages: list[Message] = []
    while not messages or "address" not in messages[-1]:
        message = process.message(max(0.0, min(_POLL_S, deadline - time.monotonic())))
        if message is not None:
            messages.append(message)
        elif (ended := process.poll()) is not None:
            if _BIND_FAILED in ended.last_words:  # another program took the port
                raise in_use(launch.at.host, launch.at.port)
            raise EngineError(f"{ended.why}: {ended.last_words or 'it printed nothing'}")
        elif time.monotonic() > deadline:
            last = process.stop().last_words
            raise EngineError(
                f"llama.cpp did not start within {launch.timeout_s:g} s: {last or 'no output'}"
            )
        if time.monotonic() > next_message_s:
            next_message_s += _TELL_S
            progress.show(process.resident())
    return messages


@dataclass(slots=True, kw_only=True)
class Progress:
    """Loading progress, in steps of a tenth of the file or 1 GiB."""

    title: str
    size_bytes: int
    tell: Callable[[str], None]
    _next_bytes: int = 0

    def show(self, resident: Resident | None) -> None:
        """Reports progress if memory has grown by a step."""
        if resident is None or resident.resident_bytes < self._next_bytes:
            return
        loaded_bytes = resident.resident_bytes
        self._next_bytes = loaded_bytes + min(max(self.size_bytes, loaded_bytes) // _STEPS, GIB)
        self.tell(
            f"loading {self.title}: {format_bytes(loaded_bytes)} in memory, file size "
            f"{format_bytes(self.size_bytes)}"
        )


def _make_ready(process: EngineProcess, messages: list[Message]) -> None:
    """Checks an engine that has loaded its model. EngineError if it skipped something that was requested."""
    if not process.has_log(_LOG_S):
        raise EngineError(f"llama.cpp's log did not end: {process.last_words}")
    process.allocations = process.log.allocations()
    for line in process.warnings:
        for words, meaning, was_requested in _SKIPPED_FEATURES:
            if words in line and was_requested(process.launch):
                raise EngineError(f"{meaning} ({line})")
    port = str(messages[-1]["address"]).rpartition(":")[2]
    process.address = f"http://{in_address(connectable(process.launch.at.host))}:{port}"
    status = health(process.address)
    if status != http.client.OK:
        raise EngineError(
            f"llama.cpp started, but is not healthy: {process.address}/health answers {status}"
        )
    version, engine = binding.xllamacpp_version(), messages[0].get("version")
    process.version = version if engine is None else f"{version} (llama.cpp {engine})"
    process.idle = resident_at("started", messages[0].get("memory") or {})
