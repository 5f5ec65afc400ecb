"""The REST API: the same JSON as the command line for the same request, and errors for malformed requests."""

from __future__ import annotations

import errno
import http.client
import json
import math
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from tests.hub.raw_server import Request as HubRequest
from tests.hub.raw_server import Send, response, serve
from tests.patience import PATIENCE_S
from tests.web.model_files import write_model
from tests.web.serving import LOCAL, OPEN, Reply, ask, start

from edgekit import index
from edgekit.app.open import ResolvedModel
from edgekit.cli import main
from edgekit.engines import engine_names, every_engine, lender_of
from edgekit.engines.flags import CONTEXT
from edgekit.errors import (
    RemoteAccessError,
    RemoteInspectError,
    RemoteTimeoutError,
    SourceError,
)
from edgekit.machine import probes
from edgekit.web import calls as web_calls
from edgekit.web import models as web_models
from edgekit.web.calls import CALLS
from edgekit.web.failures import status_of
from edgekit.web.types import MAX_BODY_BYTES

GEMMA, QWEN = "sample:gemma-3-27b", "sample:qwen3-30b-a3b"
CARD = {"device": ["RTX 4090"], "ram": "64G"}
CARD_WORDS = ("--device", "RTX 4090", "--ram", "64G")
RPC_SERVER = "10.0.0.5:50052=24G"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with start() as address:
        yield address


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """The JSON that `edgekit WORDS --json` prints."""
    capsys.readouterr()
    main([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def as_query(fields: dict[str, Any]) -> str:
    plain = {
        key: str(value).lower() if isinstance(value, bool) else value
        for key, value in fields.items()
    }
    return urlencode(plain, doseq=True)


def post_and_get(server: str, call: str, fields: dict[str, Any]) -> Any:
    """The answer to the fields as a body, after checking that the fields as a query get the same."""
    by_body = ask(server, f"/api/v1/{call}", fields)
    by_query = ask(server, f"/api/v1/{call}?{as_query(fields)}")
    assert by_body.headers["content-type"] == "application/json"
    assert (by_query.status, by_query.json()) == (by_body.status, by_body.json())
    return by_body.json()


# --- the same answers as the command line

ESTIMATES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"model": "qwen3-8b"}, ("qwen3-8b",)),
    ({"model": "catalog:qwen3-8b", "context": "32k", "n_gpu_layers": "all"}, ("catalog:qwen3-8b", "-c", "32k", "-ngl", "all")),
    ({"model": GEMMA, "context": 8192, "n_gpu_layers": 20, "parallel": 2, "unified": False}, (GEMMA, "-c", "8192", "-ngl", "20", "-np", "2", "-no-kvu")),
    ({"model": GEMMA, "type_k": "q8_0", "type_v": "q8_0", "flash_attn": "on", "swa_full": True, "per_layer": True}, (GEMMA, "-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on", "--swa-full", "--per-layer")),
    ({"model": QWEN, "cpu_moe": True, "mmap": False, "backend": "cuda"}, (QWEN, "-cmoe", "--no-mmap", "--backend", "cuda")),
    ({"model": QWEN, "cpu_moe": False, "mmap": True, "offload_kqv": True}, (QWEN,)),  # the defaults, which have no flags
    ({"model": QWEN, "tensor_split": "3,1", "device_memory": "24G,12G", "n_gpu_layers": "all"}, (QWEN, "-ts", "3,1", "--device-memory", "24G,12G", "-ngl", "all")),
    ({"model": "qwen3-8b", "engine": "vllm", "context": 16384.0, "gpu": "H100", "tensor_parallel_size": 2, "gpu_memory_utilization": 0.85}, ("qwen3-8b", "--engine", "vllm", "-c", "16384", "--gpu", "H100", "-tp", "2", "--gpu-memory-utilization", "0.85")),
    ({"model": "qwen3-8b", "gpu_memory": "24G", "enforce_eager": True, "enable_prefix_caching": False}, ("qwen3-8b", "--gpu-memory", "24G", "--enforce-eager", "--no-enable-prefix-caching")),
    ({"model": "qwen3-8b", "engine": "mlx", "context": 4096, "kv_bits": 8, "quantize": "q4"}, ("qwen3-8b", "--engine", "mlx", "-c", "4096", "--kv-bits", "8", "--quantize", "q4")),
    ({"model": "qwen3-8b", "engine": "stream", "type_k": "q8_0", "keep": "2G", "threads": 2}, ("qwen3-8b", "--engine", "stream", "-ctk", "q8_0", "--keep", "2G", "--threads", "2")),
    ({"model": "deepseek-v3", "context": 0}, ("deepseek-v3", "-c", "0")),
    ({"model": "Qwen3 8B", "quant": "Q8_0", "device": ["2x RTX 3090"], "users": 2, "context": 4096}, ("Qwen3 8B", "--quant", "Q8_0", "--gpu", "2x RTX 3090", "--users", "2", "-c", "4096")),
    ({"model": QWEN, "context": 8192, "override_tensor": "exps=CPU"}, (QWEN, "-c", "8192", "-ot", "exps=CPU")),
    ({"model": QWEN, "context": 8192, "rpc": RPC_SERVER}, (QWEN, "-c", "8192", "--rpc", RPC_SERVER)),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "words"), ESTIMATES)
