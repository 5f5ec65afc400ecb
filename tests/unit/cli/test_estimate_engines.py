"""`edgekit estimate` for vLLM and MLX, and for llama.cpp on checkpoints that are not converted yet."""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.recorded import model_header, models, rows

from edgekit.bill.types import CACHES, Component, Load
from edgekit.cli import main
from edgekit.engines.llamacpp.estimate import estimate as estimate_llamacpp
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.model import open_config, read_geometry
from edgekit.model.types import Model
from edgekit.units import GIB, MIB

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16",
    "num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024, "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}  # fmt: skip
TOKEN = 4 * 2 * (64 + 64) * 2  # four layers, K and V of two heads of 64, 16 bit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "tiny"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def estimate_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    code = main(["estimate", *argv, "--json"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_vllm_without_a_gpu_estimates_one_request(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    answer = estimate_json(capsys, str(folder), "--max-model-len", "4k")
    assert (answer["engine"], answer["backend"]) == ("vllm", "cuda")
    assert answer["bytes_per_block"] == 16 * TOKEN
    assert (answer["groups"], answer["blocks_per_group"]) == ([4], [4096 // 16])
    assert answer["kv_bytes"] == answer["request_bytes"] == 4096 * TOKEN
    assert answer["num_blocks"] is answer["max_concurrency"] is None
    assert "GPU memory unknown" in answer["asked"]
    assert shlex.split(answer["command"]) == [
        "vllm",
        "serve",
        str(folder),
        "--max-model-len",
        "4096",
    ]


def test_vllm_fills_the_named_gpus_with_blocks(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    argv = ["-c", "4k", "--gpu", "rtx 4090", "-tp", "2", "--kv-cache-dtype", "fp8"]
    answer = estimate_json(capsys, str(folder), "--engine", "vllm", *argv)
    assert answer["bytes_per_block"] == 16 * TOKEN // 2 // 2
    assert answer["kv_bytes"] == answer["num_blocks"] * answer["bytes_per_block"]
    assert answer["total_bytes"] == pytest.approx(0.92 * 24_048 * MIB, rel=0.01)
    assert "on each of 2 cards, cache fp8" in answer["asked"]
    assert shlex.split(answer["command"])[-4:] == ["-tp", "2", "--kv-cache-dtype", "fp8"]


@pytest.mark.parametrize(
    ("argv", "facts"),
    [
        (["--block-size", "32"], {"block_size": 32}),
        (["--kv-cache-memory-bytes", "1G"], {"num_blocks": GIB // (16 * TOKEN)}),
        (["--max-num-seqs", "8", "--max-num-batched-tokens", "512"], {"max_num_seqs": 8, "max_num_batched_tokens": 512}),
        (["--no-enable-prefix-caching"], {"enable_prefix_caching": False}),
        (["--dtype", "float16"], {"dtype": "float16"}),
        (["--no-async-scheduling", "--max-num-batched-tokens", "512"], {"max_in_flight_tokens": 512}),
        (["-c", "2k"], {"max_model_len": 2048}),
        (["--gpu-memory", "80G"], {"max_num_batched_tokens": 8192, "max_num_seqs": 1024}),
    ],
)  # fmt: skip
def test_vllm_flags_set_the_facts(
    argv: list[str], facts: dict[str, Any], capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    result = estimate_json(capsys, str(folder), "--engine", "vllm", *argv)["facts"]
    assert {name: result[name] for name in facts} == facts


def test_mlx_counts_prompt_and_new_tokens(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    argv = ["-c", "1000", "--max-tokens", "24", "--quantize", "bf16"]
    answer = estimate_json(capsys, str(folder), "--engine", "mlx", *argv)
    assert answer["cache_bytes"] == answer["kv_bytes"] == 1024 * TOKEN
    assert answer["asked"] == "976 tokens of prompt and 24 new, 975 at once"
    weights = (
        2 * 1024 * 256
        + 256
        + 4 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256 + 2 * 256 + 2 * 64)
    )
    assert answer["model_bytes"] == 2 * weights
    assert shlex.split(answer["command"]) == [
        "mlx_lm.generate",
        "--model",
        str(folder),
        "--max-tokens",
        "24",
    ]


def test_mlx_with_a_quantised_cache(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    argv = ["--kv-bits", "8", "--kv-group-size", "32", "--quantized-kv-start", "0", "-c", "1024"]
    answer = estimate_json(capsys, str(folder), *argv)
    assert answer["engine"] == "mlx"
    assert answer["cache_bytes"] == 1024 * 4 * 2 * 2 * (
        64 + 64 // 32 * 4
    )  # a scale and a bias of 16 bit


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--engine", "vllm", "--kv-cache-dtype", "q8_0"], "choose one of auto"),
        (["--engine", "vllm", "-tp", "3"], "not divisible by tensor parallel size 3"),
        (["--engine", "vllm", "--gpu", "Voodoo 2"], "unknown device 'Voodoo 2'; for example"),
        (["--engine", "vllm", "--gpu", "a100"], "several sizes: A100 40GB, A100 80GB"),
        (
            ["--engine", "vllm", "--gpu", "m3-max-64"],
            "EdgeKit supports vLLM on NVIDIA GPUs of the Volta generation or newer",
        ),
        (["--gpu-memory-utilization", "2"], "is not a share (above 0, up to 1)"),
        (["--engine", "vllm", "-tp", "0"], "must be at least 1"),
        (["--engine", "mlx", "--quantize", "q17"], "MLX has no quantisation 'q17'"),
        (["--engine", "mlx", "--kv-bits", "99"], "must be at most 16 (got 99)"),
        (["--engine", "llama.cpp", "--mix", "Q17"], "llama.cpp has no quantisation 'Q17'"),
    ],
)
def test_error_message(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert main(["estimate", str(folder), *argv]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("h100", "H100 (compute capability 9.0)"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB (compute capability 8.0)"),
        ("4090", "RTX 4090 (compute capability 8.9)"),
        ("T4", "T4 (compute capability 7.5)"),
        ("b300", "B300 (compute capability 10.3)"),
    ],
)
def test_vllm_settings_are_those_of_the_named_gpu(
    name: str, card: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    notes = estimate_json(capsys, str(folder), "--engine", "vllm", "--gpu", name)["notes"]
    assert f"settings for {card}" in notes


def test_llama_cpp_estimate_of_an_unconverted_checkpoint(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    answer = estimate_json(capsys, str(folder), "--engine", "llama.cpp", "-c", "4k", "-np", "1")
    assert answer["kv_bytes"] == 4096 * TOKEN
    assert answer["basis"] == "modelled"
    assert any("sizes computed for a Q4_K_M GGUF" in note for note in answer["notes"])
    assert shlex.split(answer["command"])[:3] == ["llama-server", "-m", "tiny-Q4_K_M.gguf"]
    larger = estimate_json(capsys, str(folder), "--mix", "F16", "-c", "4k", "-np", "1")
    assert larger["engine"] == "llama.cpp"
    assert larger["model_bytes"] > 2 * answer["model_bytes"]


@pytest.mark.parametrize(
    ("model", "engine", "command"),
    [
        ("qwen3-8b", "llama.cpp", "llama-server -hf Qwen/Qwen3-8B-GGUF:Q4_K_M "),
        ("gpt-oss-20b", "llama.cpp", "llama-server -hf ggml-org/gpt-oss-20b-GGUF "),
        ("qwen3-8b", "stream", "edgekit run qwen3-8b:Q4_K_M "),
        ("qwen3-8b", "vllm", "vllm serve Qwen/Qwen3-8B "),
    ],
)
def test_command_of_a_catalog_model_names_its_repository(
    model: str, engine: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = estimate_json(capsys, model, "--engine", engine, "-c", "4k")
    assert answer["command"].startswith(command)


def test_mix_changes_the_weights_of_a_gguf(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["sample:gemma-3-27b", "-c", "4k"]
    same = estimate_json(capsys, *argv, "--mix", "Q4_K_M")
    as_is = estimate_json(capsys, *argv)
    assert same["model_bytes"] == as_is["model_bytes"]
    assert same["compute_bytes"] == as_is["compute_bytes"]
    assert estimate_json(capsys, *argv, "--mix", "Q8_0")["model_bytes"] > as_is["model_bytes"]


@cache
def _configs() -> dict[str, dict[str, Any]]:
    return {row["model"]: row["config"] for row in rows("vllm.jsonl.gz")}


@pytest.mark.parametrize(
    "index",
    [i for i, m in enumerate(models()) if m["quant"] == "Q4_K_M" and m["model"] in _configs()],
    ids=lambda index: str(models()[index]["model"]),
)
def test_config_costs_the_same_as_its_gguf(index: int) -> None:
    """Including the windows that llama.cpp ignores (Mistral, Phi-3) and the latents that it expands (MiniCPM3)."""
    header, load, setup = model_header(index), Load(context_tokens=32768), LlamaCppSetup()
    expected = estimate_llamacpp(Model(header=header, geometry=read_geometry(header)), load, setup)
    opened = open_config(_configs()[models()[index]["model"]])
    actual = estimate_llamacpp(opened.model, load, setup)
    assert actual.weights_bytes == pytest.approx(expected.weights_bytes, rel=0.005)
    assert actual.of(*CACHES) == expected.of(*CACHES)
    assert actual.of(Component.COMPUTE) >= 0.95 * expected.of(Component.COMPUTE)


def test_assume_estimates_from_the_name_alone(capsys: pytest.CaptureFixture[str]) -> None:
    answer = estimate_json(capsys, "Some-Model-7B:Q8_0", "--assume")
    assert answer["model_bytes"] == 7 * 10**9 * 85 // 80
    token = 32 * 2 * 32 * 128 * 2  # the largest cache among 7Bs: 32 layers of 32 full heads of 128
    assert answer["kv_bytes"] == 32_768 * token
    assert (
        estimate_json(capsys, "Some-Model-7B:Q8_0", "--assume", "-c", "4k")["kv_bytes"]
        == 4096 * token
    )
    assert answer["basis"] == "assumed"
    assert main(["estimate", "something", "--assume"]) == 2
    assert "does not state the number of parameters" in capsys.readouterr().err
