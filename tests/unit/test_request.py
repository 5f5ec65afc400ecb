"""One request, however it is written: a command line, a query or Python."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from edgekit.bill.types import Job
from edgekit.catalog.types import ModelPurpose
from edgekit.cli import main
from edgekit.cli.parser import build_parser
from edgekit.errors import UsageError
from edgekit.plan.choice import check_users
from edgekit.request import Request
from edgekit.web import requests


def by_argv(words: str, command: str = "check") -> Request:
    return Request.from_argv(build_parser().parse_args([command, *shlex.split(words)]))


def by_query(call: Any, **fields: Any) -> Request:
    result: Request = call(**fields).request()
    return result


SAME: tuple[tuple[str, dict[str, Any]], ...] = (
    ("-c 32k --users 4", {"context": "32k", "users": 4}),
    ("-ngl 20 -ctk q8_0 --no-mmap", {"n_gpu_layers": 20, "type_k": "q8_0", "mmap": False}),
    ("--engine vllm -tp 2 --kv-cache-dtype fp8", {"engine": "vllm", "tensor_parallel_size": 2, "kv_cache_dtype": "fp8"}),
    ("--engine all -c 4096", {"engine": "all", "context": 4096}),
    ("--job 6000+800 --max-use 85% --reserve 512M", {"job": "6000+800", "max_use": "85%", "reserve": "512M"}),
    ("--device 'RTX 4090' --ram 64G --window-budget 4G", {"device": "RTX 4090", "ram": "64G", "window_budget": "4G"}),
    ("--quant Q8_0 --min-context 8k", {"quant": "Q8_0", "min_context": "8k"}),
    ("--engine mlx --quantize 4bit", {"engine": "mlx", "quantize": "4bit"}),
)  # fmt: skip


@pytest.mark.parametrize(("words", "fields"), SAME)
def test_from_argv_and_from_query_are_the_same(words: str, fields: dict[str, Any]) -> None:
    assert by_argv(f"qwen3-8b {words}") == by_query(requests.CHECK, model="qwen3-8b", **fields)


def test_values_are_parsed() -> None:
    request = by_argv("qwen3-8b -c 32k -ngl 20")
    assert (request.engines, request.context) == (("llama.cpp",), 32 * 1024)
    assert request.values("llama.cpp") == {"context": 32 * 1024, "n_gpu_layers": 20}
    other = by_argv("qwen3-8b --job 6000+800 --max-use 85% --reserve 512M --window-budget 4G")
    assert other.job == Job(prompt_tokens=6000, new_tokens=800)
    assert (other.max_use, other.reserve_bytes) == (0.85, 512 * 2**20)
    assert other.window_budget_bytes == 4 * 2**30
    assert by_argv("--task coding --limit 3", "recommend").purpose is ModelPurpose.CODE


def test_from_kwargs_has_the_fields_of_from_argv() -> None:
    request = Request.from_kwargs(
        "vllm", context=8192, users=2, job=None, max_use=0.85, reserve=0, device="H100", ram="64G"
    )
    words = "M --engine vllm -c 8k --users 2 --max-use 85% --reserve 0 --device H100 --ram 64G"
    typed = by_argv(words)
    same = ("engines", "context", "users", "job", "max_use", "reserve_bytes", "devices", "ram")
    for name in same:
        assert getattr(request, name) == getattr(typed, name), name


def test_from_row() -> None:
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
def test_errors_come_from_the_parser(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        by_argv(f"qwen3-8b {words}")


def test_a_cache_type_that_one_of_all_engines_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    """The built-in engine has no q4_0: that is no reason to refuse the others an answer."""
    request = by_argv("qwen3-8b --engine all -ctk q4_0 -ctv q4_0")
    assert request.values("llama.cpp") == {"type_k": "q4_0", "type_v": "q4_0"}
    with pytest.raises(UsageError, match="'q4_0' is not one of f32, f16, q8_0"):
        request.values("stream")
    words = ["check", "qwen3-8b", "--engine", "all", "-ctk", "q4_0", "-ctv", "q4_0", "-c", "4096"]
    assert main([*words, "--device", "RTX 4090", "--ram", "64G", "--quiet"]) == 0
    assert "llama.cpp" in capsys.readouterr().out


def test_the_built_in_engine_takes_a_quantisation_that_a_repository_may_have() -> None:
    """Whether it has is known when it is opened; a model of the catalog is refused then."""
    request = by_argv("org/name --engine stream --quant Q8_0")
    assert (request.engine, request.quant) == ("stream", "Q8_0")
    assert main(["check", "qwen3-8b", "--engine", "stream", "--quant", "Q8_0", "--ram", "16G"]) == 2


@pytest.mark.parametrize("word", ["auto", "AUTO", "all"])
def test_a_bill_is_of_one_engine(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """estimate, recommend and the cards have no auto, and say so before any other error."""
    for words in (["estimate", "qwen3-0.6b", "-b", "0"], ["recommend", "--ram", "8G"]):
        assert main([*words, "--engine", word]) == 2
        assert f"unknown engine {word!r}" in capsys.readouterr().err
    for call in (requests.ESTIMATE, requests.RECOMMEND, requests.CARDS):
        fields = {"model": "qwen3-0.6b"} if call is requests.ESTIMATE else {}
        with pytest.raises(UsageError, match=f"unknown engine {word!r}"):
            by_query(call, engine=word, **fields)
    assert by_query(requests.FIT, model="qwen3-0.6b", engine="auto").engines == ()


@pytest.mark.parametrize("words", ["--engine stream", "--keep 1G"])
def test_a_wrong_value_is_told_by_the_engine_that_was_chosen(words: str) -> None:
    with pytest.raises(UsageError, match="'q9' is not one of f32, f16, q8_0"):
        by_argv(f"qwen3-8b {words} -ctk q9")


def test_no_users_of_the_built_in_engine() -> None:
    with pytest.raises(UsageError, match="the built-in engine serves one user at a time"):
        check_users(0, "stream")
