"""`edgekit search`, without a network."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from tests.documented import documented

from edgekit.cli import main
from edgekit.index import read_index

CARD = ("--device", "RTX 3060", "--ram", "32G")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("COLUMNS", "100")


def run_search(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["search", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def search_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    _, out, err = run_search(capsys, *argv, "--json")
    assert err == ""
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_text_has_a_row_per_model_and_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_search(capsys, "qwen", "coder", "--fits", "--limit", "3", *CARD)
    assert (code, err) == (0, "")
    first, _, head, *rows = out.splitlines()
    assert first.startswith("3 of ")
    assert first.endswith(" matching models, by quality, that fit RTX 3060 + 32 GiB RAM")
    assert head.split()[0] == "model"
    assert {"weights", "download", "context", "tokens/s", "quality"} <= {*head.split()}
    assert all("coder" in row for row in rows[:3])
    assert "\x1b" not in out
    (line,) = (item for item in out.splitlines() if "edgekit plan " in item)
    assert main(shlex.split(line[line.index("plan") :])) == 0


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100, 140])
def test_table_fits_the_screen(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = run_search(capsys, "qwen coder", "--limit", "4", *CARD)
    assert max(map(len, out.splitlines())) <= columns
    assert "tokens/s" in out


def test_words_and_flags_may_be_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    expected = run_search(capsys, "qwen3 0.6b", "--fits", *CARD)
    for argv in (("--fits", "qwen3", "0.6b", *CARD), ("qwen3", *CARD, "--fits", "0.6b")):
        assert run_search(capsys, *argv) == expected


def test_json_has_the_figures_of_plan(capsys: pytest.CaptureFixture[str]) -> None:
    answer = search_json(capsys, "qwen3-0.6b", "--limit", "1", "--exact", "--sort", "uses", *CARD)
    (model,) = answer["models"]
    assert main(["plan", model["id"], *CARD, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    for name in ("status", "context_tokens", "download_bytes", "required_bytes", "available_bytes"):
        assert model["plan"][name] == plan[name]
    assert model["plan"]["quant"] == plan["variant"]["name"]
    assert model["fits"]
    assert answer["known"] == len(read_index().entries)


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("qwen3 0.6b", "--fits", "--ram", "8G"), 0),
        (("llama 3.3 70b", "--fits", "--ram", "8G"), 3),
        (("llama 3.3 70b", "--ram", "8G"), 0),
        (("xyzzy", "--ram", "8G"), 4),
        (("xyzzy", "--fits", "--ram", "8G"), 4),
        (("qwen", "--engine", "vllm", "--ram", "8G"), 3),
        (("qwen", "--sort", "best"), 2),
        (("--limit", "0"), 2),
        (("--limit", "nan"), 2),
        (("--limit", "101"), 2),
        (("日本語", "--ram", "8G"), 4),
        (("%", "--ram", "8G"), 4),
        (("--min-params", "nan"), 2),
        (("--released-after", "nan"), 2),
        (("--min-context", "-5"), 2),
        (("--min-speed", "0"), 2),
        (("x" * 100_000,), 2),
    ],
)
def test_exit_code(argv: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    answered, out, err = run_search(capsys, *argv)
    assert answered == code
    assert bool(out) != bool(err)
    assert len(err) < 300


def test_nothing_matches_says_which_filter_removed_how_many(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run_search(capsys, "gemma", "--licence", "gpl-9", "--ram", "8G")
    assert code == 4
    assert out.startswith("None of the ")
    assert '"gemma": ' in out
    assert "--licence gpl-9: 0 models; without it " in out


def test_context_that_no_model_has_is_named_with_what_matches_without_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run_search(capsys, "qwen", "--min-context", "100M", *CARD)
    assert code == 4
    assert 'matches "qwen" and the filters\n' in out
    assert "a context of 104,857,600 tokens: 0 models; without it " in out


def test_nothing_that_fits_says_what_to_relax(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_search(capsys, "qwen3-32b", "--fits", "--min-context", "16k", "--ram", "2G")
    assert code == 3
    assert "Relax    a shorter context than 16,384 tokens, another --device, or no --fits" in out


def test_min_speed_shows_only_models_that_fit_and_are_as_fast(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = search_json(capsys, "qwen3", "--min-speed", "60", "--limit", "4", *CARD)
    assert answer["min_speed"] == 60
    assert answer["question"]["fits"] is True
    assert all(model["plan"]["tokens_per_s"] >= 60 for model in answer["models"])
    assert "slower than 60 tokens/s" in {row["because"] for row in answer["passed_over"]}
    code, out, _ = run_search(capsys, "qwen3-32b", "--min-speed", "9000", *CARD)
    assert code == 3
    assert "at 9,000 tokens/s or more" in " ".join(out.split())
    assert "Relax    a lower --min-speed, or another --device" in out


def test_word_with_an_escape_sequence_is_printed_safely(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_search(capsys, "\x1b[31mxyzzy", "--ram", "8G")
    assert code == 4
    assert "\x1b" not in out


def test_json_keys_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    answer = search_json(capsys, "qwen3-0.6b", "--limit", "1", *CARD)
    (model,) = answer["models"]
    keys = {*answer, *answer["question"], *answer["filters"][0]}
    keys |= {*model, *model["plan"], *model["quality"]}
    assert keys <= documented("search")


def test_unknown_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["search", "qwen", "--licens", "mit"])
    assert caught.value.code == 2
    assert "Did you mean: --licens" in capsys.readouterr().err


def test_next_command_repeats_the_flags_that_change_the_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = "--reserve 2G --users 2 -c 8k --quant Q5_K_M"
    _, out, _ = run_search(capsys, "qwen3-8b", "--limit", "1", *CARD, *flags.split())
    command = " ".join(out.partition("\nNext")[2].split())
    assert command.startswith("edgekit plan qwen3-8b --device ")
    assert command.endswith(flags)


@pytest.mark.parametrize(
    ("name", "checked"),
    [
        ("aya-expanse-32b", "aya-expanse-32b"),
        ("magistral-small-2506", "mistralai/Magistral-Small-2506"),  # not even the size is known
    ],
)
def test_next_command_for_a_model_without_layers_is_check(
    name: str, checked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run_search(capsys, name, "--limit", "1", *CARD)
    assert f"\nNext     edgekit check {checked} --device " in out
