"""`index.filters`: words in any order and spelling, and what each condition lets pass."""

from __future__ import annotations

from typing import Any

import pytest

from edgekit.index import read_index
from edgekit.index.filters import Filters, select
from edgekit.index.types import Entry, ModelPurpose


def matching(**filters: Any) -> list[Entry]:
    conditions = Filters(**filters).conditions()
    return select(read_index().entries, conditions).entries


def ids(words: str) -> set[str]:
    return {entry.id for entry in matching(words=words)}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("qwen coder 30b", "qwen3-coder-30b-a3b-instruct"),
        ("30B Coder QWEN", "qwen3-coder-30b-a3b-instruct"),
        ("gemma3:27b", "gemma-3-27b"),
        ("Gemma 3, 27", "gemma-3-27b"),
        ("gptoss 20b", "gpt-oss-20b"),
        ("deepseek r1 32b", "deepseek-r1-distill-qwen-32b"),
        ("google vision", "gemma-4-31b-it"),
        ("the best coding model by qwen", "qwen3-coder-next"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
    ],
)
def test_words_match_in_any_order_and_spelling(words: str, name: str) -> None:
    assert name in ids(words)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("qwen 3", "qwen2.5-coder-3b-instruct"),  # a size is not a version
        ("7b", "gemma-3-27b"),
        ("deepseek r1", "deepseek-v3"),
        ("coding", "gemma-3-27b"),
    ],
)
def test_numbers_and_short_words_are_whole(words: str, name: str) -> None:
    assert name not in ids(words)


def test_version_matches_its_later_releases() -> None:
    assert {"qwen3-8b", "qwen3.5-9b"} <= ids("qwen 3")


@pytest.mark.parametrize("words", ["", "  ", "the model"])
def test_no_words_match_every_model(words: str) -> None:
    assert len(ids(words)) == len(read_index().entries)


@pytest.mark.parametrize("words", ["-- !!", "%", "((((((", "日本語"])
def test_text_without_letters_and_numbers_to_compare_matches_no_model(words: str) -> None:
    assert not ids(words)


def test_every_filter_holds() -> None:
    entries = matching(
        family="qwen3",
        licence="Apache-2.0",
        kind=ModelPurpose.CHAT,
        exact=True,
        min_parameters=4 * 10**9,
        max_parameters=40 * 10**9,
        min_context=32_768,
        released_after="2025-04",
    )
    assert len(entries) >= 3
    for entry in entries:
        assert entry.family.startswith("qwen3")
        assert entry.licence == "apache-2.0"
        assert 4e9 <= (entry.parameters or 0) <= 40e9
        assert (entry.native_context or 0) >= 32_768
        assert (entry.released or entry.not_before or "") >= "2025-04"


def test_counts_say_what_each_filter_lets_pass_and_leaves_out() -> None:
    filters = Filters(words="gemma", licence="apache-2.0")
    entries, (word, licence) = select(read_index().entries, filters.conditions())
    assert word.text == '"gemma"'
    assert word.met == len(matching(words="gemma"))
    assert word.removed == licence.met - len(entries)
    assert licence.removed == word.met - len(entries)
