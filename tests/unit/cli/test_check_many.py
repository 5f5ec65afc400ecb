"""`edgekit check` of several models: names, folders, standard input; one table, the worst exit code."""

from __future__ import annotations

import io
import json
import os
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
MACHINE = (
    "--ram",
    "8G",
    "--min-context",
    "8k",
)  # 7 GiB may be used: 0.7, 5.9 and 16.9 GiB are needed


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that paths are relative to."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def three(home: Path) -> list[str]:
    return [write_model(home, model).name for model in (FITTING, TIGHT, FAILING)]


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["check", *words])
    out, err = capsys.readouterr()
    return code, out, err


def ask_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code, out, err = ask(capsys, *words, "--json")
    assert err == ""
    return code, json.loads(out)


def references(told: dict[str, Any]) -> list[str]:
    return [model["reference"] for model in told["models"]]


def say(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


# --- the table


def test_a_row_for_each(three: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, *three, *MACHINE)
    assert (code, err) == (3, "")
    lines = out.splitlines()
    assert lines[0].endswith("8 GiB RAM")
    assert " ".join(lines[2].split()) == "model weights context max GiB used tokens/s"
    assert lines[3].split()[:-1] == ["fits", three[0], "Q4_K_M", "2K", "2K", "0.7", "of", "7.0"]
    assert lines[4].split()[:2] == ["tight", three[1]]
    assert lines[5].split()[:4] == ["does", "not", "fit", three[2]]
    assert lines[-1] == "1 fits, 1 is tight, 1 does not fit"
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("which", "strict", "code"),
    [
        ((0,), False, 0), ((0, 1), False, 0), ((0, 1), True, 1), ((0, 0), True, 0),
        ((2, 0), False, 3), ((1, 2), True, 3),
    ],
)  # fmt: skip
def test_the_worst_code_counts(
    *,
    which: tuple[int, ...],
    strict: bool,
    code: int,
    three: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [three[place] for place in which] + ["--strict"] * strict
    assert ask(capsys, *words, *MACHINE)[0] == code


@pytest.mark.parametrize(
    ("broken", "code", "outcome", "why"),
    [
        ("page.gguf", 5, "not read", "it looks like a web page"),
        ("none.gguf", 4, "not read", "no such file or folder: none.gguf"),
        ("", 2, "not read", "no model given"),
        ("no\0thing", 2, "not read", "control characters"),
        ("sample:nope", 4, "not read", "no such sample: 'nope'"),
    ],
)
def test_one_broken_among_good_ones(
    *,
    broken: str,
    code: int,
    outcome: str,
    why: str,
    home: Path,
    three: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (home / "page.gguf").write_bytes(b"<!DOCTYPE html>")
    words = [three[0], broken, three[2]]
    result, out, err = ask(capsys, *words, *MACHINE)
    assert (result, err) == (code, "")
    assert out.splitlines()[4].startswith(outcome)
    assert why in " ".join(out.split())
    assert out.splitlines()[-1] == "1 fits, 1 does not fit, 1 could not be read"
    result, answer = ask_json(capsys, *words, *MACHINE)
    assert result == code
    assert references(answer) == words
    assert why in answer["models"][1]["error"]["message"]
    assert answer["models"][2]["status"] == "failed"


def test_what_is_the_same_is_said_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [write_model(home, model).name for model in ("tinyllama-1.1b", "lfm2-1.2b", "qwen3-0.6b", "gemma-3-1b")]  # fmt: skip
    code, out, _ = ask(capsys, *names, "--engine", "vllm", "--ram", "8G")
    assert code == 3
    assert " ".join(out.split()).count("vLLM needs an NVIDIA GPU") == 1
    assert out.splitlines()[-1] == "4 cannot run"


def test_nothing_of_a_table_is_left_for_one(
    three: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same model twice is one question, which is said on standard error."""
    *once, _ = ask(capsys, three[0], *MACHINE)
    note = f"edgekit: {three[0]} was given more than once and is shown once\n"
    assert ask(capsys, three[0], three[0], three[0], *MACHINE) == (*once, note)


def test_several_engines_for_several_models(
    three: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = ask_json(
        capsys, three[0], three[2], "--engine", "all", *MACHINE, "--ram", "768M"
    )
    assert code == 3  # the best engine of each, the worst of the models
    assert len(answer["models"]) == 2 * 4
    assert answer["summary"]["cannot_run"] == 4
    assert answer["summary"]["fits"] == 1  # the smaller one, read from its file for every token


# --- folders


def test_a_folder_of_models(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "models" / "org" / "deep").mkdir(parents=True)
    for model in ("tinyllama-1.1b", "gemma-3-1b"):
        write_model(home / "models", model)
    write_model(home / "models" / "org" / "deep", "qwen3-0.6b")
    (home / "models" / "README.md").write_text("not a model")
    (home / "models" / ".hidden.gguf").write_bytes(b"")
    code, answer = ask_json(capsys, "models", "--ram", "8G")
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


def test_folders_with_a_config_are_models(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b/inner"):
        write_tensors(home / "models" / name)
    write_model(home / "models", "tinyllama-1.1b")
    code, answer = ask_json(capsys, "models", "--device", "RTX 4090")
    assert references(answer) == ["models/a", "models/b/inner", "models/tinyllama-1.1b.Q4_K_M.gguf"]
    assert [model["engine"]["name"] for model in answer["models"]] == ["vllm", "vllm", "llama.cpp"]
    assert code == 0


def test_a_folder_that_is_one_model(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tensors(home / "model")
    code, answer = ask_json(capsys, "model", "--ram", "8G")
    assert (code, answer["reference"]) == (0, "model")


def test_shards_are_one_model(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two files of a set are one row; that they do not belong together is another matter."""
    write_model(home, "tinyllama-1.1b")
    for number, model in ((1, "lfm2-1.2b"), (2, "qwen3-0.6b")):
        write_model(home, model).rename(home / f"big-{number:05d}-of-00002.gguf")
    _, answer = ask_json(capsys, ".", "--ram", "8G")
    assert references(answer) == ["big-00001-of-00002.gguf", "tinyllama-1.1b.Q4_K_M.gguf"]


def test_an_empty_folder(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "empty").mkdir()
    code, out, err = ask(capsys, "empty", "--ram", "8G")
    assert (code, out) == (4, "")
    assert err == "edgekit: empty is empty: it has no GGUF, safetensors or config.json\n"


def test_a_folder_and_a_model_in_it(
    home: Path, three: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, answer = ask_json(capsys, str(home), str(home / three[0]), *MACHINE)
    assert len(answer["models"]) == 3


# --- standard input


def test_names_on_standard_input(
    three: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, f"# mine\n\n  {three[0]}  \r\n#{three[1]}\n{three[2]}\n{three[0]}\n")
    code, answer = ask_json(capsys, "-", *MACHINE)
    assert (code, references(answer)) == (3, [three[0], three[2]])


def test_standard_input_among_others(
    three: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, f"{three[1]}\n{three[0]}")
    _, answer = ask_json(capsys, three[2], "-", three[1], *MACHINE)
    assert references(answer) == [three[2], three[1], three[0]]


def test_one_name_on_standard_input_is_one_answer(
    three: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, f"\ufeff{three[0]}\n")  # as some editors open a text
    assert (
        ask(capsys, "-", "--quiet", *MACHINE)[1]
        == "Runs on the CPU: 0.7 of 7.0 GiB at 2K, about 32 tokens/s\n"
    )


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "   \n#\n"])
def test_nothing_on_standard_input(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, text)
    assert ask(capsys, "-", "--ram", "8G") == (2, "", "edgekit: no model given\n")


def test_a_closed_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert ask(capsys, "-") == (2, "", "edgekit: standard input is closed\n")


def test_too_many(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "".join(f"org/model{number}\n" for number in range(10_001)))
    assert ask(capsys, "-") == (2, "", "edgekit: more than 10,000 models at once\n")


@pytest.mark.parametrize(
    "raw", [b"\xff\xfe\n", b"m\0o\0d\0e\0l\0", b"\x1b[31m\n", bytes(range(256))]
)
def test_bytes_on_standard_input_that_are_no_names(
    raw: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))
    code, out, err = ask(capsys, "-", "--ram", "8G", "--offline")
    assert code in {2, 4}
    assert "\x1b" not in out + err


def test_any_bytes_on_the_standard_input_of_a_process() -> None:
    raw = bytes(range(256))
    done = subprocess.run(
        [sys.executable, "-m", "edgekit", "check", "-", "--ram", "8G", "--offline"],
        input=raw, capture_output=True, check=False, timeout=PATIENCE_S,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},  # as most languages have it
    )  # fmt: skip
    assert done.returncode in {2, 4}
    assert b"Traceback" not in done.stderr
    assert b"\x1b" not in done.stdout + done.stderr