def test_estimate_equals_the_command_line(
    server: str, fields: dict[str, Any], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert post_and_get(server, "estimate", fields) == run_command(capsys, "estimate", *words)


CHECKS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"model": "qwen3-8b", **CARD}, ("qwen3-8b", *CARD_WORDS)),
    ({"model": GEMMA, "vram": "24G,12G", "ram": "32G", "context": "16k"}, (GEMMA, "--vram", "24G,12G", "--ram", "32G", "-c", "16k")),
    ({"model": QWEN, "device": ["RTX 3060"], "ram": "32G", "min_context": "8k"}, (QWEN, "--device", "RTX 3060", "--ram", "32G", "--min-context", "8k")),
    ({"model": "qwen3-8b", "device": "m3-max-64", "engine": "mlx", "job": "6000+800"}, ("qwen3-8b", "--device", "m3-max-64", "--engine", "mlx", "--job", "6000+800")),
    ({"model": "qwen3-8b", "engine": "all", "device": ["2x RTX 3090"]}, ("qwen3-8b", "--engine", "all", "--device", "2x RTX 3090")),
    ({"model": "qwen3-8b", "min_speed": 60, "prompt_tokens": 500, **CARD}, ("qwen3-8b", "--min-speed", "60", "--prompt", "500", *CARD_WORDS)),
    ({"model": "qwen3-8b", "ram": "2x16G DDR5-6000", "cpu": "Ryzen 7 7700"}, ("qwen3-8b", "--ram", "2x16G DDR5-6000", "--cpu", "Ryzen 7 7700")),
    ({"model": "qwen3-8b", "ram": "16G", "window_budget": "1G"}, ("qwen3-8b", "--ram", "16G", "--window-budget", "1G")),
    ({"model": "deepseek-v3", **CARD}, ("deepseek-v3", *CARD_WORDS)),
    ({"model": "qwen3-8b", "quant": "Q8_0", "users": 2, "context": "4k", **CARD}, ("qwen3-8b", "--quant", "Q8_0", "--users", "2", "-c", "4k", *CARD_WORDS)),
    ({"model": "qwen3-8b:Q8_0", **CARD}, ("qwen3-8b:Q8_0", *CARD_WORDS)),
    ({"model": QWEN, "context": 8192, "device": ["2x RTX 3090"], "ram": "64G", "split_mode": "tensor"}, (QWEN, "-c", "8192", "--device", "2x RTX 3090", "--ram", "64G", "-sm", "tensor")),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "words"), CHECKS)
