"""`edgekit estimate`: text, JSON, flags of llama.cpp and errors."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.documented import documented
from tests.recorded import header_bytes, models, padded

from edgekit.cli import main
from edgekit.units import MIB

# 62 layers: 10 with full attention, 52 with a sliding window of 1,024
SAMPLE = "sample:gemma-3-27b"
FULL, SLIDING, ROW = 10, 52, 2 * 16 * 128  # K and V of 16 heads of 128


def write_model(folder: Path, model: str, quant: str = "Q4_K_M") -> Path:
    fact = next(m for m in models() if (m["model"], m["quant"]) == (model, quant))
    raw = header_bytes(fact["header_without_vocabulary"])
    path = folder / f"{model}.{quant}.gguf"
    path.write_bytes(raw)
    os.truncate(path, padded(len(raw)) + fact["data_section_bytes"])
    return path


def run_estimate(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["estimate", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def estimate_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    code, out, err = run_estimate(capsys, *argv, "--json")
    assert (code, err) == (0, "")
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_text_has_the_total_a_table_and_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_estimate(capsys, SAMPLE, "-c", "32k", "-ngl", "all")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert re.fullmatch(r"[0-9.]+ GiB: [0-9.]+ GiB on the GPU, [0-9.]+ GiB in RAM", lines[0])
    assert lines[1].startswith("gemma-3-27b.Q4_K_M.gguf  ·  llama.cpp 0.5.0")
    assert lines[2].startswith("32,768 tokens of context shared by 4 sequences, cache f16")
    assert lines[4].split() == ["model", "context", "compute", "other", "total"]
    assert re.match(r"GPU +15\.40 GiB +4\.33 GiB ", lines[5])
    assert lines[-1] == "Run      llama-server -m gemma-3-27b.Q4_K_M.gguf -c 32768 -ngl all"
    assert "exact: weights, kv cache, sliding kv cache, output" in out
    assert "up to 8.00 GiB prompt cache in RAM" in out
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in out


def test_json_has_bytes_by_component_and_pool(capsys: pytest.CaptureFixture[str]) -> None:
    answer = estimate_json(capsys, SAMPLE, "-c", "32k", "-np", "1", "-ngl", "all")
    assert answer["kv_bytes"] == FULL * 32768 * ROW * 2
    assert answer["kv_swa_bytes"] == SLIDING * (1024 + 512) * ROW * 2
    assert answer["output_bytes"] == 4 * 262144
    assert answer["pools"]["device"]["context"] == answer["kv_bytes"] + answer["kv_swa_bytes"]
    assert answer["pools"]["host"]["model"] == 1_156_055_040  # the token embedding
    assert (answer["engine"], answer["backend"]) == ("llama.cpp", "cuda")
    assert answer["facts"]["n_ctx"] == 32768
    assert answer["total_bytes"] == sum(x["bytes"] for x in answer["lines"] if x["reserved"])
    assert "layer_list" not in answer


def test_json_keys_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    names = documented("estimate")
    answer = estimate_json(capsys, SAMPLE, "--per-layer", "-ts", "1,1")
    assert answer.keys() <= names
    assert answer["lines"][0].keys() <= names
    assert answer["layer_list"][0].keys() <= names
    assert answer["pools"].keys() <= names


@pytest.mark.parametrize(
    ("argv", "facts"),
    [
        (["-c", "8192"], {"n_ctx": 8192, "n_seq_max": 4, "kv_streams": 1}),
        (["-c8192", "-np", "4"], {"n_ctx": 8192, "n_seq_max": 4, "kv_streams": 4}),
        (["-c", "8k", "-np", "4", "-kvu"], {"n_ctx": 8192, "kv_streams": 1}),
        (["-c", "8k", "--no-kv-unified"], {"kv_streams": 4, "kv_cells": 2048}),
        (["-c", "0"], {"n_ctx": 131072}),
        ([], {"n_ctx": 131072}),
        (["-b", "256", "-ub", "128"], {"n_batch": 256, "n_ubatch": 128}),
        (["-fa", "off"], {"flash_attn": False}),
        (["--flash-attn=0"], {"flash_attn": False}),
        (["-c", "4k", "-fa"], {"flash_attn": True}),
        (["--swa-full", "-c", "8k", "-np", "1"], {"kv_swa_cells": 8192}),
        (["--mode", "library"], {"n_seq_max": 1, "n_outputs_max": 2048}),
        (["--embeddings"], {"n_batch": 512}),
    ],
)
def test_llama_cpp_flags_set_the_facts(
    argv: list[str], facts: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = estimate_json(capsys, SAMPLE, *argv)
    assert {name: answer["facts"][name] for name in facts} == facts
    assert answer["backend"] == "cpu"
    assert answer["pools"]["device"] == {"model": 0, "context": 0, "compute": 0}


def test_cache_types_set_the_cache_size(capsys: pytest.CaptureFixture[str]) -> None:
    answer = estimate_json(capsys, SAMPLE, "-c", "4096", "-ctk", "q8_0", "-ctv", "Q4_0", "-np", "1")
    assert answer["kv_bytes"] == FULL * 4096 * ROW // 2 * (34 + 18) // 32
    assert "cache q8_0 and q4_0" in answer["asked"]


@pytest.mark.parametrize(
    "argv",
    [["-ngl", "10"], ["-ngl", "auto"], ["--cpu-moe"], ["-ncmoe", "3"], ["-ts", "3,1"], ["-nkvo"]],
)
def test_gpu_flag_selects_a_gpu_backend(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = estimate_json(capsys, "sample:qwen3-30b-a3b", "-c", "4k", *argv)
    assert answer["backend"] == "cuda"
    assert answer["pools"]["device"]["model"] > 0


def test_tensor_split_and_device_memory_divide_layers_alike(
    capsys: pytest.CaptureFixture[str],
) -> None:
    by_shares = estimate_json(capsys, SAMPLE, "-c", "4k", "-ts", "3,1")["pools"]["devices"]
    by_memory = estimate_json(capsys, SAMPLE, "-c", "4k", "--device-memory", "24G,8G")["pools"][
        "devices"
    ]
    assert len(by_shares) == 2
    assert by_shares == by_memory
    assert by_shares[0]["context"] > by_shares[1]["context"] > 0


def test_draft_model_is_added_to_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    alone = estimate_json(capsys, SAMPLE, "-c", "4k")
    both = estimate_json(capsys, SAMPLE, "-c", "4k", "-md", "sample:qwen3-30b-a3b")
    drafter = estimate_json(capsys, "sample:qwen3-30b-a3b", "-c", "4k")
    assert both["model_bytes"] == alone["model_bytes"] + drafter["model_bytes"]
    assert both["kv_bytes"] == alone["kv_bytes"] + drafter["kv_bytes"]
    assert both["facts"]["n_outputs_max"] == 4 * (1 + 3)
    assert {line["part"] for line in both["lines"]} == {None, "drafter"}


def test_explain_and_per_layer_show_the_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_estimate(capsys, SAMPLE, "-c", "8k", "-np", "1", "--explain", "--per-layer")
    assert f"10 x {8192 * ROW * 2:,} bytes = {FULL * 8192 * ROW * 2:,}" in out
    assert "layers 5, 11, 17, 23, 29, 35, 41, 47, 53, 59" in out
    assert re.search(r"^61 +sliding window 1,024 ", out, re.MULTILINE)
    assert max(map(len, out.splitlines())) <= 100


def test_command_repeats_the_given_flags(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    path = write_model(folder, "lfm2-1.2b")
    argv = ["-c", "4k", "-ctk", "q8_0", "-fa", "-np", "2", "--kv-unified", "-ngl", "8", "--no-mmap"]
    for reference in (path, folder):
        command = shlex.split(estimate_json(capsys, str(reference), *argv)["command"])
        assert command == ["llama-server", "-m", str(path), "-c", "4096", "-np", "2", "-kvu", "-ngl", "8",
                        "-ctk", "q8_0", "-fa", "on", "-lm", "none"]  # fmt: skip
    command = shlex.split(estimate_json(capsys, str(path), "--mode", "library")["command"])
    assert command == ["llama-cli", "-m", str(path), "-c", "128000", "-dev", "none"]


def test_command_of_a_check_on_the_cpu_has_no_gpu_layers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["check", SAMPLE, "--ram", "8G", "-c", "8k", "-ot", "exps=CPU", "--json"]
    assert main(argv) == 3
    command = json.loads(capsys.readouterr().out)["estimate"]["command"]
    assert "-dev none -ot exps=CPU" in command
    assert "-ngl" not in command


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ([SAMPLE, "--engine", "tgi"], 2, "choose one of llama.cpp, vllm, mlx"),
        ([SAMPLE, "--engine", "vllm", "-ngl", "3"], 2, "--gpu-layers is a flag of llama.cpp; the engine here is vllm"),
        ([SAMPLE, "--engine", "mlx", "-tp", "2", "-fa"], 2, "of vllm; -fa/--flash-attn is a flag of llama.cpp"),
        ([SAMPLE, "-tp", "2", "-ngl", "3"], 2, "choose one with --engine"),
        ([SAMPLE, "-ctk", "q7_0"], 2, "llama.cpp has f16, q8_0, q5_1"),
        ([SAMPLE, "-ctk", "fp8"], 2, "llama.cpp has no cache type fp8"),
        ([SAMPLE, "-ctv", "q8_0", "-fa", "off"], 2, "requires flash attention"),
        ([SAMPLE, "-c", "lots"], 2, "-c/--ctx-size: 'lots' is not a whole number"),
        ([SAMPLE, "-c", "-5"], 2, "must not be negative (got -5)"),
        ([SAMPLE, "-np", "300"], 2, "n_seq_max must be <= 256"),
        ([SAMPLE, "-fa", "perhaps"], 2, "is not one of on, off, auto"),
        ([SAMPLE, "--backend", "tpu"], 2, "is not one of cpu, cuda, hip, rocm, metal, vulkan"),
        ([SAMPLE, "-ts", "a,b"], 2, "is not a list of shares (write for example 3,1)"),
        ([SAMPLE, "-ts", "1,1,1", "--device-memory", "24G"], 2, "has 1 GPUs and --rpc 0 devices, but --tensor-split has 3"),
        ([SAMPLE, "--mmproj", "auto"], 2, "no mmproj file was found next to the model"),
        ([SAMPLE, "--mmproj", SAMPLE], 2, "is not a projector"),
        ([SAMPLE, "--lora", SAMPLE], 2, "is not an adapter"),
        (["../no/such/file.gguf"], 4, "no/such/file.gguf"),
        (["{folder}/page.gguf"], 5, "web page"),
        ([], 2, "give a MODEL, or --batch FILE"),
        ([SAMPLE, "--batch", "rows.jsonl"], 2, "takes model, engine and options from its rows"),
        (["--batch", "rows.jsonl", "-c", "4k"], 2, "takes model, engine and options from its rows"),
        (["--batch", "{folder}/none.jsonl"], 4, "cannot be read"),
        (["--batch", "{folder}"], 4, "cannot be read"),
    ],
)  # fmt: skip
def test_error_is_one_line_and_an_exit_code(
    argv: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "page.gguf").write_bytes(b"<!DOCTYPE html><html>")
    filled = [word.replace("{folder}", str(tmp_path)) for word in argv]
    result, out, err = run_estimate(capsys, *filled)
    assert (result, out) == (code, "")
    assert err.startswith("edgekit: ")
    assert len(err.strip().splitlines()) == 1
    assert message in err
    result, out, _ = run_estimate(capsys, *filled, "--json")
    assert result == code
    assert json.loads(out)["error"]["message"] in err


def test_flag_of_one_engine_selects_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_estimate(capsys, SAMPLE, "--tensor-parallel-size", "2")
    assert code == 2
    assert "vLLM" in err  # which does not load GGUF files


def test_help_names_the_flags_of_every_engine() -> None:
    output = subprocess.run(
        [sys.executable, "-m", "edgekit", "estimate", "--help"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for heading in ("llama.cpp:", "vLLM:", "MLX:"):
        assert heading in output
    for flag in ("--n-cpu-moe", "--max-num-seqs", "--kv-bits", "--batch"):
        assert flag in output


def test_checkpoints_and_prompt_cache_are_not_in_the_total(
    capsys: pytest.CaptureFixture[str],
) -> None:
    less = estimate_json(capsys, SAMPLE, "-c", "4k", "--cache-ram", "0", "--ctx-checkpoints", "0")
    more = estimate_json(capsys, SAMPLE, "-c", "4k", "--cache-ram", "4096")
    assert less["later_bytes"] == 0
    assert more["later_bytes"] > 4096 * MIB
    assert less["total_bytes"] == more["total_bytes"]
