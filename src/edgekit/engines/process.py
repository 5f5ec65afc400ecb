"""A child process that may die: sent lines of JSON, heard, waited for, and ended with everything that it started.

The child writes its messages to standard output, as lines of JSON, and its log to standard error.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

from edgekit.errors import EngineError

_LINE_BYTES = 65_536  # of the log: a longer line arrives in pieces

Message = dict[str, Any]


class ChildProcess:
    """In a session of its own: Ctrl-C reaches only us.

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
        """Started at once. EngineError where it cannot be."""
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
        """The next one; None where none came in time. EOFError after the last."""
        try:
            found = self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if found is None:
            self._messages.put(None)
            raise EOFError
        return found

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its exit code; None where it has not ended in time."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def ask_to_end(self) -> None:
        self._close_input()  # understood on every system
        with suppress(ProcessLookupError, PermissionError):
            self._process.terminate()

    def kill(self) -> None:
        """With everything that it started."""
        if self._process.poll() is None:  # otherwise its number may be another's by now
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
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, _: object) -> None:
    sys.exit(128 + number)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise TypeError("all streams of a child are pipes")
    return stream