def test_check_equals_the_command_line(
    server: str, fields: dict[str, Any], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(server, "/api/v1/check", fields).json() == run_command(capsys, "check", *words)


OTHER_CALLS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("plan", {"model": "qwen3-8b", **CARD, "context": "16k"}, ("qwen3-8b", *CARD_WORDS, "-c", "16k")),
    ("plan", {"model": "qwen3-8b", "engine": "vllm", "device": ["H100"], "users": 4, "context": 8192, "no_drafter": True}, ("qwen3-8b", "--engine", "vllm", "--device", "H100", "--users", "4", "-c", "8192", "--no-drafter")),
    ("plan", {"model": "qwen3-8b", "ram": "2G"}, ("qwen3-8b", "--ram", "2G")),
    ("recommend", {"task": "embed", "ram": "8G", "limit": 2}, ("--task", "embed", "--ram", "8G", "--limit", "2")),
    ("search", {"words": "qwen coder", "fits": True, "limit": 2, "device": ["RTX 3060"], "ram": "32G"}, ("qwen", "coder", "--fits", "--limit", "2", "--device", "RTX 3060", "--ram", "32G")),
    ("search", {"licence": "mit", "task": "embed", "sort": "speed", "max_params": "1B", "ram": "8G", "limit": 2}, ("--licence", "mit", "--task", "embed", "--sort", "speed", "--max-params", "1B", "--ram", "8G", "--limit", "2")),
    ("inspect", {"model": GEMMA}, (GEMMA,)),
    ("inspect", {"model": QWEN, "layers": True, "tensors": True, "keys": True}, (QWEN, "--layers", "--tensors", "--keys")),
    ("inspect", {"model": GEMMA, "light": True}, (GEMMA, "--light")),
    ("inspect", {"model": "qwen3-8b"}, ("qwen3-8b",)),
    ("inspect", {"model": "Qwen3 8B", "quant": "Q8_0"}, ("Qwen3 8B", "--quant", "Q8_0")),
    ("plan", {"model": "qwen3-8b", "quant": "Q8_0", **CARD, "job": "6000+800"}, ("qwen3-8b", "--quant", "Q8_0", *CARD_WORDS, "--job", "6000+800")),
    ("plan", {"model": QWEN, "context": 8192, "device": ["RTX 3060"], "ram": "64G", "rpc": RPC_SERVER}, (QWEN, "-c", "8192", "--device", "RTX 3060", "--ram", "64G", "--rpc", RPC_SERVER)),
]  # fmt: skip


@pytest.mark.parametrize(("call", "fields", "words"), OTHER_CALLS)
def test_other_calls_equal_the_command_line(
    server: str,
    call: str,
    fields: dict[str, Any],
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert post_and_get(server, call, fields) == run_command(capsys, call, *words)


LADDERS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"model": "qwen3-8b", **CARD}, ("qwen3-8b", *CARD_WORDS)),
    ({"model": "qwen3-8b", "context": "8k", "quant": "Q5_K_S", **CARD}, ("qwen3-8b", "-c", "8k", "--quant", "Q5_K_S", *CARD_WORDS)),
    ({"model": "qwen3-8b", "engine": "mlx", "device": ["m3-max-64"]}, ("qwen3-8b", "--engine", "mlx", "--device", "m3-max-64")),
    ({"model": GEMMA, "device": ["RTX 4070"]}, (GEMMA, "--device", "RTX 4070")),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "words"), LADDERS)
def test_ladder_equals_the_command_line(
    server: str, fields: dict[str, Any], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = post_and_get(server, "ladder", fields)
    assert answer == run_command(capsys, "check", *words, "--ladder")


def test_each_row_of_a_ladder_is_the_check_that_its_flags_choose(server: str) -> None:
    for row in ask(server, "/api/v1/ladder", {"model": "qwen3-8b", **CARD}).json()["rows"]:
        fields = {"model": "qwen3-8b", **CARD, **row["flags"]}
        check = ask(server, "/api/v1/check", fields).json()
        names = ("status", "context_tokens", "max_context", "required_bytes", "way", "cache")
        assert {name: row[name] for name in names} == {name: check[name] for name in names}
        assert ask(server, "/api/v1/fit", fields).status == 200


def test_upgrades_equal_the_command_line(
    server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "CHECKED_MODELS", 12)  # of 160, which take seconds
    answer = post_and_get(server, "upgrades", {"task": "code", **CARD})
    words = ("--upgrades", "--task", "code", *CARD_WORDS)
    assert answer == run_command(capsys, "hardware", *words)
    assert [step["is_now"] for step in answer["steps"]].count(True) == 1


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("hardware?ram=64G&device=RTX+4090", ("hardware", *CARD_WORDS)),
        ("hardware?device=RTX+3090&device=RTX+3060", ("hardware", "--device", "RTX 3090", "--device", "RTX 3060")),
        ("devices", ("hardware", "--devices")),
        ("catalog", ("catalog", "list")),
        ("catalog?kind=code&family=qwen3", ("catalog", "list", "--kind", "code", "--family", "qwen3")),
        ("catalog/qwen3-8b", ("catalog", "show", "qwen3-8b")),
        ("catalog/Qwen/Qwen3-8B", ("catalog", "show", "Qwen/Qwen3-8B")),
    ],
)  # fmt: skip
def test_lists_equal_the_command_line(
    server: str, path: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(server, f"/api/v1/{path}").json() == run_command(capsys, *words)


def test_complete_answers_any_spelling(server: str) -> None:
    answer = ask(server, "/api/v1/complete?q=gemma3:27b&limit=1").json()
    assert answer == {
        "schema": 1,
        "query": "gemma3:27b",
        "models": [
            {
                "id": "gemma-3-27b",
                "title": "Gemma 3 27B",
                "publisher": "Google",
                "parameters": 27_009_002_240,
                "active_parameters": 27_009_002_240,
                "kinds": ["chat", "vision"],
                "repository": "google/gemma-3-27b-it",
            }
        ],
    }
    assert len(ask(server, "/api/v1/complete?q=qwen").json()["models"]) == 8


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("complete", "q: required"),
        ("complete?q=", "q"),
        ("complete?q=x&limit=0", "limit: must be at least 1"),
        ("complete?q=x&limit=51", "limit: must be at most 50"),
        (f"complete?q={'x' * 401}", "q: must have at most 400 characters"),
        ("complete?q=x&model=y", "model: unknown field"),
        ("hub_search?q=%20", "q: give 1 to 100 characters"),
        ("hub_search?q=x&limit=99", "limit: must be at most 50"),
    ],
)
def test_complete_and_hub_search_refuse_invalid_fields(
    server: str, query: str, message: str
) -> None:
    answer = ask(server, f"/api/v1/{query}")
    assert (answer.status, answer.error["type"]) == (400, "UsageError")
    assert message in answer.error["message"]


