"""A child process that may crash, and checks whether a server can listen on a port.

The child reads and writes messages as lines of JSON on standard input and output, and writes its log to standard error.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import IO, Any

import psutil

from edgekit.errors import EngineError, UsageError

_LINE_BYTES = 65_536  # of the log: a longer line arrives in pieces
Message = dict[str, Any]
LARGEST_PORT = 65_535
_ENGINE = re.compile(r"edgekit[/\\]engines[/\\]\w+[/\\]child\.py")  # the process of an engine
_NAME_CHARS = 60


class ChildProcess:
    """In a separate session: Ctrl-C reaches only us.

    `on_line` gets each line of its log, in a thread; `on_message` each message, in another. Without `on_message` they
    wait for `message`.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        on_line: Callable[[str], None],
        on_message: Callable[[Message], None] | None = None,
    ) -> None:
        """Starts the process. EngineError if it cannot be started."""
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own script, by our own interpreter
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environment),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise EngineError(f"cannot start a process for the engine: {error}") from error
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._on_line, self._on_message = on_line, on_message or self._messages.put
        self._threads = [
            threading.Thread(target=read, daemon=True) for read in (self._hear, self._read_log)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative where a signal ended it."""
        return self._process.poll()

    def send(self, message: Mapping[str, Any]) -> None:
        stream = _pipe(self._process.stdin)
        with suppress(OSError):  # it has died: its last words say why
            stream.write(json.dumps(dict(message)).encode() + b"\n")
            stream.flush()

    def message(self, timeout_s: float) -> Message | None:
        """The next message; None on timeout. EOFError after the last."""
        try:
            found = self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if found is None:
            self._messages.put(None)
            raise EOFError
        return found

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its exit code; None on timeout."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def ask_to_end(self) -> None:
        self._close_input()  # understood on every system
        with suppress(ProcessLookupError, PermissionError):
            self._process.terminate()

    def kill(self) -> None:
        """Kills it and everything that it started."""
        if self._process.poll() is None:  # otherwise its pid may have been reused
            with suppress(ProcessLookupError, PermissionError):
                if hasattr(os, "killpg"):
                    os.killpg(self._process.pid, signal.SIGKILL)
                else:
                    self._process.kill()

    def close(self, timeout_s: float | None = None) -> int:
        """Its exit code, when everything it wrote has been read; it is killed if it still runs.

        With a timeout, a pipe that something else holds open is not waited for any longer.
        """
        self.kill()
        code = self._process.wait()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)
        self._close_input()
        return code

    def _close_input(self) -> None:
        with suppress(OSError):
            _pipe(self._process.stdin).close()

    def _hear(self) -> None:
        try:
            with _pipe(self._process.stdout) as stream:
                for line in stream:
                    try:
                        message = json.loads(line)
                    except ValueError:  # it was killed while it wrote this line
                        break
                    self._on_message(message)
        finally:
            self._messages.put(None)

    def _read_log(self) -> None:
        with _pipe(self._process.stderr) as stream:
            while line := stream.readline(_LINE_BYTES):
                self._on_line(line.decode(errors="replace"))


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@contextmanager
def ending_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end Python at once; as exceptions they let it clean up, as Ctrl-C does."""
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
        raise TypeError("all streams of a child are pipes")
    return stream


def check_port(host: str, port: int) -> None:
    """UsageError if the port cannot be used; 0: any free port."""
    if not 0 <= port <= LARGEST_PORT:
        raise UsageError(f"port {port:,} is not between 0 and {LARGEST_PORT:,}")
    refused = [_refusal(family, address) for family, address in _addresses(host, port)]
    for error in refused:
        if error is not None and error.errno == errno.EADDRINUSE:
            raise in_use(host, port)
    if None in refused:
        return
    why = next((error.strerror for error in refused if error is not None), "no such address")
    codes = {error.errno for error in refused if error is not None}
    advice = "choose another host or port"
    if codes & {errno.EACCES, errno.EPERM}:
        advice = "ports below 1024 are reserved for the administrator: choose a higher one"
    elif codes & {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
        advice = "use 127.0.0.1 for this machine only, 0.0.0.0 for all its addresses"
    raise UsageError(f"cannot listen on port {port} of {host}: {why}; {advice}")


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a server that listens there. UsageError if there is no such address."""
    return all(
        ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
        for _, address in _addresses(host, 0)
    )


def in_use(host: str, port: int) -> UsageError:
    return UsageError(
        f"port {port} of {host} is already in use{_by_whom(port)}; stop it, or choose "
        "another port (0 picks a free one)"
    )


def _addresses(host: str, port: int) -> list[tuple[int, Any]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"{host!r} is not an address of this machine ({getattr(error, 'strerror', error)}); use 127.0.0.1 for this "
            "machine only, 0.0.0.0 for all its addresses"
        ) from error
    return [(family, address) for family, _, _, _, address in found]


def _refusal(family: int, address: Any) -> OSError | None:
    """Why a bind like llama.cpp's fails; None if it works. With SO_REUSEADDR sockets in TIME_WAIT do not block it."""
    # Windows: REUSEADDR takes it from others
    exclusive = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)
    try:
        with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR if exclusive is None else exclusive, 1
            )
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error
    return None


def _by_whom(port: int) -> str:
    """The process that holds the port, if the system tells: not for other users' processes."""
    try:
        listeners = {
            one.pid
            for one in psutil.net_connections(kind="tcp")
            if one.pid and one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port
        }
        if not listeners:
            return ""
        process = psutil.Process(min(listeners))
        words: list[str] = process.cmdline()
        if len(words) > 1 and any(_ENGINE.search(word) for word in words):
            model = words[-1][:_NAME_CHARS]
            ours = ", started by this program" if process.ppid() == os.getpid() else ""
            return f" by a model that edgekit already runs ({model}, process {process.pid}{ours})"
        # Only the name of another program: its arguments may be secret.
        return f" by process {process.pid} ({process.name()[:_NAME_CHARS]})"
    except (psutil.Error, OSError, RuntimeError):  # macOS tells only the administrator
        return ""


def connectable(host: str) -> str:
    """Where to reach a server that listens on `host`: every address of this machine is reached by one."""
    wild = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}  # noqa: S104 - not bound, asked
    return wild.get(host, host)


def in_address(host: str) -> str:
    """The host as written in a URL."""
    return f"[{host}]" if ":" in host else host
