"""`index.completion`: the models that what is typed may mean."""

from __future__ import annotations

import pytest
from tests.web.model_files import write_model

from edgekit.cli import main
from edgekit.index.completion import MOST_COMPLETED, complete_name


def ids(text: str, limit: int = 8) -> list[str]:
    return [entry.id for entry in complete_name(text, limit)]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("llama3.1", "llama-3.1-8b"),
        ("Llama 3.1 8B", "llama-3.1-8b"),
        ("llama3.1:8b", "llama-3.1-8b"),
        ("phi4", "phi-4"),
        ("Phi-4", "phi-4"),
        ("gemma3:27b", "gemma-3-27b"),
        ("Gemma 3 27B", "gemma-3-27b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("google/gemma-3-27b-pt", "gemma-3-27b-pt"),
        ("https://huggingface.co/Qwen/Qwen3-8B", "qwen3-8b"),
        ("unsloth/Qwen3-8B-GGUF:Q4_K_M", "qwen3-8b"),
        ("ollama run qwen3:8b", "qwen3-8b"),
        ("deepseek-r1:7b", "deepseek-r1-distill-qwen-7b"),
        ("gpt oss", "gpt-oss-20b"),
        ("gema 3 27", "gemma-3-27b"),  # a typing error
    ],
)
def test_any_spelling_completes_to_the_model_that_is_meant(text: str, first: str) -> None:
    assert ids(text)[0] == first


def test_words_in_any_order_and_started_words_match() -> None:
    assert "qwen3-coder-30b-a3b-instruct" in ids("coder qwen")
    assert ids("qwen3 co")[0] == "qwen3-coder-30b-a3b-instruct"
    assert ids("mistral nem")[0] == "mistral-nemo-instruct-2407"


def test_equal_matches_are_sorted_by_use() -> None:
    uses = [entry.uses for entry in complete_name("gem", 8)]
    assert uses == sorted(uses, reverse=True)


def test_number_of_models_is_limited() -> None:
    assert len(ids("q", 3)) == 3
    assert len(ids("q", 10**6)) == MOST_COMPLETED
    assert len(set(ids("q", 50))) == 50


@pytest.mark.parametrize("text", ["", "   ", "\u200b", "'", "qwertzuiopasdfghjkl", "%"])
def test_what_means_nothing_completes_to_nothing(text: str) -> None:
    assert ids(text) == []


@pytest.mark.parametrize(
    "text", ["x" * 100_000, "qwen " * 10_000, "3." * 5_000, "\u0661" * 999, "a/" * 999]
)
def test_long_text_is_cut(text: str) -> None:
    assert len(ids(text)) <= 8


def test_users_models_come_first(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("models")
    monkeypatch.setenv("EDGEKIT_DATA", str(folder / "data"))
    main(["index", "add", str(write_model(folder)), "--id", "gemma-of-mine"])
    assert ids("gemma")[0] == "gemma-of-mine"  # of equal matches
    assert ids("gemma3:27b")[0] == "gemma-3-27b"
