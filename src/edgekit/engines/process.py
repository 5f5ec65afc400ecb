"""A child process for an engine, which may crash; and checks whether a server can listen on a port.

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
    """A child process in its own session, so that Ctrl-C does not reach it.

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
            threading.Thread(target=read, daemon=True)
            for read in (self._read_messages, self._read_log)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return self._process.poll()

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
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def ask_to_end(self) -> None:
        """Asks the child to end; it may still take some time."""
        self._close_input()  # asks the child to end on every system; SIGTERM does not
        with suppress(ProcessLookupError, PermissionError):
            self._process.terminate()

    def kill(self) -> None:
        """Kills the child and all processes that it started."""
        if self._process.poll() is None:  # otherwise its pid may have been reused
            with suppress(ProcessLookupError, PermissionError):
                if hasattr(os, "killpg"):
                    os.killpg(self._process.pid, signal.SIGKILL)
                else:
                    self._process.kill()

    def close(self, timeout_s: float | None = None) -> int:
        """Kills it if it still runs, reads the rest of its output, and returns its exit code.

        `timeout_s` limits the wait for the output: another process may hold the pipe open.
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

    def _read_log(self) -> None:
        with _pipe(self._process.stderr) as stream:
            while line := stream.readline(_LINE_BYTES):
                self._on_line(line.decode(errors="replace"))


def signal_name(number: int) -> str:
    """SIGKILL for 9; for an unknown number, the number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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
        raise TypeError("all streams of a child are pipes")
    return stream


def check_port(host: str, port: int) -> None:
    """UsageError if the port cannot be used; 0: any free port."""
    if not 0 <= port <= LARGEST_PORT:
        raise UsageError(f"port {port:,} is not between 0 and {LARGEST_PORT:,}")
    results = [_bind_error(family, address) for family, address in _addresses(host, port)]
    errors = [error for error in results if error is not None]
    codes = {error.errno for error in errors}
    if errno.EADDRINUSE in codes:
        raise in_use(host, port)
    if None in results:
        return
    why = errors[0].strerror if errors else "no such address"
    advice = "choose another host or port"
    if codes & {errno.EACCES, errno.EPERM}:
        advice = "ports below 1024 are reserved for the administrator: choose a higher one"
    elif codes & {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
        advice = "use 127.0.0.1 for this machine only, 0.0.0.0 for all its addresses"
    raise UsageError(f"cannot listen on port {port} of {host}: {why}; {advice}")


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a server that listens on `host`. UsageError if it is not an address."""
    return all(
        ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
        for _, address in _addresses(host, 0)
    )


def in_use(host: str, port: int) -> UsageError:
    """The error for a port that another process listens on."""
    return UsageError(
        f"port {port} of {host} is already in use{_owner_of(port)}; stop it, or choose "
        "another port (0 picks a free one)"
    )


def _addresses(host: str, port: int) -> list[tuple[int, Any]]:
    """The socket family and address of each address of the host. UsageError if it has none."""
    try:
        results = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"{host!r} is not an address of this machine ({getattr(error, 'strerror', error)}); use 127.0.0.1 for this "
            "machine only, 0.0.0.0 for all its addresses"
        ) from error
    return [(family, address) for family, _, _, _, address in results]


def _bind_error(family: int, address: Any) -> OSError | None:
    """The error of a bind like llama.cpp's; None if it works. SO_REUSEADDR ignores sockets in TIME_WAIT."""
    # On Windows SO_REUSEADDR would take the port from another program.
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


def _owner_of(port: int) -> str:
    """A phrase for the process that holds the port; empty if unknown, as for processes of other users."""
    try:
        listeners = set()
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status != psutil.CONN_LISTEN or not connection.laddr:
                continue
            if connection.pid and connection.laddr.port == port:
                listeners.add(connection.pid)
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
    """The host that clients connect to: a loopback address if the server listens on all addresses."""
    wild = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}  # noqa: S104 - compared, not bound
    return wild.get(host, host)


def in_address(host: str) -> str:
    """The host as written in a URL."""
    return f"[{host}]" if ":" in host else host
