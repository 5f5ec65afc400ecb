"""How `vllm serve` is started for `run` and `serve`, and what its log says of memory."""

from __future__ import annotations

import http.client
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit.bill.types import Component, MemoryEstimate, Verdict
from edgekit.engines.chat import Prompt
from edgekit.engines.openai_client import OPENAI_NAMES, OpenAiClient
from edgekit.engines.ports import free_port, url_of
from edgekit.engines.process import (
    ChildProcess,
    ServerLaunch,
    ServerProcess,
    health,
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
from edgekit.engines.python_programs import package_installation
from edgekit.engines.request_rules import RequestLimits
from edgekit.engines.vllm.commands import server_words, taken
from edgekit.engines.vllm.request_rules import request_rules
from edgekit.engines.vllm.types import VllmSetup
from edgekit.errors import UsageError
from edgekit.units import GIB

NAME = "vllm"
# Loading, compiling and capturing graphs: a first start of a large model takes many minutes.
LOAD_TIMEOUT_S = 3600.0
# All lines as logged by vLLM 0.32.0 (v1/worker/gpu/model_runner.py, v1/worker/gpu_worker.py,
# v1/core/kv_cache_utils.py, entrypoints/launchers/api_server/entry.py)
_WEIGHTS = re.compile(r"Model loading took ([\d.]+) GiB memory")
_POOL = re.compile(r"Available KV cache memory: (-?[\d.]+) GiB")
_SERVES = "Starting vLLM server on"
_COMPLAINT = re.compile(r"\bERROR\b|\bCRITICAL\b|Error:")
_CAUSE = re.compile(r"\b\w*(?:Error|Exception): .+")  # the last line of a traceback
_ROUNDING_BYTES = GIB // 200  # two decimals of a GiB
_MOST_COMPLAINTS = 200  # of a traceback, in which every line is one
# How the message of a prompt begins that is longer than the window (entrypoints/openai/serving_engine.py).
_TOO_LONG = "This model's maximum context length"
_SAMPLING_NAMES: Mapping[str, str] = {**OPENAI_NAMES, "repeat_penalty": "repetition_penalty"}
_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "INFO",  # the level of the lines above
    "VLLM_CONFIGURE_LOGGING": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",  # the model is a folder on this machine
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmProgram(EngineProgram):
    name: str = NAME
    install: str = "pip install vllm (Linux with an NVIDIA GPU)"

    def find(self) -> Installation | None:
        return package_installation(NAME, "vllm", "vllm")

    def flags_for(self, options: RunOptions, _installation: Installation) -> dict[str, Any]:
        if options.rolling:
            raise UsageError("vLLM cannot roll its context: leave out --rolling")
        if options.threads is not None:
            raise UsageError("vLLM chooses its number of threads itself: leave out --threads")
        return {}

    def request_limits(self, verdict: Verdict, _weights: LocalWeights) -> RequestLimits:
        window = _window(verdict)
        rules = request_rules(window_tokens=window, reads_images=False)
        return RequestLimits(rules=rules, window_tokens=window)

    def with_limits(self, verdict: Verdict, _installation: Installation) -> VllmSetup:
        """Nothing grows after the start: the pool is allocated as a whole."""
        return VllmSetup.of(verdict.way.setup)

    def open(self, _path: Path, _held: ExitStack, _budget_bytes: int | None) -> VllmStarter:
        return VllmStarter()


PROGRAM = VllmProgram()


class VllmStarter:
    def tokens_in(self, _prompt: Prompt) -> None:
        """None: only the server can count tokens."""

    @contextmanager
    def start(self, request: EngineStart) -> Iterator[RunningEngine]:
        """Runs the engine, watched, until the end of the block."""
        running = start(request)
        with watched(running, warn=request.warn) as watch:
            generator = OpenAiClient(
                running.address,
                program="vLLM",
                window_tokens=_window(request.verdict),
                model=running.server.title,
                api_key=request.address.api_key,
                sampling_names=_SAMPLING_NAMES,
                too_long=_TOO_LONG,
            )
            yield RunningEngine(
                generator=generator,
                version=running.version,
                rows=tuple(compare(taken(request.verdict), running.log)),
                server=running,
                model=running.server.title,
                guard=watch,
            )


def _window(verdict: Verdict) -> int:
    facts: dict[str, Any] = dict(verdict.estimate.facts)
    length: int = facts["max_model_len"]
    return length


class VllmLog:
    """The figures in the log of a vLLM that loads: each at the precision of two decimals of a GiB.

    With several GPUs every process logs them; the bill is for the fullest.
    """

    def __init__(self) -> None:
        self.weights: MeasuredBytes | None = None
        self.pool: MeasuredBytes | None = None
        self._complaints: list[str] = []
        self._last = ""

    def add(self, line: str) -> None:
        self._last = line
        if match := _WEIGHTS.search(line):
            self.weights = max(self.weights or _measured(match[1]), _measured(match[1]), key=_size)
        if match := _POOL.search(line):
            self.pool = min(self.pool or _measured(match[1]), _measured(match[1]), key=_size)
        if self.is_complaint(line) and len(self._complaints) < _MOST_COMPLAINTS:
            self._complaints.append(line)

    def ends_loading(self, line: str) -> bool:
        return _SERVES in line

    def is_complaint(self, line: str) -> bool:
        return _COMPLAINT.search(line) is not None

    def last_words(self) -> str:
        """The cause of the first traceback; if there is none, the first complaint or the last line."""
        causes = (_CAUSE.search(line) for line in self._complaints)
        first = next((cause[0] for cause in causes if cause is not None), "")
        return first or next(iter(self._complaints), self._last)


def _measured(text: str) -> MeasuredBytes:
    middle = int(float(text) * GIB)
    return MeasuredBytes(low_bytes=middle - _ROUNDING_BYTES, high_bytes=middle + _ROUNDING_BYTES)


def _size(measured: MeasuredBytes) -> int:
    return measured.middle_bytes


class VllmProcess(ServerProcess):
    """The process of `vllm serve`."""

    log: VllmLog


def start(request: EngineStart) -> VllmProcess:
    """Starts `vllm serve` until it answers."""
    at = request.address
    launch = ServerLaunch(
        program="vLLM",
        title=at.alias or request.label,
        host=at.host,
        port=at.port or free_port(at.host),
        files=tuple(sorted(request.weights.model.glob("*.safetensors"))),
        environment=request.environment,
        uses_nvidia=True,
        timeout_s=LOAD_TIMEOUT_S,
    )
    log = VllmLog()

    def create() -> VllmProcess:
        process = VllmProcess(launch, log, _child(request, launch))
        process.log, process.version = log, request.installation.version
        return process

    return start_server(
        launch, create, _is_ready, tell=request.say, recheck=request.recheck, begun=request.begun
    )


def _child(
    request: EngineStart, launch: ServerLaunch
) -> Callable[[Callable[[str], None]], ChildProcess]:
    words = executable(request.installation)
    words += server_words(request.verdict, str(request.weights.model))
    words += ["--served-model-name", launch.title]
    words += ["--host", launch.host, "--port", str(launch.port)]
    key = {"VLLM_API_KEY": request.address.api_key} if request.address.api_key else {}
    environment = {**os.environ, **_ENVIRONMENT, **request.environment, **key}
    return lambda on_line: ChildProcess(
        words, environment=environment, on_line=on_line, has_messages=False
    )


def executable(installation: Installation) -> list[str]:
    """The program `vllm` that was found, or that of this Python."""
    found = Path(installation.path)
    if installation.path and found.is_file():
        return [str(found)]
    return [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main"]


def _is_ready(process: VllmProcess, timeout_s: float) -> bool:
    """It logs its address before it listens."""
    if not process.has_log(timeout_s):
        return False
    launch = process.server
    process.address = url_of(launch.host, launch.port)
    if health(process.address) == http.client.OK:
        return True
    process.wait(timeout_s)  # a pause, unless it ends
    return False


def compare(estimate: MemoryEstimate, log: VllmLog) -> Iterator[ComparedRow]:
    """The bill of a GPU, compared with what vLLM logged."""
    weights = [line for line in estimate.lines if line.component is Component.WEIGHTS]
    if log.weights is not None:
        yield ComparedRow(
            part=Component.WEIGHTS.value,
            predicted_bytes=estimate.weights_bytes,
            measured=log.weights,
            allowed_bytes=int(sum(line.size_bytes * (line.within or 0.0) for line in weights)),
        )
    predicted = dict(estimate.facts)["available_kv_bytes"]
    if log.pool is not None and isinstance(predicted, int):
        others = [line for line in estimate.lines if line.component is not Component.KV_CACHE]
        yield ComparedRow(
            part=Component.KV_CACHE.value,
            predicted_bytes=predicted,
            measured=log.pool,
            allowed_bytes=int(sum(line.size_bytes * (line.within or 0.0) for line in others)),
        )
