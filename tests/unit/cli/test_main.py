"""The command line as a person or a program meets it."""

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
from tests.recorded import header_bytes, models, padded

from edgekit import __version__
from edgekit.cli import main

ROOT = Path(__file__).parents[3]


def write_model(folder: Path, model: str = "lfm2-1.2b", quant: str = "Q4_K_M") -> Path:
    fact = next(m for m in models() if (m["model"], m["quant"]) == (model, quant))
    raw = header_bytes(fact["header_without_vocabulary"])
    path = folder / f"{model}.{quant}.gguf"
    path.write_bytes(raw)
    os.truncate(path, padded(len(raw)) + fact["data_section_bytes"])
    return path


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


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


def ask_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code, out, _ = ask(capsys, "inspect", *words, "--json")
    assert code == 0
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_version_and_help() -> None:
    for words, expected in (
        (["--version"], __version__),
        (["--help"], "examples:"),
        (["inspect", "--help"], "MODEL is any of"),
    ):
        run_ = subprocess.run(
            [sys.executable, "-m", "edgekit", *words], capture_output=True, text=True, check=True
        )
        assert expected in run_.stdout


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, edgekit.cli.parser as p; p.build_parser(); print(' '.join(sys.modules))"
    run_ = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run_.stdout.split())
    assert loaded.isdisjoint(
        {"httpx2", "huggingface_hub", "numpy", "json", "edgekit.model", "edgekit.formats", "ssl"}
    )


def test_inspect_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = ask(capsys, "inspect", str(write_model(tmp_path)))
    assert (code, err) == (0, "")
    assert len(out.splitlines()) <= 24
    assert "10 short convolution, 6 full attention" in out
    assert "128,000 tokens of context" in out
    assert "no network used" in out
    assert "\x1b" not in out  # not a terminal


def test_inspect_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fact = next(m for m in models() if (m["model"], m["quant"]) == ("lfm2-1.2b", "Q4_K_M"))
    answer = ask_json(capsys, str(write_model(tmp_path)))
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
    answer = ask_json(capsys, "sample:qwen3-30b-a3b")
    experts = 48 * 128 * 3 * 2048 * 768
    assert answer["parameters"] - answer["active_parameters"] == experts * (128 - 8) // 128


