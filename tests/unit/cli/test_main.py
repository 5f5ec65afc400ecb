"""`edgekit` itself (version, usage errors, streams, environment) and `edgekit inspect`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
from tests import header_files
from tests.documented import documented
from tests.recorded import models
from tests.unit.cli.test_estimate import write_model

from edgekit import __version__
from edgekit.cli import main

ROOT = Path(__file__).parents[3]


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


def run_edgekit(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    out, err = capsys.readouterr()
    return code, out, err


def inspect_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    code, out, _ = run_edgekit(capsys, "inspect", *argv, "--json")
    assert code == 0
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_version_and_help() -> None:
    for argv, expected in (
        (["--version"], __version__),
        (["--help"], "examples:"),
        (["inspect", "--help"], "MODEL is any of"),
    ):
        completed = subprocess.run(
            [sys.executable, "-m", "edgekit", *argv], capture_output=True, text=True, check=True
        )
        assert expected in completed.stdout


def test_inspect_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run_edgekit(capsys, "inspect", str(write_model(tmp_path, "lfm2-1.2b")))
    assert (code, err) == (0, "")
    assert len(out.splitlines()) <= 24
    assert "10 short convolution, 6 full attention" in out
    assert "128,000 tokens of context" in out
    assert "no network used" in out
    assert "\x1b" not in out  # not a terminal


def test_inspect_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
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


def test_inspect_lists_layers_tensors_and_keys_on_request(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(write_model(tmp_path, "lfm2-1.2b"))
    assert inspect_json(capsys, path).keys().isdisjoint({"layer_list", "tensor_list", "keys"})
    answer = inspect_json(capsys, path, "--layers", "--tensors", "--keys")
    assert len(answer["layer_list"]) == 16
    assert len(answer["tensor_list"]) == answer["tensors"] == 148
    assert answer["keys"]["lfm2.block_count"] == 16
    _, out, _ = run_edgekit(capsys, "inspect", path, "--layers", "--tensors", "--keys")
    assert re.search(r"^15 +short convolution", out, re.MULTILINE)
    assert re.search(r"^blk\.0\.shortconv\.conv\.weight +F32", out, re.MULTILINE)
    assert re.search(r"^lfm2\.context_length +128000", out, re.MULTILINE)


def test_inspect_of_a_config_without_weights(
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


def test_inspect_of_a_projector(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    numbers = {"clip.vision.block_count": 27, "clip.vision.embedding_length": 1152}
    path = write_keys(tmp_path / "mmproj-model.gguf", "clip", numbers=numbers)
    code, out, _ = run_edgekit(capsys, "inspect", str(path))
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
    requests = [word.replace("{folder}", str(tmp_path)) for word in argv]
    result, out, err = run_edgekit(capsys, "inspect", *requests)
    assert result == code
    assert out == ""
    assert err.startswith("edgekit: ")
    assert len(err.strip().splitlines()) == 1
    assert message.lower() in err.lower()
    result, out, _ = run_edgekit(capsys, "inspect", *requests, "--json")
    assert result == code
    assert json.loads(out)["error"]["message"] in err


def test_usage_error_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["inspect"], ["inspect", "a", "--nonsense"], ["nonsense"]):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert ended.value.code == 2
        assert "usage:" in capsys.readouterr().err
    completed = subprocess.run(
        [sys.executable, "-m", "edgekit", "nonsense"], capture_output=True, text=True, check=False
    )
    assert (completed.returncode, "usage:" in completed.stderr) == (2, True)


def test_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    path = write_model(tmp_path, "lfm2-1.2b")
    command = f"{sys.executable} -m edgekit inspect {path} --tensors --keys | head -1"
    completed = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False
    )
    assert completed.stderr == ""
    assert completed.returncode == 0


def test_readme_python_examples_print_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    examples = [part.split("```")[0] for part in readme.split("```python\n")[1:]]
    assert examples
    for example in examples:
        exec(compile(example, "README.md", "exec"), {})
        answer = [line.removeprefix("# ") for line in example.splitlines() if line.startswith("# ")]
        assert capsys.readouterr().out.splitlines() == answer


def test_inspect_json_keys_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    answer = inspect_json(capsys, "sample:gemma-3-27b", "--layers", "--tensors", "--keys")
    assert answer.keys() <= documented("inspect")


def test_inspect_json_has_the_same_keys_for_every_file(
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
    code, out, _ = run_edgekit(capsys, "inspect", str(path), "--keys")
    assert code == 0
    assert "owned" in out
    assert "\x1b" not in out
    assert "\x07" not in out
    _, _, err = run_edgekit(capsys, "inspect", "/\x1b[2J.gguf")
    assert "\x1b" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_error_is_reported() -> None:
    command = f"{sys.executable} -m edgekit inspect sample:gemma-3-27b > /dev/full"
    completed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert completed.returncode == 1
    assert completed.stderr.startswith("edgekit: the answer could not be written: ")
    assert len(completed.stderr.splitlines()) == 1


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


def test_ascii_output_has_question_marks() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "edgekit", "inspect", "sample:gemma-3-27b"],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert completed.stdout.startswith("gemma-3-27b.Q4_K_M.gguf  ?  GGUF v3  ?  gemma3\n")


RUN_WITH_EACH_VARIABLE = """
import os, sys
from edgekit.cli import main
for assignment in sys.argv[1:]:
    variable, _, value = assignment.partition("=")
    os.environ[variable] = value
    print(main(["inspect", "org/name", "--timeout", "5"]))
    del os.environ[variable]