def test_hub_search_without_a_network_says_so(server: str) -> None:
    answer = ask(server, "/api/v1/hub_search?q=qwen")
    assert (answer.status, answer.error["type"]) == (404, "RemoteInspectError")
    assert "network is off" in answer.error["message"]


def test_hub_search_lists_what_the_hub_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        {"id": "Qwen/Qwen3-8B", "downloads": 7, "likes": 3, "pipeline_tag": "text-generation"},
        {"id": "acme/Some-VL-7B", "pipeline_tag": "image-text-to-text"},
        {"id": "acme/some-embed", "pipeline_tag": "sentence-similarity"},
        {"id": "acme/painter", "pipeline_tag": "text-to-image"},
    ]

    def script(_: HubRequest, send: Send) -> None:
        send(response("200 OK", {"Content-Type": "application/json"}, json.dumps(found).encode()))

    with serve(script) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        with start(OPEN) as address:
            answer = ask(address, "/api/v1/hub_search?q=some+words&limit=4").json()
    assert (answer["schema"], answer["query"]) == (1, "some words")
    assert answer["models"] == [
        {"id": "Qwen/Qwen3-8B", "downloads": 7, "likes": 3, "kinds": ["chat", "reasoning"], "model": "qwen3-8b"},
        {"id": "acme/Some-VL-7B", "downloads": 0, "likes": 0, "kinds": ["chat", "vision"], "model": None},
        {"id": "acme/some-embed", "downloads": 0, "likes": 0, "kinds": ["embedding"], "model": None},
        {"id": "acme/painter", "downloads": 0, "likes": 0, "kinds": [], "model": None},
    ]  # fmt: skip


def test_engines_have_a_control_for_every_cache_flag(server: str) -> None:
    """The page draws its settings from this answer alone."""
    engines = ask(server, "/api/v1/engines").json()["engines"]
    assert [engine["name"] for engine in engines] == list(engine_names())
    for engine in engines:
        keys = [control["key"] for control in engine["controls"]]
        cache = engine["cache"]
        assert set(cache["keys"]) <= set(keys) & set(engine["groups"]["cache"])
        assert cache["types"][0] == cache["default"] + cache["unit"]
        assert all(control["label"] and control["kind"] for control in engine["controls"])
        menus = [control for control in engine["controls"] if control["kind"] == "menu"]
        assert all(menu["values"] for menu in menus)
    llamacpp = {control["key"]: control for control in engines[0]["controls"]}
    assert list(llamacpp)[:3] == ["mix", "type_k", "type_v"]
    assert (llamacpp["parallel"]["least"], llamacpp["parallel"]["most"]) == (1, 2**31 - 1)
    assert engines[0]["groups"]["backend"] == ["backend"]
    assert engines[0]["instead_of"] == {"cpu_moe": "n_cpu_moe", "n_cpu_moe": "cpu_moe"}


@pytest.mark.parametrize(
    ("device", "explanation"),
    [
        ("RTX 4090", "minus 1 GiB reserve"),
        ("m3-max-36", "macOS lets the GPU use 75 % of the memory"),
    ],
)
def test_hardware_explains_the_usable_memory(server: str, device: str, explanation: str) -> None:
    answer = ask(server, f"/api/v1/hardware?{as_query({'device': device})}").json()
    assert explanation in answer["engines"]["llama.cpp"]["budgets"][0]["told"]


