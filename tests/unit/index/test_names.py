"""Names of models: ids, families, spellings and quantisations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.errors import NotFoundError
from edgekit.index import read_index
from edgekit.index.names import family_of, find_entry, id_of, split_quant
from edgekit.index.records import is_id


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("unsloth/Qwen3-8B-GGUF:Q4_K_M", "qwen3-8b"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("sample:gemma-3-27b", "gemma-3-27b"),
        ("model.Q8_0.gguf", "model"),
        ("/home/me/Llama-3.2-1B-Instruct-Q4_K_M.gguf", "llama-3.2-1b-instruct"),
        ("big-UD-IQ2_XXS-00001-of-00003.gguf", "big"),
        ("llama3.2:1b", "llama3.2:1b"),
        ("mlx-community/Qwen3-8B-4bit", "qwen3-8b-4bit"),
        ("a model (copy).gguf", "a-model-copy"),
        ("Q4_K_M.gguf", "model"),
        ("...", "model"),
    ],
)  # fmt: skip
def test_id_of(label: str, expected: str) -> None:
    assert id_of(label) == expected


@given(st.text(max_size=300) | st.text("ab.", min_size=195, max_size=205))
def test_id_of_any_label_is_an_id(label: str) -> None:
    assert is_id(id_of(label))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("qwen3-8b", "qwen3"),
        ("qwen3-vl-30b-a3b-instruct", "qwen3-vl"),
        ("llama-3.1-8b", "llama-3.1"),
        ("llama-4-scout", "llama-4"),
        ("gpt-oss-20b", "gpt-oss"),
        ("phi-3-mini-128k", "phi-3"),
        ("mistral-7b-v0.1", "mistral"),
        ("mixtral-8x7b", "mixtral"),
        ("deepseek-v3", "deepseek-v3"),
        ("gemma-4-e2b-it", "gemma-4"),
        ("command-r7b", "command-r7b"),
        ("8b", "8b"),
    ],
)
def test_family_of(name: str, family: str) -> None:
    assert family_of(name) == family


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("Gemma 3 27B", "gemma-3-27b"),
        ("gemma3:27b", "gemma-3-27b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("GEMMA_3_27B", "gemma-3-27b"),
        ("Llama 3.1 8B Instruct", "llama-3.1-8b"),
        ("Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("gpt oss 20b", "gpt-oss-20b"),
        ("qwen3-30b", "qwen3-30b-a3b"),
        ("phi4:latest", "phi-4"),
        ("Qwen3-8B", "qwen3-8b"),
        (" qwen/QWEN3-8b ", "qwen3-8b"),
        ("google/Gemma-3-27b-it", "gemma-3-27b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),  # the publisher's repository
    ],
)
def test_find_entry_knows_common_spellings(name: str, entry: str) -> None:
    assert find_entry(name).id == entry


def test_find_entry_accepts_spaces_capitals_and_underscores() -> None:
    catalog = read_index()
    for entry in catalog.entries:
        for name in (entry.id.replace("-", " ").upper(), entry.id.replace("-", "_")):
            assert find_entry(name, catalog) is entry


@pytest.mark.parametrize(
    "name", ["qwen3", "gpt-oss", "Qwen3-30B-A3B-Instruct-2508", "Qwen3-8B-AWQ", "", "/"]
)
def test_find_entry_does_not_guess_another_model(name: str) -> None:
    with pytest.raises(NotFoundError):
        find_entry(name)


@pytest.mark.parametrize("name", ["", "\x00", "x" * 10_000])
def test_find_entry_of_an_impossible_name_is_not_found(name: str) -> None:
    with pytest.raises(NotFoundError, match="in the index"):
        find_entry(name)


@pytest.mark.parametrize(
    ("name", "similar"),
    [
        ("gpt oss", {"gpt-oss-20b", "gpt-oss-120b"}),
        ("qwen3-9b", {"qwen3-8b"}),
        ("meta/lama-3.1-8b", {"llama-3.1-8b"}),
    ],
)
def test_find_entry_suggests_similar_ids(name: str, similar: set[str]) -> None:
    with pytest.raises(NotFoundError) as caught:
        find_entry(name)
    assert similar <= set(caught.value.candidates)


def test_find_entry_suggests_the_most_similar_id_first() -> None:
    with pytest.raises(NotFoundError) as caught:
        find_entry("gemma-3-28b")
    assert caught.value.candidates[0] == "gemma-3-27b"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("qwen3-8b:Q8_0", ("qwen3-8b", "Q8_0")),
        ("Qwen3 8B q4_k_m", ("Qwen3 8B", "q4_k_m")),
        ("gemma3:27b-it-q4_K_M", ("gemma3:27b-it", "q4_K_M")),
        ("qwen3-8b:4bit", ("qwen3-8b", "4bit")),
        ("llama3.1:8b", ("llama3.1:8b", None)),
        ("qwen3-8b", ("qwen3-8b", None)),
    ],
)
def test_split_quant(text: str, parts: tuple[str, str | None]) -> None:
    assert split_quant(text) == parts
