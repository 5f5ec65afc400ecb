"""The built-in engine as a person or a program meets it: estimate, check, compare, and who refuses it."""

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


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def ask_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code, out, err = ask(capsys, *words, "--json")
    assert (code, err) == (0, "")
    answer: dict[str, Any] = json.loads(out)
    return answer


@pytest.fixture
def seven_b(tmp_path: Path) -> str:
    """Q4_K and Q6_K in the shape of Qwen2.5-7B."""
    return str(write_model(tmp_path, "qwen2.5-7b"))


# --- estimate


def test_one_screen_for_a_person(seven_b: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--engine", "stream", "-c", "4k", "--threads", "2", "--rolling", "--sinks", "4")
    code, out, err = ask(capsys, "estimate", seven_b, *words, "-ctk", "q8_0")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].endswith(" MiB in RAM")
    assert f"stream {edgekit.__version__}  ·  cpu" in lines[1]
    answer = " ".join(lines[2:4])
    assert answer.startswith(
        "4,096 tokens of context that roll, the first 4 stay, cache q8_0 and f16"
    )
    assert "of weights read from the file for every token" in answer
    assert "exact: weights, kv cache, output, compute" in out
    run = f"edgekit run {seven_b} --engine stream -c 4096 --rolling --sinks 4 --threads 2 -ctk q8_0"
    assert " ".join(out.partition("Run ")[2].replace("\\\n", " ").split()) == run
    assert max(map(len, lines)) <= 100 or seven_b in out


@pytest.mark.parametrize("name", ["stream", "edgekit", "built-in", "Builtin", "streaming"])
def test_names_of_the_engine(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, "estimate", SAMPLE, "--engine", name, "-c", "64")
    assert answer["engine"] == "stream"
    assert answer["basis"] == "exact"
    assert {line["basis"] for line in answer["lines"]} == {"exact"}
    assert answer["facts"]["window"] == 64


