"""How mlx_lm.server is started for `run` and `serve`, inside the memory that the bill promises."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgekit.bill.types import Component, Setup, Verdict
from edgekit.engines.chat import Prompt
from edgekit.engines.mlx.child import TOO_LONG
from edgekit.engines.mlx.commands import server_words
from edgekit.engines.mlx.quantization import AS_STORED
from edgekit.engines.mlx.request_rules import request_rules
from edgekit.engines.mlx.setups import MlxSetup
from edgekit.engines.openai_client import OPENAI_NAMES, OpenAiClient
from edgekit.engines.ports import url_of
from edgekit.engines.process import (
    ChildProcess,
    ServerLaunch,
    ServerProcess,
    start_server,
    watched,
)
from edgekit.engines.program import (
    ComparedRow,
    EngineProgram,
    EngineStart,
    Installation,
    LocalWeights,
    MeasuredBytes,
    RunningEngine,
    RunOptions,
)
from edgekit.engines.python_programs import interpreter_of, package_installation
from edgekit.engines.request_rules import RequestLimits
from edgekit.errors import UsageError
from edgekit.machine.surroundings import Surroundings
from edgekit.machine.types import Device, Machine, System, Vendor
from edgekit.units import GIB, KIB, MIB

NAME = "mlx"
INSTALL = (
    "pip install mlx-lm"
    if sys.platform == "darwin"
    else "pip install 'mlx[cpu]' mlx-lm (Linux and macOS)"
)
SCRIPT = Path(__file__).with_name("child.py")
# mlx_lm/server.py do_POST @ 0.32.2, in OpenAI's names and its own
SAMPLING_NAMES: Mapping[str, str] = {
    **OPENAI_NAMES,
    "repeat_penalty": "repetition_penalty",
    "repeat_last": "repetition_context_size",
}
_PAGE_BYTES = 16 * KIB  # an allocation is rounded up to pages
_OTHER_ARRAYS_BYTES = MIB  # frequencies of rotary embeddings and the like, which are not parameters
_POOL_SHARE = (
    4  # of the free memory, a quarter may hold buffers for reuse; old prompts get the rest
)
_LEAST_POOL_BYTES = 16 * MIB
_MOST_POOL_BYTES = 2 * GIB
_COMPLAINT = re.compile(r"\bERROR\b|error:|Error\b|Traceback")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxProgram(EngineProgram):
    name: str = NAME
    install: str = INSTALL

    def find(self) -> Installation | None:
        return package_installation(NAME, "mlx_lm", "mlx-lm")

    def on_machine(self, machine: Machine, _installation: Installation) -> Machine:
        """On Linux, the processor as a device: MLX computes in the RAM there."""
        if machine.host is None or machine.system is System.MACOS:
            return machine
        cpu = Device(
            name=machine.processor or platform.processor() or "the CPU",
            vendor=Vendor.APPLE,
            total_bytes=machine.host.total_bytes,
            free_bytes=machine.host.usable_bytes,
            unified=True,
            bandwidth_bytes_per_s=machine.host.bandwidth_bytes_per_s,
            because="MLX's CPU build",
        )
        return replace(machine, devices=(cpu,))

    def flags_for(self, options: RunOptions, _installation: Installation) -> dict[str, Any]:
        if options.rolling:
            raise UsageError("mlx_lm.server cannot roll its context: leave out --rolling")
        if options.threads is not None:
            raise UsageError("mlx-lm chooses its number of threads itself: leave out --threads")
        return {}

    def request_limits(self, verdict: Verdict, _weights: LocalWeights) -> RequestLimits:
        window = verdict.load.context_tokens or 0
        return RequestLimits(rules=request_rules(window_tokens=window), window_tokens=window)

    def with_limits(self, verdict: Verdict, _installation: Installation) -> Setup:
        """What grows after the start is limited by the server's flags, not by the setup."""
        setup = MlxSetup.of(verdict.way.setup)
        if setup.max_kv_size is not None:
            raise UsageError("mlx_lm.server has no --max-kv-size: leave it out")
        if setup.quantize not in {None, AS_STORED}:
            raise UsageError(
                "mlx_lm.server loads the weights as they are stored: leave out --quantize, or name a repository that "
                "is quantised like that"
            )
        return setup

    def open(self, _path: Path, _held: ExitStack, _budget_bytes: int | None) -> MlxStarter:
        return MlxStarter()


PROGRAM = MlxProgram()


class MlxStarter:
    def tokens_in(self, _prompt: Prompt) -> None:
        """None: only the server can count tokens."""

    @contextmanager
    def start(self, request: EngineStart) -> Iterator[RunningEngine]:
        """Runs the engine, watched, until the end of the block."""
        running = start(request)
        with watched(running, warn=request.warn) as watch:
            window = request.load.context_tokens or 0
            generator = OpenAiClient(
                running.address,
                program="mlx-lm",
                window_tokens=window,
                api_key=request.address.api_key,
                sampling_names=SAMPLING_NAMES,
                too_long=TOO_LONG,
            )
            yield RunningEngine(
                generator=generator,
                version=running.version,
                rows=(compare_weights(request, running),),
                server=running,
                model=running.server.title,
                guard=watch,
            )


