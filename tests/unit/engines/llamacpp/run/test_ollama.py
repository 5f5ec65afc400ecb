"""Ollama as the program that runs a model: a stand-in with its API, which runs a real llama-server."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.embed_models import write_model
from tests.ollama_stand_in import write_ollama
from tests.openai_server import openai_server
from tests.patience import PATIENCE_S
from tests.runtime_engines import small_model

from edgekit.app.programs import ChosenProgram
from edgekit.app.run import judge
from edgekit.bill.spill import Purpose
from edgekit.engines import engine_named
from edgekit.engines.chat import Fitted, GenerationResult, Message, Prompt, Sampling
from edgekit.engines.flags import read_flags
from edgekit.engines.llamacpp.flags import FLAGS
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
from edgekit.sources.types import Container, ModelFile, ModelFiles, Origin, Reach

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
        "setup": PROGRAM.with_limits(judged.check.result, program),
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


def llama_server(running: RunningEngine) -> psutil.Process:
    """The llama-server that Ollama has started."""
    assert running.server is not None
    children = psutil.Process(running.server.pid).children(recursive=True)
    (process,) = (child for child in children if "--model" in child.cmdline())
    return process


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
        words = llama_server(running).cmdline()
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


def test_parallel_requests_share_the_planned_context(model: Path, program: Installation) -> None:
    given = start_of(model, program, context=1024, flags={"parallel": "2"})
    with PROGRAM.open(model, ExitStack(), None).start(given) as running:
        words = llama_server(running).cmdline()
        assert (words[words.index("-c") + 1], words[words.index("-np") + 1]) == ("1024", "2")
        assert running.generator.window_tokens == 512
        rows = {row.part: row for row in running.rows}
        assert rows["kv cache"].difference_bytes == 0


def test_llama_server_gets_the_prompt_cache_of_the_plan(model: Path, program: Installation) -> None:
    with PROGRAM.open(model, ExitStack(), None).start(start_of(model, program)) as running:
        environment = llama_server(running).environ()
        assert environment["LLAMA_ARG_CACHE_RAM"] == environment["LLAMA_ARG_CTX_CHECKPOINTS"] == "0"


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


def test_its_model_is_not_deleted_first_if_it_must_end_at_once(
    model: Path, program: Installation, tmp_path: Path
) -> None:
    with PROGRAM.open(model, ExitStack(), None).start(start_of(model, program)) as running:
        assert running.server is not None
        running.server.stop("the memory of this machine runs out")
    assert made_models(tmp_path) == [running.model]
    assert [path.stem for path in records()] == [running.model]


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


# --- what it cannot do


def test_a_plan_that_it_cannot_follow_is_refused(model: Path, program: Installation) -> None:
    with pytest.raises(UsageError, match=r"no --no-kv-offload.*use --with llama-server"):
        start_of(model, program, flags={"offload_kqv": False})
    with pytest.raises(UsageError, match=r"one cache type .* for keys and values"):
        start_of(model, program, flags={"type_k": "q8_0", "type_v": "f16"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"swa_full": True}, "--swa-full"),
        ({"unified": True}, "-kvu"),
        ({"batch": "1024"}, "-b 1024"),
        ({"batch": "1024", "ubatch": "256"}, "-b 1024"),
        ({"n_cpu_moe": "4"}, "-ncmoe 4"),
        ({"override_tensor": "exps=CPU"}, "-ot exps=CPU"),
        ({"tensor_split": "3,1", "main_gpu": "1"}, "-ts 3,1 -mg 1"),
        ({"repack": False}, "-nr"),
        ({"embeddings": True}, "--embeddings"),
        ({"spec_type": "draft-mtp"}, "--spec-type draft-mtp"),
        ({"draft_model": "qwen3-0.6b"}, "from its own models only"),
        ({"lora": "a.gguf"}, "from its own models only"),
        ({"mmproj": "mmproj.gguf"}, "from its own models only"),
    ],
    ids=str,
)
def test_a_flag_that_it_lacks_is_refused(given: dict[str, Any], words: str) -> None:
    values = read_flags(FLAGS, given)
    with pytest.raises(UsageError, match=words):
        PROGRAM.own_model(HUB_NAME, hub_files(), values)


def test_flags_that_it_has_are_accepted() -> None:
    given = {
        "parallel": "2", "unified": False, "type_k": "q8_0", "type_v": "q8_0", "flash_attn": "on", "backend": "cpu",
        "n_gpu_layers": "3", "batch": "256", "ubatch": "256", "mmap": False, "cache_ram": "0", "ctx_checkpoints": "0",
        "split_mode": "layer", "llama_version": "b9294", "mmproj": "auto",
    }  # fmt: skip
    assert PROGRAM.own_model(HUB_NAME, hub_files(), read_flags(FLAGS, given)) is not None


# --- names


HUB_NAME = "org/small-GGUF:Q8_0"


def hub_files(label: str = HUB_NAME, files: int = 1) -> ModelFiles:
    """Files of a repository, as `locate` describes them."""
    file = ModelFile(name="small.gguf", open=lambda: pytest.fail("opened"), size_bytes=1)
    return ModelFiles(
        label=label, origin=Origin.HUB, container=Container.GGUF, weights=(file,) * files
    )


@pytest.mark.parametrize(
    ("reference", "files", "name"),
    [
        (HUB_NAME, hub_files(), LIBRARY_NAME),
        ("hf.co/org/small-GGUF:q8_0", hub_files(), LIBRARY_NAME),
        ("https://huggingface.co/org/small-GGUF", hub_files(), LIBRARY_NAME),
        ("org/small-GGUF", hub_files(), LIBRARY_NAME),  # the file that was billed
        ("org/small-GGUF:Q8_0", None, LIBRARY_NAME),  # of a name of the index
        ("org/small-GGUF@main:Q8_0", hub_files(), ""),
        ("org/small-GGUF/small-Q8_0.gguf", hub_files(), ""),
        ("https://huggingface.co/org/small-GGUF/blob/main/small-Q8_0.gguf", hub_files(), ""),
        ("org/small-GGUF", hub_files("org/small-GGUF/small.gguf"), ""),  # no quantisation
        (HUB_NAME, hub_files(files=2), ""),
        (f"org/{'long' * 23}:Q8_0", None, ""),  # more than Ollama's 80 characters
    ],
)
def test_the_name_of_a_model_of_a_hub(reference: str, files: ModelFiles | None, name: str) -> None:
    own = PROGRAM.own_model(reference, files, {})
    assert (own.name if own is not None else "") == name


def test_a_projector_that_is_not_wanted_needs_the_file() -> None:
    assert PROGRAM.own_model(HUB_NAME, hub_files(), {"no_mmproj": True}) is None


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


def test_a_rolling_context_is_refused(program: Installation) -> None:
    with pytest.raises(UsageError, match="does not support --rolling"):
        PROGRAM.flags_for(RunOptions(rolling=True), program)


@pytest.mark.parametrize(
    "body",
    [
        {"stop": ["x"] * 33},
        {"Model": "llama3.3:70b"},
        {"response_format": {"json_schema": {"schema": {"pattern": "((a{0,30}){0,30}){0,30}"}}}},
    ],
    ids=["stop", "Model", "response_format"],
)
def test_costly_requests_are_refused(
    body: dict[str, Any], model: Path, program: Installation
) -> None:
    given = start_of(model, program)
    limits = PROGRAM.request_limits(given.verdict, given.weights)
    with pytest.raises(GatewayError, match=next(iter(body))):
        check_request(body, COMPLETIONS[0], limits)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("7" * 900, 900), ("漢" * 300, 900), ("🙂" * 225, 900)],  # up to one token per byte
    ids=["digits", "Chinese", "emoji"],
)
def test_text_that_ollama_might_truncate_is_refused(
    model: Path, program: Installation, text: str, size_bytes: int
) -> None:
    """1,024 tokens less an eighth for the chat template are 896."""
    given = start_of(model, program, context=1024)
    limits = PROGRAM.request_limits(given.verdict, given.weights)
    assert len(text.encode()) == size_bytes
    bodies: tuple[dict[str, Any], ...] = ({"messages": [{"content": text}]}, {"prompt": text})
    for endpoint, body in zip(COMPLETIONS, bodies, strict=True):
        with pytest.raises(GatewayError, match=r"the limit is 896: .* drop part of it"):
            check_request(body, endpoint, limits)
    check_request({"prompt": text[: len(text) // 2]}, COMPLETIONS[1], limits)


def test_text_for_parallel_requests_has_a_part_of_the_context(
    model: Path, program: Installation
) -> None:
    given = start_of(model, program, context=2048, flags={"parallel": "2"})
    limits = PROGRAM.request_limits(given.verdict, given.weights)
    assert (limits.window_tokens, limits.most_bytes) == (1024, 896)


def test_text_to_embed_has_to_fit_into_one_batch(tmp_path: Path, program: Installation) -> None:
    """Ollama cuts it to num_batch otherwise."""
    file = write_model(tmp_path / "bert.gguf", "bert")
    flags = {"embeddings": True, "batch": "128", "ubatch": "128"}
    given = start_of(file, program, context=256, flags=flags)
    limits = PROGRAM.request_limits(given.verdict, given.weights)
    assert (given.verdict.context_tokens, limits.window_tokens) == (256, 128)
