"""Names of models: their ids and families."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.catalog.naming import family_of, id_of
from edgekit.catalog.records import is_id


@pytest.mark.parametrize(
    ("label", "name"),
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
def test_ids(label: str, name: str) -> None:
    assert id_of(label) == name


@given(st.text(max_size=300) | st.text("ab.", min_size=195, max_size=205))
def test_every_label_gives_an_id(label: str) -> None:
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
def test_families(name: str, family: str) -> None:
    assert family_of(name) == family