class MlxLog:
    """mlx_lm.server's log has no figures of its own: the child sends them as messages."""

    def __init__(self) -> None:
        self._complaints: list[str] = []
        self._last = ""

    def add(self, line: str) -> None:
        self._last = line
        if self.is_complaint(line) and len(self._complaints) < 4:
            self._complaints.append(line)

    def ends_loading(self, line: str) -> bool:
        return "Starting httpd" in line

    def is_complaint(self, line: str) -> bool:
        return _COMPLAINT.search(line) is not None

    def last_words(self) -> str:
        return " | ".join(self._complaints) or self._last


class MlxProcess(ServerProcess):
    """The process of mlx_lm.server, with what it reports once the model is loaded."""

    weights_bytes = 0  # of all parameters
    active_bytes = 0  # that MLX has allocated
    tensors = 0


def start(request: EngineStart) -> MlxProcess:
    """Starts mlx_lm.server until its model is loaded."""
    folder = request.weights.model
    launch = ServerLaunch(
        program="mlx-lm",
        title=request.address.alias or request.label,
        host=request.address.host,
        port=request.address.port,
        files=tuple(sorted(folder.glob("*.safetensors"))),
    )
    return start_server(
        launch,
        lambda: MlxProcess(launch, MlxLog(), _child(request, launch)),
        _is_ready,
        tell=request.say,
        recheck=request.recheck,
        begun=request.begun,
    )


def _child(
    request: EngineStart, launch: ServerLaunch
) -> Callable[[Callable[[str], None]], ChildProcess]:
    pool_bytes, old_prompts_bytes = shares(request.verdict, keep_spare=request.keep_spare)
    words = server_words(
        MlxSetup.of(request.setup),
        str(request.weights.model),
        sequences=request.load.sequences or 1,
        cache_bytes=request.estimate.kv_cache_bytes + old_prompts_bytes,
    )
    settings = {
        "words": [*words[1:], "--host", launch.host, "--port", str(launch.port)],
        "window_tokens": request.load.context_tokens or 0,
        "pool_bytes": pool_bytes,
        "old_prompts_bytes": old_prompts_bytes,
        "api_key": request.address.api_key,
    }

    def begin(on_line: Callable[[str], None]) -> ChildProcess:
        child = ChildProcess(
            [interpreter(request.installation), "-P", str(SCRIPT), launch.title],
            environment={**os.environ, **request.environment, "HF_HUB_OFFLINE": "1"},
            on_line=on_line,
        )
        child.send(settings)
        return child

    return begin


def shares(verdict: Verdict, *, keep_spare: bool = False) -> tuple[int, int]:
    """How the memory that the bill leaves free is divided: MLX's pool of freed buffers, and the caches of old prompts.

    `keep_spare`: the free memory is for other models.
    """
    free_bytes = [use.budget.available_bytes - use.required_bytes for use in verdict.uses]
    free = 0 if keep_spare else max(0, min(free_bytes, default=0))
    pool = min(max(free // _POOL_SHARE, _LEAST_POOL_BYTES), _MOST_POOL_BYTES)
    return pool, max(0, free - pool)


def interpreter(installation: Installation) -> str:
    """The Python that has mlx-lm: this one, or that of the script mlx_lm.server."""
    script = Path(installation.path)
    found = interpreter_of(script, Surroundings()) if script.is_file() else None
    return sys.executable if found is None else str(found)


def _is_ready(process: MlxProcess, timeout_s: float) -> bool:
    """The child tells its version, its address, and what the model takes: in this order, or the last two reversed."""
    message = process.message(timeout_s)
    if message is None:
        return False
    if "version" in message:
        process.version = str(message["version"])
    if "address" in message:
        port = str(message["address"]).rpartition(":")[2]
        process.address = url_of(process.server.host, port)
    if "weights_bytes" in message:
        process.weights_bytes = int(message["weights_bytes"])
        process.active_bytes = int(message["active_bytes"])
        process.tensors = int(message["tensors"])
    return bool(process.weights_bytes and hasattr(process, "address"))


def compare_weights(request: EngineStart, running: MlxProcess) -> ComparedRow:
    """The weights of the bill, compared with what MLX has allocated after loading."""
    active = running.active_bytes
    return ComparedRow(
        part=Component.WEIGHTS.value,
        predicted_bytes=request.estimate.weights_bytes,
        measured=MeasuredBytes(low_bytes=active, high_bytes=active),
        allowed_bytes=running.tensors * _PAGE_BYTES + _OTHER_ARRAYS_BYTES,
    )
