"""A request -> all that a child process told until it was done, died, or ran out of time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from edgekit.engines.llamacpp.verify.child import MARK, read_status
from edgekit.engines.llamacpp.verify.engine_log import EngineLog
from edgekit.engines.llamacpp.verify.types import Resident
from edgekit.errors import EngineError

_LINE_BYTES = 65_536
_SCRIPT = Path(__file__).with_name("child.py")
_PATIENCE_S = 0.5  # llama-fit-params says nothing after its breakdown
_WEIGHTS_LOADED = "llama_context: constructing llama_context"
ENVIRONMENT = {
    "GGML_NO_BACKTRACE": "1",  # an abort would start a debugger on itself
    "MALLOC_ARENA_MAX": "2",  # each arena reserves 64 MiB of the address space
    "OMP_WAIT_POLICY": "passive",  # threads that wait do not spin
}
# A GPU that is there takes part even when no layer is offloaded: hidden from a question about the CPU.
NO_DEVICES = dict.fromkeys(
    ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"), ""
)


@dataclass(slots=True)
class Child:
    """What one run has told so far."""

    log: EngineLog = field(default_factory=EngineLog)
    version: str | None = None
    resident: list[Resident] = field(default_factory=list)
    noting: threading.Lock = field(default_factory=threading.Lock)  # two threads tell of memory
    paced: list[Mapping[str, float]] = field(default_factory=list)
    timed_out: bool = False
    enough: bool = False  # ended by us: it had told everything
    exit_code: int | None = None


def run_child(
    request: Mapping[str, Any],
    *,
    timeout_s: float,
    environment: Mapping[str, str],
    to_the_end: bool = False,
) -> Child:
    """A dry run is ended as soon as its log is complete: further on it would use memory it never got."""
    child = Child()
    with _process(environment) as process, _deadline(process, child, timeout_s):
        # The engine's log and what our own side of the child tells would mix on one pipe.
        messages = threading.Thread(
            target=_hear, args=(open_end(process.stdout), child), daemon=True
        )
        messages.start()
        _send(process, json.dumps(dict(request)).encode())
        _read_log(process, child, to_the_end=to_the_end)
    messages.join()
    child.exit_code = process.returncode
    return child


@contextmanager
def _process(environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """In a session of its own: Ctrl-C reaches us alone, and we end it with all that it started."""
    try:
        process = subprocess.Popen(  # noqa: S603 - our own script, by our own interpreter
            [sys.executable, "-P", str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **ENVIRONMENT, **environment},
            start_new_session=True,
        )
    except OSError as error:
        raise EngineError(f"cannot start a process for the engine: {error}") from error
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:  # else its number may be another's by now
        with suppress(ProcessLookupError, PermissionError):
            kill_group(process)
        process.wait()
    for stream in (process.stdin, process.stderr):
        with suppress(BrokenPipeError):
            open_end(stream).close()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


@contextmanager
def _deadline(process: subprocess.Popen[bytes], child: Child, timeout_s: float) -> Iterator[None]:
    def ring() -> None:
        child.timed_out = True
        process.kill()

    timer = threading.Timer(timeout_s, ring)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def open_end(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise TypeError("both ends of a child are pipes")
    return stream


def _send(process: subprocess.Popen[bytes], request: bytes) -> None:
    with suppress(BrokenPipeError):  # it died at once: its last words say why
        stream = open_end(process.stdin)
        stream.write(request)
        stream.close()


def _hear(stream: IO[bytes], child: Child) -> None:
    """What the child tells of itself."""
    with stream:
        while raw := stream.readline(_LINE_BYTES):
            line = raw.decode(errors="replace")
            if line.startswith(MARK):
                told = json.loads(line.removeprefix(MARK))
                child.version = told.get("version", child.version)
                if "paced" in told:
                    child.paced.append(told["paced"])
                else:
                    with child.noting:
                        _note(child, told["when"], told["memory"])


def _read_log(process: subprocess.Popen[bytes], child: Child, *, to_the_end: bool) -> None:
    """To its end, or until it is complete, or nothing more comes after the last that matters."""
    patience = threading.Timer(_PATIENCE_S, process.kill)
    patience.daemon = True
    while not child.enough and (raw := open_end(process.stderr).readline(_LINE_BYTES)):
        _take(process, child, raw.decode(errors="replace"), to_the_end=to_the_end)
        if child.log.answered and not to_the_end and patience.ident is None:
            patience.start()
    patience.cancel()
    child.enough = not to_the_end and child.log.answered
    if not child.enough:
        process.wait()


def _take(process: subprocess.Popen[bytes], child: Child, line: str, *, to_the_end: bool) -> None:
    child.log.add(line)
    child.enough = child.log.complete and not to_the_end
    if to_the_end and _WEIGHTS_LOADED in line and len(child.resident) == 1:
        memory = read_status(process.pid)
        with child.noting:
            # Only while nothing further was told: the log of a busy machine comes late.
            if len(child.resident) == 1:
                _note(child, "weights loaded", memory)


def _note(child: Child, when: str, memory: Mapping[str, int]) -> None:
    found = resident_at(when, memory)
    if found is not None:
        child.resident.append(found)


def resident_at(when: str, memory: Mapping[str, int]) -> Resident | None:
    """What read_status told; None where it told nothing."""
    if "VmRSS" not in memory:
        return None
    return Resident(
        when=when,
        resident_bytes=memory["VmRSS"],
        anonymous_bytes=memory.get("RssAnon"),
        file_bytes=memory.get("RssFile"),
        model_bytes=memory.get("Model"),
        swapped_bytes=memory.get("VmSwap", 0),
    )
