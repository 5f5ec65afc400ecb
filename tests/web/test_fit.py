"""The calls `fit` and `curves`: the bars add up to the estimate, and the shown command gives the same estimate."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.calls import calls_of
from tests.thoroughness import sampled
from tests.web.model_files import write_model
from tests.web.serving import LOCAL, ask, start

from edgekit.app.estimate import price_loads
from edgekit.app.open import open_named
from edgekit.bill.types import Component
from edgekit.cli import main
from edgekit.engines import machine_keys
from edgekit.web import models as web_models
from edgekit.web.calls import CALLS, WebState
from edgekit.web.types import CallWatch, WebSettings

GEMMA, QWEN = "sample:gemma-3-27b", "sample:qwen3-30b-a3b"
CARD = {"device": ["RTX 4090"], "ram": "64G"}
ORDER = [component.value for component in Component]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with start() as address:
        yield address


def fit(server: str, **fields: Any) -> Any:
    answer = ask(server, "/api/v1/fit", fields)
    assert answer.status == 200, answer.body
    return answer.json()


def run_command(command: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command line's JSON for the `estimate_command` of a fit."""
    words = shlex.split(command)
    assert words[:2] == ["edgekit", "estimate"]
    capsys.readouterr()
    assert main([*words[1:], "--json", "--per-layer"]) == 0
    return json.loads(capsys.readouterr().out)


def required_bytes(answer: Any) -> list[int]:
    return [bar["required_bytes"] for bar in answer["bars"]]


MODELS = (
    "qwen3-8b",
    "gemma-3-27b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "nomic-embed-text-v1.5",
    "qwen3-next-80b-a3b",
)
LLAMACPP: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    (CARD, {}),
    (CARD, {"context": "32k", "type_k": "q8_0", "type_v": "q8_0", "flash_attn": "on"}),
    (CARD, {"context": 8192, "n_gpu_layers": 12, "parallel": 3, "unified": False, "ubatch": 256}),
    (CARD, {"context": 4096, "cpu_moe": True, "offload_kqv": False, "mmap": False}),
    (CARD, {"backend": "cpu", "context": 4096, "repack": True}),
    (CARD, {"job": "6000+800"}),
    (CARD, {"context": 0, "mix": "Q8_0"}),
    ({"ram": "32G"}, {"context": 16384, "n_gpu_layers": 10}),
    ({"vram": "24G,12G", "ram": "32G"}, {"context": 16384}),
    ({"vram": "8G,8G,8G", "ram": "32G"}, {"context": 16384, "tensor_split": "3,1"}),
    ({"device": ["RTX 4090", "RTX 3060"], "ram": "64G"}, {"context": 20_000, "tensor_split": "0.333333333,0.1"}),
    ({"device": "RX 7900 XTX", "ram": "32G"}, {"context": 4096, "swa_full": True}),
    ({"device": "m3-max-64"}, {"context": 16384}),
)  # fmt: skip
CASES = [(model, *case) for case in LLAMACPP for model in MODELS]
ALWAYS = [
    ("qwen3-8b", {"device": "m3-max-64"}, {"backend": "cpu", "context": 4096, "repack": True}),
    ("qwen3-8b", CARD, {"backend": "cpu", "context": 4096, "repack": True}),
    ("qwen3-8b", CARD, {"context": 8192, "embeddings": True, "batch": 256, "parallel": 3}),
    ("qwen3-8b", CARD, {"context": 8192, "embeddings": True, "parallel": 3}),
]


