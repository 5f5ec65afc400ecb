"""`edgekit compare`: the engines side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgekit.cli import main

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16",
    "num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024, "max_position_embeddings": 8192,
}  # fmt: skip


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["compare", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_three_engines_in_one_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    code, out, err = ask(capsys, str(tmp_path), "-c", "4k")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].endswith("one sequence of 4,096 tokens")
    assert lines[2].split() == ["model", "context", "compute", "other", "total", "basis"]
    assert [line.split()[0] for line in lines[3:6]] == ["llama.cpp", "vllm", "mlx"]
    assert max(map(len, lines)) <= 100


def test_the_same_load_for_all(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    code, out, _ = ask(capsys, str(tmp_path), "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["context_tokens"] == 8192  # what the model was made for
    assert [one["kv_bytes"] for one in answer["engines"].values()] == [8192 * 4 * 2 * 128 * 2] * 3


def test_an_engine_that_refuses_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ask(capsys, "sample:gemma-3-27b", "-c", "8k")
    assert code == 0
    assert "vllm: no bill. vLLM" in out
    assert "mlx: no bill. " in out
    assert "give the repository that this file was converted from" in out
    _, out, _ = ask(capsys, "sample:gemma-3-27b", "-c", "8k", "--json")
    engines = json.loads(out)["engines"]
    assert engines["mlx"]["type"] == "RefusedError"
    assert engines["llama.cpp"]["total_bytes"] > 0


def test_errors_are_a_sentence_and_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    for words, code in ((["sample:none"], 4), (["sample:gemma-3-27b", "-c", "x"], 2),
                        (["sample:gemma-3-27b", "-c", "99999M"], 2)):  # fmt: skip
        found, out, err = ask(capsys, *words)
        assert (found, out) == (code, "")
        assert len(err.splitlines()) == 1