"""


@pytest.mark.parametrize(
    "assignments",
    [
        [
            "ALL_PROXY=socks5://127.0.0.1:1",
            "HTTP_PROXY=nonsense://x",
            "HTTPS_PROXY=http://[::1",
            "HF_ENDPOINT=http://[::1",
            "SSL_CERT_FILE=/nonexistent",
        ],
        ["HF_HUB_ETAG_TIMEOUT=abc"],  # huggingface_hub reads it once per process
    ],
)
def test_invalid_environment_variable_is_named(assignments: list[str]) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", RUN_WITH_EACH_VARIABLE, *assignments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.stdout.split() == ["2"] * len(assignments), completed.stderr
    for assignment, line in zip(assignments, completed.stderr.splitlines(), strict=True):
        variable = assignment.partition("=")[0]
        assert variable in line or (variable.startswith("HF_HUB") and "HF_HUB_..." in line)


def test_error_with_closed_stderr_is_silent() -> None:
    for redirection in ("> /dev/full", "2>&-", ">&- 2>&-"):
        command = f"{sys.executable} -m edgekit inspect ./nothing.gguf --json {redirection}"
        completed = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, check=False
        )
        assert "Traceback" not in completed.stderr + completed.stdout
        assert completed.stdout == "" or json.loads(completed.stdout)["error"]


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
    code, _, err = run_edgekit(capsys, "inspect", str(tmp_path), "--keys", "--json")
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


@pytest.mark.parametrize(
    ("argv", "error_message"),
    [
        (("check", "x.gguf", "--nonsense"), "unknown flag --nonsense"),
        (("serve",), "the following arguments are required: MODEL"),
        (("serve", "x.gguf", "--bogus"), "unknown flag --bogus"),
        ((), "the following arguments are required: COMMAND"),
    ],
)
def test_usage_error_as_json(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], error_message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main((*argv, "--json"))
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert json.loads(out) == {"error": {"type": "UsageError", "message": error_message}}
    assert ("serve" in argv) == (out.count("\n") == 1)  # serve prints one JSON object per line
    assert err.endswith(f"error: {error_message}\n")
    with pytest.raises(SystemExit):
        main(argv)
    assert capsys.readouterr().out == ""