@pytest.mark.parametrize(("model", "machine", "flags"), [*sampled(CASES, each=5), *ALWAYS])
def test_llamacpp_estimate_equals_the_shown_command(
    server: str,
    model: str,
    machine: dict[str, Any],
    flags: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = fit(server, model=model, engine="llama.cpp", **machine, **flags)
    if answer["refused"]:  # mean pooling over more tokens than a micro-batch
        assert main([*shlex.split(answer["estimate_command"])[1:], "--json"]) == 2
        assert json.loads(capsys.readouterr().out)["error"]["message"] == answer["refused"]
        return
    estimate, by_command = answer["estimate"], run_command(answer["estimate_command"], capsys)
    if machine.get("device") == "m3-max-64":
        # On Metal, a file larger than the largest buffer is mapped as overlapping views. The command names no device.
        assert estimate["total_bytes"] >= by_command["total_bytes"]
    else:
        assert estimate == by_command
    check_bars(answer)
    assert sum(bar["required_bytes"] for bar in answer["bars"]) == estimate["total_bytes"]


def check_bars(answer: Any) -> None:
    for bar in answer["bars"]:
        names = [part["component"] for part in bar["parts"]]
        assert sum(part["bytes"] for part in bar["parts"]) == bar["required_bytes"]
        assert all(part["bytes"] > 0 for part in bar["parts"])
        assert names == sorted(names, key=ORDER.index)
        assert bar["available_bytes"] == max(0, bar["free_bytes"] - bar["reserve_bytes"])
    order = ("passed", "warning", "failed")
    worst = max((bar["status"] for bar in answer["bars"]), key=order.index)
    is_blocked = any(bar["blocked"] for bar in answer["bars"])
    assert answer["status"] == ("failed" if is_blocked or answer["refused"] else worst)
    assert answer["can_load"] == (answer["status"] != "failed") == (answer["command"] is not None)
    assert answer["told"].startswith(
        ("Does not ",) if answer["status"] == "failed" else ("Runs ", "Starts ", "Embeds ")
    )


OTHER_ENGINES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("vllm", {"model": "qwen3-8b", "device": ["H100"], "context": 16384}),
    ("vllm", {"model": "qwen3-14b", "device": ["2x RTX 4090"], "tensor_parallel_size": 2, "kv_cache_dtype": "fp8"}),
    ("vllm", {"model": "qwen3-30b-a3b", "vram": "24G", "gpu_memory_utilization": 0.8, "max_num_seqs": 4}),
    ("vllm", {"model": "deepseek-v3", "device": ["8x H200"], "tensor_parallel_size": 8}),
    ("mlx", {"model": "qwen3-8b", "device": "m3-max-64", "context": 32768, "kv_bits": 4, "quantized_kv_start": 0}),
    ("mlx", {"model": "gemma-3-27b", "device": "m3-max-64", "quantize": "q4"}),
    ("stream", {"model": "qwen3-8b", "ram": "8G", "context": 4096}),
    ("stream", {"model": "qwen3-8b", "ram": "2G", "keep": "512M", "type_k": "q8_0", "type_v": "q8_0", "threads": 2}),
)  # fmt: skip


