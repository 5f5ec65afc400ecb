"""`edgekit serve` with models of other kinds than chat, with tools and schemas, on other programs, and with several
models in one memory: real engines, and a real OpenAI client.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.documented import documented
from tests.embed_models import write_model
from tests.llama_server import write_llama_server
from tests.patience import PATIENCE_S, wait_until
from tests.runnable import write_chatting
from tests.runtime_engines import ask
from tests.serving import Served, serving
from tests.small_mlx import write_small_model

from edgekit.cli import main

if TYPE_CHECKING:
    import openai

pytest.importorskip("xllamacpp")
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


def client_of(served: Served) -> openai.OpenAI:
    import openai  # takes a second: not while tests are collected

    return openai.OpenAI(base_url=served.base_url, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chatting(tmp_path_factory.mktemp("served") / "served.gguf")


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = write_model(tmp_path_factory.mktemp("models") / "bert.gguf", "bert", pooling="mean")
    with serving(str(path), "-c", "256", "--threads", "1") as served:
        yield served


def test_an_embedding_model_is_served(embedding: Served) -> None:
    with client_of(embedding) as client:
        reply = client.embeddings.create(model="any", input=["a cat", "a dog"])
    first, second = (item.embedding for item in reply.data)
    assert len(first) == len(second) == 256
    assert first != second
    assert embedding.ready["within"]


def test_an_embedding_model_does_not_chat(embedding: Served) -> None:
    import openai

    with client_of(embedding) as client, pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="any", messages=HELLO)
    assert 400 <= caught.value.status_code <= 501


@pytest.mark.parametrize("program", ["xllamacpp", "llama-server"])
def test_a_reranking_model_is_served(tmp_path: Path, program: str) -> None:
    path = write_model(tmp_path / "reranker.gguf", "bert", pooling="rank")
    write_llama_server(tmp_path)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    words = (str(path), "-c", "256", "--threads", "1", "--with", program)
    with serving(*words, environment=environment) as served:
        body = {"model": "any", "query": "cats", "documents": ["a cat", "a dog", "the sea"]}
        status, reply = ask(served.address, "/v1/rerank", body)
    assert status == 200
    assert sorted(row["index"] for row in reply["results"]) == [0, 1, 2]
    assert all(isinstance(row["relevance_score"], float) for row in reply["results"])


def test_tools_and_json_schemas_reach_the_engine(chatting: Path) -> None:
    schema: Any = {
        "type": "object",
        "properties": {"yes": {"type": "boolean"}},
        "required": ["yes"],
        "additionalProperties": False,
    }
    with (
        serving(str(chatting), "-c", "1024", "--threads", "1") as served,
        client_of(served) as client,
    ):
        reply = client.chat.completions.create(
            model="any",
            messages=HELLO,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema, "strict": True},
            },
            max_tokens=64,
        )
        assert isinstance(json.loads(reply.choices[0].message.content or "")["yes"], bool)
        called = client.chat.completions.create(
            model="any",
            messages=HELLO,
            tools=[WEATHER],
            tool_choice="required",
            max_tokens=256,
            temperature=0,
        )
    calls = called.choices[0].message.tool_calls or []
    finish = called.choices[0].finish_reason
    assert finish == "length" or [
        call.function.name for call in calls if call.type == "function"
    ]  # a random model


def test_mlx_is_served_behind_the_gateway(tmp_path: Path) -> None:
    pytest.importorskip("mlx_lm")
    folder = write_small_model(tmp_path / "small")
    words = (str(folder), "--with", "mlx", "-c", "64", "--api-key", "a secret")
    with serving(*words) as served:
        import openai

        with openai.OpenAI(base_url=served.base_url, api_key="a secret", max_retries=0) as client:
            reply = client.chat.completions.create(model="any", messages=HELLO, max_tokens=4)
            assert reply.choices[0].message.content
            assert [model.id for model in client.models.list()] == ["small"]
            with client.chat.completions.create(
                model="any", messages=HELLO, max_tokens=6, stream=True
            ) as chunks:
                pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
            assert any(pieces)
            with pytest.raises(openai.BadRequestError, match="longer than the window"):
                client.completions.create(model="any", prompt="fox " * 70, max_tokens=1)
        assert ask(served.address, "/v1/completions", {"prompt": "a"})[0] == 401


def test_an_engine_that_is_killed_starts_again_at_the_same_address(chatting: Path) -> None:
    words = (str(chatting), "-c", "512", "--threads", "1", "--restart", "on-failure:1")
    with serving(*words) as served:
        address, pid = served.address, served.ready["pid"]
        os.kill(pid, signal.SIGKILL)
        ended, restarting = served.event(), served.event()
        assert [ended["event"], restarting["event"]] == ["ended", "restarting"]
        assert ended.keys() - {"schema"} == documented("serve, ended")
        assert restarting.keys() - {"schema"} == documented("serve, restarting")
        again = served.event()
        assert again.keys() - {"schema"} <= documented("serve, ready")
        assert (again["event"], again["address"]) == ("ready", address)
        assert again["pid"] != pid
        assert ask(address, "/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
        os.kill(again["pid"], signal.SIGKILL)
        assert served.event()["event"] == "ended"
        assert served.process.wait(60) == 5  # the second time it is not started again


@pytest.mark.skipif(sys.platform == "win32", reason="the engine outlives a killed parent")
def test_no_engine_outlives_a_server_that_is_killed(chatting: Path, tmp_path: Path) -> None:
    write_llama_server(tmp_path)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    words = (str(chatting), "-c", "512", "--threads", "1", "--with", "llama-server")
    with serving(*words, environment=environment) as served:
        engine = psutil.Process(served.ready["pid"])
        served.process.kill()
    wait_until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)


def test_a_server_that_is_stopped_in_the_pause_before_a_restart_ends_in_order(
    chatting: Path,
) -> None:
    with serving(str(chatting), "-c", "512", "--restart", "on-failure") as served:
        for _ in range(4):  # the pause doubles every time
            os.kill(served.ready["pid"], signal.SIGKILL)
            events = [served.event() for _ in range(2)]
            if events[-1]["wait_s"] >= 4:
                break
            served.ready = served.event()
        served.process.send_signal(signal.SIGTERM)
        assert served.event() == {"event": "ended", "schema": 1, "why": "stopped on request"}
        assert served.process.wait(60) == 0


def test_models_of_several_engines_are_served_separately(
    chatting: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlx_lm")
    folder = write_small_model(tmp_path / "small")
    assert main(("serve", str(chatting), str(folder), "--port", "0")) == 2
    assert "llama.cpp and mlx cannot share one server" in capsys.readouterr().err


def test_several_models_share_a_budget_that_holds_two(tmp_path: Path) -> None:
    paths = [write_chatting(tmp_path / f"{name}.gguf") for name in "abc"]
    words = [*map(str, paths), "-c", "512", "-np", "1", "-cram", "0", "--threads", "1"]
    with serving(*words) as served:
        sizes = [model["bytes"][0] for model in served.ready["models"]]
    assert all(model["stays_loaded"] for model in served.ready["models"])
    rows = (served.ready, *served.ready["models"], *served.ready["memories"])
    assert set().union(*rows) - {"schema"} <= documented("serve, ready")
    # The limit counts what is reserved for the system too.
    budget = str(2 * max(sizes) + max(sizes) // 2)
    with serving(*words, "--budget", budget) as served:
        stays = [model["stays_loaded"] for model in served.ready["models"]]
        assert sorted(stays) == [False, True, True]
        names = [model["name"] for model in served.ready["models"]]
        for name in [*names, *names]:
            body = {"model": name, "prompt": "Hello", "max_tokens": 2}
            status, reply = ask(served.address, "/v1/completions", body)
            assert (status, reply["model"]) == (200, name)
        assert ask(served.address, "/v1/completions", {"model": "d", "prompt": "a"})[0] == 404
        children = psutil.Process(served.process.pid).children()
        assert len(children) <= 2


def test_several_models_tell_why_an_engine_has_died(tmp_path: Path) -> None:
    paths = [write_chatting(tmp_path / f"{name}.gguf") for name in "ab"]
    with serving(*map(str, paths), "-c", "512", "-np", "1", "--threads", "1") as served:
        body = {"model": "a.gguf", "prompt": "Hello", "max_tokens": 2}
        assert ask(served.address, "/v1/completions", body)[0] == 200
        children = psutil.Process(served.process.pid).children()
        for child in children:
            child.kill()
        wait_until(lambda: not any(child.is_running() for child in children))
        wait_until(lambda: ask(served.address, "/v1/completions", body)[0] == 200)
        served.process.terminate()
        _, shown = served.process.communicate(timeout=PATIENCE_S)
    assert "a.gguf: llama.cpp died of SIGKILL: " in shown
