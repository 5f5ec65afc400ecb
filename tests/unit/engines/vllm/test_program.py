"""`vllm serve` as a child process. vLLM needs an NVIDIA GPU, so a stand-in logs its lines and answers as it does."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from tests.small_mlx import write_small_model
from tests.vllm_stand_in import log_lines, write_vllm

from edgekit.app import run
from edgekit.app.programs import ChosenProgram
from edgekit.bill.spill import Purpose
from edgekit.bill.types import Verdict
from edgekit.engines import engine_named
from edgekit.engines.chat import Fitted, GenerationResult, Message, Prompt, Sampling
from edgekit.engines.program import (
    Address,
    EngineStart,
    Installation,
    LocalWeights,
    RunningEngine,
    RunOptions,
)
from edgekit.engines.vllm import program
from edgekit.engines.vllm.commands import taken
from edgekit.engines.vllm.program import VllmLog, VllmProgram, compare, executable
from edgekit.errors import ContextTooLargeError, EngineError, UsageError
from edgekit.machine.what_if import what_if_machine
from edgekit.model import open_model
from edgekit.request import Request, Session
from edgekit.sources.types import Reach
from edgekit.units import GIB

PROGRAM = VllmProgram()
CHAT = Prompt(messages=(Message(role="user", content="the quick brown fox"),))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def verdict(folder: Path) -> Verdict:
    nowhere = Installation(program="vllm", origin="PATH", path="")
    chosen = ChosenProgram(engine=engine_named("vllm"), program=PROGRAM, installation=nowhere)
    request = Request(engines=("vllm",), context=256)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "detect", lambda: what_if_machine(devices=["rtx-4090"]))
        judged = run.judge(
            request, chosen, open_model(folder), None, Session(reach=Reach(network=False))
        )
    return judged.check.result


def figures(verdict: Verdict) -> list[str]:
    """The log of a vLLM that allocates what the bill says."""
    bill = taken(verdict)
    pool: Any = dict(bill.facts)["available_kv_bytes"]
    return log_lines(bill.weights_bytes / GIB, pool / GIB)


def start_of(folder: Path, verdict: Verdict, program: Path, **changes: Any) -> EngineStart:
    installation = Installation(program="vllm", origin="PATH", path=str(program), version="0.32.0")
    given: dict[str, Any] = {
        "installation": installation,
        "weights": LocalWeights(model=folder),
        "label": "small",
        "verdict": verdict,
        "setup": PROGRAM.with_limits(verdict, installation),
        "values": {},
        "purpose": Purpose.TEXT,
        "address": Address(api_key="a secret"),
        "recheck": lambda: None,
        "say": lambda _text: None,
        "warn": lambda _text: None,
    }
    return EngineStart(**{**given, **changes})


def answer(running: RunningEngine, prompt: Prompt) -> tuple[str, GenerationResult]:
    written = GenerationResult()
    fitted = Fitted(prompt=prompt, tokens=None, max_tokens=8)
    return "".join(running.generator.write(fitted, Sampling(), into=written)), written


def test_it_is_started_from_the_plan_and_answers(
    folder: Path, verdict: Verdict, tmp_path: Path
) -> None:
    program = write_vllm(tmp_path, figures(verdict))
    given = start_of(folder, verdict, program)
    with PROGRAM.open(folder, ExitStack(), None).start(given) as running:
        text, written = answer(running, CHAT)
        assert (text, written.finish, written.new_tokens) == ("as asked", "stop", 2)
        assert {row.part: row.within for row in running.rows} == {"weights": True, "kv cache": True}
        assert running.server is not None
        words = psutil.Process(running.server.pid).cmdline()
        assert words[words.index("--max-model-len") + 1] == "256"
        assert not [word for word in words if "a secret" in word]
        with pytest.raises(ContextTooLargeError, match="maximum context length is 256"):
            answer(running, Prompt(text="fox " * 300))


def test_an_allocation_outside_the_bounds_is_seen(verdict: Verdict) -> None:
    log = VllmLog()
    for line in log_lines(3.0, 1.0):
        log.add(line)
    assert [row.within for row in compare(taken(verdict), log)] == [False, False]


def test_of_several_gpus_the_fullest_counts() -> None:
    log = VllmLog()
    for weights, pool in ((1.25, 8.5), (1.5, 8.0), (1.0, 9.0)):
        for line in log_lines(weights, pool):
            log.add(line)
    assert log.weights is not None
    assert log.pool is not None
    assert (log.weights.middle_bytes, log.pool.middle_bytes) == (GIB * 3 // 2, 8 * GIB)


def test_last_words_are_the_cause_of_the_traceback(
    folder: Path, verdict: Verdict, tmp_path: Path
) -> None:
    prefix = "(EngineCore pid=41) ERROR 11-19 12:00:00 [core.py:1368]"
    log = [
        f"{prefix} EngineCore failed to start.",
        f"{prefix} Traceback (most recent call last):",
        f"{prefix}   File 'gpu_worker.py', line 430, in init_device",
        f"{prefix} ValueError: Free memory on device cuda:0 (3.1/23.6 GiB) on startup is less than desired",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    program = write_vllm(tmp_path, log, dies=True)
    with pytest.raises(EngineError, match=r"vLLM exited \(code 1\): ValueError: Free memory on de"):
        PROGRAM.open(folder, ExitStack(), None).start(
            start_of(folder, verdict, program)
        ).__enter__()


def test_the_end_of_a_process_is_explained(folder: Path, verdict: Verdict, tmp_path: Path) -> None:
    given = start_of(folder, verdict, write_vllm(tmp_path, figures(verdict)))

    def kill_and_ask() -> None:
        with PROGRAM.open(folder, ExitStack(), None).start(given) as running:
            assert running.server is not None
            os.kill(running.server.pid, signal.SIGKILL)
            answer(running, CHAT)

    with pytest.raises(EngineError, match="vLLM died of SIGKILL"):
        kill_and_ask()


def test_without_a_program_on_the_path_this_python_runs_it() -> None:
    words = executable(Installation(program="vllm", origin="Python package", path=""))
    assert words[1:] == ["-P", "-m", "vllm.entrypoints.cli.main"]


@pytest.mark.parametrize(
    "options", [RunOptions(rolling=True), RunOptions(threads="2")], ids=["rolling", "threads"]
)
def test_options_that_it_does_not_have(options: RunOptions) -> None:
    with pytest.raises(UsageError, match="leave out"):
        PROGRAM.flags_for(options, Installation(program="vllm", origin="PATH", path=""))


@pytest.mark.parametrize("status", [None, 200])
def test_is_ready_pauses_between_its_log_and_its_port(
    monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    """vLLM logs its address before it listens."""
    waits: list[float] = []
    process = SimpleNamespace(
        has_log=lambda _: True,
        server=SimpleNamespace(host="0.0.0.0", port=8000),
        wait=waits.append,
    )
    monkeypatch.setattr(program, "health", lambda _: status)
    assert program._is_ready(cast("Any", process), 0.5) is (status == 200)
    assert process.address == "http://127.0.0.1:8000"
    assert waits == ([] if status == 200 else [0.5])
