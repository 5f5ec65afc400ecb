"""ChildProcess with real child processes, and the names of signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from tests.patience import PATIENCE_S, wait_until

from edgekit.engines.discovery import signal_name
from edgekit.engines.process import (
    ChildProcess,
    family_resident_bytes,
    resident_of,
)
from edgekit.errors import EngineError

ECHO = """
import json, sys
for line in sys.stdin:
    print("received", file=sys.stderr, flush=True)
    print(json.dumps({"echo": json.loads(line)}), flush=True)
"""
IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"ready": true}', flush=True)
time.sleep(3600)
"""
WITH_A_CHILD = """
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


def test_child_answers_messages_and_writes_log_lines() -> None:
    log: list[str] = []
    with running(ECHO, log) as child:
        child.send({"number": 5})
        assert child.message(PATIENCE_S) == {"echo": {"number": 5}}
        assert child.message(0.0) is None
        assert child.exit_code is None
        child.ask_to_end()
        with pytest.raises(EOFError):
            child.message(PATIENCE_S)
        with pytest.raises(EOFError):  # raised again by later calls
            child.message(PATIENCE_S)
    assert log == ["received\n"]


def test_on_message_receives_every_message() -> None:
    messages: list[dict[str, object]] = []
    script = "print('{\"a\": 1}'); print('{\"a\": 2}')"
    child = ChildProcess(
        [sys.executable, "-c", script],
        environment=os.environ,
        on_line=lambda _: None,
        on_message=messages.append,
    )
    assert child.wait(PATIENCE_S) == 0
    assert child.close() == 0
    assert messages == [{"a": 1}, {"a": 2}]


def test_message_raises_eof_if_the_child_dies_in_the_middle_of_one() -> None:
    script = """import os; os.write(1, b'{"a": 1}\\n{"vectors": ["AAAA')"""
    with running(script) as child:
        assert child.message(PATIENCE_S) == {"a": 1}
        with pytest.raises(EOFError):
            child.message(PATIENCE_S)


def test_send_to_a_child_that_has_ended_does_nothing() -> None:
    with running("") as child:
        child.wait(PATIENCE_S)
        child.send({"number": 5})
        with pytest.raises(EOFError):
            child.message(PATIENCE_S)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_close_kills_a_child_that_ignores_sigterm() -> None:
    with running(IGNORES_SIGTERM) as child:
        assert child.message(PATIENCE_S) == {"ready": True}
        child.ask_to_end()
        assert child.wait(0.0) is None
        assert child.close() == -signal.SIGKILL
        assert child.close() == -signal.SIGKILL  # idempotent


LEAVES_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
print(f'{{"pid": {child.pid}}}', flush=True)
sys.exit(3)
"""
# A program (not a child of EdgeKit's own) that starts another, and prints both numbers.
RUNS_A_PROGRAM = """
import os, sys, time
from edgekit.engines.process import ChildProcess
command = ["/bin/sh", "-c", "sleep 3600 & echo $! $$; wait"]
child = ChildProcess(command, environment=os.environ, on_line=lambda line: print(line, end="", flush=True), has_messages=False)
time.sleep(3600)
"""


def is_gone(pid: int) -> bool:
    try:  # in a container a killed orphan may stay a zombie
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


WITH_A_LARGE_CHILD = """
import subprocess, sys
script = "import time; held = bytes([1]) * 2**26; print(flush=True); time.sleep(3600)"
child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
child.stdout.readline()
print('{"ready": true}', flush=True)
child.wait()
"""


def test_memory_of_a_process_includes_what_it_has_started() -> None:
    with running(WITH_A_LARGE_CHILD) as child:
        assert child.message(PATIENCE_S) == {"ready": True}
        resident = resident_of(child.pid)
        assert resident is not None
        alone_bytes = psutil.Process(child.pid).memory_info().rss
        assert resident.resident_bytes >= alone_bytes + 2**26
        if resident.anonymous_bytes is not None:
            assert 2**26 <= resident.anonymous_bytes <= resident.resident_bytes
        assert family_resident_bytes(child.pid) == pytest.approx(resident.resident_bytes, rel=0.1)
        child.kill()
        child.wait()
        assert family_resident_bytes(child.pid) is None


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_what_the_child_has_started_ends_with_it() -> None:
    with running(LEAVES_A_CHILD) as child:
        message = child.message(PATIENCE_S)
        assert message is not None
        assert child.wait(PATIENCE_S) == 3
        wait_until(lambda: is_gone(message["pid"]))


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_what_a_program_has_started_ends_with_a_killed_edgekit() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUNS_A_PROGRAM], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert not any(map(is_gone, pids))
        process.kill()
        wait_until(lambda: len(pids) == 2 and all(map(is_gone, pids)))


READS_INPUT = "import sys; print(repr(sys.stdin.read()), flush=True)"


def test_a_program_has_no_input() -> None:
    log: list[str] = []
    child = ChildProcess(
        [sys.executable, "-c", READS_INPUT],
        environment=os.environ,
        on_line=log.append,
        has_messages=False,
    )
    assert child.wait(PATIENCE_S) == 0
    child.close()
    assert log == ["''\n"]


ENDS_ON_SIGTERM = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("up", flush=True)
signal.pause()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_program_that_is_asked_to_end_gets_sigterm_only() -> None:
    up = threading.Event()
    child = ChildProcess(
        [sys.executable, "-c", ENDS_ON_SIGTERM],
        environment=os.environ,
        on_line=lambda _: up.set(),
        has_messages=False,
    )
    assert up.wait(PATIENCE_S)
    child.ask_to_end()
    assert child.wait(PATIENCE_S) == 7
    child.close()


@pytest.mark.parametrize("has_groups", [sys.platform != "win32", False])
def test_kill_ends_what_the_child_has_started(
    monkeypatch: pytest.MonkeyPatch, *, has_groups: bool
) -> None:
    monkeypatch.setattr("edgekit.engines.process.ON_WINDOWS", not has_groups)
    with running(WITH_A_CHILD) as child:
        message = child.message(PATIENCE_S)
        assert message is not None
        child.kill()
        child.wait()
        wait_until(lambda: is_gone(message["pid"]))


def test_child_process_of_a_missing_program_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match="cannot start a process"):
        ChildProcess(["/no/such/program"], environment={}, on_line=lambda _: None)


def test_signal_name_of_a_known_and_an_unknown_number() -> None:
    assert signal_name(signal.SIGTERM) == "SIGTERM"
    assert signal_name(250) == "signal 250"
