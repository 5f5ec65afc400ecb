"""`edgekit inspect`: text, JSON and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import pytest
from tests import header_files
from tests.documented import documented
from tests.recorded import models
from tests.unit.cli.test_estimate import write_model

from edgekit.cli import main


def run_inspect(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["inspect", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def write_keys(
    path: Path,
    architecture: str,
    texts: dict[str, str] | None = None,
    numbers: dict[str, int] | None = None,
) -> Path:
    """A GGUF without tensors, written by gguf-py."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, text in (texts or {}).items():
        writer.add_string(key, text)
    for key, number in (numbers or {}).items():
        writer.add_uint32(key, number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def inspect_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    code, out, _ = run_inspect(capsys, *argv, "--json")
    assert code == 0
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_text_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run_inspect(capsys, str(write_model(tmp_path, "lfm2-1.2b")))
    assert (code, err) == (0, "")
    assert len(out.splitlines()) <= 24
    assert "10 short convolution, 6 full attention" in out
    assert "128,000 tokens of context" in out
    assert "no network used" in out
    assert "\x1b" not in out  # not a terminal


def test_json_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fact = next(m for m in models() if (m["model"], m["quant"]) == ("lfm2-1.2b", "Q4_K_M"))
    answer = inspect_json(capsys, str(write_model(tmp_path, "lfm2-1.2b")))
    assert answer["tensor_bytes"] == fact["tensor_bytes"]
    assert answer["parameters"] == answer["active_parameters"] == fact["n_params"]
    assert (answer["layers"], answer["hidden"], answer["mix"]) == (16, 2048, "Q4_K_M")
    assert (
        sum(answer["bytes_by_role"].values())
        == sum(answer["bytes_by_type"].values())
        == fact["tensor_bytes"]
    )
    assert answer["cache"]["parts"] == [
        {
            "span": "all",
            "span_tokens": None,
            "elements_per_row": 6 * 2 * 8 * 64,
            "tokens_per_row": 1,
            "layers": 6,
        }
    ]
    assert answer["cache"]["state_elements_per_sequence"] == 10 * 2048 * 2


def test_active_parameters_leave_out_idle_experts(capsys: pytest.CaptureFixture[str]) -> None:
    answer = inspect_json(capsys, "sample:qwen3-30b-a3b")
    experts = 48 * 128 * 3 * 2048 * 768
    assert answer["parameters"] - answer["active_parameters"] == experts * (128 - 8) // 128


def test_layers_tensors_and_keys_are_listed_on_request(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(write_model(tmp_path, "lfm2-1.2b"))
    assert inspect_json(capsys, path).keys().isdisjoint({"layer_list", "tensor_list", "keys"})
    answer = inspect_json(capsys, path, "--layers", "--tensors", "--keys")
    assert len(answer["layer_list"]) == 16
    assert len(answer["tensor_list"]) == answer["tensors"] == 148
    assert answer["keys"]["lfm2.block_count"] == 16
    _, out, _ = run_inspect(capsys, path, "--layers", "--tensors", "--keys")
    assert re.search(r"^15 +short convolution", out, re.MULTILINE)
    assert re.search(r"^blk\.0\.shortconv\.conv\.weight +F32", out, re.MULTILINE)
    assert re.search(r"^lfm2\.context_length +128000", out, re.MULTILINE)


def test_config_without_weights_has_modelled_parameters(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
              "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    for reference in (tmp_path, tmp_path / "config.json"):
        answer = inspect_json(capsys, str(reference))
        assert (answer["format"], answer["layers"], answer["tensor_bytes"]) == ("config", 2, None)
        # input and output embeddings, two layers of four square matrices and three of 64 x 128
        assert answer["parameters"] == 2 * 100 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128)
        assert answer["parameters_basis"] == "modelled"


def test_projector_shows_its_towers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    numbers = {"clip.vision.block_count": 27, "clip.vision.embedding_length": 1152}
    path = write_keys(tmp_path / "mmproj-model.gguf", "clip", numbers=numbers)
    code, out, _ = run_inspect(capsys, str(path))
    assert code == 0
    assert "projector" in out
    assert "vision tower, 27 layers of 1,152" in out
    assert inspect_json(capsys, str(path))["towers"] == [
        {"kind": "vision", "layers": 27, "hidden": 1152}
    ]


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["../no/such/file.gguf"], 4, "no/such/file.gguf"),
        (["sample:gemma-3-27"], 4, "Did you mean: gemma-3-27b"),
        (["{folder}"], 4, "is empty"),
        (["{folder}/empty.gguf"], 5, "empty"),
        (["{folder}/page.gguf"], 5, "web page"),
        (["org/na me"], 2, "org/na me"),
        (["nobody/unknown-8B", "--offline"], 4, "offline"),
    ],
)
def test_error_message_and_exit_code(
    argv: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if argv[0].startswith("{folder}/"):
        (tmp_path / "empty.gguf").write_bytes(b"")
        (tmp_path / "page.gguf").write_bytes(b"<!DOCTYPE html><html>")
    filled = [word.replace("{folder}", str(tmp_path)) for word in argv]
    result, out, err = run_inspect(capsys, *filled)
    assert result == code
    assert out == ""
    assert err.startswith("edgekit: ")
    assert len(err.strip().splitlines()) == 1
    assert message.lower() in err.lower()
    result, out, _ = run_inspect(capsys, *filled, "--json")
    assert result == code
    assert json.loads(out)["error"]["message"] in err


def test_json_keys_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    answer = inspect_json(capsys, "sample:gemma-3-27b", "--layers", "--tensors", "--keys")
    assert answer.keys() <= documented("inspect")


def test_json_has_the_same_keys_for_every_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    projector = inspect_json(capsys, str(write_keys(tmp_path / "mmproj.gguf", "clip")))
    assert projector.keys() == inspect_json(capsys, "sample:gemma-3-27b").keys()
    assert projector["layers"] is None


def test_control_characters_in_names_are_replaced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = write_keys(
        tmp_path / "evil.gguf",
        "llama",
        {"general.name": "\x1b]0;owned\x07\x1b[2J"},
        {"llama.block_count": 1, "llama.embedding_length": 32, "llama.attention.head_count": 2},
    )
    code, out, _ = run_inspect(capsys, str(path), "--keys")
    assert code == 0
    assert "owned" in out
    assert "\x1b" not in out
    assert "\x07" not in out
    _, _, err = run_inspect(capsys, "/\x1b[2J.gguf")
    assert "\x1b" not in err


def test_json_of_a_config_with_odd_values_is_valid(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, '
    config += (
        '"intermediate_size": 128, "limit": [0.0, Infinity], "name": "\\ud800", "nothing": NaN}'
    )
    (tmp_path / "config.json").write_text(config)
    main(["inspect", str(tmp_path), "--json", "--keys"])
    out = capsys.readouterr().out
    answer = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert answer["keys"]["limit"] == [0.0, "inf"]


def test_embedding_without_dimensions_has_no_vocabulary_size(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    keys = [
        header_files.key("general.architecture", header_files.STRING, "llama"),
        header_files.key("llama.block_count", header_files.UINT32, 1),
        header_files.key("llama.embedding_length", header_files.UINT32, 32),
        header_files.key("llama.attention.head_count", header_files.UINT32, 2),
    ]
    tensor = header_files.entry("token_embd.weight", [], header_files.F32, 0)
    path = tmp_path / "odd.gguf"
    path.write_bytes(header_files.gguf(keys, [tensor], data_bytes=32))
    assert inspect_json(capsys, str(path))["vocabulary"] is None


def test_deeply_nested_config_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "a": ' + "[" * 900 + "]" * 900 + "}"
    )
    code, _, err = run_inspect(capsys, str(tmp_path), "--keys", "--json")
    assert code == 5
    assert "nesting: 901 is over the limit of 64" in err


def test_single_safetensors_file_is_preferred_to_a_shard_index(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2,
              "intermediate_size": 8}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    content = header_files.safetensors({"a": header_files.tensor("F16", [4], 0, 8)}, data_bytes=8)
    names = (
        "model.safetensors",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    )
    for name in names:
        (tmp_path / name).write_bytes(content)
    index = {"weight_map": {"a": names[1], "b": names[2]}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert inspect_json(capsys, str(tmp_path))["parameters"] == 4
