"""How an engine ends: stopped, killed, or with the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.patience import PATIENCE_S, wait_until
from tests.runtime_engines import CALM, COMPLETION, ask, launch_of, small_model, wait_for_end
from tests.thoroughness import costly

from edgekit.engines.llamacpp.run.engine import EngineProcess, start
from edgekit.engines.program import Server
from edgekit.engines.watch import Watch
from edgekit.errors import EngineError
from edgekit.units import MIB

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.usefixtures("patient")


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_end_of_a_killed_engine_names_the_signal(running: EngineProcess) -> None:
    os.kill(running.pid, signal.SIGKILL)
    result = wait_for_end(running)
    assert (result.signal, result.exit_code) == ("SIGKILL", None)
    assert result.why.startswith("llama.cpp died of SIGKILL: ")
    assert running.stop("too late") is result
    assert running.resident() is None
    with pytest.raises(OSError, match="refused"):
        ask(running.address, "/health")


def test_engine_can_be_stopped_while_it_loads(tmp_path: Path) -> None:
    launch = launch_of(small_model(tmp_path / "small.gguf"))

    def stop(process: Server) -> None:
        process.stop("the server is stopping")

    with pytest.raises(EngineError, match=r"^the server is stopping"):
        start(launch, begun=stop)


def test_stop_reports_the_first_reason(running: EngineProcess) -> None:
    """The caller stops it first: its reason is reported, and the watch has none."""

    def available() -> int:
        running.stop("the test is over")
        return MIB

    with Watch(running, probes=replace(CALM, available_bytes=available), every_s=0.02) as watch:
        result = wait_for_end(running)
        assert (watch.reason, watch.starved) == ("", False)
    assert (result.exit_code, result.signal, result.why) == (0, None, "the test is over")
    assert running.stop() is running.poll() is result


def test_stop_kills_an_engine_that_does_not_respond(running: EngineProcess) -> None:
    os.kill(running.pid, signal.SIGSTOP)
    result = running.stop("it hangs", grace_s=0.2)
    assert (result.signal, result.why) == ("SIGKILL", "it hangs")


def test_stop_in_the_middle_of_a_request(running: EngineProcess) -> None:
    """The engine does not wait for the client, which repeats its request: each response ends when the context is full."""
    request = {"prompt": "the", "n_predict": -1, "ignore_eos": True}
    failed: list[BaseException] = []

    def client() -> None:
        try:
            while True:
                ask(running.address, "/completion", request)
        except Exception as error:  # noqa: BLE001 - counted below
            failed.append(error)

    client_thread = threading.Thread(target=client)
    client_thread.start()
    wait_until(lambda: bool(ask(running.address, "/slots")[1][0]["is_processing"] or failed))
    assert running.stop("enough").exit_code == 0
    client_thread.join(PATIENCE_S)
    assert len(failed) == 1


def test_end_of_an_engine_whose_file_is_truncated(running: EngineProcess, model: Path) -> None:
    """Without a watch: reading a missing page kills it."""
    os.truncate(model, 4096)
    with pytest.raises((OSError, EOFError)):
        ask(running.address, "/completion", COMPLETION)
    result = wait_for_end(running)
    assert result.signal == "SIGBUS"
    assert f"llama.cpp died of SIGBUS: {model} was truncated from" in result.why


_PARENT = """
import json, os, sys, threading, time
from pathlib import Path
from tests.runtime_engines import launch_of
from edgekit.engines.llamacpp.run.engine import EngineProcess
from edgekit.engines.llamacpp.run.engine import start

launch = launch_of(Path(sys.argv[1]))
if sys.argv[2] == "loading":
    print(EngineProcess(launch).pid, flush=True)
    threading.Event().wait()

def run():
    with start(launch) as running:
        print(running.pid, flush=True)
        threading.Event().wait()

if sys.argv[2] == "in a thread":
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
run()
"""


@contextmanager
def parent(model: Path, moment: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    root = Path(__file__).parents[5]
    process = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(model), moment],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=root,
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@costly
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("loading", signal.SIGKILL),
        ("stopped", signal.SIGKILL),  # it handles no signal: only the kernel can end it
        ("in a thread", signal.SIGTERM),
        ("running", signal.SIGINT),  # Ctrl-C
    ],
)
def test_engine_ends_with_its_parent(model: Path, moment: str, number: int) -> None:
    with parent(model, moment) as (process, engine):
        if moment == "stopped":
            os.kill(engine, signal.SIGSTOP)
        if moment != "loading":
            assert not is_gone(engine)
        process.send_signal(number)
        process.wait(PATIENCE_S)
        wait_until(lambda: is_gone(engine))


def test_engine_outlives_the_thread_that_started_it(model: Path) -> None:
    """Linux can end a child together with the thread, not the process, that started it (PR_SET_PDEATHSIG)."""
    started: list[EngineProcess] = []
    thread = threading.Thread(target=lambda: started.append(start(launch_of(model))))
    thread.start()
    thread.join()
    with started[0] as running:
        task = Path(f"/proc/self/task/{thread.native_id}")
        wait_until(lambda: not task.exists())  # join returns before the kernel's thread is gone
        assert ask(running.address, "/completion", COMPLETION)[0] == 200
