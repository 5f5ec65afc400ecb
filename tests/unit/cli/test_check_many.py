"""`edgekit check` of several models: names, folders, standard input; one table, the worst exit code."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.header_files import safetensors, tensor
from tests.patience import PATIENCE_S
from tests.recorded import models
from tests.thoroughness import sampled, wide
from tests.unit.cli.test_estimate import write_model
from tests.unit.cli.test_estimate_engines import CONFIG

from edgekit.app import check as checking
from edgekit.app.check import Answer
from edgekit.cli import main

FITTING, TIGHT, FAILING = "tinyllama-1.1b", "llama-3.1-8b", "gemma-3-27b"
# 7 GiB is usable; the three models need 0.7, 5.9 and 16.9 GiB
MACHINE = ("--ram", "8G", "--min-context", "8k")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def model_names(home: Path) -> list[str]:
    return [write_model(home, model).name for model in (FITTING, TIGHT, FAILING)]


def run_check(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["check", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def check_json(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code, out, err = run_check(capsys, *argv, "--json")
    assert err == ""
    return code, json.loads(out)


def references(answer: dict[str, Any]) -> list[str]:
    return [model["reference"] for model in answer["models"]]


def set_stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


# --- the table


def test_several_models_are_rows_of_one_table(
    model_names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_check(capsys, *model_names, *MACHINE)
    assert (code, err) == (3, "")
    lines = out.splitlines()
    assert lines[0].endswith("8 GiB RAM")
    assert " ".join(lines[2].split()) == "model weights context max GiB used tokens/s"
    assert lines[3].split()[:-1] == [
        "fits",
        model_names[0],
        "Q4_K_M",
        "2K",
        "2K",
        "0.7",
        "of",
        "7.0",
    ]
    assert lines[4].split()[:2] == ["tight", model_names[1]]
    assert lines[5].split()[:4] == ["does", "not", "fit", model_names[2]]
    assert lines[-1] == "1 fits, 1 is tight, 1 does not fit"
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("indexes", "strict", "code"),
    [
        ((0,), False, 0), ((0, 1), False, 0), ((0, 1), True, 1), ((0, 0), True, 0),
        ((2, 0), False, 3), ((1, 2), True, 3),
    ],
)  # fmt: skip
def test_exit_code_is_the_worst_of_all_models(
    *,
    indexes: tuple[int, ...],
    strict: bool,
    code: int,
    model_names: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [model_names[index] for index in indexes] + ["--strict"] * strict
    assert run_check(capsys, *argv, *MACHINE)[0] == code


@pytest.mark.parametrize(
    ("broken", "code", "outcome", "message"),
    [
        ("page.gguf", 5, "not read", "it looks like a web page"),
        ("none.gguf", 4, "not read", "no such file or folder: none.gguf"),
        ("", 2, "not read", "no model given"),
        ("no\0thing", 2, "not read", "control characters"),
        ("sample:nope", 4, "not read", "no such sample: 'nope'"),
    ],
)
def test_unreadable_model_is_a_row_with_the_reason(
    *,
    broken: str,
    code: int,
    outcome: str,
    message: str,
    home: Path,
    model_names: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (home / "page.gguf").write_bytes(b"<!DOCTYPE html>")
    argv = [model_names[0], broken, model_names[2]]
    result, out, err = run_check(capsys, *argv, *MACHINE)
    assert (result, err) == (code, "")
    assert out.splitlines()[4].startswith(outcome)
    assert message in " ".join(out.split())
    assert out.splitlines()[-1] == "1 fits, 1 does not fit, 1 could not be read"
    result, answer = check_json(capsys, *argv, *MACHINE)
    assert result == code
    assert references(answer) == argv
    assert message in answer["models"][1]["error"]["message"]
    assert answer["models"][2]["status"] == "failed"


def test_reason_shared_by_several_models_is_shown_once(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [write_model(home, model).name for model in ("tinyllama-1.1b", "lfm2-1.2b", "qwen3-0.6b", "gemma-3-1b")]  # fmt: skip
    code, out, _ = run_check(capsys, *names, "--engine", "vllm", "--ram", "8G")
    assert code == 3
    assert " ".join(out.split()).count("vLLM needs an NVIDIA GPU") == 1
    assert out.splitlines()[-1] == "4 cannot run"


def test_model_given_twice_is_answered_once_without_a_table(
    model_names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    *once, _ = run_check(capsys, model_names[0], *MACHINE)
    note = f"edgekit: {model_names[0]} was given more than once and is shown once\n"
    assert run_check(capsys, model_names[0], model_names[0], model_names[0], *MACHINE) == (
        *once,
        note,
    )


def test_engine_all_of_several_models_is_a_row_for_each_pair(
    model_names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = check_json(
        capsys, model_names[0], model_names[2], "--engine", "all", *MACHINE, "--ram", "768M"
    )
    assert code == 3  # of the best engine of each model, the worst
    assert len(answer["models"]) == 2 * 4
    assert answer["summary"]["cannot_run"] == 4
    # the smaller model fits the built-in engine, which reads its weights from the file
    assert answer["summary"]["fits"] == 1


# --- folders


def test_folder_is_searched_for_models(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "models" / "org" / "deep").mkdir(parents=True)
    for model in ("tinyllama-1.1b", "gemma-3-1b"):
        write_model(home / "models", model)
    write_model(home / "models" / "org" / "deep", "qwen3-0.6b")
    (home / "models" / "README.md").write_text("not a model")
    (home / "models" / ".hidden.gguf").write_bytes(b"")
    code, answer = check_json(capsys, "models", "--ram", "8G")
    assert code == 0
    assert references(answer) == [
        "models/gemma-3-1b.Q4_K_M.gguf",
        "models/org/deep/qwen3-0.6b.Q4_K_M.gguf",
        "models/tinyllama-1.1b.Q4_K_M.gguf",
    ]


def write_tensors(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    table = {"model.embed_tokens.weight": tensor("BF16", [1024, 256], 0, 1024 * 256 * 2)}
    (folder / "model.safetensors").write_bytes(safetensors(table, data_bytes=1024 * 256 * 2))


def test_subfolder_with_a_config_is_a_model(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b/inner"):
        write_tensors(home / "models" / name)
    write_model(home / "models", "tinyllama-1.1b")
    code, answer = check_json(capsys, "models", "--device", "RTX 4090")
    assert references(answer) == ["models/a", "models/b/inner", "models/tinyllama-1.1b.Q4_K_M.gguf"]
    assert [model["engine"]["name"] for model in answer["models"]] == ["vllm", "vllm", "llama.cpp"]
    assert code == 0


def test_folder_with_a_config_is_one_model(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tensors(home / "model")
    code, answer = check_json(capsys, "model", "--ram", "8G")
    assert (code, answer["reference"]) == (0, "model")


def test_shards_are_one_model(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files numbered as shards of one set are one row, even if their contents do not match."""
    write_model(home, "tinyllama-1.1b")
    for number, model in ((1, "lfm2-1.2b"), (2, "qwen3-0.6b")):
        write_model(home, model).rename(home / f"big-{number:05d}-of-00002.gguf")
    _, answer = check_json(capsys, ".", "--ram", "8G")
    assert references(answer) == ["big-00001-of-00002.gguf", "tinyllama-1.1b.Q4_K_M.gguf"]


