"""Ollama as the program that runs a model: a stand-in with its API, which runs a real llama-server."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.ollama_stand_in import write_ollama
from tests.openai_server import openai_server
from tests.patience import PATIENCE_S
from tests.runtime_engines import small_model

from edgekit.app.programs import ChosenProgram
from edgekit.app.run import judge
from edgekit.bill.spill import Purpose
from edgekit.engines import engine_named
from edgekit.engines.chat import Fitted, GenerationResult, Message, Prompt, Sampling
from edgekit.engines.llamacpp.run import ollama
from edgekit.engines.llamacpp.run.ollama import PROGRAM, OllamaClient
from edgekit.engines.program import (
    Address,
    EngineStart,
    Installation,
    LocalWeights,
    RunningEngine,
    RunOptions,
)
from edgekit.engines.request_rules import COMPLETIONS
from edgekit.errors import ContextTooLargeError, EngineError, UsageError
from edgekit.gateway.checks import check_request
from edgekit.gateway.errors import GatewayError
from edgekit.model import open_model
from edgekit.request import Request, Session
from edgekit.sources.types import Reach

pytest.importorskip("xllamacpp")
LIBRARY_NAME = "hf.co/org/small-GGUF:Q8_0"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("models") / "small.gguf", layers=2)


@pytest.fixture
def program(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "store"))
    path = write_ollama(tmp_path, {LIBRARY_NAME: str(model)})
    return Installation(program="ollama", origin="PATH", path=str(path), version="0.14.0")


def start_of(model: Path, program: Installation, **changes: Any) -> EngineStart:
    chosen = ChosenProgram(engine=engine_named("llama.cpp"), program=PROGRAM, installation=program)
    request = Request(engines=("llama.cpp",), context=changes.pop("context", 256))
    from edgekit.engines.flags import read_flags

    flags = read_flags(
        chosen.engine.flags,
        {**PROGRAM.flags_for(RunOptions(), program), **changes.pop("flags", {})},
    )
    request = request.with_flags("llama.cpp", flags)
    judged = judge(request, chosen, open_model(model), None, Session(reach=Reach(network=False)))
    given: dict[str, Any] = {
        "installation": program,
        "weights": LocalWeights(model=model),
        "label": "org/Small:Q8",
        "verdict": judged.check.result,
        "setup": PROGRAM.with_limits(judged.check.result),
        "values": request.values("llama.cpp"),
        "purpose": Purpose.TEXT,
        "address": Address(),
        "recheck": lambda: None,
        "say": lambda _text: None,
        "warn": lambda _text: None,
    }
    return EngineStart(**{**given, **changes})


def answer(running: RunningEngine, prompt: Prompt, **sampling: Any) -> tuple[str, GenerationResult]:
    written = GenerationResult()
    fitted = Fitted(prompt=prompt, tokens=None, max_tokens=8)
    pieces = running.generator.write(fitted, Sampling(temperature=0.0, **sampling), into=written)
    return "".join(pieces), written


def llama_server_words(running: RunningEngine) -> list[str]:
    """The command line of the llama-server that Ollama has started."""
    assert running.server is not None
    commands = [
        each.cmdline() for each in psutil.Process(running.server.pid).children(recursive=True)
    ]
    (words,) = (words for words in commands if "--model" in words)
    return words


def test_reasoning_is_not_part_of_the_answer() -> None:
    events: list[dict[str, Any]] = [
        {"message": {"role": "assistant", "content": "", "thinking": "Is it blue?"}},
        {"message": {"role": "assistant", "content": "It is."}},
        {"message": {"content": ""}, "done": True, "done_reason": "stop"},
    ]
    written = GenerationResult()
    prompt = Prompt(messages=(Message(role="user", content="Colour?"),))
    with openai_server(events, [], prefix="") as address:
        client = OllamaClient(address, window_tokens=100)
        fitted = Fitted(prompt=prompt, tokens=None, max_tokens=8)
        text = "".join(client.write(fitted, Sampling(), into=written))
    assert text == "It is."
    assert written.reasoning == ["Is it blue?"]


def test_a_file_is_copied_into_its_store_and_runs_as_planned(
    model: Path, program: Installation
) -> None:
    said: list[str] = []
    given = start_of(model, program, say=said.append, flags={"type_k": "q8_0", "type_v": "q8_0"})
    with PROGRAM.open(model, ExitStack(), None).start(given) as running:
        assert (running.program, running.version) == ("Ollama", "0.14.0")
        rows = {row.part: row for row in running.rows}
        assert rows["kv cache"].difference_bytes == 0
        assert all(row.within for row in rows.values()), rows
        text, written = answer(running, Prompt(messages=(Message(role="user", content="a b"),)))
        assert text
        assert (written.finish, written.new_tokens) == ("length", 8)
        assert written.decode_tokens_per_s
        assert answer(running, Prompt(text="a b c"))[0]
    assert any("copies small.gguf" in line for line in said)


def test_llama_server_gets_the_planned_batch_and_the_threads(
    model: Path, program: Installation
) -> None:
    given = start_of(model, program, context=8192, threads=1)
    with PROGRAM.open(model, ExitStack(), None).start(given) as running:
        words = llama_server_words(running)
        assert words[words.index("-ub") + 1] == "512"
        assert words[words.index("-t") + 1] == "1"
        assert all(row.within for row in running.rows), running.rows


def test_the_users_key_is_not_that_of_the_llama_server_inside(
    model: Path, program: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "of-the-gateway")
    with PROGRAM.open(model, ExitStack(), None).start(start_of(model, program)) as running:
        assert answer(running, Prompt(text="a b c"))[0]


def test_a_log_that_is_not_recognised_is_not_compared(
    model: Path, program: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_VERBOSITY", "0")  # llama-server logs no buffers
    with PROGRAM.open(model, ExitStack(), None).start(start_of(model, program)) as running:
        assert running.rows == ()
        assert answer(running, Prompt(text="a b c"))[0]


def test_a_model_of_a_hub_is_downloaded_by_ollama(model: Path, program: Installation) -> None:
    said: list[str] = []
    weights = LocalWeights(model=Path(), name=LIBRARY_NAME)
    given = start_of(model, program, say=said.append, weights=weights)
    with PROGRAM.open(model, ExitStack(), None).start(given) as running:
        assert answer(running, Prompt(text="a b c"))[0]
    assert [line for line in said if "downloads" in line][-1].startswith(
        f"Ollama downloads {LIBRARY_NAME}"
    )


# --- the model that is made for a run


def made_models(folder: Path) -> list[str]:
    """EdgeKit's models in the store."""
    library = folder / "store" / "manifests" / "registry.ollama.ai" / "library"
    return sorted(path.name for path in library.glob("*") if any(path.iterdir()))


