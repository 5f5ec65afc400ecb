"""A launch -> the process that runs it: what it says, how much it holds, how it ends."""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import edgekit
from edgekit.engines.llamacpp.run.child import LOADED
from edgekit.engines.llamacpp.run.files import MappedFiles
from edgekit.engines.llamacpp.run.settings import make_settings
from edgekit.engines.llamacpp.run.types import Ended, Launch
from edgekit.engines.llamacpp.verify.ask import signal_name
from edgekit.engines.llamacpp.verify.child import read_status
from edgekit.engines.llamacpp.verify.engine_log import EngineLog, is_complaint
from edgekit.engines.llamacpp.verify.process import (
    ENVIRONMENT,
    NO_DEVICES,
    kill_group,
    open_end,
    resident_at,
)
from edgekit.engines.llamacpp.verify.types import Resident
from edgekit.errors import EngineError
from edgekit.machine.tree import number_in, pairs_of

GRACE_S = 5.0  # from the question to end to the end without a question

_LINE_BYTES = 65_536
_LINE_CHARS = 400
_LAST_LINES = 24
_SHOWN_LINES = 3
_MOST_WARNINGS = 64
_WARNING = re.compile(r"[\d.]+ [WE] ")
_JOIN_S = 2.0  # a grandchild that keeps a pipe open does not keep us
_POLL_S = 0.05
_SCRIPT = Path(__file__).with_name("child.py")
_OWN = (
    "GGML_NO_BACKTRACE",
    "MALLOC_ARENA_MAX",
)  # threads of a busy engine may spin, as they like to
_FOREIGN = ("AIP_MODE",)  # llama.cpp would listen where Google's platform wants it to


