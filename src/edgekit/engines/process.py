"""The processes of engines: a child that may crash, and a server program from its start to its end.

A child of EdgeKit's own exchanges messages as lines of JSON on standard input and output, and writes its log to
standard error. Any other program writes its log to both.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Protocol, Self, TypeVar

import psutil

from edgekit.engines.discovery import signal_name
from edgekit.engines.ports import check_port, in_use
from edgekit.engines.program import Ended, Resident, Server
from edgekit.engines.watch import MappedFiles, Probes, Watch, say_nothing
from edgekit.errors import EngineError, MemoryPressureError
from edgekit.machine.surroundings import family, number_in, pairs_of
from edgekit.units import GIB, KIB, format_bytes

_LINE_BYTES = 65_536  # of the log: a longer line arrives in pieces
Message = dict[str, Any]
_TETHERED = Path(__file__).with_name("tethered.py")
ON_WINDOWS = os.name == "nt"
# On Windows, what keeps Ctrl-C from a process, as its own session does elsewhere; 0 on other systems.
_CREATION_FLAGS = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0) | getattr(
    subprocess, "CREATE_NO_WINDOW", 0
)


class ChildProcess:
    """A child process in its own session, so that Ctrl-C does not reach it. What it started ends with it.

    `on_line` is called in a thread with each line of the child's log, `on_message` in another thread with each message.
    Without `on_message`, messages are queued until `message` is called.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        on_line: Callable[[str], None],
        on_message: Callable[[Message], None] | None = None,
        has_messages: bool = True,
    ) -> None:
        """Starts the process. EngineError if it cannot be started. `has_messages`: it is a child of EdgeKit's own."""
        needs_input = has_messages
        if not has_messages:
            program = shutil.which(command[0])
            if program is None:
                raise EngineError(f"{command[0]} is not a program that can be started")
            if not ON_WINDOWS:  # there, it outlives an EdgeKit that is killed
                command = [sys.executable, "-P", str(_TETHERED), program, *command[1:]]
                needs_input = True

        def begin() -> subprocess.Popen[bytes]:
            return subprocess.Popen(  # noqa: S603 - our own script, or the engine's program; no shell
                list(command),
                stdin=subprocess.PIPE if needs_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environment),
                start_new_session=True,
                creationflags=_CREATION_FLAGS,
            )

        try:
            self._process = _starting_thread().submit(begin).result()
        except (OSError, ValueError) as error:
            raise EngineError(f"cannot start a process for the engine: {error}") from error
        self._ends_with_input = has_messages
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._on_line, self._on_message = on_line, on_message or self._messages.put
        readers = [
            self._read_messages if has_messages else lambda: self._read_log(self._process.stdout),
            lambda: self._read_log(self._process.stderr),
        ]
        self._threads = [threading.Thread(target=read, daemon=True) for read in readers]
        self._exited = threading.Event()
        self._reaping = threading.Lock()  # while it is held, the pid belongs to this child
        for thread in (*self._threads, threading.Thread(target=self._reap, daemon=True)):
            thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return self._process.returncode if self._exited.is_set() else None

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message; ignored if the child has died."""
        stream = _pipe(self._process.stdin)
        with suppress(OSError):  # the child has died: its log says why
            stream.write(json.dumps(dict(message)).encode() + b"\n")
            stream.flush()

    def message(self, timeout_s: float) -> Message | None:
        """The next message; None on timeout. EOFError after the last."""
        try:
            message = self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if message is None:  # the end of the stream: leave the mark for the next call
            self._messages.put(None)
            raise EOFError
        return message

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its exit code; None on timeout."""
        self._exited.wait(timeout_s)
        return self.exit_code

    def ask_to_end(self) -> None:
        """Asks the child to end; it may still take some time."""
        if self._ends_with_input:
            self._close_input()
        if ON_WINDOWS:  # it has no SIGTERM
            self.kill()
            return
        with self._reaping:
            if not self._exited.is_set():
                with suppress(ProcessLookupError, PermissionError):
                    # Not Popen.terminate, which reaps a child that has just ended: `_reap` would wait forever.
                    os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kills the child and all processes that it started."""
        with self._reaping:
            if not self._exited.is_set():
                self._kill_group()

    def _kill_group(self) -> None:
        if not ON_WINDOWS:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            return
        for pid in family(self._process.pid, psutil):
            with suppress(psutil.Error):
                psutil.Process(pid).kill()

    def _reap(self) -> None:
        """Waits for the end of the child, and kills what it has left behind: that may hold the memory of a GPU."""
        if hasattr(os, "waitid"):
            # Leaves a zombie, so that no other process can get its number before the group is killed.
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:  # Windows, and macOS before Python 3.13
            self._process.wait()
        with self._reaping:
            self._kill_group()
            self._process.wait()
            self._exited.set()

    def close(self, timeout_s: float | None = None) -> int:
        """Kills it if it still runs, reads the rest of its output, and returns its exit code.

        `timeout_s` limits the wait for the output: another process may hold the pipe open.
        """
        self.kill()
        self._exited.wait()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)
        self._close_input()
        return self._process.returncode

    def _close_input(self) -> None:
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def _read_messages(self) -> None:
        """Passes each message on until the child closes its output."""
        try:
            with _pipe(self._process.stdout) as stream:
                for line in stream:
                    try:
                        message = json.loads(line)
                    except ValueError:  # the child was killed while it wrote this line
                        break
                    self._on_message(message)
        finally:
            self._messages.put(None)

    def _read_log(self, output: IO[bytes] | None) -> None:
        with _pipe(output) as stream:
            while line := stream.readline(_LINE_BYTES):
                self._on_line(line.decode(errors="replace"))


@lru_cache(1)
def _starting_thread() -> ThreadPoolExecutor:
    """The thread that starts all processes: the kernel ends a process together with the thread that started it."""
    return ThreadPoolExecutor(1, thread_name_prefix="edgekit-start")


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into SystemExit, so that the program cleans up as it does after Ctrl-C."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    ours = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        ours = []  # only the main thread may change what a signal does
    for number in ours:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise TypeError("this stream of the child is not a pipe")
    return stream


# --- the memory of a process


def resident_at(when: str, memory: Mapping[str, int]) -> Resident | None:
    """Sizes as /proc names them, as a Resident; None if there are none."""
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


def read_status(pid: int) -> dict[str, int]:
    """VmRSS, RssAnon, RssFile and VmSwap of a process in bytes; empty without /proc."""
    texts = pairs_of(Path(f"/proc/{pid}/status"), ":")
    sizes = {
        name: number_in(texts.get(name, "").removesuffix("kB"))
        for name in ("VmRSS", "RssAnon", "RssFile", "VmSwap")
    }
    return {name: size * KIB for name, size in sizes.items() if size is not None}


def resident_of(pid: int) -> Resident | None:
    """Resident memory of a process and all that it has started; None if it is gone or its memory is unknown."""
    found = [resident for each in family(pid, psutil) if (resident := _resident_alone(each))]
    if not found:
        return None

    def total(sizes: Iterable[int | None]) -> int | None:
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(found) else None

    return Resident(
        when="now",
        resident_bytes=sum(each.resident_bytes for each in found),
        anonymous_bytes=total(each.anonymous_bytes for each in found),
        file_bytes=total(each.file_bytes for each in found),
        swapped_bytes=sum(each.swapped_bytes for each in found),
    )


def _resident_alone(pid: int) -> Resident | None:
    if (resident := resident_at("now", read_status(pid))) is not None:
        return resident
    with suppress(psutil.Error):
        return Resident(when="now", resident_bytes=int(psutil.Process(pid).memory_info().rss))
    return None


def family_resident_bytes(pid: int) -> int | None:
    """Resident memory of a process and all that it has started; None if it is gone or its memory is unknown."""
    resident = resident_of(pid)
    return None if resident is None else resident.resident_bytes


# --- a server program

GRACE_S = 5.0  # between asking a program to end and killing it
ON_REQUEST = "stopped on request"
LOAD_TIMEOUT_S = 600.0  # 60 GB from a disk of 100 MB/s

_LINE_CHARS = 400
_LAST_LINES = 24
_SHOWN_LINES = 3
_JOIN_S = 2.0  # in case a grandchild keeps a pipe open
_END_POLL_S = 0.05
_POLL_S = 0.1
_TELL_S = 1.0  # minimum time between two progress messages
_STEPS = 10
_HEALTH_S = 5.0
_EXIT_DELAY_S = 2.0  # a dying server closes its connections before its exit is seen
# "couldn't bind" (llama.cpp), "Address already in use" (Python), "address already in use" (Go)
_BIND_FAILED = ("couldn't bind", "ddress already in use")


class ServerLog(Protocol):
    """Reads the log of a program."""

    def add(self, line: str) -> None:
        """Reads a line that was logged while loading."""

    def ends_loading(self, line: str) -> bool:
        """Whether everything logged while loading has come with this line."""

    def is_complaint(self, line: str) -> bool:
        """Whether the line reports an error."""

    def last_words(self) -> str:
        """The first errors logged while loading; if there are none, the last lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLaunch:
    """How a server program is started, and what is watched while it runs."""

    program: str  # as messages name it: "llama.cpp", "mlx_lm.server"
    title: str  # the name of the model
    host: str = "127.0.0.1"
    port: int = 0
    files: tuple[Path, ...] = ()  # that it opens
    mapped: frozenset[Path] = frozenset()  # of them, those that it keeps mapped
    environment: Mapping[str, str] = field(
        default_factory=dict
    )  # that selects and orders the cards
    uses_nvidia: bool = False
    ram_bytes: int | None = None  # of the bill; None: unknown
    timeout_s: float = LOAD_TIMEOUT_S


