"""A launch -> an engine that answers: `start`."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from edgekit.engines.llamacpp.run.probes import Probes
from edgekit.engines.llamacpp.run.process import EngineProcess
from edgekit.engines.llamacpp.run.running import Running
from edgekit.engines.llamacpp.run.types import Ended, Launch
from edgekit.engines.llamacpp.run.watching import Watch, say_nothing
from edgekit.engines.llamacpp.verify import binding
from edgekit.engines.llamacpp.verify.process import resident_at
from edgekit.engines.llamacpp.verify.types import Resident
from edgekit.engines.ports import check_port, connectable, in_address, in_use
from edgekit.errors import EngineError, MemoryPressureError, MissingExtraError
from edgekit.units import GIB, format_bytes

__all__ = ("check_port", "health", "start")

_POLL_S = 0.1
_TELL_S = 1.0  # between two words about the loading, at least
_STEPS = 10
_HEALTH_S = 5.0
_LOG_S = 10.0  # for a log that is written already, on a busy machine
_BIND_FAILED = "couldn't bind"
# What llama.cpp gives up with a warning, and goes on: not what was asked for.
_CANNOT_ROLL = (
    "this model's KV cache cannot roll: run it without a rolling window or, if it has "
    "sliding-window layers, with a full-size cache for them (--swa-full)"
)
_NO_DRAFTS = "the draft model does not work with this model: run it without"
_GIVEN_UP: tuple[tuple[str, str, Callable[[Launch], bool]], ...] = (
    ("KV cache shifting is not supported", _CANNOT_ROLL, lambda launch: launch.rolls),
    ("ctx_shift is not supported", _CANNOT_ROLL, lambda launch: launch.rolls),
    ("failed to initialize speculative", _NO_DRAFTS, lambda launch: launch.is_drafted),
    ("speculative decoding not supported", _NO_DRAFTS, lambda launch: launch.is_drafted),
)


def start(
    launch: Launch,
    *,
    tell: Callable[[str], None] = say_nothing,
    recheck: Callable[[], None] | None = None,
    probes: Probes | None = None,
) -> Running:
    """Loaded and ready, or nothing of it is left.

    `recheck` is called just before anything is loaded, and raises where it does not fit any more. `tell` hears how far
    it is. UsageError for a port that is taken, MissingExtraError without an engine, MemoryPressureError where memory
    runs out meanwhile, EngineError with its last words for the rest.
    """
    if not binding.is_here():
        raise MissingExtraError(f"llama.cpp is not installed: {binding.INSTALL}")
    check_port(launch.host, launch.port)
    if recheck is not None:
        recheck()
    process = EngineProcess(launch)
    try:
        with Watch(process, warn=tell, probes=probes) as watch:
            return _ready(process, watch, tell)
    except BaseException:
        process.stop()
        raise


def health(address: str, timeout_s: float = _HEALTH_S) -> int | None:
    """200 when it is ready, 503 while it loads; None: nobody answers."""
    connection = http.client.HTTPConnection(address.partition("://")[2], timeout=timeout_s)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _ready(process: EngineProcess, watch: Watch, tell: Callable[[str], None]) -> Running:
    try:
        return _running(process, _loaded(process, process.launch, tell))
    except EngineError as error:
        if watch.starved:
            raise MemoryPressureError(watch.reason or str(error)) from error
        raise


def _loaded(
    process: EngineProcess, launch: Launch, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """What the child told: first who it is, in the end where it is."""
    deadline, next_s = time.monotonic() + launch.timeout_s, time.monotonic() + _TELL_S
    progress = Progress(title=launch.title, size_bytes=process.files.size_bytes, tell=tell)
    told: list[dict[str, Any]] = []
    while "address" not in (told[-1] if told else {}):
        word = process.told(max(0.0, min(_POLL_S, deadline - time.monotonic())))
        if word is not None:
            told.append(word)
        elif (ended := process.poll()) is not None:
            _failed(launch, ended)
        elif time.monotonic() > deadline:
            last = process.stop().last_words
            raise EngineError(
                f"llama.cpp did not start within {launch.timeout_s:g} s: {last or 'no output'}"
            )
        if time.monotonic() > next_s:
            next_s += _TELL_S
            progress.show(process.resident())
    return told


@dataclass(slots=True, kw_only=True)
class Progress:
    """Told when there is more to tell: a tenth of the file, or a GiB."""

    title: str
    size_bytes: int
    tell: Callable[[str], None]
    _next_bytes: int = 0

    def show(self, held: Resident | None) -> None:
        if held is None or held.resident_bytes < self._next_bytes:
            return
        now = held.resident_bytes
        self._next_bytes = now + min(max(self.size_bytes, now) // _STEPS, GIB)
        self.tell(
            f"loading {self.title}: {format_bytes(now)} in memory, file size "
            f"{format_bytes(self.size_bytes)}"
        )


def _failed(launch: Launch, ended: Ended) -> NoReturn:
    if _BIND_FAILED in ended.last_words:  # somebody was faster
        raise in_use(launch.host, launch.port)
    raise EngineError(f"{ended.why}: {ended.last_words or 'it printed nothing'}")


def _running(process: EngineProcess, told: list[dict[str, Any]]) -> Running:
    if not process.has_told(_LOG_S):
        raise EngineError(f"llama.cpp's log did not end: {process.last_words}")
    held = process.log.held()
    _require_all(process)
    port = str(told[-1]["address"]).rpartition(":")[2]
    address = f"http://{in_address(connectable(process.launch.host))}:{port}"
    status = health(address)
    if status != http.client.OK:
        raise EngineError(
            f"llama.cpp started, but is not healthy: {address}/health answers {status}"
        )
    return Running(
        address=address,
        version=_version(told[0].get("version")),
        held=held,
        idle=resident_at("started", told[0].get("memory") or {}),
        process=process,
    )


def _require_all(process: EngineProcess) -> None:
    """EngineError where llama.cpp went on without something it was asked for."""
    for line in process.warnings:
        for words, meaning, was_asked in _GIVEN_UP:
            if words in line and was_asked(process.launch):
                raise EngineError(f"{meaning} ({line})")


def _version(told: str | None) -> str:
    own = binding.told_version()
    return own if told is None else f"{own} (llama.cpp {told})"
