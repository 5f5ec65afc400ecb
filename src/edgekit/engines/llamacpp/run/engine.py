"""llama.cpp as a server in a child process: by the xllamacpp wheel, or as the program llama-server."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Mapping

from edgekit.engines.llamacpp.child import LOADED
from edgekit.engines.llamacpp.run import binding
from edgekit.engines.llamacpp.run.binding import NO_DEVICES, child_environment, start_child
from edgekit.engines.llamacpp.run.engine_log import EngineLog, LoggedAllocations, is_complaint
from edgekit.engines.llamacpp.run.launch import Launch, make_settings, server_words
from edgekit.engines.ports import url_of
from edgekit.engines.process import (
    ChildProcess,
    Message,
    ServerProcess,
    health,
    resident_at,
    start_server,
)
from edgekit.engines.program import Installation, Server
from edgekit.engines.watch import Probes, say_nothing
from edgekit.errors import EngineError, MissingExtraError

_MOST_WARNINGS = 64
_WARNING = re.compile(r"[\d.]+ [WE] ")
_LOG_S = 10.0  # for a finished log to arrive on a busy machine
_LISTENS = re.compile(r"listening on (http://\S+)")
# llama.cpp's names of buffers in RAM: "CPU_Mapped", "CPU_REPACK", "AMX", "CUDA_Host"
_IN_RAM = re.compile(r"CPU|AMX|\w+_Host$")
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


class LoadingLog:
    """What llama.cpp logs while it loads: its allocations, its warnings, and the address on which it then listens."""

    def __init__(self) -> None:
        self.engine = EngineLog()
        self.warnings: list[str] = []
        self.address = ""

    def add(self, line: str) -> None:
        self.engine.add(line)
        if len(self.warnings) < _MOST_WARNINGS and _WARNING.match(line):
            self.warnings.append(line)

    def ends_loading(self, line: str) -> bool:
        """True for the mark of our child, and for the last line that llama-server logs before it serves."""
        match = _LISTENS.search(line)
        if match is not None:
            self.address = match[1]
        return line == LOADED or match is not None

    def is_complaint(self, line: str) -> bool:
        return is_complaint(line)

    def last_words(self) -> str:
        return self.engine.last_words()


class EngineProcess(ServerProcess):
    """The process of a llama.cpp that serves."""

    allocations: LoggedAllocations  # once it is ready, at the precision of its log

    def __init__(self, launch: Launch) -> None:
        """Starts the process. UsageError, NotFoundError or SourceError for an impossible launch, else EngineError."""
        self.launch = launch
        self.log = LoadingLog()
        self.messages: list[Message] = []  # of our child
        start = _start_program if launch.program is not None else _start_wheel
        super().__init__(launch.server, self.log, start(launch))


def _start_wheel(launch: Launch) -> Callable[[Callable[[str], None]], ChildProcess]:
    settings = make_settings(launch)
    return lambda on_line: start_child(
        "serve",
        settings,
        environment=_cards(launch),
        on_line=on_line,
        title=launch.title,
    )


def _start_program(launch: Launch) -> Callable[[Callable[[str], None]], ChildProcess]:
    words = server_words(launch)
    return lambda on_line: ChildProcess(
        words,
        environment=child_environment({**_cards(launch), **launch.access_in_environment}),
        on_line=on_line,
        has_messages=False,
    )


def _cards(launch: Launch) -> Mapping[str, str]:
    return launch.environment if launch.setup.has_device else NO_DEVICES


def start(
    launch: Launch,
    *,
    tell: Callable[[str], None] = say_nothing,
    recheck: Callable[[], None] | None = None,
    begun: Callable[[Server], None] | None = None,
    probes: Probes | None = None,
) -> EngineProcess:
    """Starts llama.cpp until it is ready, as `start_server` does. MissingExtraError without the wheel."""
    if launch.program is None and not binding.has_xllamacpp():
        raise MissingExtraError(f"llama.cpp is not installed: {binding.INSTALL_XLLAMACPP}")
    is_ready = _wheel_is_ready if launch.program is None else _program_is_ready
    process = start_server(
        launch.server,
        lambda: EngineProcess(launch),
        is_ready,
        tell=tell,
        recheck=recheck,
        begun=begun,
        probes=probes,
    )
    try:
        _read_log(process)
    except BaseException:
        process.stop()
        raise
    return process


def _wheel_is_ready(process: EngineProcess, timeout_s: float) -> bool:
    """Reads the child's messages: first its version, last its address."""
    message = process.message(timeout_s)
    if message is not None:
        process.messages.append(message)
    if message is None or "address" not in message:
        return False
    first, port = process.messages[0], str(message["address"]).rpartition(":")[2]
    process.address = url_of(process.launch.at.host, port)
    version, engine = binding.xllamacpp_version(), first.get("version")
    process.version = version if engine is None else f"{version} (llama.cpp {engine})"
    process.idle = resident_at("started", first.get("memory") or {})
    return True


def _program_is_ready(process: EngineProcess, timeout_s: float) -> bool:
    """llama-server loads the model before it logs the address on which it listens."""
    if not process.has_log(timeout_s) or process.launch.program is None:
        return False
    port = process.log.address.rpartition(":")[2]
    process.address = url_of(process.launch.at.host, port)
    process.version = described(process.launch.program)
    return True


def described(program: Installation) -> str:
    """The version and the build: "0.5.0-dev (b9294)"."""
    return f"{program.version} ({program.build})" if program.build else program.version


def _read_log(process: EngineProcess) -> None:
    """Reads the allocations of an engine that has loaded. EngineError if it skipped something that was requested, or is
    not healthy.
    """
    if not process.has_log(_LOG_S):
        raise EngineError(f"llama.cpp's log did not end: {process.last_words}")
    process.allocations = process.log.engine.allocations()
    for line in process.log.warnings:
        for words, meaning, was_requested in _SKIPPED_FEATURES:
            if words in line and was_requested(process.launch):
                raise EngineError(f"{meaning} ({line})")
    if process.launch.needs_device and all(
        _IN_RAM.match(name) for name, _ in process.allocations.weights
    ):
        raise EngineError(
            "this llama.cpp uses no GPU of this machine: all layers are in RAM, but some are meant to run on a GPU"
        )
    status = health(process.address)
    if status != http.client.OK:
        raise EngineError(
            f"llama.cpp started, but is not healthy: {process.address}/health answers {status}"
        )