@pytest.mark.parametrize(("engine", "fields"), OTHER_ENGINES)
def test_estimate_of_other_engines_equals_the_shown_command(
    server: str, engine: str, fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = fit(server, engine=engine, **fields)
    assert answer["engine"] == answer["estimate"]["engine"] == engine
    estimate, by_command = answer["estimate"], run_command(answer["estimate_command"], capsys)
    if "vram" in fields:  # the command does not name the card
        by_command["notes"][0] = estimate["notes"][0]
    assert estimate == by_command
    check_bars(answer)


def test_flags_include_what_the_machine_determines(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`flags` has what the machine determines: GPU layers, backend, memory of each card."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    two = fit(server, model="qwen3-8b", vram="24G,12G", ram="32G", context="16k", n_gpu_layers=9)
    assert two["flags"] == {
        "context": "16384",
        "n_gpu_layers": "9",
        "backend": "cuda",
        "device_memory": f"{24 * 2**30},{12 * 2**30}",
    }
    mac = fit(server, model="qwen3-8b", device="m3-max-64", engine="llama.cpp", cpu_moe=True)
    assert mac["flags"] == {
        "context": "40960",
        "n_gpu_layers": "all",
        "cpu_moe": True,
        "backend": "metal",
        "cpu": "arm",
    }
    card = fit(server, model="qwen3-8b", engine="vllm", device="RTX 4090")
    assert card["flags"] == {"context": "40960", "gpu": "RTX 4090"}
    unnamed = fit(server, model="qwen3-8b", engine="vllm", vram="24G")
    assert unnamed["flags"] == {"context": "40960", "gpu_memory": str(24 * 2**30)}


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_repacking_follows_the_cpu_of_the_requested_machine(
    server: str, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fit` repacks weights for the CPU of the requested machine, as `check` does, not for this machine's CPU."""
    monkeypatch.setattr("platform.machine", lambda: architecture)
    request = {
        "model": "gemma-3-12b",
        "engine": "llama.cpp",
        "context": 4096,
        "device": "M4 Max 64GB",
    }
    answer = fit(server, **request)
    assert answer["flags"].get("cpu") == (None if architecture == "aarch64" else "arm")
    check = ask(server, "/api/v1/check", {**request, "backend": "cpu"}).json()
    by_fit, by_check = (
        [note.partition(":")[0] for note in result["estimate"]["notes"] if "repacked copy" in note]
        for result in (fit(server, **request, backend="cpu"), check)
    )
    assert by_fit == by_check != []


def test_streams_follow_the_unified_kv_cache_flag(server: str) -> None:
    request = {"model": "qwen3-8b", "engine": "llama.cpp", "parallel": 2, **CARD}
    assert fit(server, **request, unified=False)["streams"] == 2
    assert fit(server, **request, unified=True)["streams"] == 1


def test_context_is_the_native_one_by_default(server: str) -> None:
    answer = fit(server, model="qwen3-8b", **CARD)
    assert (answer["context_tokens"], answer["native_context"]) == (40_960, 40_960)
    assert fit(server, model="qwen3-8b", context="100k", **CARD)["context_tokens"] == 100 * 1024
    assert (
        fit(server, model="qwen3-8b", job="6000+800", **CARD)["context_tokens"] == 6000 + 800 + 64
    )


def test_model_and_reference_name_the_model(server: str) -> None:
    """A catalog model gets the prefix `catalog:`, so that a file of the same name is not opened instead."""
    known = fit(server, model="qwen3-8b", **CARD)
    assert (known["model"], known["reference"]) == ("qwen3-8b", "catalog:qwen3-8b")
    sample = fit(server, model=GEMMA, **CARD)
    assert sample["reference"] == GEMMA
    assert sample["estimate"]["model"] == sample["model"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model": "qwen3-8b", "engine": "mlx", **CARD}, "Apple silicon"),
        ({"model": "qwen3-8b", "engine": "vllm", "ram": "64G"}, "NVIDIA"),
        ({"model": GEMMA, "engine": "vllm", "device": "H100"}, "vLLM"),
        ({"model": "qwen3-8b", "engine": "llama.cpp", "type_v": "q4_0", "flash_attn": "off", **CARD}, "flash"),
        ({"model": "qwen3-8b", "backend": "metal", **CARD}, "no device for the backend"),
        ({"model": "qwen3-8b", "engine": "llama.cpp", "device": "RTX 4090", "backend": "cpu"}, "--ram"),
    ],
)  # fmt: skip
def test_model_that_an_engine_cannot_run_is_an_answer(
    server: str, fields: dict[str, Any], reason: str
) -> None:
    answer = fit(server, **fields)
    assert reason in answer["refused"]
    assert answer["told"] == f"Cannot run: {answer['refused']}"
    assert (answer["status"], answer["can_load"], answer["bars"]) == ("failed", False, [])
    assert (answer["estimate"], answer["command"]) == (None, None)
    assert answer["flags"].keys() <= fields.keys()
    assert answer["context_tokens"] == answer["native_context"] > 0


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"engine": "all", **CARD}, 400),
        ({"tensor_split": "1,1,1", **CARD}, 400),
        ({"context": 4096, "job": "1+1", **CARD}, 400),
        ({"gpu": "H100", "engine": "vllm", "device": "H100"}, 400),  # the machine says which card
        ({"device_memory": "24G", **CARD}, 400),
    ],
)
def test_fields_that_contradict_each_other_are_refused(
    server: str, fields: dict[str, Any], status: int
) -> None:
    assert ask(server, "/api/v1/fit", {"model": "qwen3-8b", **fields}).status == status


@pytest.mark.parametrize(
    ("model", "machine"),
    [
        ("qwen3-8b", CARD),
        (GEMMA, CARD),
        (QWEN, {"device": "RTX 3060", "ram": "32G"}),
        (GEMMA, {"vram": "16G,8G", "ram": "32G"}),
        ("deepseek-v3", CARD),
        ("nomic-embed-text-v1.5", {"ram": "8G"}),
        ("qwen3-8b", {"device": "m3-max-64"}),
        ("qwen3-8b", {"device": "2x RTX 3090", "engine": "vllm"}),
    ],
)
def test_flags_of_a_check_give_the_same_fit(
    server: str, model: str, machine: dict[str, Any]
) -> None:
    """The page sets its controls to these flags, and must then show what was checked."""
    check = ask(server, "/api/v1/check", {"model": model, **machine}).json()
    engine = check["engine"]["name"]
    answer = fit(server, model=model, **{**machine, "engine": engine}, **check["flags"])
    assert required_bytes(answer) == [budget["required_bytes"] for budget in check["budgets"]]
    for name in ("status", "context_tokens", "quantization", "cache"):
        assert answer[name] == check[name]
    assert {key: answer["flags"][key] for key in check["flags"]} == check["flags"]


RPC_SERVER = "10.0.0.5:50052=24G"


@pytest.mark.parametrize(
    "fields",
    [
        {"device": ["RTX 3060"], "ram": "64G", "rpc": RPC_SERVER},
        {"ram": "64G", "rpc": RPC_SERVER},
        {"device": ["RTX 4090", "RTX 3090"], "ram": "64G", "split_mode": "none", "main_gpu": 1},
        {"device": ["2x RTX 3090"], "ram": "64G", "split_mode": "tensor"},
    ],
    ids=["card and RPC server", "RPC server only", "one of two cards", "tensor split"],
)
def test_flags_of_a_fit_give_the_same_estimate(server: str, fields: dict[str, Any]) -> None:
    """The page passes them from the fit to the memory breakdown."""
    answer = fit(server, model=QWEN, context=8192, **fields)
    estimate = ask(server, "/api/v1/estimate", {"model": QWEN, **answer["flags"]}).json()
    assert estimate["lines"] == answer["estimate"]["lines"]


def test_fit_takes_no_flag_that_the_machine_determines() -> None:
    taken = machine_keys() & CALLS["fit"].request.model_fields.keys()
    assert taken == {
        "cpu"
    }  # the machine's processor; the engine's flag of this name is a kind of build


# --- curves


@pytest.mark.parametrize(
    ("fields", "caches"),
    [
        ({"model": GEMMA, **CARD}, ["f16", "q8_0", "q4_0"]),
        ({"model": "qwen3-8b", "ram": "16G", "type_k": "q8_0"}, ["f16", "q8_0", "q8_0 + q5_1", "q8_0 + q4_0", "q4_0"]),
        ({"model": "qwen3-8b", "engine": "vllm", "device": "H100"}, ["auto", "fp8"]),
        ({"model": "qwen3-8b", "engine": "mlx", "device": "m3-max-64"}, ["16 bit", "8 bit", "4 bit"]),
    ],
)  # fmt: skip
def test_curves_end_at_the_native_context(
    server: str, fields: dict[str, Any], caches: list[str]
) -> None:
    answer = ask(server, "/api/v1/curves", {**fields, "points": 6}).json()
    assert [curve["cache"] for curve in answer["curves"]] == caches
    for curve in answer["curves"]:
        tokens = [point[0] for point in curve["points"]]
        assert tokens == sorted(set(tokens))
        assert 6 <= len(tokens) <= 7  # the longest context that fits may be one point more
        assert tokens[-1] == curve["native"]
        within = [size <= curve["budget_bytes"] for _, size in curve["points"]]
        assert within == [count <= curve["longest"] for count in tokens]


def test_curve_points_are_the_bytes_of_a_fit(server: str) -> None:
    curve = ask(server, "/api/v1/curves", {"model": "qwen3-8b", **CARD, "type_k": "q4_0"}).json()[
        "curves"
    ][0]
    assert curve["cache"] == "f16"
    for tokens, size in curve["points"][::5]:
        bars = fit(server, model="qwen3-8b", context=tokens, **CARD)["bars"]
        assert size in [bar["required_bytes"] for bar in bars if bar["memory"] == curve["memory"]]


@pytest.mark.parametrize("points", [1, 0, -1, 65, 10**9, "many", 2.5, True, None])
def test_points_must_be_an_integer_from_2_to_64(server: str, points: object) -> None:
    answer = ask(server, "/api/v1/curves", {"model": "qwen3-8b", **CARD, "points": points})
    assert answer.status == (200 if points is None else 400)


def test_curves_of_a_model_that_cannot_run_are_refused(server: str) -> None:
    fields = {"model": "qwen3-8b", "engine": "mlx", "ram": "8G"}
    assert ask(server, "/api/v1/curves", fields).status == 422


# --- what is cached between the steps of a slider


def test_slider_step_reuses_what_was_computed() -> None:
    """A step of the context slider makes at most 35,000 Python calls: what does not depend on it is cached."""
    state = WebState(WebSettings(network=False))
    call = CALLS["fit"]
    try:
        for model in ("qwen3-8b", "gemma-3-27b", "qwen3-30b-a3b", "deepseek-v3"):
            counts = []
            for context in range(4096, 8192, 1024):
                request = call.request.model_validate({"model": model, "context": context, **CARD})
                counts.append(calls_of(partial(call.answer, state, request, CallWatch())))
            assert max(counts[1:]) <= 35_000, (model, counts)
    finally:
        state.close()


def test_draft_model_is_read_once_for_all_slider_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = write_model(tmp_path)
    fields = {"model": GEMMA, "draft_model": drafter.name, "engine": "llama.cpp", **CARD}
    read: list[Any] = []

    def record_price_loads(*arguments: Any) -> Any:
        read.append(arguments[2].get("draft_model"))
        return price_loads(*arguments)

    monkeypatch.setattr(web_models, "price_loads", record_price_loads)
    with start(replace(LOCAL, models_dirs=(tmp_path,))) as address:
        first = fit(address, **fields, context=4096)
        second = fit(address, **fields, context=8192)
        without = fit(address, model=GEMMA, engine="llama.cpp", context=8192, **CARD)
    assert read.count(str(drafter)) == 1
    assert sum(required_bytes(first)) < sum(required_bytes(second))
    assert (
        sum(required_bytes(second)) - sum(required_bytes(without)) > 4 * 2**30
    )  # an 8B model at Q4_K_M
    assert first["flags"]["draft_model"] == str(drafter)


def test_note_on_the_model_is_in_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = replace(open_named("qwen3-8b"), notes=("known from the catalog",))
    monkeypatch.setattr(web_models, "open_named", lambda *_, **__: model)
    state = WebState(WebSettings(network=False))
    try:
        request = CALLS["fit"].request.model_validate({"model": "some/model", **CARD})
        assert CALLS["fit"].answer(state, request, CallWatch())["notes"] == [
            "known from the catalog"
        ]
    finally:
        state.close()


@pytest.mark.parametrize(
    ("types", "cache"),
    [
        ({"type_k": "q8_0"}, "q8_0 + f16"),
        ({"type_v": "q4_0"}, "f16 + q4_0"),
        ({"type_k": "q8_0", "type_v": "q8_0"}, "q8_0"),
    ],
)
def test_cache_types_of_the_request_are_named_in_the_verdict(
    server: str, types: dict[str, str], cache: str
) -> None:
    result = fit(server, model="llama-3.1-8b", engine="llama.cpp", context="8192", **types, **CARD)
    assert result["cache"] == cache
    assert ("with an 8-bit cache" if cache == "q8_0" else f"{cache} cache") in result["told"]


def test_vllm_uses_a_quantised_repository_where_the_original_does_not_fit(server: str) -> None:
    request = {"model": "llama-3.1-8b", "engine": "vllm", "device": "RTX 4060 Ti 16GB"}
    check = ask(server, "/api/v1/check", request).json()
    result = fit(server, **request, **check["flags"])
    for name in ("status", "quantization", "cache", "context_tokens", "command"):
        assert result[name] == check[name], name
    assert result["quantization"] == "FP8"
    served = re.search(r"vllm serve (\S+)", result["command"])
    assert served is not None
    assert result["estimate_command"].startswith(f"edgekit estimate {served[1]} ")
    curves = ask(server, "/api/v1/curves", request).json()["curves"]
    assert curves[0]["longest"] >= check["context_tokens"]
    larger = fit(server, **request | {"device": "RTX 4090"}, **check["flags"])
    assert larger["quantization"] == "as stored"


def test_min_context_over_the_native_context_fails_as_in_a_check(server: str) -> None:
    request = {"model": "phi-4", "engine": "llama.cpp", "min_context": "65536", **CARD}
    check = ask(server, "/api/v1/check", request).json()
    result = fit(server, **request, **check["flags"])
    assert (result["status"], check["status"]) == ("failed", "failed")
    assert check["reasons"][0] in result["told"]