class ServerProcess:
    """A server program, from start to end; as a context manager, it is stopped at the end of the block."""

    address: str  # once it is ready: "http://127.0.0.1:8080"
    version: str = ""
    idle: Resident | None = None  # memory with its libraries loaded, but not the model

    def __init__(
        self,
        launch: ServerLaunch,
        log: ServerLog,
        start: Callable[[Callable[[str], None]], ChildProcess],
    ) -> None:
        """Starts the process: `start` gets the function that reads its log.

        Raises NotFoundError or SourceError if a file cannot be opened, and what `start` raises.
        """
        self.server = launch
        self.files = MappedFiles(launch.files)
        self._log = log
        self._stop_reason = ""
        self._ended: Ended | None = None
        self._lock = threading.Lock()  # guards `_ended`
        self._stopping = threading.Lock()
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._log_read = threading.Event()
        self._oom_kills = _oom_kills()
        try:
            self._child = start(self._read_line)
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
            return self._log.last_words()
        lines = self.recent
        shown = [line for line in lines if self._log.is_complaint(line)] or lines
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
        """True if everything logged while loading was read. Later lines are about requests."""
        return self._log_read.wait(timeout_s)

    def resident(self) -> Resident | None:
        """Resident memory of it and all that it has started; None if it is gone or the system does not tell."""
        return None if self.poll() is not None else resident_of(self.pid)

    def maps(self, path: Path) -> bool:
        """Whether the program keeps the file mapped."""
        return path in self.server.mapped

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
            self._stop_reason = why or ON_REQUEST
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
        why, program = self._stop_reason, self.server.program
        if not why:  # the program ended by itself
            why = f"{program} died of {killed}" if killed else f"{program} exited (code {code})"
            changes = self.files.changes()
            fatal_change = next(
                (change for change in changes if change.fatal and self.maps(change.path)), None
            )
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
        """Keeps the last lines of the log; those logged while loading are also read for what they say."""
        line = line[:_LINE_CHARS].rstrip()
        is_loading = not self._log_read.is_set()
        if line and (not is_loading or not self._log.ends_loading(line)):
            self._last_lines.append(line)
            if is_loading:
                self._log.add(line)
        elif line:
            self._log_read.set()