def test_inspect_lists_layers_tensors_and_keys_on_request(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(write_model(tmp_path))
    assert ask_json(capsys, path).keys().isdisjoint({"layer_list", "tensor_list", "keys"})
    answer = ask_json(capsys, path, "--layers", "--tensors", "--keys")
    assert len(answer["layer_list"]) == 16
    assert len(answer["tensor_list"]) == answer["tensors"] == 148
    assert answer["keys"]["lfm2.block_count"] == 16
    _, out, _ = ask(capsys, "inspect", path, "--layers", "--tensors", "--keys")
    assert re.search(r"^15 +short convolution", out, re.MULTILINE)
    assert re.search(r"^blk\.0\.shortconv\.conv\.weight +F32", out, re.MULTILINE)
    assert re.search(r"^lfm2\.context_length +128000", out, re.MULTILINE)


def test_config_alone_is_enough_for_geometry(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
              "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    for reference in (tmp_path, tmp_path / "config.json"):
        answer = ask_json(capsys, str(reference))
        assert (answer["format"], answer["layers"], answer["tensor_bytes"]) == ("config", 2, None)
        # two tables, two layers of four square matrices and three of 64 x 128
        assert answer["parameters"] == 2 * 100 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128)
        assert answer["parameters_basis"] == "modelled"


def test_inspect_of_a_projector(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    numbers = {"clip.vision.block_count": 27, "clip.vision.embedding_length": 1152}
    path = write_keys(tmp_path / "mmproj-model.gguf", "clip", numbers=numbers)
    code, out, _ = ask(capsys, "inspect", str(path))
    assert code == 0
    assert "projector" in out
    assert "vision tower, 27 layers of 1,152" in out
    assert ask_json(capsys, str(path))["towers"] == [
        {"kind": "vision", "layers": 27, "hidden": 1152}
    ]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
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
    words: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if words[0].startswith("{folder}/"):
        (tmp_path / "empty.gguf").write_bytes(b"")
        (tmp_path / "page.gguf").write_bytes(b"<!DOCTYPE html><html>")
    requests = [word.replace("{folder}", str(tmp_path)) for word in words]
    result, out, err = ask(capsys, "inspect", *requests)
    assert result == code
    assert out == ""
    assert err.startswith("edgekit: ")
    assert len(err.strip().splitlines()) == 1
    assert sentence.lower() in err.lower()
    result, out, _ = ask(capsys, "inspect", *requests, "--json")
    assert result == code
    assert json.loads(out)["error"]["message"] in err


def test_usage_error_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["inspect"], ["inspect", "a", "--nonsense"], ["nonsense"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        assert "usage:" in capsys.readouterr().err
    run_ = subprocess.run(
        [sys.executable, "-m", "edgekit", "nonsense"], capture_output=True, text=True, check=False
    )
    assert (run_.returncode, "usage:" in run_.stderr) == (2, True)


def test_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    command = f"{sys.executable} -m edgekit inspect {path} --tensors --keys | head -1"
    run_ = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False
    )
    assert run_.stderr == ""
    assert run_.returncode == 0


def test_readme_python_examples_print_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    examples = [part.split("```")[0] for part in readme.split("```python\n")[1:]]
    assert examples
    for example in examples:
        exec(compile(example, "README.md", "exec"), {})
        answer = [line.removeprefix("# ") for line in example.splitlines() if line.startswith("# ")]
        assert capsys.readouterr().out.splitlines() == answer


def test_json_documentation_names_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, "sample:gemma-3-27b", "--layers", "--tensors", "--keys")
    assert answer.keys() <= documented("inspect")


def test_json_has_the_same_names_for_every_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    projector = ask_json(capsys, str(write_keys(tmp_path / "mmproj.gguf", "clip")))
    assert projector.keys() == ask_json(capsys, "sample:gemma-3-27b").keys()
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
    code, out, _ = ask(capsys, "inspect", str(path), "--keys")
    assert code == 0
    assert "owned" in out
    assert "\x1b" not in out
    assert "\x07" not in out
    _, _, err = ask(capsys, "inspect", "/\x1b[2J.gguf")
    assert "\x1b" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_error_is_reported() -> None:
    command = f"{sys.executable} -m edgekit inspect sample:gemma-3-27b > /dev/full"
    run_ = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert run_.returncode == 1
    assert run_.stderr.startswith("edgekit: the answer could not be written: ")
    assert len(run_.stderr.splitlines()) == 1


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


def test_narrow_encoding_prints_question_marks() -> None:
    run_ = subprocess.run(
        [sys.executable, "-m", "edgekit", "inspect", "sample:gemma-3-27b"],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert "gemma3" in run_.stdout


ASK_WITH_EACH = """
import os, sys
from edgekit.cli import main
for word in sys.argv[1:]:
    variable, _, value = word.partition("=")
    os.environ[variable] = value
    print(main(["inspect", "org/name", "--timeout", "5"]))
    del os.environ[variable]
"""


@pytest.mark.parametrize(
    "given",
    [
        [
            "ALL_PROXY=socks5://127.0.0.1:1",
            "HTTP_PROXY=nonsense://x",
            "HTTPS_PROXY=http://[::1",
            "HF_ENDPOINT=http://[::1",
            "SSL_CERT_FILE=/nonexistent",
        ],
        ["HF_HUB_ETAG_TIMEOUT=abc"],  # read once in a process
    ],
)
def test_invalid_environment_variable_is_named(given: list[str]) -> None:
    run_ = subprocess.run(
        [sys.executable, "-c", ASK_WITH_EACH, *given], capture_output=True, text=True, check=False
    )
    assert run_.stdout.split() == ["2"] * len(given), run_.stderr
    for word, line in zip(given, run_.stderr.splitlines(), strict=True):
        variable = word.partition("=")[0]
        assert variable in line or (variable.startswith("HF_HUB") and "HF_HUB_..." in line)


def test_error_with_closed_stderr_is_silent() -> None:
    for redirection in ("> /dev/full", "2>&-", ">&- 2>&-"):
        command = f"{sys.executable} -m edgekit inspect ./nothing.gguf --json {redirection}"
        run_ = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert "Traceback" not in run_.stderr + run_.stdout
        assert run_.stdout == "" or json.loads(run_.stdout)["error"]


def test_vocabulary_tensor_without_dimensions(
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
    assert ask_json(capsys, str(path))["vocabulary"] is None


def test_deeply_nested_config_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "a": ' + "[" * 900 + "]" * 900 + "}"
    )
    code, _, err = ask(capsys, "inspect", str(tmp_path), "--keys", "--json")
    assert code == 5
    assert "nesting: 901 is over the limit of 64" in err


def test_shard_index_next_to_a_single_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2,
              "intermediate_size": 8}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    whole = header_files.safetensors({"a": header_files.tensor("F16", [4], 0, 8)}, data_bytes=8)
    names = (
        "model.safetensors",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    )
    for name in names:
        (tmp_path / name).write_bytes(whole)
    index = {"weight_map": {"a": names[1], "b": names[2]}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert ask_json(capsys, str(tmp_path))["parameters"] == 4


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("check", "x.gguf", "--nonsense"), "unknown flag --nonsense"),
        (("serve",), "the following arguments are required: MODEL"),
        (("serve", "x.gguf", "--bogus"), "unknown flag --bogus"),
        ((), "the following arguments are required: COMMAND"),
    ],
)
def test_usage_error_as_json(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main((*words, "--json"))
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert json.loads(out) == {"error": {"type": "UsageError", "message": why}}
    assert ("serve" in words) == (out.count("\n") == 1)  # where every line is an event
    assert err.endswith(f"error: {why}\n")
    with pytest.raises(SystemExit):
        main(words)
    assert capsys.readouterr().out == ""
