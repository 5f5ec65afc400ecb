"""Request: the same from a command line, a web query, a row of a batch or Python keywords."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from edgekit.bill.types import Job
from edgekit.cli import main
from edgekit.cli.parser import build_parser
from edgekit.errors import UsageError
from edgekit.index.types import ModelPurpose
from edgekit.plan.choice import check_users
from edgekit.request import Request
from edgekit.web import requests


def from_argv(words: str, command: str = "check") -> Request:
    return Request.from_argv(build_parser().parse_args([command, *shlex.split(words)]))


def from_query(call: Any, **fields: Any) -> Request:
    result: Request = call(**fields).request()
    return result


SAME: tuple[tuple[str, dict[str, Any]], ...] = (
    ("-c 32k --users 4", {"context": "32k", "users": 4}),
    ("-ngl 20 -ctk q8_0 --no-mmap", {"n_gpu_layers": 20, "type_k": "q8_0", "mmap": False}),
    ("--engine vllm -tp 2 --kv-cache-dtype fp8", {"engine": "vllm", "tensor_parallel_size": 2, "kv_cache_dtype": "fp8"}),
    ("--engine all -c 4096", {"engine": "all", "context": 4096}),
    ("--job 6000+800 --max-use 85% --reserve 512M", {"job": "6000+800", "max_use": "85%", "reserve": "512M"}),
    ("--device 'RTX 4090' --ram 64G --window-budget 4G", {"device": "RTX 4090", "ram": "64G", "window_budget": "4G"}),
    ("--min-speed 20 --prompt 4k", {"min_speed": 20, "prompt_tokens": "4k"}),
    ("--min-speed 7.5", {"min_speed": 7.5}),
    ("--quant Q8_0 --min-context 8k", {"quant": "Q8_0", "min_context": "8k"}),
    ("--engine mlx --quantize 4bit", {"engine": "mlx", "quantize": "4bit"}),
)  # fmt: skip


@pytest.mark.parametrize(("words", "fields"), SAME)
def test_from_argv_and_web_query_give_the_same_request(words: str, fields: dict[str, Any]) -> None:
    assert from_argv(f"qwen3-8b {words}") == from_query(requests.CHECK, model="qwen3-8b", **fields)


def test_from_argv_parses_values() -> None:
    request = from_argv("qwen3-8b -c 32k -ngl 20")
    assert (request.engines, request.context) == (("llama.cpp",), 32 * 1024)
    assert request.values("llama.cpp") == {"context": 32 * 1024, "n_gpu_layers": 20}
    limited = from_argv("qwen3-8b --job 6000+800 --max-use 85% --reserve 512M --window-budget 4G")
    assert limited.job == Job(prompt_tokens=6000, new_tokens=800)
    assert (limited.max_use, limited.reserve_bytes) == (0.85, 512 * 2**20)
    assert limited.window_budget_bytes == 4 * 2**30
    assert from_argv("--task coding --limit 3", "recommend").purpose is ModelPurpose.CODE


def test_from_kwargs_has_the_fields_of_from_argv() -> None:
    request = Request.from_kwargs(
        "vllm", context=8192, users=2, job=None, max_use=0.85, reserve=0, device="H100", ram="64G"
    )
    words = "M --engine vllm -c 8k --users 2 --max-use 85% --reserve 0 --device H100 --ram 64G"
    from_flags = from_argv(words)
    same = ("engines", "context", "users", "job", "max_use", "reserve_bytes", "devices", "ram")
    for name in same:
        assert getattr(request, name) == getattr(from_flags, name), name


def test_from_row_reads_engine_quant_and_options() -> None:
    row = {"engine": "vLLM", "quant": "fp8", "options": {"max_model_len": 4096}}
    request = Request.from_row(row)
    assert (request.engines, request.quant) == (("vllm",), "fp8")
    assert request.options == {"max_model_len": 4096}
    with pytest.raises(UsageError, match="options must be an object"):
        Request.from_row({"options": [1]})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-c 8k --job 6000+800", "give a context or a job, not both"),
        ("--engine vllm -ngl 3", "-ngl/--n-gpu-layers/--gpu-layers is a flag of llama.cpp"),
        ("--users 0", "--users: must be at least 1"),
        ("--engine llama.cpp --quant 3bit", "llama.cpp has no quantisation '3bit'"),
        ("--engine nobody", "unknown engine 'nobody'"),
    ],
)
def test_from_argv_refuses_invalid_flags(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_argv(f"qwen3-8b {words}")


def test_cache_type_unknown_to_one_engine_does_not_stop_check_of_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The built-in engine has no q4_0; the other engines are still checked."""
    request = from_argv("qwen3-8b --engine all -ctk q4_0 -ctv q4_0")
    assert request.values("llama.cpp") == {"type_k": "q4_0", "type_v": "q4_0"}
    with pytest.raises(UsageError, match="'q4_0' is not one of f32, f16, q8_0"):
        request.values("stream")
    words = ["check", "qwen3-8b", "--engine", "all", "-ctk", "q4_0", "-ctv", "q4_0", "-c", "4096"]
    assert main([*words, "--device", "RTX 4090", "--ram", "64G", "--quiet"]) == 0
    assert "llama.cpp" in capsys.readouterr().out


