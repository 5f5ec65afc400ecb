"""mlx_lm.server, really run: what it allocates, the window that it keeps to, and how it ends."""

from __future__ import annotations

import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from tests.runtime_engines import ask
from tests.small_mlx import write_small_model

from edgekit.app.programs import ChosenProgram
from edgekit.app.run import judge
from edgekit.bill.spill import Purpose
from edgekit.engines import engine_named
from edgekit.engines.chat import Fitted, GenerationResult, Message, Prompt, Sampling
from edgekit.engines.mlx.program import MlxProgram, interpreter, start
from edgekit.engines.mlx.program import shares as shares_of
from edgekit.engines.process import ServerProcess
from edgekit.engines.program import (
    Address,
    EngineStart,
    Installation,
    LocalWeights,
    RunningEngine,
    RunOptions,
)
from edgekit.errors import ContextTooLargeError, EngineError, UsageError
from edgekit.model import open_model
from edgekit.report.check import headline
from edgekit.request import Request, Session
from edgekit.sources.types import Reach

pytest.importorskip("mlx_lm")
PROGRAM = MlxProgram()
CHAT = {"messages": [{"role": "user", "content": "the quick brown fox"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("models") / "small")


def start_of(folder: Path, **changes: Any) -> EngineStart:
    found = PROGRAM.find()
    assert found is not None
    chosen = ChosenProgram(engine=engine_named("mlx"), program=PROGRAM, installation=found)
    request = Request(engines=("mlx",), context=changes.pop("context", 64))
    flags = changes.pop("flags", {})
    request = request.with_flags("mlx", flags)
    judged = judge(request, chosen, open_model(folder), None, Session(reach=Reach(network=False)))
    given: dict[str, Any] = {
        "installation": found,
        "weights": LocalWeights(model=folder),
        "label": "small",
        "verdict": judged.check.result,
        "setup": PROGRAM.with_limits(judged.check.result, found),
        "values": {},
        "purpose": Purpose.TEXT,
        "address": Address(),
        "recheck": lambda: None,
        "say": lambda _text: None,
        "warn": lambda _text: None,
    }
    return EngineStart(**{**given, **changes})


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[RunningEngine]:
    with PROGRAM.open(folder, ExitStack(), None).start(start_of(folder)) as engine:
        yield engine


def answer(running: RunningEngine, prompt: Prompt, max_tokens: int | None = 8) -> GenerationResult:
    written = GenerationResult()
    fitted = Fitted(prompt=prompt, tokens=None, max_tokens=max_tokens)
    "".join(running.generator.write(fitted, Sampling(temperature=0.0), into=written))
    return written


def test_weights_take_what_the_bill_says(running: RunningEngine) -> None:
    (row,) = running.rows
    assert row.within
    assert abs(row.difference_bytes) < 1024  # frequencies of rotary embeddings


def test_it_answers_text_and_chats(running: RunningEngine) -> None:
    for prompt in (
        Prompt(text="the quick brown"),
        Prompt(messages=(Message(role="user", content="a lazy dog"),)),
    ):
        written = answer(running, prompt)
        assert written.finish == "stop" or written.new_tokens == 8
        assert written.prompt_tokens >= 3


def test_a_prompt_that_is_longer_than_the_window_is_refused(running: RunningEngine) -> None:
    with pytest.raises(ContextTooLargeError, match="longer than the window: it has 70 tokens"):
        answer(running, Prompt(text="fox " * 70))


def test_an_answer_ends_where_the_window_does(running: RunningEngine) -> None:
    written = answer(running, Prompt(text="fox " * 50), max_tokens=500)
    assert written.prompt_tokens + written.new_tokens <= 64


def test_a_request_cannot_load_another_model(running: RunningEngine) -> None:
    assert running.server is not None
    body = {**CHAT, "model": "org/other", "draft_model": "org/draft", "adapters": "/etc"}
    status, reply = ask(running.server.address, "/v1/chat/completions", body)
    assert status == 200
    assert reply["choices"][0]["message"]["content"]


def origin_allowed(address: str, key: str = "") -> str | None:
    request = urllib.request.Request(f"{address}/health")
    request.add_header("Origin", "https://evil.example")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(request) as reply:
        return cast("str | None", reply.headers["Access-Control-Allow-Origin"])


def test_pages_of_other_sites_cannot_use_a_server_without_a_key(running: RunningEngine) -> None:
    assert running.server is not None
    assert origin_allowed(running.server.address) is None


def test_requests_need_the_api_key(folder: Path) -> None:
    given = start_of(folder, address=Address(api_key="a secret"))
    with PROGRAM.open(folder, ExitStack(), None).start(given) as running:
        assert running.server is not None
        address = running.server.address
        assert ask(address, "/v1/chat/completions", CHAT)[0] == 401
        assert ask(address, "/v1/chat/completions", CHAT, "another")[0] == 401
        assert ask(address, "/v1/models")[0] == 401
        assert ask(address, "/v1/chat/completions", CHAT, "a secret")[0] == 200
        assert origin_allowed(address, "a secret") == "*"
        assert answer(running, Prompt(text="the fox jumps")).new_tokens


def test_a_quantised_cache_reaches_the_server(folder: Path) -> None:
    given = start_of(folder, flags={"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 0})
    with PROGRAM.open(folder, ExitStack(), None).start(given) as running:
        assert answer(running, Prompt(text="the fox jumps")).new_tokens


def test_the_end_of_a_process_is_explained(folder: Path) -> None:
    def kill_and_ask() -> None:
        with PROGRAM.open(folder, ExitStack(), None).start(start_of(folder)) as running:
            assert running.server is not None
            os.kill(running.server.pid, signal.SIGKILL)
            answer(running, Prompt(text="the fox"))

    with pytest.raises(EngineError, match="mlx-lm died of SIGKILL"):
        kill_and_ask()


def test_weights_that_cannot_be_loaded(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in folder.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    given = start_of(broken)
    config = (
        (broken / "config.json")
        .read_text()
        .replace('"num_hidden_layers": 2', '"num_hidden_layers": 3')
    )
    (broken / "config.json").write_text(config)
    with pytest.raises(EngineError, match="Missing"):
        start(given)


def test_the_interpreter_is_that_of_the_script(tmp_path: Path) -> None:
    python = tmp_path / "a folder" / "python3"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    script = tmp_path / "mlx_lm.server"
    script.write_text(f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n")
    there = Installation(program="mlx", origin="PATH", path=str(script))
    assert interpreter(there) == str(python)


def test_caches_of_old_prompts_leave_the_memory_of_other_models_alone(folder: Path) -> None:
    given = start_of(folder, keep_spare=True)
    with PROGRAM.open(folder, ExitStack(), None).start(given) as running:
        assert isinstance(running.server, ServerProcess)
        for number, seed in enumerate((1, None, 2, None)):
            body = {
                **CHAT,
                "messages": [{"role": "user", "content": f"w{number} fox"}],
                "seed": seed,
            }
            body = {key: value for key, value in body.items() if value is not None}
            assert ask(running.server.address, "/v1/chat/completions", body)[0] == 200
        kept = [line for line in running.server.recent if "Prompt Cache:" in line]
    assert kept
    assert all("Prompt Cache: 0 sequences" in line for line in kept)


def test_free_memory_is_shared_by_buffers_and_caches(folder: Path) -> None:
    verdict = start_of(folder).verdict
    free = min(use.budget.available_bytes - use.required_bytes for use in verdict.uses)
    pool, caches = shares_of(verdict)
    assert pool + caches <= free
    assert shares_of(verdict, keep_spare=True)[1] == 0


@pytest.mark.parametrize(
    "options", [RunOptions(rolling=True), RunOptions(threads="2")], ids=["rolling", "threads"]
)
def test_options_that_it_does_not_have(options: RunOptions) -> None:
    found = PROGRAM.find()
    assert found is not None
    with pytest.raises(UsageError, match="leave out"):
        PROGRAM.flags_for(options, found)


def test_quantising_is_not_its_work(folder: Path) -> None:
    with pytest.raises(UsageError, match="as they are stored"):
        start_of(folder, flags={"quantize": "q4"})


@pytest.mark.skipif(sys.platform != "linux", reason="on a Mac it runs on the GPU")
def test_on_linux_the_headline_names_the_cpu(folder: Path) -> None:
    assert headline(start_of(folder).verdict).startswith("Runs on the CPU: ")
