"""The built-in engine on the command line: estimate, check, compare, and the commands that refuse it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.thoroughness import costly
from tests.unit.cli.test_compare import CONFIG
from tests.unit.cli.test_estimate import write_model

import edgekit
from edgekit.cli import main
from edgekit.engines.native.stream_plan import StreamSetup
from edgekit.errors import UsageError
from edgekit.models import can_load, model_preflight
from edgekit.units import GIB, MIB

SAMPLE = "sample:gemma-3-27b"


def run_edgekit(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    code, out, err = run_edgekit(capsys, *argv, "--json")
    assert (code, err) == (0, "")
    answer: dict[str, Any] = json.loads(out)
    return answer


@pytest.fixture
def seven_b(tmp_path: Path) -> str:
    """Qwen2.5-7B at Q4_K_M."""
    return str(write_model(tmp_path, "qwen2.5-7b"))


# --- estimate


def test_estimate_text(seven_b: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--engine", "stream", "-c", "4k", "--threads", "2", "--rolling", "--sinks", "4")
    code, out, err = run_edgekit(capsys, "estimate", seven_b, *argv, "-ctk", "q8_0")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].endswith(" MiB in RAM")
    assert f"stream {edgekit.__version__}  ·  cpu" in lines[1]
    text = " ".join(lines[2:4])
    assert text.startswith(
        "4,096 tokens of context that roll, the first 4 stay, cache q8_0 and f16"
    )
    assert "of weights read from the file for every token" in text
    assert "exact: weights, kv cache, output, compute" in out
    command = (
        f"edgekit run {seven_b} --engine stream -c 4096 --rolling --sinks 4 --threads 2 -ctk q8_0"
    )
    assert " ".join(out.partition("Run ")[2].replace("\\\n", " ").split()) == command
    assert max(map(len, lines)) <= 100 or seven_b in out


@pytest.mark.parametrize("name", ["stream", "edgekit", "built-in", "Builtin", "streaming"])
def test_engine_name_selects_the_built_in_engine(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run_json(capsys, "estimate", SAMPLE, "--engine", name, "-c", "64")
    assert answer["engine"] == "stream"
    assert answer["basis"] == "exact"
    assert {line["basis"] for line in answer["lines"]} == {"exact"}
    assert answer["facts"]["window"] == 64


@pytest.mark.parametrize(
    ("argv", "facts"),
    [
        (("--keep", "all"), {"streamed_bytes": 0}),
        (("--keep", "none"), {"kept_bytes": 0}),
        (("--chunk", "16"), {"chunk_tokens": 16}),
        (("--rolling", "--sinks", "8"), {"rolling": True, "sinks": 8}),
        (("--threads", "3"), {"threads": 3}),
        (
            ("--engine", "stream", "-ctk", "f32", "-ctv", "q8_0"),
            {"cache_k": "f32", "cache_v": "q8_0"},
        ),
        (("--keep", "none", "-ctk", "q8_0"), {"cache_k": "q8_0"}),
    ],
)
def test_flag_of_the_built_in_engine_selects_it(
    argv: tuple[str, ...], facts: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run_json(capsys, "estimate", SAMPLE, "-c", "1k", *argv)
    assert answer["engine"] == "stream"
    assert facts.items() <= answer["facts"].items()


def test_cache_type_alone_selects_llama_cpp(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "estimate", SAMPLE, "-c", "1k", "-ctk", "q4_0")
    assert answer["engine"] == "llama.cpp"


def test_keep_limits_the_weights_in_memory(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "estimate", SAMPLE, "-c", "1k", "--keep", "1.5G")
    assert 0.9 * 1.5 * GIB < answer["facts"]["kept_bytes"] <= 1.5 * GIB
    assert answer["command"].endswith("--keep 1536M")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--keep", "much"), "--keep: 'much'"),
        (("--keep", "-1"), "--keep"),
        (("--sinks", "4"), "--rolling"),
        (("--chunk", "0"), "--chunk: must be at least 1 (got 0)"),
        (("--threads", "0"), "--threads: must be at least 1 (got 0)"),
        (
            ("--engine", "stream", "-ctk", "q4_0"),
            "-ctk/--cache-type-k: 'q4_0' is not one of f32, f16, q8_0",
        ),
        (("--engine", "stream", "-ngl", "3"), "is a flag of llama.cpp; the engine here is stream"),
        (("--keep", "all", "-ngl", "3"), "choose one with --engine"),
        (("--keep", "all", "--kv-bits", "8"), "choose one with --engine"),
        (("--engine", "vllm", "-ctk", "q8_0"), "--cache-type-k is a flag of llama.cpp"),
        (("--engine", "mlx", "--keep", "all"), "--keep is a flag of stream"),
    ],
)
def test_estimate_error_is_one_line(
    argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_edgekit(capsys, "estimate", SAMPLE, *argv)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [("gemma-2-2b", 5, "engines/native/families.py"), ("mixtral-8x7b", 2, "llama.expert_count")],
)
def test_unsupported_model_is_an_error(
    name: str, code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_model(tmp_path, name))
    for command in ("estimate", "check"):
        result, out, err = run_edgekit(capsys, command, path, "--engine", "stream")
        assert (result, out) == (code, "")
        assert message in err


def test_batch_rows(seven_b: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"context_tokens": 90, "threads": 2, "keep": "all", "type_k": "f32", "type_v": "f32"}
    rows = [
        {"model": seven_b, "engine": "stream", "options": options},
        {"model": seven_b, "engine": "stream", "options": {"keep": True}},
        {"model": seven_b, "engine": "stream", "options": {"n_ctx": 5}},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    code, out, _ = run_edgekit(capsys, "estimate", "--batch", str(path))
    first, second, third = map(json.loads, out.splitlines())
    assert code == 0
    assert first["kv_bytes"] == 28 * 90 * 2 * 512 * 4
    assert first["basis"] == "exact"
    assert second["type"] == "UsageError"
    assert "keep True" in second["error"]
    assert third["error"] == "stream has no option 'n_ctx': did you mean context_tokens?"


# --- check


def test_check_of_a_7b_passes_with_512_mib(
    seven_b: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_edgekit(
        capsys, "check", seven_b, "--engine", "stream", "--ram", "512M", "--strict"
    )
    assert (code, err) == (0, "")
    assert out.startswith(
        "Runs on the built-in engine (weights read from the file for every token): "
    )
    assert "tokens/s" not in out  # it depends on the disk
    assert "-ctk q8_0 -ctv q8_0 (8-bit cache): up to " in out
    assert "--engine stream -c " in out
    assert "--keep none" in out
    code, out, _ = run_edgekit(
        capsys, "check", seven_b, "--engine", "stream", "--ram", "512M", "--why"
    )
    assert code == 0
    assert "for Python, its libraries and the vocabulary" in out


def test_check_of_a_catalog_name_assumes_a_q4_k_m_file(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "check", "llama-3.1-8b", "--engine", "stream", "--ram", "16G")
    on_llama_cpp = run_json(capsys, "check", "llama-3.1-8b:Q4_K_M", "--ram", "16G", "-c", "1024")
    assert answer["quantization"] == on_llama_cpp["quantization"] == "Q4_K_M"
    stream, llama_cpp = (item["estimate"]["model_bytes"] for item in (answer, on_llama_cpp))
    assert 0.98 * llama_cpp < stream <= llama_cpp
    assert "llama-3.1-8b:Q4_K_M --engine stream" in answer["command"]


def test_check_keeps_all_weights_in_memory_where_they_fit(
    seven_b: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run_json(capsys, "check", seven_b, "--engine", "stream", "--ram", "16G")
    assert answer["way"] == "all weights in memory"
    assert (answer["status"], answer["context_tokens"]) == ("passed", 32_768)
    assert "--keep all" in answer["command"]
    assert answer["engine"] == {"name": "stream", "version": edgekit.__version__}


@costly
@pytest.mark.parametrize("context", ["2048", "2500"])
def test_suggested_memory_is_enough_and_20_mib_less_is_not(
    seven_b: str, context: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is far less than the weights, which are read from the file."""
    argv = ("check", seven_b, "--engine", "stream", "-c", context, "--min-context", "256", "--ram")
    code, out, _ = run_edgekit(capsys, *argv, "256M")
    assert code == 3
    advice = re.search(r"([0-9]+) MiB of free RAM \(256.00 MiB now\)", out)
    assert advice is not None
    assert run_edgekit(capsys, *argv, f"{advice[1]}M", "--quiet")[0] == 0
    assert run_edgekit(capsys, *argv, f"{int(advice[1]) - 20}M", "--quiet")[0] == 3