def test_quant_for_the_built_in_engine_needs_a_repository() -> None:
    """A repository may have the file, which opening it shows; a model of the catalog is refused."""
    request = from_argv("org/name --engine stream --quant Q8_0")
    assert (request.engine, request.quant) == ("stream", "Q8_0")
    assert main(["check", "qwen3-8b", "--engine", "stream", "--quant", "Q8_0", "--ram", "16G"]) == 2


@pytest.mark.parametrize("word", ["auto", "AUTO", "all"])
def test_estimate_recommend_and_cards_refuse_auto_and_all(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They answer for one engine, and refuse these names before any other error."""
    for words in (["estimate", "qwen3-0.6b", "-b", "0"], ["recommend", "--ram", "8G"]):
        assert main([*words, "--engine", word]) == 2
        assert f"unknown engine {word!r}" in capsys.readouterr().err
    for call in (requests.ESTIMATE, requests.RECOMMEND, requests.CARDS):
        fields = {"model": "qwen3-0.6b"} if call is requests.ESTIMATE else {}
        with pytest.raises(UsageError, match=f"unknown engine {word!r}"):
            from_query(call, engine=word, **fields)
    assert from_query(requests.FIT, model="qwen3-0.6b", engine="auto").engines == ()


@pytest.mark.parametrize("words", ["--engine stream", "--keep 1G"])
def test_wrong_cache_type_is_reported_by_the_chosen_engine(words: str) -> None:
    with pytest.raises(UsageError, match="'q9' is not one of f32, f16, q8_0"):
        from_argv(f"qwen3-8b {words} -ctk q9")


def test_check_users_refuses_the_built_in_engine() -> None:
    with pytest.raises(UsageError, match="the built-in engine serves one user at a time"):
        check_users(0, "stream")


BAD_SPEEDS = (
    "0",
    "-1",
    "nan",
    "inf",
    "1e308",
    "1e10",
    "fast",
    "",
    " ",
    "20 tokens/s",
    "9" * 4000,
)


@pytest.mark.parametrize("text", BAD_SPEEDS)
def test_min_speed_must_be_a_speed(text: str) -> None:
    with pytest.raises(UsageError, match="--min-speed takes tokens per second above 0") as caught:
        from_query(requests.CHECK, model="qwen3-8b", min_speed=text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("speed", [0, -1, float("nan"), float("inf"), 1e308, True, "20", [20]])
def test_min_speed_in_python_must_be_a_speed(speed: Any) -> None:
    with pytest.raises(UsageError, match=r"min[-_]speed"):
        Request.from_kwargs(min_speed=speed)


def test_min_speed_in_python() -> None:
    assert Request.from_kwargs(min_speed=20).min_speed == 20.0
    assert Request.from_kwargs(min_speed=0.5, prompt_tokens=4096).prompt_tokens == 4096
    assert Request.from_kwargs().min_speed is None