class EngineProcess:
    """llama.cpp in a process of its own, in a session of its own: Ctrl-C reaches us alone."""

    def __init__(self, launch: Launch) -> None:
        """Started at once. UsageError, NotFoundError, SourceError for a launch that cannot be; EngineError."""
        settings = make_settings(launch)
        self.launch = launch
        self.files = MappedFiles(launch.files)
        self.log = EngineLog()
        self._why = ""
        self._ended: Ended | None = None
        self._lock = threading.Lock()  # for how it ended
        self._stopping = threading.Lock()
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.warnings: list[str] = []  # of the engine, while it loaded
        self._log_read = threading.Event()
        self._oom_kills = _oom_kills()
        try:
            self._process = _spawn(launch)
        except BaseException:
            self.files.close()
            raise
        self._threads = [
            threading.Thread(target=work, args=(open_end(stream),), daemon=True)
            for work, stream in (
                (self._hear, self._process.stdout),
                (self._note, self._process.stderr),
            )
        ]
        for thread in self._threads:
            thread.start()
        self._send(settings)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def last_words(self) -> str:
        """While it loads its first complaints, which say most; later the last of its last lines."""
        if not self._log_read.is_set():
            return self.log.last_words()
        lines = self.recent
        told = [line for line in lines if is_complaint(line)] or lines
        return " | ".join(told[-_SHOWN_LINES:])

    @property
    def recent(self) -> list[str]:
        """The last lines of its log."""
        return list(self._last)

    def told(self, timeout_s: float) -> dict[str, Any] | None:
        """The next that the child tells of itself."""
        try:
            return self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def has_told(self, timeout_s: float) -> bool:
        """Whether all that the engine told while it loaded is in `log`. What comes after is about requests."""
        return self._log_read.wait(timeout_s)

    def resident(self, when: str = "now") -> Resident | None:
        """What it holds as the system counts it; None where it is gone, or nobody tells."""
        return None if self.poll() is not None else resident_of(self.pid, when)

    def poll(self) -> Ended | None:
        """None while it is up."""
        with self._lock:
            if self._ended is None and self._process.poll() is not None:
                self._ended = self._end()
            return self._ended

    def wait(self, timeout_s: float | None = None) -> Ended | None:
        """Its end; None where it has not come in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (ended := self.poll()) is None:
            left = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
            if left <= 0:
                return None
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(left)
        return ended

    def stop(self, why: str = "", *, grace_s: float = GRACE_S) -> Ended:
        """Asks it to end, and ends it with all that it started when it does not. Twice is as good as once."""
        with self._stopping:
            if (ended := self.poll()) is not None:
                return ended
            self._why = why or "stopped on request"
            _close(self._process.stdin)  # the question that is understood on every system
            with suppress(ProcessLookupError, PermissionError):
                self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
            while (ended := self.poll()) is None:
                with suppress(ProcessLookupError, PermissionError):
                    kill_group(self._process)
                self._process.wait()
            return ended

    def _end(self) -> Ended:
        for thread in self._threads:
            thread.join(_JOIN_S)
        _close(self._process.stdin)
        code = self._process.returncode
        killed = None if code >= 0 else signal_name(-code)
        why = self._why or self._explained(killed, code)
        self.files.close()
        return Ended(
            exit_code=None if killed else code,
            signal=killed,
            why=why,
            last_words=self.last_words,
        )

    def _explained(self, killed: str | None, code: int) -> str:
        """An end that nobody here asked for."""
        changes = self.files.changes()
        cut = next((one for one in changes if one.fatal and self.launch.maps(one.path)), None)
        how = f"llama.cpp died of {killed}" if killed else f"llama.cpp exited (code {code})"
        if cut is not None:
            return f"{how}: {cut.path} {cut.what} while it was in use"
        if killed == "SIGKILL":
            return f"{how}: {self._who_kills()}"
        return how

    def _who_kills(self) -> str:
        if self._oom_kills is not None and (_oom_kills() or 0) > self._oom_kills:
            return (
                "the kernel killed processes because the machine ran out of memory, probably "
                "including this one"
            )
        return "killed by another program, or by a memory limit outside this container"

    def _send(self, settings: Mapping[str, Any]) -> None:
        stream = open_end(self._process.stdin)
        with suppress(BrokenPipeError, OSError):  # it died at once: its last words say why
            stream.write(json.dumps(dict(settings)).encode() + b"\n")
            stream.flush()

    def _hear(self, stream: IO[bytes]) -> None:
        with stream:
            while line := stream.readline(_LINE_BYTES):
                self._messages.put(json.loads(line))

    def _note(self, stream: IO[bytes]) -> None:
        with stream:
            while raw := stream.readline(_LINE_BYTES):
                line = raw.decode(errors="replace")[:_LINE_CHARS].rstrip()
                if line == LOADED:
                    self._log_read.set()
                elif line:
                    self._take(line)

    def _take(self, line: str) -> None:
        self._last.append(line)
        if self._log_read.is_set():
            return
        self.log.add(line)
        if len(self.warnings) < _MOST_WARNINGS and _WARNING.match(line):
            self.warnings.append(line)


def resident_of(pid: int, when: str) -> Resident | None:
    """Of any process; None where it is gone, or nobody tells."""
    if (found := resident_at(when, read_status(pid))) is not None:
        return found
    import psutil

    with suppress(psutil.Error):
        return Resident(when=when, resident_bytes=int(psutil.Process(pid).memory_info().rss))
    return None


def _spawn(launch: Launch) -> subprocess.Popen[bytes]:
    root = str(Path(edgekit.__file__).parents[1])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    ours = {name: ENVIRONMENT[name] for name in _OWN}
    theirs = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    hidden = launch.environment if launch.setup.has_device else NO_DEVICES
    try:
        return subprocess.Popen(  # noqa: S603 - our own script, by our own interpreter
            [sys.executable, "-P", str(_SCRIPT), launch.title],  # a title for ps
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**theirs, **ours, **hidden, "PYTHONPATH": paths},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise EngineError(f"cannot start a process for the engine: {error}") from error


def _close(stream: IO[bytes] | None) -> None:
    with suppress(OSError):
        open_end(stream).close()


def _oom_kills() -> int | None:
    """How often the kernel has ended a process for lack of memory; None where it does not count."""
    return number_in(pairs_of(Path("/proc/vmstat"), " ").get("oom_kill", ""))
