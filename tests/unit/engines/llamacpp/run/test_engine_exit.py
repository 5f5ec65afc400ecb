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
from tests.runtime_engines import ask, launch_of, small_model
from tests.thoroughness import costly

from edgekit.engines.llamacpp.run.engine import EngineProcess, start
from edgekit.engines.llamacpp.run.watch import Probes, Watch
from edgekit.engines.program import Ended
from edgekit.units import GIB, MIB

pytest.importorskip("xllamacpp")


FINE = Probes(limits=lambda _: (), available_bytes=lambda: GIB, devices=tuple)


COMPLETION = {"prompt": "the quick brown fox", "n_predict": 8, "ignore_eos": True}


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that ends in order is not killed for taking long on a busy machine."""
    monkeypatch.setattr(EngineProcess.stop, "__kwdefaults__", {"grace_s": PATIENCE_S})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_model(tmp_path / "small.gguf")


@pytest.fixture
def running(model: Path) -> Iterator[EngineProcess]:
    with start(launch_of(model)) as running:
        yield running


def ended(running: EngineProcess) -> Ended:
    result = running.wait(PATIENCE_S)
    assert result is not None, "it is still there"
    return result


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_killed_engine_is_noticed(running: EngineProcess) -> None:
    os.kill(running.pid, signal.SIGKILL)
    result = ended(running)
    assert (result.signal, result.exit_code) == ("SIGKILL", None)
    assert result.why.startswith("llama.cpp died of SIGKILL: ")
    assert running.stop("too late") is result
    assert running.resident() is None
    with pytest.raises(OSError, match="refused"):
        ask(running.address, "/health")


def test_it_stops_when_it_is_asked(running: EngineProcess) -> None:
    """Also while a watch finds a reason of its own, and comes too late with it."""

    def available() -> int:
        running.stop("the test is over")
        return MIB

    with Watch(running, probes=replace(FINE, available_bytes=available), every_s=0.02) as watch:
        result = ended(running)
        assert (watch.reason, watch.starved) == ("", False)
    assert (result.exit_code, result.signal, result.why) == (0, None, "the test is over")
    assert running.stop() is running.poll() is result


def test_one_that_does_not_hear_is_killed(running: EngineProcess) -> None:
    os.kill(running.pid, signal.SIGSTOP)
    result = running.stop("it hangs", grace_s=0.2)
    assert (result.signal, result.why) == ("SIGKILL", "it hangs")


def test_it_stops_in_the_middle_of_a_request(running: EngineProcess) -> None:
    """Nobody waits for a client that has more time than memory. It asks again and again: an answer ends with the window."""
    request = {"prompt": "the", "n_predict": -1, "ignore_eos": True}
    failed: list[BaseException] = []

    def client() -> None:
        try:
            while True:
                ask(running.address, "/completion", request)
        except Exception as error:  # noqa: BLE001 - any: it is looked at below
            failed.append(error)

    waiting = threading.Thread(target=client)
    waiting.start()
    wait_until(lambda: bool(ask(running.address, "/slots")[1][0]["is_processing"] or failed))
    assert running.stop("enough").exit_code == 0
    waiting.join(PATIENCE_S)
    assert len(failed) == 1


def test_a_file_that_is_cut_under_the_engines_feet(running: EngineProcess, model: Path) -> None:
    """Faster than anybody looks: it dies, and is not left hanging."""
    os.truncate(model, 4096)
    with pytest.raises((OSError, EOFError)):
        ask(running.address, "/completion", COMPLETION)
    result = ended(running)
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
        ("stopped", signal.SIGKILL),  # it cannot hear: only the kernel can end it
        ("in a thread", signal.SIGTERM),
        ("running", signal.SIGINT),  # Ctrl-C
    ],
)
def test_no_engine_outlives_its_parent(model: Path, moment: str, number: int) -> None:
    with parent(model, moment) as (process, engine):
        if moment == "stopped":
            os.kill(engine, signal.SIGSTOP)
        if moment != "loading":
            assert not is_gone(engine)
        process.send_signal(number)
        process.wait(PATIENCE_S)
        wait_until(lambda: is_gone(engine))


def test_the_thread_that_started_it_may_end(model: Path) -> None:
    """Linux ends a child with the thread that made it, where it is asked to."""
    result: list[EngineProcess] = []
    thread = threading.Thread(target=lambda: result.append(start(launch_of(model))))
    thread.start()
    thread.join()
    with result[0] as running:
        task = Path(f"/proc/self/task/{thread.native_id}")
        wait_until(lambda: not task.exists())  # join returns a little earlier
        assert ask(running.address, "/completion", COMPLETION)[0] == 200
