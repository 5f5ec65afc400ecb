"""The table of repositories: what every row must have, and a few known rows."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from edgekit.index import index_entries
from edgekit.index.repositories import (
    Form,
    original_repository,
    repositories_of,
    repository_at,
)

ROWS = [row for entry in index_entries() for row in repositories_of(entry.id)]
HUB = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]*[A-Za-z0-9]")
TAG = re.compile(r"[A-Za-z0-9._-]+(?::[A-Za-z0-9._-]+)?")


def test_row_has_a_name_of_its_form_and_a_source() -> None:
    for item in ROWS:
        assert (TAG if item.form is Form.OLLAMA else HUB).fullmatch(item.name), item
        assert item.sources, item
        assert bool(item.quants) == (item.form is not Form.ORIGINAL), item


def test_model_has_at_most_one_original_and_shares_no_repository() -> None:
    originals = Counter(item.model for item in ROWS if item.form is Form.ORIGINAL)
    assert max(originals.values()) == 1
    names = Counter((item.name.lower(), item.form) for item in ROWS)
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize(
    ("model", "form", "mix", "name", "tag"),
    [
        ("qwen3-8b", Form.GGUF, "Q4_K_M", "Qwen/Qwen3-8B-GGUF", "Q4_K_M"),
        ("qwen3-8b", Form.GGUF, "IQ3_XXS", "unsloth/Qwen3-8B-GGUF", "UD-IQ3_XXS"),
        ("gpt-oss-120b", Form.GGUF, "MXFP4_MOE", "ggml-org/gpt-oss-120b-GGUF", "mxfp4"),
        ("llama-3.3-70b", Form.MLX, "4bit", "mlx-community/Llama-3.3-70B-Instruct-4bit", "4bit"),
        ("gemma-3-27b", Form.OLLAMA, "Q4_K_M", "gemma3:27b", "Q4_K_M"),
        ("gemma-4-31b-it", Form.OLLAMA, "Q8_0", "gemma4:31b-it-q8_0", "Q8_0"),
        ("qwen3.6-35b-a3b", Form.MLX, "4bit", "mlx-community/Qwen3.6-35B-A3B-4bit", "4bit"),
        ("glm-4.5-air", Form.FP8, "FP8", "zai-org/GLM-4.5-Air-FP8", "FP8"),
    ],
)
def test_repository_at_a_mix(model: str, form: Form, mix: str, name: str, tag: str) -> None:
    result = repository_at(model, form, mix)
    assert result is not None
    assert (result.name, result.tag(mix)) == (name, tag)


def test_ollama_tag_of_other_weights_is_not_the_model() -> None:
    """gemma4:31b-it-qat is trained for 4 bits: no quantisation of the model."""
    assert any(row.name == "gemma4:31b-it-qat" for row in repositories_of("gemma-4-31b-it"))
    assert repository_at("gemma-4-31b-it", Form.OLLAMA, "Q4_K_M") is None


def test_repository_at_a_mix_without_a_repository_is_none() -> None:
    assert repository_at("qwen3-8b", Form.GGUF, "TQ1_0") is None
    assert repositories_of("jamba-1.5-mini", Form.GGUF) == ()
    assert repositories_of("no such model") == ()


def test_ollama_tags_that_moved_to_another_model_are_left_out() -> None:
    """qwen3:4b and qwen3:30b-a3b are now the Thinking-2507 models."""
    names = {item.name for item in ROWS if item.form is Form.OLLAMA and item.model in {"qwen3-4b", "qwen3-30b-a3b"}}  # fmt: skip
    assert not names & {"qwen3:4b", "qwen3:30b", "qwen3:30b-a3b"}


@pytest.mark.parametrize(
    ("label", "original"),
    [
        (
            "llama-3.1-8b",
            "meta-llama/Llama-3.1-8B-Instruct",
        ),  # known by the config of its base model
        ("sample:gemma-3-27b", "google/gemma-3-27b-it"),
        ("unsloth/Qwen3-8B-GGUF", "Qwen/Qwen3-8B"),
        ("no-such/model", ""),
    ],
)
def test_original_repository(label: str, original: str) -> None:
    assert original_repository(label) == original
