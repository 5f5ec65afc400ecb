"""`edgekit compare`: the engines side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.thoroughness import costly, sampled

from edgekit.cli import main

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16",
    "num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024, "max_position_embeddings": 8192,
}  # fmt: skip
GEMMA, QWEN = "sample:gemma-3-27b", "sample:qwen3-30b-a3b"


def run_compare(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["compare", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_text_is_a_table_of_engines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    code, out, err = run_compare(capsys, str(tmp_path), "-c", "4k")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].endswith("one sequence of 4,096 tokens")
    assert lines[2].split() == ["model", "context", "compute", "other", "total", "basis"]
    assert [line.split()[0] for line in lines[3:6]] == ["llama.cpp", "vllm", "mlx"]
    assert max(map(len, lines)) <= 100


def test_every_engine_has_the_same_cache_size(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    code, out, _ = run_compare(capsys, str(tmp_path), "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["context_tokens"] == 8192  # the native context
    assert [engine["kv_bytes"] for engine in answer["engines"].values()] == [
        8192 * 4 * 2 * 128 * 2
    ] * 3


def test_default_context_without_a_machine_is_at_most_32k(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = run_compare(capsys, GEMMA, "--json")
    assert json.loads(out)["context_tokens"] == 32_768  # of a native context of 131,072


def test_engine_that_cannot_run_the_model_has_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_compare(capsys, "sample:gemma-3-27b", "-c", "8k")
    assert code == 0
    assert "vllm: no estimate: vLLM" in out
    assert "mlx: no estimate: " in out
    assert "give the repository that this file was converted from" in out
    _, out, _ = run_compare(capsys, "sample:gemma-3-27b", "-c", "8k", "--json")
    engines = json.loads(out)["engines"]
    assert engines["mlx"]["type"] == "RefusedError"
    assert engines["llama.cpp"]["total_bytes"] > 0


def test_error_message_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, code in ((["sample:none"], 4), (["sample:gemma-3-27b", "-c", "x"], 2),
                        (["sample:gemma-3-27b", "-c", "99999M"], 2)):  # fmt: skip
        result, out, err = run_compare(capsys, *argv)
        assert (result, out) == (code, "")
        assert len(err.splitlines()) == 1


# --- several models, or a machine

CARD = ("--device", "RTX 4090", "--ram", "64G")


def rows(out: str) -> list[list[str]]:
    lines = out.splitlines()
    head = next(number for number, line in enumerate(lines) if line.split()[-1:] == ["tokens/s"])
    return [line.split() for line in lines[head:]]


def test_one_row_per_model(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_compare(capsys, GEMMA, QWEN, *CARD, "-c", "8k")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].endswith("RTX 4090 + 64 GiB RAM")
    head, first, second, *_ = rows(out)
    assert " ".join(head) == "model weights GiB context max GiB used tokens/s"
    assert first[:7] == ["fits", "gemma-3-27b.Q4_K_M.gguf", "27B", "Q4_K_M", "16.5", "8K", "57K"]
    assert second[:7] == ["fits", "qwen3-30b-a3b.Q4_K_M.gguf", "31B", "Q4_K_M", "17.3", "8K", "40K"]
    assert max(map(len, out.splitlines())) <= 100


@costly
@pytest.mark.parametrize(
    ("names", "argv"),
    [
        ((GEMMA, QWEN), (*CARD, "-c", "8k")),
        ((GEMMA, QWEN), CARD),
        # a smaller cache, experts in RAM
        ((GEMMA, QWEN), ("--device", "RTX 3060", "--ram", "32G")),
        # the quantisation is chosen
        (("qwen3-8b", "qwen3-14b"), ("--device", "RTX 4060", "--ram", "32G")),
        (("qwen3-8b", "qwen3-14b"), (*CARD, "--users", "4", "--max-use", "80%")),
        ((GEMMA, QWEN), (*CARD, "--reserve", "4G", "-ngl", "20")),
    ],
)
def test_answer_for_each_model_is_that_of_check(
    names: tuple[str, ...], argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run_compare(capsys, *names, *argv, "--json")
    assert code == 0
    for name, compared_model in zip(names, json.loads(out)["models"], strict=True):
        main(["check", name, *argv, "--json"])
        expected = json.loads(capsys.readouterr().out)
        del expected["changes"]  # not part of a comparison
        assert {key: compared_model[key] for key in expected} == expected
        assert compared_model["total_bytes"] == expected["estimate"]["total_bytes"]
        assert compared_model["cache_bytes"] == sum(expected["estimate"][key] for key in ("kv_bytes", "kv_swa_bytes", "recurrent_bytes"))  # fmt: skip
        assert compared_model["parameters"] >= compared_model["active_parameters"] > 10**9


def test_answer_for_each_engine_is_that_of_check(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_compare(capsys, "qwen3-8b", *CARD, "--json")
    assert code == 0
    compared = {
        model["engine"]["name"]: model for model in json.loads(out)["models"] if "status" in model
    }
    assert list(compared) == ["llama.cpp", "vllm", "stream"]
    for engine, compared_model in compared.items():
        main(["check", "qwen3-8b", *CARD, "--engine", engine, "--json"])
        expected = json.loads(capsys.readouterr().out)
        for key in ("headline", "quantization", "cache", "context_tokens", "way", "flags"):
            assert compared_model[key] == expected[key]


def test_unreadable_model_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_compare(capsys, GEMMA, "sample:none", *CARD)
    assert (code, err) == (0, "")
    assert rows(out)[2][:4] == ["not", "read", "sample:none", "-"]
    assert "sample:none: no such sample: 'none'" in out
    assert out.endswith("1 is tight, 1 could not be read\n")
    _, out, _ = run_compare(capsys, GEMMA, "sample:none", *CARD, "--json")
    assert json.loads(out)["models"][1]["error"]["type"] == "NotFoundError"


def test_error_if_no_model_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_compare(capsys, "sample:none", "sample:nothing", "--ram", "8G")
    assert (code, out) == (4, "")
    assert "no such sample: 'none'" in err


def test_default_context_on_a_machine_is_32k_or_the_native_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))  # native context 8,192
    code, out, _ = run_compare(capsys, GEMMA, str(tmp_path), *CARD, "--json")
    assert code == 0
    contexts = [model["context_tokens"] for model in json.loads(out)["models"]]
    assert contexts == [32_768, 8192]


def test_default_engine_follows_the_files_of_each_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    _, out, _ = run_compare(capsys, GEMMA, str(tmp_path), *CARD, "--json")
    assert [model["engine"]["name"] for model in json.loads(out)["models"]] == ["llama.cpp", "vllm"]
    _, out, _ = run_compare(capsys, GEMMA, str(tmp_path), *CARD, "--engine", "llama.cpp", "--json")
    assert [model["engine"]["name"] for model in json.loads(out)["models"]] == ["llama.cpp"] * 2


def test_one_model_on_a_machine_is_a_row_per_engine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    code, out, _ = run_compare(capsys, str(tmp_path), *CARD)
    assert code == 0
    assert out.splitlines()[0].startswith(tmp_path.name)
    head, *engines = rows(out)
    assert head[0] == "engine"
    assert [row[1] for row in engines[:2]] == ["llama.cpp", "vllm"]
    assert engines[2][:3] == ["cannot", "run", "mlx"]


def test_model_that_does_not_fit_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_compare(capsys, GEMMA, QWEN, "--ram", "8G")
    assert code == 0
    assert out.endswith("2 do not fit\n")


@pytest.mark.parametrize("width", sampled([24, 60, 80], each=2))
def test_table_fits_a_narrow_screen(width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr("edgekit.cli.console.screen_width", lambda: width)
    _, out, _ = run_compare(capsys, GEMMA, QWEN, *CARD)
    assert max(map(len, out.splitlines())) <= width
    assert "27B Q4_K_M" in " ".join(out.split())
    assert "20.5 of 22.5" in " ".join(out.split())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([GEMMA, QWEN, "--engine", "voodoo"], "voodoo"),
        ([GEMMA, QWEN, "--device", "Voodoo 2"], "Voodoo 2"),
        ([GEMMA, QWEN, "--ram", "lots"], "lots"),
    ],
)
def test_invalid_option_is_an_error(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_compare(capsys, *argv)
    assert (code, out) == (2, "")
    assert message in err


FROM_INDEX = "from EdgeKit's index: the repository was not read"


def test_answer_from_the_index_is_said_as_by_check(capsys: pytest.CaptureFixture[str]) -> None:
    name, machine = "google/gemma-3-27b-it", ("--device", "RTX 4090", "--ram", "64G")
    for argv in (
        ("check", name, *machine),
        ("compare", name),
        ("compare", name, "qwen3-8b", *machine),
    ):
        assert main([*argv, "--offline"]) == 0
        assert FROM_INDEX in " ".join(capsys.readouterr().out.split())
    assert main(["compare", name, "--offline"]) == 0
    assert "answered from the index, because" in capsys.readouterr().out