def test_check_that_does_not_fit_counts_the_cache_but_not_the_weights(
    seven_b: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """28 layers of 2 x 512 values at 8.5 bits for each of 32,768 tokens are 952 MiB."""
    code, out, _ = run_edgekit(
        capsys, "check", seven_b, "--engine", "stream", "--ram", "512M", "-c", "32k"
    )
    assert code == 3
    result = re.match(
        r"Does not fit your 512 MiB RAM at 32K, even with an 8-bit cache: needs ([0-9.]+) MiB, "
        r"([0-9.]+) usable; fits\nup to [0-9,]+ tokens\n",
        out,
    )
    assert result is not None
    assert 28 * 2 * 512 * 34 / 32 * 32_768 / MIB < float(result[1]) < 1000
    assert float(result[2]) < 512
    assert "of free RAM (512.00 MiB now)" in out


def test_check_of_all_engines_fits_80_columns(
    seven_b: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run_edgekit(capsys, "check", seven_b, "--engine", "all", "--ram", "1G")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    rows = [line for line in out.splitlines() if line.startswith(("fits", "tight", "does not fit"))]
    assert [("llama.cpp" in row, "stream" in row) for row in rows] == [(True, False), (False, True)]
    assert "1 fits, 1 does not fit, 2 cannot run" in out


@pytest.mark.parametrize("name", ["gemma-2-2b", "mixtral-8x7b"])
def test_unsupported_model_is_left_out_of_all_engines(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_model(tmp_path, name))
    _, out, _ = run_edgekit(capsys, "check", path, "--engine", "all", "--ram", "64G")
    assert "llama.cpp" in out
    assert "stream" not in out
    code, out, _ = run_edgekit(capsys, "compare", path, "-c", "1k")
    assert code == 0
    assert "stream" not in out


# --- compare


def test_compare_includes_the_built_in_engine_for_a_gguf(
    seven_b: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run_json(capsys, "compare", seven_b, "-c", "4k")
    assert list(answer["engines"]) == ["llama.cpp", "vllm", "mlx", "stream"]
    stream, llama_cpp = answer["engines"]["stream"], answer["engines"]["llama.cpp"]
    assert stream["kv_bytes"] == llama_cpp["kv_bytes"] == 4096 * 28 * 2 * 512 * 2
    assert stream["total_bytes"] < llama_cpp["total_bytes"] / 10


def test_safetensors_are_not_for_the_built_in_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    answer = run_json(capsys, "compare", str(tmp_path))
    assert list(answer["engines"]) == ["llama.cpp", "vllm", "mlx"]
    code, _, err = run_edgekit(capsys, "estimate", str(tmp_path), "--engine", "stream")
    assert code == 2
    assert "reads GGUF files" in err


# --- commands that refuse it


@pytest.mark.parametrize("argv", [("plan", SAMPLE), ("recommend",)])
def test_plan_and_recommend_name_the_commands_to_use_instead(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_edgekit(capsys, *argv, "--engine", "built-in")
    assert (code, out) == (2, "")
    assert "edgekit check MODEL --engine stream" in err
    assert "edgekit run MODEL --engine stream" in err
    assert len(err.splitlines()) == 1


# --- Python


def test_model_preflight_with_the_built_in_engine(seven_b: str) -> None:
    result = model_preflight(
        seven_b, "stream", context=2048, ram="1G", options={"type_k": "q8_0", "keep": "none"}
    )
    assert result.passed
    assert result.estimate.kv_cache_bytes == 28 * 2048 * (512 // 32 * 34 + 512 * 2)
    assert StreamSetup.of(result.way.setup).keep_bytes == 0
    assert can_load(seven_b, "stream", ram="512M")
    assert not can_load(seven_b, "llama.cpp", ram="2G")


def test_model_preflight_refuses_options_of_other_engines(seven_b: str) -> None:
    with pytest.raises(UsageError, match="stream has no option 'n_gpu_layers'"):
        model_preflight(seven_b, "stream", ram="1G", options={"n_gpu_layers": 3})