def test_file_in_models_dir_equals_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path is relative to the --models-dir folder, or absolute; the folder where the server started plays no part."""
    path = write_model(tmp_path / "models" / "own")
    monkeypatch.chdir(path.parent)
    with start(replace(LOCAL, models_dirs=(tmp_path / "models",))) as address:
        for name in (f"own/{path.name}", str(path)):
            for call in ("estimate", "inspect"):
                answer = ask(address, f"/api/v1/{call}", {"model": name}).json()
                assert answer == run_command(capsys, call, str(path)), name
        assert ask(address, "/api/v1/estimate", {"model": path.name}).status == 404


MISTAKES: list[tuple[int, str, dict[str, Any], tuple[str, ...]]] = [
    (400, "estimate", {"model": "qwen3-8b", "context": "12 parsecs"}, ("qwen3-8b", "-c", "12 parsecs")),
    (400, "estimate", {"model": "qwen3-8b", "draft_gpu_layers": "0k"}, ("qwen3-8b", "-ngld", "0k")),
    (400, "estimate", {"model": "qwen3-8b", "engine": "onnx"}, ("qwen3-8b", "--engine", "onnx")),
    (400, "estimate", {"model": "qwen3-8b", "engine": "vllm", "n_gpu_layers": 3}, ("qwen3-8b", "--engine", "vllm", "-ngl", "3")),
    (400, "estimate", {"model": "qwen3-8b", "tensor_split": "1,1", "device_memory": "8G"}, ("qwen3-8b", "-ts", "1,1", "--device-memory", "8G")),
    (422, "estimate", {"model": GEMMA, "engine": "vllm"}, (GEMMA, "--engine", "vllm")),
    (404, "estimate", {"model": "catalog:nothing"}, ("catalog:nothing",)),
    (422, "check", {"model": "qwen3-8b", "engine": "mlx", "ram": "8G"}, ("qwen3-8b", "--engine", "mlx", "--ram", "8G")),
    (400, "check", {"model": "qwen3-8b", "device": ["RTX 9999"]}, ("qwen3-8b", "--device", "RTX 9999")),
    (400, "check", {"model": "qwen3-8b", "cpu": "Ryzen 7 7700"}, ("qwen3-8b", "--cpu", "Ryzen 7 7700")),
    (400, "check", {"model": "qwen3-8b", "ram": "64"}, ("qwen3-8b", "--ram", "64")),
    (400, "plan", {"model": "qwen3-8b", "parallel": 2, **CARD}, ("qwen3-8b", "-np", "2", *CARD_WORDS)),
    (400, "recommend", {"task": "dance"}, ("--task", "dance")),
    (400, "search", {"sort": "best"}, ("--sort", "best")),
    (400, "search", {"min_params": "nan"}, ("--min-params", "nan")),
    (404, "inspect", {"model": "sample:nothing"}, ("sample:nothing",)),
    (404, "estimate", {"model": "qwen3-8c"}, ("qwen3-8c", "--offline")),
    (404, "estimate", {"model": "no/such-model"}, ("no/such-model", "--offline")),
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_errors_equal_the_command_line(
    server: str,
    mistake: tuple[int, str, dict[str, Any], tuple[str, ...]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, call, fields, words = mistake
    answer = ask(server, f"/api/v1/{call}", fields)
    error = {name: value for name, value in answer.error.items() if name != "about"}
    assert (answer.status, {"error": error}) == (status, run_command(capsys, call, *words))


ABOUT: list[tuple[str, dict[str, Any], str | None]] = [
    ("check", {"model": "no-such-model"}, "model"),
    ("check", {"model": ""}, "model"),
    ("check", {"model": "qwen3-8b", "engine": "banana"}, "engine"),
    ("recommend", {"engine": "banana"}, "engine"),
    ("check", {"model": "qwen3-8b", "engine": ["vllm"]}, "engine"),
    ("check", {"model": "qwen3-8b", "device": ["nonsense"]}, "machine"),
    ("fit", {"model": "qwen3-8b", "device": ["m3-max-36"], "ram": "64G"}, "machine"),
    ("curves", {"model": "qwen3-8b", "ram": "64"}, "machine"),
    ("curves", {"model": "qwen3-8b", "ram": "64G", "cpu": "Ryzen 7 7701"}, "machine"),
    ("plan", {"model": "qwen3-8b", "vram": [24]}, "machine"),
    ("check", {"model": "qwen3-8b", "context": "NaN"}, "settings"),
    ("check", {"model": "qwen3-8b", "cpu_moe": "banana"}, "settings"),
    ("check", {"model": "qwen3-8b", "context": 4096, "job": "6000+800", **CARD}, "settings"),
    ("check", {"model": "qwen3-8b:Q8_0", "quant": "Q4_K_M", **CARD}, "settings"),
    ("check", {"model": "qwen3-8b", "vram": [24], "foo": "bar"}, None),
    ("check", {"model": "deepseek-v3", "type_k": "q8_0", "type_v": "f16", **CARD}, "cache_types"),
]


@pytest.mark.parametrize(("call", "fields", "about"), ABOUT)
def test_error_names_the_part_of_the_request_it_is_about(
    server: str, call: str, fields: dict[str, Any], about: str | None
) -> None:
    assert ask(server, f"/api/v1/{call}", fields).error["about"] == about


FAILING: list[dict[str, Any]] = [
    {"model": "qwen3-8b", "context": "40k", "device": ["RTX 3060"], "mix": "Q8_0", "type_k": "f16", "type_v": "f16"},
    {"model": "llama-3.1-70b", "device": ["RTX 4090"]},
    {"model": "qwen3-32b", "ram": "16G"},
    {"model": "qwen3-32b", "engine": "vllm", "device": ["RTX 4090"], "ram": "64G"},
    {"model": "qwen3-8b", "engine": "mlx", "device": ["m1-8"]},
]  # fmt: skip


@pytest.mark.parametrize("fields", FAILING)
def test_flags_of_a_suggested_change_make_the_model_fit(
    server: str, fields: dict[str, Any]
) -> None:
    check = ask(server, "/api/v1/check", fields).json()
    assert check["status"] == "failed"
    assert any(change["flags"] for change in check["changes"])
    for change in (item for item in check["changes"] if item["flags"]):
        changed = {"engine": check["engine"]["name"], **fields, **change["flags"]}
        if "device" in change["flags"]:
            changed.pop("ram", None)
        answer = ask(server, "/api/v1/check", changed).json()
        assert answer["status"] in {"passed", "warning"}, change


def test_flags_of_a_suggested_change_reach_its_max_context(server: str) -> None:
    fields = {"model": "qwen3-8b", "context": "16k", "device": ["RTX 3060"], "ram": "32G"}
    check = ask(server, "/api/v1/check", fields).json()
    (change,) = check["changes"]
    assert change["flags"] == {"type_k": "q8_0", "type_v": "q8_0"}
    changed = ask(server, "/api/v1/check", {**fields, **change["flags"]}).json()
    assert changed["max_context"] == change["max_context"] > check["max_context"]


# --- reserve and max_use

SMALL_CARD = {"device": ["RTX 4060"], "ram": "32G"}


def test_fit_respects_reserve_and_max_use(server: str) -> None:
    def fit(**limits: object) -> Any:
        fields = {"model": "llama-3.1-8b", "context": "8k", "mix": "Q4_K_M", "n_gpu_layers": "all"}
        return ask(server, "/api/v1/fit", {**fields, **SMALL_CARD, **limits}).json()

    default, no_reserve, half = fit(), fit(reserve=0), fit(max_use="50%")
    card = default["bars"][0]
    assert no_reserve["bars"][0]["available_bytes"] == card["free_bytes"]
    assert no_reserve["bars"][0]["reserve_bytes"] == 0
    assert (default["status"], half["status"]) == ("warning", "failed")
    assert half["bars"][0]["available_bytes"] == card["available_bytes"]
    assert fit(max_use="100%") == fit(max_use=1) == default


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_use", value) for value in ("0", "101%", "1.5", "-1", "nan", "most", "", "%")),
        *(("reserve", value) for value in ("-1G", "some", "", "nan", "1e400", "12 parsecs")),
    ],
)
def test_invalid_reserve_or_max_use_is_refused(server: str, field: str, value: str) -> None:
    for call in ("check", "fit", "curves", "plan", "recommend"):
        model = {} if call == "recommend" else {"model": "qwen3-8b"}
        answer = ask(server, f"/api/v1/{call}", {**model, **SMALL_CARD, field: value})
        assert (answer.status, answer.error["type"]) == (400, "UsageError")
        flag = f"--{field.replace('_', '-')}"
        assert answer.error["message"].startswith(f"{flag} takes a ")
    assert ask(server, f"/api/v1/cards/events?{urlencode({field: value})}").status == 400


@pytest.mark.parametrize("limit", [{"max_use": "50%"}, {"reserve": "2G"}])
def test_vllm_takes_neither_reserve_nor_max_use(server: str, limit: dict[str, str]) -> None:
    request = {"engine": "vllm", "device": ["RTX 4090"], **limit}
    for call in ("check", "fit", "curves", "plan", "recommend"):
        model = {} if call == "recommend" else {"model": "qwen3-8b"}
        answer = ask(server, f"/api/v1/{call}", {**model, **request})
        assert answer.status == 400
        assert "does not apply to vLLM" in answer.error["message"]


@pytest.mark.parametrize(
    ("error", "network", "status"),
    [
        (SourceError("a.gguf cannot be read by this user"), True, 422),
        (SourceError("a.gguf cannot be read by this user"), False, 422),
        (RemoteInspectError("the hub broke off"), True, 502),
        (RemoteInspectError("the network is off"), False, 404),
        (RemoteAccessError("gated"), True, 403),
        (RemoteTimeoutError("too long"), True, 504),
    ],
)
def test_status_of_blames_another_server_only_for_its_errors(
    error: SourceError, *, network: bool, status: int
) -> None:
    assert status_of(error, network=network) == status


def test_file_without_read_permission_is_422(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unreadable.gguf").write_bytes(b"GGUF")
    original_open = os.open

    def deny(path: Any, *more: Any, **named: Any) -> int:
        """Instead of chmod, which does not stop root."""
        if str(path).endswith("unreadable.gguf"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return original_open(path, *more, **named)

    monkeypatch.setattr(os, "open", deny)
    with start(replace(LOCAL, models_dirs=(tmp_path,))) as address:
        for call in ("inspect", "estimate"):
            answer = ask(address, f"/api/v1/{call}", {"model": "unreadable.gguf"})
            assert answer.status == 422
            assert "cannot be read by this user" in answer.error["message"]


@pytest.mark.parametrize(
    ("call", "name", "message"),
    [
        ("estimate", "ctx_size", "ctx_size: unknown field; use context"),
        ("estimate", "max-model-len", "max-model-len: unknown field; use context"),
        ("estimate", "ngl", "ngl: unknown field; use n_gpu_layers"),
        ("estimate", "no_mmap", "no_mmap: unknown field; use mmap: false"),
        ("estimate", "lm", "lm: unknown field; use mmap: false"),
        ("check", "min-context", "min-context: unknown field; use min_context"),
        ("inspect", "ctx_size", "ctx_size: unknown field"),
        ("estimate", "nonsense", "nonsense: unknown field"),
    ],
)
def test_error_for_a_flag_name_suggests_the_field(
    server: str, call: str, name: str, message: str
) -> None:
    answer = post_and_get(server, call, {"model": GEMMA, name: "1"})
    assert answer["error"] == {"type": "UsageError", "message": message, "about": "settings"}


def test_every_flag_has_a_field_with_its_help() -> None:
    schema = CALLS["estimate"].request.model_json_schema()["properties"]
    for flag in (CONTEXT, *(flag for engine in every_engine() for flag in engine.flags)):
        if not lender_of(flag) and flag.names[0] not in {
            "-dev",
            "-lm",
        }:  # alternatives to other flags
            assert flag.help in schema[flag.key]["description"], flag.key
    assert not {"device_memory", "gpu", "gpu_memory"} & CALLS["check"].request.model_fields.keys()


# --- malformed fields and bodies

HOSTILE: tuple[Any, ...] = (
    math.nan, math.inf, -math.inf, 1e300, 10**400, -(10**19), True, [1], {"a": 1}, [[[]]], "\0", "a\nb", "\x1b[2J",
    "\ud800", "\u2028", "x" * 5000, "9" * 4000, "NaN", "-Infinity", "1e309", "0x10", "", " ", "-7", "1.5.2",
    "99999999999999999999T",
)  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: ascii(value)[:20])
def test_hostile_values_in_a_body_are_refused_with_a_message(server: str, value: object) -> None:
    for name in ("context", "n_gpu_layers", "tensor_split", "ubatch", "type_k"):
        answer = ask(server, "/api/v1/estimate", {"model": "qwen3-8b", name: value})
        assert answer.status == 400, (name, answer.body)
        assert name in answer.error["message"] or "--" in answer.error["message"]
        assert len(answer.body) < 1000
    for name in ("ram", "vram", "cpu", "job", "min_context", "device"):
        fields = {"model": "qwen3-8b", "ram": "8G", name: value}
        answer = ask(server, "/api/v1/fit", fields)
        assert answer.status == 400, (name, answer.body)


@pytest.mark.parametrize("value", ["nan", "inf", "1e400", "\0", "", "9" * 300, "%", "\U0001f600"])
def test_hostile_values_in_a_query_are_refused_with_a_message(server: str, value: str) -> None:
    answer = ask(server, f"/api/v1/fit?model=qwen3-8b&ram=8G&context={quote(value)}")
    assert answer.status == 400
    assert answer.error["type"] == "UsageError"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "missing"),
        (b"{", 400, "not JSON"),
        (b"null", 400, ""),
        (b"[]", 400, ""),
        (b'"qwen3-8b"', 400, ""),
        (b"{}", 400, "model: required"),
        (b'{"model": null}', 400, "model"),
        (b'{"model": ["qwen3-8b"]}', 400, "model"),
        (b'{"model": "qwen3-8b", "contxt": 1}', 400, "contxt: unknown field"),
        (b'{"model": "qwen3-8b", "__class__": 1}', 400, "unknown field"),
        (b'{"model": "qwen3-8b", "cpu_moe": "perhaps"}', 400, "cpu_moe"),
        (b'{"model": "qwen3-8b", "gpu\xff": 1}', 400, ""),
        (b'{"model": "qwen3-8b", "context": 1' + b"0" * 5000 + b"}", 400, ""),
        (b"[" * 30_000, 400, ""),
        (b'{"model":' * 7_000, 400, ""),
        (b'{"model": "' + b"x" * MAX_BODY_BYTES + b'"}', 413, ""),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_malformed_body_is_refused(server: str, body: bytes, status: int, message: str) -> None:
    answer = raw_post(server, "/api/v1/estimate", body)
    assert answer.status == status, answer.body
    assert message in answer.error["message"]
    assert len(answer.body) < 1000


def raw_post(server: str, path: str, body: bytes) -> Reply:
    with closing(
        http.client.HTTPConnection(server.removeprefix("http://"), timeout=PATIENCE_S)
    ) as client:
        client.request("POST", path, body, {"Content-Type": "application/json"})
        reply = client.getresponse()
        return Reply(reply.status, dict(reply.getheaders()), reply.read())


def test_too_many_devices_are_refused(server: str) -> None:
    answer = ask(server, "/api/v1/check", {"model": "qwen3-8b", "device": ["RTX 4090"] * 9})
    assert (answer.status, answer.error["type"]) == (400, "UsageError")
    for device in ("65x RTX 4090", "-1x RTX 4090", "RTX 4090," * 300):
        answer = ask(server, "/api/v1/hardware?" + urlencode({"device": device}))
        assert answer.status == 400, device


def test_devices_takes_no_fields(server: str) -> None:
    assert ask(server, "/api/v1/devices?x=1").status == 400


def test_fields_are_checked_before_the_model_is_opened(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_nothing(*_: object, **__: object) -> ResolvedModel:
        raise AssertionError

    monkeypatch.setattr(web_models, "open_named", open_nothing)
    for call in ("estimate", "check", "plan", "fit", "curves"):
        fields = {"model": "some/model", "context": "long"}
        assert ask(server, f"/api/v1/{call}", fields).status == 400, call


# --- several requests


def test_concurrent_estimates_equal_those_made_one_by_one(server: str) -> None:
    """Threads share what an engine computed for a model."""
    requests = [
        {"model": model, "context": context, "n_gpu_layers": layers, "ubatch": ubatch}
        for model in (GEMMA, QWEN)
        for context in (4096, 20_000)
        for layers in (3, 20, "all")
        for ubatch in (64, 512)
    ]

    def answer(fields: dict[str, Any]) -> Any:
        return ask(server, "/api/v1/estimate", fields).json()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as threads:
            concurrent = list(threads.map(answer, requests))
    finally:
        sys.setswitchinterval(before)
    with start() as fresh:
        one_by_one = [ask(fresh, "/api/v1/estimate", fields).json() for fields in requests]
    assert concurrent == one_by_one


def test_this_machine_is_probed_once_for_several_slider_steps(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    detect = probes.detect

    def record_detect(*arguments: Any) -> Any:
        calls.append(arguments)
        return detect(*arguments)

    monkeypatch.setattr(probes, "detect", record_detect)
    monkeypatch.setattr(web_calls, "MACHINE_S", 60.0)
    web_calls._machine.clear()
    for _ in range(3):
        assert ask(server, "/api/v1/fit", {"model": "qwen3-8b", "context": 4096}).status == 200
    assert len(calls) == 1