def records() -> list[Path]:
    return sorted(Path(os.environ["EDGEKIT_DATA"]).glob("ollama/*"))


@pytest.mark.parametrize("stopped_first", [True, False], ids=["server stopped", "block left"])
def test_its_model_is_deleted_at_the_end(
    model: Path,
    program: Installation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    stopped_first: bool,
) -> None:
    monkeypatch.setattr(ollama, "_DELETE_S", PATIENCE_S)
    with PROGRAM.open(model, ExitStack(), None).start(start_of(model, program)) as running:
        assert made_models(tmp_path) == [running.model]
        assert [path.stem for path in records()] == [running.model]
        if stopped_first:  # as `serve` does
            assert running.server is not None
            running.server.stop("stopped on request")
    assert made_models(tmp_path) == []
    assert records() == []


def test_models_of_the_same_name_do_not_collide(model: Path, program: Installation) -> None:
    given = start_of(model, program, label="bartowski/Qwen3-8B-GGUF:Q4_K_M")
    other = start_of(model, program, label="unsloth/Qwen3-8B-GGUF:Q4_K_M")
    starter = PROGRAM.open(model, ExitStack(), None)
    with starter.start(given) as first, starter.start(other) as second:
        assert first.model.startswith("edgekit-qwen3-8b-gguf-q4_k_m-")
        assert first.model != second.model
        assert answer(first, Prompt(text="a b c"))[0]