def _oom_kills() -> int | None:
    """The kernel's count of out-of-memory kills; None if it does not count them."""
    return number_in(pairs_of(Path("/proc/vmstat"), " ").get("oom_kill", ""))


Process = TypeVar("Process", bound=ServerProcess)


def start_server(
    launch: ServerLaunch,
    create: Callable[[], Process],
    is_ready: Callable[[Process, float], bool],
    *,
    tell: Callable[[str], None] = say_nothing,
    recheck: Callable[[], None] | None = None,
    begun: Callable[[Server], None] | None = None,
    probes: Probes | None = None,
) -> Process:
    """Starts a server until it is ready, or cleans up completely.

    `recheck` is called just before loading, and raises if the model no longer fits. `begun` gets the process before
    the model is loaded, and may raise. `is_ready` may wait for the given seconds. `tell` receives progress messages.
    UsageError for a port that is taken, MemoryPressureError if memory runs out meanwhile, otherwise EngineError with
    its last log lines.
    """
    check_port(launch.host, launch.port)
    if recheck is not None:
        recheck()
    process = create()
    try:
        if begun is not None:
            begun(process)
        with Watch(process, warn=tell, probes=probes) as watch:
            try:
                _load(process, is_ready, tell)
            except EngineError as error:
                if watch.starved:
                    raise MemoryPressureError(watch.reason or str(error)) from error
                raise
    except BaseException:
        process.stop()
        raise
    return process


