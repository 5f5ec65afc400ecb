"""The quantisations of a model on a machine: each row is what check says with --quant."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.documented import documented
from tests.web.model_files import write_model

from edgekit.app import ladder as ladder_module
from edgekit.app.candidates import OFFLINE
from edgekit.app.check import Answer, Check, Unanswered, check, check_named
from edgekit.app.ladder import MOST_ROWS, QuantLadder, Rung, ladder
from edgekit.app.open import ResolvedModel
from edgekit.cli import main
from edgekit.errors import CancelledError, RefusedError, UsageError
from edgekit.index.quality import LossBasis
from edgekit.report.ladder import ladder_json, ladder_text, loss_words
from edgekit.report.text import ASCII, Screen
from edgekit.request import Request, Session
from edgekit.sources.types import Reach

CARD = Request(devices=("RTX 4090",), ram="64G")
FIGURES = (
    "status", "context_tokens", "max_context", "cache", "required_bytes", "available_bytes", "typical_speed",
)  # fmt: skip


def figures(answer: Answer) -> tuple[object, ...]:
    assert isinstance(answer, Check)
    return *(getattr(answer.result, name) for name in FIGURES), answer.result.way.because


def rung_at(answer: QuantLadder, quant: str) -> Rung:
    return next(rung for rung in answer.rungs if rung.quant == quant)


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("qwen3-8b", Request(devices=("RTX 3060",), ram="32G")),
        ("mixtral-8x7b", Request(devices=("RTX 4090",), ram="64G", context=8192)),
        ("qwen3-8b", Request(devices=("m3-max-36",), engines=("mlx",))),
        ("qwen3-8b", Request(devices=("RTX 4090",), engines=("vllm",))),
        ("agnes-3.0-flash", CARD),  # only the number of its parameters is known
    ],
)
def test_each_row_is_the_check_with_quant(name: str, request_: Request) -> None:
    answer = ladder(name, request_, OFFLINE)
    assert len(answer.rungs) > 2
    (free,) = check(name, request_, OFFLINE, with_changes=False)
    assert figures(answer.chosen.answer) == figures(free)
    for rung in answer.rungs:
        if rung.flags:  # vLLM has no flag for the publisher's own repository
            with_quant = replace(request_, quant=rung.flags["quant"])
            (expected,) = check(name, with_quant, OFFLINE, with_changes=False)
            assert figures(rung.answer) == figures(expected), rung.quant


def test_rows_are_sorted_by_size_and_have_their_loss_and_repository() -> None:
    answer = ladder("qwen3-8b", CARD, OFFLINE)
    sizes = [rung.size_bytes for rung in answer.rungs]
    assert answer.rungs[0].quant == "Q8_0"
    assert None not in sizes
    assert sizes == sorted(sizes, key=lambda size: -(size or 0))
    losses = [rung.loss.value for rung in answer.rungs if rung.loss is not None]
    assert losses == sorted(losses)
    first = answer.rungs[0]
    assert first.bits == pytest.approx(8.5, rel=1e-3)  # 34 bytes for 32 weights
    assert first.repository == "Qwen/Qwen3-8B-GGUF"


def test_a_model_released_in_four_bits_has_one_row_that_loses_nothing() -> None:
    (rung,) = ladder("gpt-oss-20b", CARD, OFFLINE).rungs
    assert rung.is_chosen
    assert not rung.flags
    assert rung.loss is not None
    assert rung.loss.basis is LossBasis.NONE


def test_vllm_lists_the_publishers_repository_and_the_quantised_ones() -> None:
    answer = ladder("qwen3-8b", replace(CARD, engines=("vllm",)), OFFLINE)
    repositories = {rung.quant: rung.repository for rung in answer.rungs}
    assert repositories["original"] == "Qwen/Qwen3-8B"
    assert repositories["FP8"] == "Qwen/Qwen3-8B-FP8"
    assert rung_at(answer, "original").loss is not None


def test_a_single_file_has_one_row(tmp_path: Path) -> None:
    answer = ladder(str(write_model(tmp_path)), CARD, OFFLINE)
    (rung,) = answer.rungs
    assert (rung.quant, rung.is_chosen, rung.flags, rung.repository) == ("Q4_K_M", True, {}, "")
    assert rung.download_bytes is None


def test_a_name_alone_has_one_row_with_its_quantisation() -> None:
    (rung,) = ladder("Llama-99B-Q5_K_M", CARD, OFFLINE).rungs
    assert rung.quant == "Q5_K_M"


def test_an_unusual_quantisation_that_was_requested_gets_a_row_and_is_not_chosen() -> None:
    answer = ladder("qwen3-8b", replace(CARD, quant="Q5_K_S"), OFFLINE)
    assert not rung_at(answer, "Q5_K_S").is_chosen
    assert answer.chosen.quant == ladder("qwen3-8b", CARD, OFFLINE).chosen.quant


def test_the_quantisation_in_the_name_is_chosen_and_the_others_name_the_model() -> None:
    answer = ladder("qwen3-8b:Q5_K_S", CARD, OFFLINE)
    assert answer.chosen.quant == "Q5_K_S"
    assert rung_at(answer, "Q8_0").flags == {"model": "qwen3-8b", "quant": "Q8_0"}


def test_a_refused_row_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    real = check_named

    def refuses_q2(
        resolved: ResolvedModel, request: Request, session: Session, *, with_changes: bool
    ) -> list[Answer]:
        if resolved.quant == "Q2_K":
            error = RefusedError("the engine refuses Q2_K")
            return [Unanswered(reference="x", engine="llama.cpp", error=error)]
        return real(resolved, request, session, with_changes=with_changes)

    monkeypatch.setattr(ladder_module, "check_named", refuses_q2)
    answer = ladder("qwen3-8b", CARD, OFFLINE)
    refused = rung_at(answer, "Q2_K")
    assert refused.status.value == "failed"
    assert len(answer.rungs) > 5
    row = next(row for row in ladder_json(answer)["rows"] if row["quant"] == "Q2_K")
    assert (row["told"], row["speed"], row["can_load"]) == ("the engine refuses Q2_K", None, False)
    assert row.keys() == ladder_json(answer)["rows"][0].keys()
    assert "Q2_K: the engine refuses Q2_K" in ladder_text(answer)


def test_a_row_that_does_not_fit_says_what_it_needs() -> None:
    answer = ladder("gemma-3-27b", Request(devices=("RTX 4070",)), OFFLINE)
    row = ladder_json(answer)["rows"][0]
    assert row["status"] == "failed"
    assert row["told"].startswith("needs ")
    assert row["told"].endswith(" usable")


def test_a_cancelled_ladder_ends() -> None:
    cancelled = threading.Event()
    cancelled.set()
    session = Session(reach=Reach(network=False, cancelled=cancelled))
    with pytest.raises(CancelledError):
        ladder("qwen3-8b", CARD, session)


def test_several_engines_are_refused() -> None:
    with pytest.raises(UsageError, match="one engine"):
        ladder("qwen3-8b", replace(CARD, engines=("llama.cpp", "vllm")), OFFLINE)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100])
def test_the_table_fits_the_screen(width: int) -> None:
    answer = ladder("qwen3-8b", CARD, OFFLINE)
    text = ladder_text(answer, Screen(width=width, glyphs=ASCII))
    assert max(map(len, text.splitlines())) <= width
    assert text.isascii()
    assert all(rung.quant in text for rung in answer.rungs)


def test_loss_words_say_what_is_not_measured() -> None:
    answer = ladder("qwen3-8b", Request(devices=("m3-max-64",), engines=("mlx",)), OFFLINE)
    words = {rung.quant: loss_words(rung.loss) for rung in answer.rungs}
    assert words["3 bit"].startswith("~")
    assert not words["4 bit"].startswith("~")
    assert loss_words(None) == "?"
    assert "~ not measured" in ladder_text(answer)


def test_the_command_prints_the_table_and_its_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "qwen3-8b", "--device", "RTX 4090", "--ram", "64G", "--ladder"]
    assert main(words) == 0
    assert "Q3_K_M" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["chosen"] == next(r["quant"] for r in document["rows"] if r["is_chosen"])
    keys = set(document) | {key for row in document["rows"] for key in row}
    assert keys | {"value", "low", "high", "source"} <= documented("check --ladder") | {"basis"}


@pytest.mark.parametrize("words", [["llama-3.1-8b"], ["--quiet"], ["--why"], ["--for", "ollama"]])
def test_ladder_refuses_what_it_cannot_show(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "qwen3-8b", "--ladder", "--ram", "16G", *words]) == 2
    assert "--ladder" in capsys.readouterr().err


def test_the_number_of_rows_is_bounded() -> None:
    """The largest repositories have about 30 files; each row takes up to 0.4 s."""
    assert MOST_ROWS <= 32


def test_unknown_quantisation_is_refused_as_by_check() -> None:
    unknown = replace(CARD, quant="ZZZ")
    with pytest.raises(UsageError) as refused:
        ladder("qwen3-8b", unknown, OFFLINE)
    (answer,) = check("qwen3-8b", unknown, OFFLINE)
    assert isinstance(answer, Unanswered)
    assert str(answer.error) == str(refused.value)
