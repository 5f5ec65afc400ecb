"""engines/process.py with real child processes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from tests.patience import PATIENCE_S, wait_until

from edgekit.engines.process import ChildProcess, signal_name
from edgekit.errors import EngineError

ECHO = """
import json, sys
for line in sys.stdin:
    print("heard", file=sys.stderr, flush=True)
    print(json.dumps({"echo": json.loads(line)}), flush=True)
"""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"ready": true}', flush=True)
time.sleep(3600)
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
print(f'{{"pid": {child.pid}}}', flush=True)
child.wait()
"""


@contextmanager
def running(script: str, log: list[str] | None = None) -> Iterator[ChildProcess]:
    lines = [] if log is None else log
    child = ChildProcess(
        [sys.executable, "-c", script],
        environment=os.environ,
        on_line=lines.append,
    )
    try:
        yield child
    finally:
        child.close()


def test_messages_and_log_lines() -> None:
    log: list[str] = []
    with running(ECHO, log) as child:
        child.send({"number": 5})
        assert child.message(PATIENCE_S) == {"echo": {"number": 5}}
        assert child.message(0.0) is None
        assert child.exit_code is None
        child.ask_to_end()
        with pytest.raises(EOFError):
            child.message(PATIENCE_S)
        with pytest.raises(EOFError):  # and again
            child.message(PATIENCE_S)
    assert log == ["heard\n"]


def test_messages_to_a_callback() -> None:
    heard: list[dict[str, object]] = []
    script = "print('{\"a\": 1}'); print('{\"a\": 2}')"
    child = ChildProcess(
        [sys.executable, "-c", script],
        environment=os.environ,
        on_line=lambda _: None,
        on_message=heard.append,
    )
    assert child.wait(PATIENCE_S) == 0
    assert child.close() == 0
    assert heard == [{"a": 1}, {"a": 2}]


def test_a_child_that_dies_in_the_middle_of_a_message() -> None:
    """Half a line must not leave the reader waiting for ever."""
    script = """import os; os.write(1, b'{"a": 1}\\n{"vectors": ["AAAA')"""
    with running(script) as child:
        assert child.message(PATIENCE_S) == {"a": 1}
        with pytest.raises(EOFError):
            child.message(PATIENCE_S)


def test_send_to_a_child_that_is_gone() -> None:
    with running("") as child:
        child.wait(PATIENCE_S)
        child.send({"number": 5})
        with pytest.raises(EOFError):
            child.message(PATIENCE_S)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_close_kills_a_child_that_does_not_listen() -> None:
    with running(DEAF) as child:
        assert child.message(PATIENCE_S) == {"ready": True}
        child.ask_to_end()
        assert child.wait(0.0) is None
        assert child.close() == -signal.SIGKILL
        assert child.close() == -signal.SIGKILL  # idempotent


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_kill_takes_what_the_child_started_with_it() -> None:
    with running(PARENT) as child:
        message = child.message(PATIENCE_S)
        assert message is not None
        child.kill()
        child.wait()

        def gone() -> bool:
            try:  # in a container a killed orphan may stay a zombie
                return bool(psutil.Process(message["pid"]).status() == psutil.STATUS_ZOMBIE)
            except psutil.NoSuchProcess:
                return True

        wait_until(gone)


def test_a_program_that_does_not_exist() -> None:
    with pytest.raises(EngineError, match="cannot start a process"):
        ChildProcess(["/no/such/program"], environment={}, on_line=lambda _: None)


def test_signal_name() -> None:
    assert signal_name(signal.SIGTERM) == "SIGTERM"
    assert signal_name(250) == "signal 250"