@pytest.mark.parametrize(
    ("words", "facts"),
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
def test_its_flags_choose_it(
    words: tuple[str, ...], facts: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = ask_json(capsys, "estimate", SAMPLE, "-c", "1k", *words)
    assert answer["engine"] == "stream"
    assert facts.items() <= answer["facts"].items()


def test_a_shared_flag_alone_is_llama_cpps(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, "estimate", SAMPLE, "-c", "1k", "-ctk", "q4_0")
    assert answer["engine"] == "llama.cpp"


def test_as_much_is_kept_as_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, "estimate", SAMPLE, "-c", "1k", "--keep", "1.5G")
    assert 0.9 * 1.5 * GIB < answer["facts"]["kept_bytes"] <= 1.5 * GIB
    assert answer["command"].endswith("--keep 1536M")


@pytest.mark.parametrize(
    ("words", "message"),
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
def test_errors_are_a_sentence(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ask(capsys, "estimate", SAMPLE, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [("gemma-2-2b", 5, "engines/native/families.py"), ("mixtral-8x7b", 2, "llama.expert_count")],
)
def test_models_that_it_does_not_run(
    name: str, code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_model(tmp_path, name))
    for command in ("estimate", "check"):
        result, out, err = ask(capsys, command, path, "--engine", "stream")
        assert (result, out) == (code, "")
        assert message in err


def test_a_row_of_a_batch(seven_b: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"context_tokens": 90, "threads": 2, "keep": "all", "type_k": "f32", "type_v": "f32"}
    rows = [
        {"model": seven_b, "engine": "stream", "options": options},
        {"model": seven_b, "engine": "stream", "options": {"keep": True}},
        {"model": seven_b, "engine": "stream", "options": {"n_ctx": 5}},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    code, out, _ = ask(capsys, "estimate", "--batch", str(path))
    first, second, third = map(json.loads, out.splitlines())
    assert code == 0
    assert first["kv_bytes"] == 28 * 90 * 2 * 512 * 4
    assert first["basis"] == "exact"
    assert second["type"] == "UsageError"
    assert "keep True" in second["error"]
    assert third["error"] == "stream has no option 'n_ctx': did you mean context_tokens?"


# --- check


def test_a_7b_passes_on_512_megabytes(seven_b: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(
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
    code, out, _ = ask(capsys, "check", seven_b, "--engine", "stream", "--ram", "512M", "--why")
    assert code == 0
    assert "for Python, its libraries and the vocabulary" in out


def test_a_catalog_name_is_checked_as_a_q4_k_m_file(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, "check", "llama-3.1-8b", "--engine", "stream", "--ram", "16G")
    whole = ask_json(capsys, "check", "llama-3.1-8b:Q4_K_M", "--ram", "16G", "-c", "1024")
    assert answer["quantization"] == whole["quantization"] == "Q4_K_M"
    ours, theirs = (item["estimate"]["model_bytes"] for item in (answer, whole))
    assert 0.98 * theirs < ours <= theirs
    assert "llama-3.1-8b:Q4_K_M --engine stream" in answer["command"]


def test_on_a_larger_machine_all_weights_stay(
    seven_b: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = ask_json(capsys, "check", seven_b, "--engine", "stream", "--ram", "16G")
    assert answer["way"] == "all weights in memory"
    assert (answer["status"], answer["context_tokens"]) == ("passed", 32_768)
    assert "--keep all" in answer["command"]
    assert answer["engine"] == {"name": "stream", "version": edgekit.__version__}


@costly
@pytest.mark.parametrize("context", ["2048", "2500"])
def test_the_memory_that_it_advises_is_enough_and_little_less_is_not(
    seven_b: str, context: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Far below the weights, which are read from the file."""
    words = ("check", seven_b, "--engine", "stream", "-c", context, "--min-context", "256", "--ram")
    code, out, _ = ask(capsys, *words, "256M")
    assert code == 3
    result = re.search(r"([0-9]+) MiB of free RAM \(256.00 MiB now\)", out)
    assert result is not None
    assert ask(capsys, *words, f"{result[1]}M", "--quiet")[0] == 0
    assert ask(capsys, *words, f"{int(result[1]) - 20}M", "--quiet")[0] == 3


def test_what_does_not_fit_is_reported_without_weights_in_memory(
    seven_b: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """28 layers of 2 x 512 values at 8.5 bits for each of 32,768 tokens are 952 MiB."""
    code, out, _ = ask(capsys, "check", seven_b, "--engine", "stream", "--ram", "512M", "-c", "32k")
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


def test_all_engines_at_80_columns(
    seven_b: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = ask(capsys, "check", seven_b, "--engine", "all", "--ram", "1G")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    rows = [line for line in out.splitlines() if line.startswith(("fits", "tight", "does not fit"))]
    assert [("llama.cpp" in row, "stream" in row) for row in rows] == [(True, False), (False, True)]
    assert "1 fits, 1 does not fit, 2 cannot run" in out


@pytest.mark.parametrize("name", ["gemma-2-2b", "mixtral-8x7b"])
def test_among_all_engines_it_is_left_out_where_it_does_not_run(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_model(tmp_path, name))
    _, out, _ = ask(capsys, "check", path, "--engine", "all", "--ram", "64G")
    assert "llama.cpp" in out
    assert "stream" not in out
    code, out, _ = ask(capsys, "compare", path, "-c", "1k")
    assert code == 0
    assert "stream" not in out


# --- compare


def test_compared_with_the_others(seven_b: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, "compare", seven_b, "-c", "4k")
    assert list(answer["engines"]) == ["llama.cpp", "vllm", "mlx", "stream"]
    ours, theirs = answer["engines"]["stream"], answer["engines"]["llama.cpp"]
    assert ours["kv_bytes"] == theirs["kv_bytes"] == 4096 * 28 * 2 * 512 * 2
    assert ours["total_bytes"] < theirs["total_bytes"] / 10


def test_a_repository_of_safetensors_is_for_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    answer = ask_json(capsys, "compare", str(tmp_path))
    assert list(answer["engines"]) == ["llama.cpp", "vllm", "mlx"]
    code, _, err = ask(capsys, "estimate", str(tmp_path), "--engine", "stream")
    assert code == 2
    assert "reads GGUF files" in err


# --- who refuses it


@pytest.mark.parametrize("words", [("plan", SAMPLE), ("recommend",)])
def test_a_plan_says_what_to_ask_instead(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ask(capsys, *words, "--engine", "built-in")
    assert (code, out) == (2, "")
    assert "edgekit check MODEL --engine stream" in err
    assert "edgekit run MODEL --engine stream" in err
    assert len(err.splitlines()) == 1


# --- Python


def test_the_same_from_python(seven_b: str) -> None:
    result = model_preflight(
        seven_b, "stream", context=2048, ram="1G", options={"type_k": "q8_0", "keep": "none"}
    )
    assert result.passed
    assert result.estimate.kv_cache_bytes == 28 * 2048 * (512 // 32 * 34 + 512 * 2)
    assert StreamSetup.of(result.way.setup).keep_bytes == 0
    assert can_load(seven_b, "stream", ram="512M")
    assert not can_load(seven_b, "llama.cpp", ram="2G")


def test_options_that_it_does_not_have(seven_b: str) -> None:
    with pytest.raises(UsageError, match="stream has no option 'n_gpu_layers'"):
        model_preflight(seven_b, "stream", ram="1G", options={"n_gpu_layers": 3})
