"""-c: one flag for the context, under the name that any engine has for it."""

from __future__ import annotations

import json

import pytest

from edgekit.cli import main
from edgekit.engines.flags import CONTEXT, CONTEXT_NAMES, Whole
from edgekit.errors import UsageError

SAMPLE = "sample:qwen3-30b-a3b"
EVERY_NAME = (*CONTEXT.names, *CONTEXT_NAMES)


def test_context_flag_has_the_names_of_all_engines() -> None:
    assert set(EVERY_NAME) >= {
        "-c", "--ctx-size", "--ctx", "--context", "--context-len", "--context-length", "--max-model-len", "--n-ctx",
    }  # fmt: skip


@pytest.mark.parametrize("name", EVERY_NAME)
@pytest.mark.parametrize(
    "command", [["estimate", SAMPLE], ["check", SAMPLE, "--ram", "64G"], ["compare", SAMPLE]]
)
def test_every_name_of_the_context_flag_means_the_same(
    command: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, name, "16k", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    answer = answer.get("engines", {}).get("llama.cpp", answer)
    answer = answer.get("estimate", answer)
    assert answer["facts"]["n_ctx"] == 16_384


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("7.0", 7), ("1.5k", 1536), ("0.25k", 256), ("1,024", 1024), ("9007199254740993", 2**53 + 1)],
)  # fmt: skip
def test_whole_reads_numbers_and_suffixes(text: str, number: int) -> None:
    assert Whole(most=2**60)(text) == number


@pytest.mark.parametrize("text", ["3.5", "-3.5", "0.5", "4096.5", "32.7k", "1.0000001m"])
def test_whole_refuses_fractions(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a whole number \(write for example 8 or 32k\)"):
        Whole(least=-9)(text)


@pytest.mark.parametrize("name", CONTEXT_NAMES)
def test_verify_takes_every_name_of_the_context_flag(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", SAMPLE, name, "lots"]) == 2
    assert "-c/--ctx-size: 'lots' is not a whole number" in capsys.readouterr().err


def test_same_context_may_be_given_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", SAMPLE, "-c", "4k", "--max-model-len", "4096"]) == 0
    assert "4,096 tokens" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["-c", "4k", "--ctx", "8k"], ["--n-ctx", "1", "-c", "2"]])
def test_two_different_contexts_are_an_error(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["estimate", SAMPLE, *argv])
    assert caught.value.code == 2
    assert f"{argv[2]} {argv[3]}: {argv[1]} was given already" in capsys.readouterr().err


def test_help_lists_one_name_of_the_context_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["estimate", "--help"])
    output = capsys.readouterr().out
    assert "-c N, --ctx-size N" in output
    assert "--n-ctx" not in output


def test_context_flag_does_not_select_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    """--max-model-len is vLLM's name for it, and also sets the context of a GGUF file."""
    assert main(["estimate", SAMPLE, "--max-model-len", "8k", "-ctk", "q8_0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["engine"] == "llama.cpp"