def test_empty_folder_is_an_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "empty").mkdir()
    code, out, err = run_check(capsys, "empty", "--ram", "8G")
    assert (code, out) == (4, "")
    assert err == "edgekit: empty is empty: it has no GGUF, safetensors or config.json\n"


def test_model_inside_a_given_folder_is_shown_once(
    home: Path, model_names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, answer = check_json(capsys, str(home), str(home / model_names[0]), *MACHINE)
    assert len(answer["models"]) == 3


# --- standard input


def test_stdin_lists_a_model_per_line_with_comments_and_blank_lines(
    model_names: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_stdin(
        monkeypatch,
        f"# mine\n\n  {model_names[0]}  \r\n#{model_names[1]}\n{model_names[2]}\n{model_names[0]}\n",
    )
    code, answer = check_json(capsys, "-", *MACHINE)
    assert (code, references(answer)) == (3, [model_names[0], model_names[2]])


def test_models_from_stdin_take_the_place_of_the_dash(
    model_names: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_stdin(monkeypatch, f"{model_names[1]}\n{model_names[0]}")
    _, answer = check_json(capsys, model_names[2], "-", model_names[1], *MACHINE)
    assert references(answer) == [model_names[2], model_names[1], model_names[0]]


def test_single_model_on_stdin_is_answered_without_a_table(
    model_names: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the byte order mark with which some editors begin a file."""
    set_stdin(monkeypatch, f"\ufeff{model_names[0]}\n")
    line = r"Runs on the CPU: 0\.7 of 7\.0 GiB at 2K, about \d+ tokens/s \(\d+-\d+\)\n"
    assert re.fullmatch(line, run_check(capsys, "-", "--quiet", *MACHINE)[1])


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "   \n#\n"])
def test_empty_stdin_is_an_error(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_stdin(monkeypatch, text)
    assert run_check(capsys, "-", "--ram", "8G") == (2, "", "edgekit: no model given\n")


def test_closed_stdin_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run_check(capsys, "-") == (2, "", "edgekit: standard input is closed\n")


def test_more_than_10_000_models_are_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_stdin(monkeypatch, "".join(f"org/model{number}\n" for number in range(10_001)))
    assert run_check(capsys, "-") == (2, "", "edgekit: more than 10,000 models at once\n")


@pytest.mark.parametrize(
    "raw", [b"\xff\xfe\n", b"m\0o\0d\0e\0l\0", b"\x1b[31m\n", bytes(range(256))]
)
def test_binary_stdin_is_an_error_without_escape_sequences(
    raw: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))
    code, out, err = run_check(capsys, "-", "--ram", "8G", "--offline")
    assert code in {2, 4}
    assert "\x1b" not in out + err


def test_binary_stdin_of_a_process_gives_no_traceback() -> None:
    raw = bytes(range(256))
    completed = subprocess.run(
        [sys.executable, "-m", "edgekit", "check", "-", "--ram", "8G", "--offline"],
        input=raw, capture_output=True, check=False, timeout=PATIENCE_S,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},  # strict, as in most locales
    )  # fmt: skip
    assert completed.returncode in {2, 4}
    assert b"Traceback" not in completed.stderr
    assert b"\x1b" not in completed.stdout + completed.stderr


# --- many models


def write_fifty_models(folder: Path) -> list[str]:
    folder.mkdir()
    return [str(write_model(folder, model["model"], model["quant"])) for model in models()[:100:2]]


def cpu_seconds(*argv: str) -> float:
    """The CPU time of a process that checks these models."""
    process = subprocess.Popen(
        [sys.executable, "-m", "edgekit", "check", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in {0, 3}
    return usage.ru_utime + usage.ru_stime


def test_many_models_are_rows_in_the_given_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backwards = sampled(write_fifty_models(tmp_path / "models"), each=3)[::-1]
    _, answer = check_json(capsys, *backwards, "--ram", "24G")
    assert references(answer) == backwards
    assert sum(answer["summary"].values()) == len(backwards)
    assert answer["summary"]["not_read"] == answer["summary"]["cannot_run"] == 0
    assert {model["status"] for model in answer["models"]} == {"passed", "warning", "failed"}


def test_rows_are_written_while_later_models_are_read(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model_file = write_model(home, FITTING)
    names = [f"{number:02}.gguf" for number in range(30)]
    for name in names:
        os.link(model_file, home / name)
    output_before_the_last: list[str] = []

    def check_and_record(reference: str, *arguments: Any, **more: Any) -> list[Answer]:
        if reference == names[-1]:
            output_before_the_last.append(capsys.readouterr().out)
        return check(reference, *arguments, **more)

    check = checking.check
    monkeypatch.setattr(checking, "check", check_and_record)
    code, out, _ = run_check(capsys, *names, "--ram", "24G")
    assert code == 0
    assert [line.split()[1] for line in output_before_the_last[0].splitlines()[3:]] == names[:-1]
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["fits", names[-1]],
        [],
        ["30", "fit"],
    ]


def test_progress_line_on_a_terminal_does_not_disturb_the_rows(model_names: list[str]) -> None:
    """With stdout and stderr on one terminal, the progress line is erased before each row."""
    import pty

    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-m", "edgekit", "check", *model_names, *MACHINE]
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env=environment):
        os.close(terminal)
        output = b""
        with suppress(OSError):  # EIO: the other end is closed
            while chunk := os.read(controller, 65536):
                output += chunk
    os.close(controller)
    assert b"checked 0 of 3 models" in output
    assert b"checked 2 of 3 models" in output
    shown = [line.rpartition(b"\x1b[K")[2].decode() for line in output.split(b"\r\n")]
    assert shown[3].split()[:2] == ["fits", model_names[0]]
    assert shown[-2] == "1 fits, 1 is tight, 1 does not fit"


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="needs os.wait4")
@wide
def test_checking_fifty_models_costs_less_than_fifty_processes(tmp_path: Path) -> None:
    names = write_fifty_models(tmp_path / "models")
    single = min(cpu_seconds(names[0], "--ram", "24G", "--quiet") for _ in range(3))
    assert cpu_seconds(*names, "--ram", "24G", "--quiet") < 25 * single