# --- many


def fifty(folder: Path) -> list[str]:
    folder.mkdir()
    return [str(write_model(folder, model["model"], model["quant"])) for model in models()[:100:2]]


def spent(*words: str) -> float:
    """CPU seconds of the process that answered."""
    process = subprocess.Popen(
        [sys.executable, "-m", "edgekit", "check", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in {0, 3}
    return usage.ru_utime + usage.ru_stime


def test_fifty_headers_are_fifty_rows_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backwards = sampled(fifty(tmp_path / "models"), each=3)[::-1]
    _, answer = ask_json(capsys, *backwards, "--ram", "24G")
    assert references(answer) == backwards
    assert sum(answer["summary"].values()) == len(backwards)
    assert answer["summary"]["not_read"] == answer["summary"]["cannot_run"] == 0
    assert {model["status"] for model in answer["models"]} == {"passed", "warning", "failed"}


def test_rows_are_written_while_later_models_are_read(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written when the last of thirty models was opened."""
    one = write_model(home, FITTING)
    names = [f"{number:02}.gguf" for number in range(30)]
    for name in names:
        os.link(one, home / name)
    so_far: list[str] = []

    def opened(reference: str, *arguments: Any, **more: Any) -> list[Answer]:
        if reference == names[-1]:
            so_far.append(capsys.readouterr().out)
        return check(reference, *arguments, **more)

    check = checking.check
    monkeypatch.setattr(checking, "check", opened)
    code, out, _ = ask(capsys, *names, "--ram", "24G")
    assert code == 0
    assert [line.split()[1] for line in so_far[0].splitlines()[3:]] == names[:-1]
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["fits", names[-1]],
        [],
        ["30", "fit"],
    ]


def test_progress_counts_models_on_a_terminal_and_leaves_the_rows_alone(three: list[str]) -> None:
    """Both streams on one terminal: the progress line is wiped before a row is written."""
    import pty

    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-m", "edgekit", "check", *three, *MACHINE]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        answer = b""
        with suppress(OSError):  # EIO: the other end is closed
            while piece := os.read(ours, 65536):
                answer += piece
    os.close(ours)
    assert b"checked 0 of 3 models" in answer
    assert b"checked 2 of 3 models" in answer
    shown = [line.rpartition(b"\x1b[K")[2].decode() for line in answer.split(b"\r\n")]
    assert shown[3].split()[:2] == ["fits", three[0]]
    assert shown[-2] == "1 fits, 1 is tight, 1 does not fit"


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="only Unix tells what a child has used")
@wide
def test_fifty_headers_cost_less_than_fifty_runs(tmp_path: Path) -> None:
    names = fifty(tmp_path / "models")
    one = min(spent(names[0], "--ram", "24G", "--quiet") for _ in range(3))
    assert spent(*names, "--ram", "24G", "--quiet") < 25 * one