@contextmanager
def watched(process: ServerProcess, *, warn: Callable[[str], None]) -> Iterator[Watch]:
    """Watches a server that is ready, for a block, and stops it at the end.

    An EngineError of the block is replaced by how the process ended, if it did.
    """
    with Watch(process, warn=warn, is_ready=True) as watch:
        try:
            yield watch
        except EngineError as error:
            ended = process.wait(_EXIT_DELAY_S)
            if ended is None:
                raise
            if watch.starved:
                raise MemoryPressureError(watch.reason or ended.why) from error
            if watch.reason:
                raise EngineError(watch.reason) from error
            raise EngineError(ended.why, log=ended.last_words) from error
        finally:
            process.stop()


def _load(
    process: Process, is_ready: Callable[[Process, float], bool], tell: Callable[[str], None]
) -> None:
    """Waits until the program is ready, and shows its progress. EngineError if it ends or takes too long."""
    launch = process.server
    started_s = time.monotonic()
    deadline, next_message_s = started_s + launch.timeout_s, started_s + _TELL_S
    progress = Progress(title=launch.title, size_bytes=process.files.size_bytes, tell=tell)
    while not is_ready(process, max(0.0, min(_POLL_S, deadline - time.monotonic()))):
        if (ended := process.poll()) is not None:
            if any(words in ended.last_words for words in _BIND_FAILED):
                raise in_use(launch.host, launch.port)  # another program took the port
            raise EngineError(ended.why, log=ended.last_words or "it printed nothing")
        if time.monotonic() > deadline:
            last = process.stop().last_words
            why = f"{launch.program} did not start within {launch.timeout_s:g} s"
            raise EngineError(why, log=last or "no output")
        if time.monotonic() > next_message_s:
            next_message_s += _TELL_S
            progress.show(process.resident())


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


def health(address: str, path: str = "/health", timeout_s: float = _HEALTH_S) -> int | None:
    """The HTTP status: 200 if ready, 503 while loading; None: no answer."""
    connection = http.client.HTTPConnection(address.partition("://")[2], timeout=timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