def test_only_models_that_a_dead_process_of_this_machine_made_are_deleted(
    model: Path, program: Installation, tmp_path: Path
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        started_s = psutil.Process(child.pid).create_time()
    store = tmp_path / "store"
    dead = {"host": platform.node(), "pid": child.pid, "started_s": started_s, "store": str(store)}
    owners = {
        "edgekit-dead": dead,
        "edgekit-other-machine": {**dead, "host": "elsewhere"},
        "edgekit-other-store": {**dead, "store": "/elsewhere"},
        "edgekit-alive": {**dead, "pid": os.getpid(), "started_s": psutil.Process().create_time()},
        "edgekit-number-used-again": {**dead, "pid": os.getpid(), "started_s": 0},
        "edgekit-damaged": "",
    }
    folder = Path(os.environ["EDGEKIT_DATA"]) / "ollama"
    folder.mkdir(parents=True)
    library = store / "manifests" / "registry.ollama.ai" / "library"
    for name in (*owners, "edgekit-mine-999999999"):
        (library / name).mkdir(parents=True)
        (library / name / "latest").write_text("{}")
    for name, owner in owners.items():
        (folder / f"{name}.json").write_text(json.dumps(owner))
    with PROGRAM.open(model, ExitStack(), None).start(start_of(model, program)):
        pass
    left = [
        "edgekit-alive",
        "edgekit-damaged",
        "edgekit-mine-999999999",
        "edgekit-other-machine",
        "edgekit-other-store",
    ]
    assert made_models(tmp_path) == left
    assert [path.stem for path in records()] == [name for name in left if name in owners]


def test_a_plan_that_it_cannot_follow_is_refused(model: Path, program: Installation) -> None:
    given = start_of(model, program, flags={"offload_kqv": False})
    with pytest.raises(UsageError, match=r"no --no-kv-offload.*use --with llama-server"):
        PROGRAM.open(model, ExitStack(), None).start(given).__enter__()


def test_a_model_that_ollama_cannot_find(model: Path, program: Installation) -> None:
    weights = LocalWeights(model=Path(), name="hf.co/org/other:Q8_0")
    given = start_of(model, program, weights=weights)
    with pytest.raises(EngineError, match="file does not exist"):
        PROGRAM.open(model, ExitStack(), None).start(given).__enter__()


def test_a_prompt_that_is_longer_than_the_window_is_refused(
    model: Path, program: Installation
) -> None:
    given = start_of(model, program)
    with (
        PROGRAM.open(model, ExitStack(), None).start(given) as running,
        pytest.raises(ContextTooLargeError, match="exceeds the context length"),
    ):
        answer(running, Prompt(text="a " * 600))


def test_what_ollama_cannot_take(model: Path, program: Installation) -> None:
    with pytest.raises(UsageError, match="does not support --rolling"):
        PROGRAM.flags_for(RunOptions(rolling=True), program)
    with_adapter = replace(start_of(model, program).weights, adapters=(model,))
    given = start_of(model, program, weights=with_adapter)
    with pytest.raises(UsageError, match="from its own models only"):
        PROGRAM.open(model, ExitStack(), None).start(given).__enter__()


@pytest.mark.parametrize(
    "body",
    [
        {"stop": ["x"] * 33},
        {"response_format": {"json_schema": {"schema": {"pattern": "((a{0,30}){0,30}){0,30}"}}}},
    ],
    ids=["stop", "response_format"],
)
def test_costly_requests_are_refused(
    body: dict[str, Any], model: Path, program: Installation
) -> None:
    given = start_of(model, program)
    limits = PROGRAM.request_limits(given.verdict, given.weights)
    with pytest.raises(GatewayError, match=next(iter(body))):
        check_request(body, COMPLETIONS[0], limits)
