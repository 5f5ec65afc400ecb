"""`edgekit serve` with a real llama.cpp and an OpenAI client."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.patience import PATIENCE_S, wait_until
from tests.runnable import write_chatting
from tests.runtime_engines import ask
from tests.thoroughness import costly

from edgekit.cli import main
from edgekit.engines.llamacpp.run import launch
from edgekit.engines.ports import is_loopback
from edgekit.units import MIB

if TYPE_CHECKING:
    import openai

SLOTS, FEW_REQUESTS, MANY_REQUESTS = 4, 10, 32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chatting(tmp_path_factory.mktemp("served") / "served.gguf")


@contextmanager
def start_server(model: Path, *argv: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    command = [
        sys.executable,
        "-m",
        "edgekit",
        "serve",
        str(model),
        "--json",
        "--port",
        "0",
        *argv,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate(timeout=PATIENCE_S)
            yield process, json.loads(line)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[dict[str, Any]]:
    # One thread: two would wait for each other while other tests use the cores.
    with start_server(model, "-np", str(SLOTS), "-c", "2048", "--threads", "1") as (_, ready):
        yield ready


@pytest.fixture(scope="module")
def client(server: dict[str, Any]) -> Iterator[openai.OpenAI]:
    import openai  # takes a second: not while tests are collected

    with openai.OpenAI(base_url=server["openai_base_url"], api_key="none", max_retries=0) as client:
        yield client


def test_openai_client_gets_chat_and_completion_answers(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "Hello"}], max_tokens=8, temperature=0
    )
    assert reply.usage is not None
    assert 1 <= reply.usage.completion_tokens <= 8
    plain = client.completions.create(model="any", prompt="Hello", max_tokens=4)
    assert plain.choices[0].finish_reason in {"length", "stop"}
    assert [item.id for item in client.models.list()] == ["served.gguf"]


def test_openai_client_can_stream_an_answer(client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "Hi"}], max_tokens=6, stream=True
    ) as chunks:
        finishes = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert len(finishes) > 1
    assert finishes[-1] in {"length", "stop"}


def test_estimate_agrees_with_what_the_engine_reports(server: dict[str, Any]) -> None:
    differences = {row["part"]: row["difference_bytes"] for row in server["reported"]}
    assert differences.keys() >= {"weights", "kv cache", "output", "compute"}
    assert {differences["weights"], differences["kv cache"], differences["output"]} == {0}
    assert all(row["within"] for row in server["reported"]), server["reported"]
    assert server["within"]


def test_memory_of_the_engine_is_near_the_estimate(
    server: dict[str, Any], client: openai.OpenAI
) -> None:
    client.completions.create(model="any", prompt="Hello", max_tokens=4)
    used_bytes = psutil.Process(server["pid"]).memory_info().rss - server["idle_bytes"]
    assert (
        abs(used_bytes - server["required_bytes"]) <= 0.05 * server["required_bytes"] + 60_000_000
    )


def test_requests_beyond_the_slots_are_queued_without_leaking_memory(
    server: dict[str, Any],
) -> None:
    import openai

    async def complete(client: openai.AsyncOpenAI, number: int) -> int:
        reply = await client.completions.create(
            model="any", prompt=f"request {number}", max_tokens=16, extra_body={"ignore_eos": True}
        )
        assert reply.usage is not None
        return reply.usage.completion_tokens

    async def all_at_once(count: int) -> list[int]:
        async with openai.AsyncOpenAI(
            base_url=server["openai_base_url"], api_key="none", max_retries=0
        ) as client:
            return await asyncio.gather(*(complete(client, number) for number in range(count)))

    process = psutil.Process(server["pid"])
    assert asyncio.run(all_at_once(FEW_REQUESTS)) == [16] * FEW_REQUESTS
    before = process.memory_info().rss
    assert asyncio.run(all_at_once(MANY_REQUESTS)) == [16] * MANY_REQUESTS
    assert process.memory_info().rss - before < 16 * MIB


def test_idle_connections_do_not_block_new_ones(server: dict[str, Any]) -> None:
    """Each open connection occupies an HTTP thread of the engine until it is closed."""
    assert launch._HTTP_THREADS > MANY_REQUESTS
    host_and_port = server["address"].removeprefix("http://")
    request = json.dumps({"prompt": "x", "n_predict": 1})
    with ExitStack() as connections:
        for _ in range(MANY_REQUESTS):
            connection = http.client.HTTPConnection(host_and_port, timeout=PATIENCE_S)
            client = connections.enter_context(closing(connection))
            client.request("POST", "/completion", request, {"Content-Type": "application/json"})
            reply = client.getresponse()
            reply.read()
            assert reply.status == 200


def test_port_in_use_is_an_error_before_loading(
    server: dict[str, Any], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = server["address"].rpartition(":")[2]
    assert main(("serve", str(model), "--port", port)) == 2
    message = f"port {port} of 127.0.0.1 is already in use by a model that edgekit already runs"
    assert message in capsys.readouterr().err
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = str(other.getsockname()[1])
        assert main(("serve", str(model), "--port", port)) == 2
        assert f"port {port} of 127.0.0.1 is already in use" in capsys.readouterr().err


def test_killed_engine_is_reported_with_its_signal(model: Path) -> None:
    with start_server(model, "-np", "1", "-c", "256") as (process, ready):
        os.kill(ready["pid"], signal.SIGKILL)
        out, err = process.communicate(timeout=PATIENCE_S)
    [line] = out.splitlines()
    ended = json.loads(line)
    assert (ended["event"], ended["signal"]) == ("ended", "SIGKILL")
    assert process.returncode == 5
    assert "SIGKILL" in err


@costly
@pytest.mark.parametrize(
    ("number", "argv"),
    [(signal.SIGINT, ("--api-key", "secret")), (signal.SIGTERM, ("--insecure",))],
)
def test_public_host_is_served_with_a_key_or_insecure_until_a_signal(
    model: Path, number: signal.Signals, argv: tuple[str, ...]
) -> None:
    """Either --api-key or --insecure is required; --insecure prints a warning."""
    with start_server(model, "--host", "0.0.0.0", "-np", "1", "-c", "256", *argv) as (
        process,
        ready,
    ):
        request = urllib.request.Request(ready["openai_base_url"] + "/models")
        if "secret" in argv:
            assert ask(ready["address"], "/v1/chat/completions", {})[0] == 401
            request.add_header("Authorization", "Bearer secret")
        with urllib.request.urlopen(request) as reply:
            assert reply.status == 200
        assert ask(ready["address"], "/health")[0] == 200
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert ("without a key" in err) is (argv == ("--insecure",))
    assert json.loads(out.splitlines()[0])["why"] == "stopped on request"
    wait_until(lambda: not psutil.pid_exists(ready["pid"]))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--port", "99999"), "must be at most 65,535"),
        (("--port", "x"), "--port: 'x' is not a whole number from 0 to 65,535"),
        (("--threads", "many"), "--threads: 'many' is not a whole number from 1"),
        (("--host", "[192.0.2.1]"), "of 192.0.2.1: "),
        (("--engine", "stream"), "cannot serve"),
        (("--engine", "vllm"), "vllm is not installed: pip install vllm"),
        (("--host", "no.such.host.invalid"), "is not an address of this machine"),
        (("--sinks", "9999", "-c", "512"), "sinks"),
        (("--host", "0.0.0.0"), "give --api-key, or --insecure"),
        (("--host", "::"), "give --api-key, or --insecure"),
        (("--host", "localhost:80"), "write --host localhost --port 80"),
        (("--host", "[::1]:80"), "write --host [::1] --port 80"),
        (("--restart", "on-failure:0"), "give no, on-failure, or on-failure:5"),
        (("--host", "0.0.0.0", "--api-key", ""), "--api-key is empty: give a key"),
        (("--host", "0.0.0.0", "--api-key", " "), "--api-key is empty: give a key"),
    ],
)
def test_usage_error_message(
    model: Path, argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("serve", str(model), "--port", "0", *argv)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.9.9.9", True), ("0.0.0.0", False), ("192.0.2.1", False)],
)  # fmt: skip
def test_is_loopback(host: str, expected: bool) -> None:  # noqa: FBT001 - a parameter
    assert is_loopback(host) is expected


def test_model_that_does_not_fit_is_refused_with_the_report(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("serve", str(model), "--port", "0", "-c", "900000000")) == 3
    err = capsys.readouterr().err
    assert "Does not fit" in err
    assert "To fit" in err
    assert main(("serve", str(model), "--port", "0", "-c", "900000000", "--json")) == 3
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line)["can_load"] is False
    assert main(("serve", str(model), "--port", "x", "--json")) == 2
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line)["error"]["type"] == "UsageError"
