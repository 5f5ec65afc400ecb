"""`edgekit` and its streams: version, usage errors, closed pipes, full disks, environment variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.cli.test_estimate import write_model

from edgekit import __version__
from edgekit.cli import main, warn

ROOT = Path(__file__).parents[3]


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


def test_usage_error_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["inspect"], ["inspect", "a", "--nonsense"], ["nonsense"]):
        with pytest.raises(SystemExit) as caught:
            main(argv)
        assert caught.value.code == 2
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_error_is_reported() -> None:
    command = f"{sys.executable} -m edgekit inspect sample:gemma-3-27b > /dev/full"
    completed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert completed.returncode == 1
    assert completed.stderr.startswith("edgekit: the answer could not be written: ")
    assert len(completed.stderr.splitlines()) == 1


def test_ascii_output_has_question_marks() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "edgekit", "inspect", "sample:gemma-3-27b"],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert completed.stdout.startswith("gemma-3-27b.Q4_K_M.gguf  ?  GGUF v3  ?  gemma3\n")


RUN_WITH_EACH_VARIABLE = """
import os, sys
from edgekit.cli import main, warn
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
    with pytest.raises(SystemExit) as caught:
        main((*argv, "--json"))
    out, err = capsys.readouterr()
    assert caught.value.code == 2
    assert json.loads(out) == {"error": {"type": "UsageError", "message": error_message}}
    assert ("serve" in argv) == (out.count("\n") == 1)  # serve prints one JSON object per line
    assert err.endswith(f"error: {error_message}\n")
    with pytest.raises(SystemExit):
        main(argv)
    assert capsys.readouterr().out == ""


def test_warnings_cannot_smuggle_in_escape_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    warn("llama.cpp exited (code 1): \x1b[2J\nall is well")
    assert capsys.readouterr().err == (
        "edgekit: llama.cpp exited (code 1): \N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}all is well\n"
    )
