"""Small random models of every family: our vectors compared with llama.cpp's, for the same file and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.embed_models import FAMILIES, write_model
from tests.embed_oracle import cosines, llamacpp_vectors
from tests.embed_vocabularies import byte_bpe
from tests.thoroughness import sampled

from edgekit.embed import open_embedder
from edgekit.engines.native.kernels.types import Floats

pytest.importorskip("xllamacpp")

TEXTS = [[2, *range(10, 10 + length), 3] for length in (0, 1, 5, 30, 3, 70, 7)]
# llama.cpp rounds activations too: to half precision for F16, to eight bits for packed weights.
MIN_COSINE = {
    "F32": 0.9999,
    "F16": 0.9999,
    "BF16": 0.9999,
    "Q8_0": 0.999,
    "Q4_0": 0.98,
    "Q4_K": 0.98,
}


# One kind per family, each time another; with LONG all.
KINDS = [
    (architecture, kind)
    for turn, architecture in enumerate(FAMILIES)
    for kind in sampled(list(MIN_COSINE), each=len(MIN_COSINE), turn=turn)
]


@pytest.mark.parametrize(("architecture", "kind"), KINDS)
def test_every_family_equals_llama_cpp(tmp_path: Path, architecture: str, kind: str) -> None:
    path = write_model(tmp_path / "model.gguf", architecture, kind=kind)
    pooling = FAMILIES[architecture].pooling or "last"
    assert _cosines(path, pooling).min() >= MIN_COSINE[kind]


@pytest.mark.parametrize(
    "kind", sampled(("Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q5_K", "Q6_K"), each=3)
)
def test_every_usual_quantisation_equals_llama_cpp(tmp_path: Path, kind: str) -> None:
    path = write_model(tmp_path / "model.gguf", "qwen2", kind=kind)
    assert _cosines(path, "mean").min() >= 0.98


# Each pooling with one of the architectures; with LONG with both.
POOLED = [
    ("bert", "mean"),
    ("qwen2", "mean"),
    ("qwen2", "cls"),
    ("bert", "cls"),
    ("qwen2", "last"),
    ("bert", "last"),
]


@pytest.mark.parametrize(("architecture", "pooling"), sampled(POOLED, each=2))
def test_every_pooling_equals_llama_cpp(tmp_path: Path, architecture: str, pooling: str) -> None:
    path = write_model(tmp_path / "model.gguf", architecture, pooling=pooling)
    expected = llamacpp_vectors(path, TEXTS)  # with the pooling of the file
    assert cosines(_embed(path), expected).min() >= 0.9999
    assert cosines(_embed(path, pooling=pooling), expected).min() >= 0.9999


VARIATIONS: dict[str, dict[str, Any]] = {
    "bert with one tensor for query, key and value": {"architecture": "bert", "joined_qkv": True},
    "bert without biases": {"architecture": "bert", "biases": False},
    "nomic-bert with three tensors for query, key and value": {
        "architecture": "nomic-bert",
        "joined_qkv": False,
    },
    "nomic-bert that rotates half of a head": {"architecture": "nomic-bert", "rope_dims": 32},
    "jina-bert-v2 with gate and up in one": {"architecture": "jina-bert-v2", "joined_gate": True},
    "jina-bert-v2 for code": {"architecture": "jina-bert-v2", "query_norm": True},
    "jina-bert-v2 with 12 heads": {
        "architecture": "jina-bert-v2",
        "heads": 12,
        "kv_heads": 12,
        "width": 768,
        "layers": 1,
    },
    "qwen2 without a causal mask": {"architecture": "qwen2", "causal": False, "pooling": "mean"},
    "qwen2 with one key head": {"architecture": "qwen2", "kv_heads": 1, "pooling": "last"},
    "qwen2 with an output tensor": {"architecture": "qwen2", "tied": False, "pooling": "last"},
    "qwen2 with one tensor for query, key and value": {
        "architecture": "qwen2",
        "joined_qkv": True,
        "pooling": "last",
    },
    "qwen3 without a causal mask": {"architecture": "qwen3", "causal": False, "pooling": "mean"},
    "llama 3 with rope factors": {
        "architecture": "llama",
        "rope_factors": True,
        "pooling": "last",
        "vocabulary": byte_bpe("llama-bpe", bos=True),
    },
    "llama with as many key heads as heads": {
        "architecture": "llama",
        "kv_heads": 4,
        "pooling": "mean",
    },
    "llama with linear rope scaling": {
        "architecture": "llama",
        "pooling": "last",
        "keys": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    },
    "qwen2 with yarn rope scaling": {
        "architecture": "qwen2",
        "pooling": "last",
        "keys": {
            "qwen2.rope.scaling.type": "yarn",
            "qwen2.rope.scaling.factor": 4.0,
            "qwen2.rope.scaling.original_context_length": 128,
        },
    },
}


@pytest.mark.parametrize("name", sampled(tuple(VARIATIONS), each=3))
def test_architecture_variations_equal_llama_cpp(tmp_path: Path, name: str) -> None:
    path = write_model(tmp_path / "model.gguf", **VARIATIONS[name])
    assert cosines(_embed(path), llamacpp_vectors(path, TEXTS)).min() >= 0.9999


# Each kind with one of the architectures; with LONG with both.
FAST = [
    ("bert", "F16"),
    ("qwen2", "F16"),
    ("qwen2", "Q8_0"),
    ("bert", "Q8_0"),
    ("bert", "Q4_K"),
    ("qwen2", "Q4_K"),
]


@pytest.mark.parametrize(("architecture", "kind"), sampled(FAST, each=2))
def test_fast_kernels_equal_llama_cpp(tmp_path: Path, architecture: str, kind: str) -> None:
    path = write_model(tmp_path / "model.gguf", architecture, kind=kind, pooling="mean")
    actual, expected = _embed(path), _embed(path, engine="llama.cpp")
    assert cosines(actual, expected).min() >= min(MIN_COSINE[kind], 0.999)
    assert not np.array_equal(actual, expected)  # from another engine


def test_longest_text_equals_llama_cpp(tmp_path: Path) -> None:
    """At late positions an error of the rotation would be large; one layer suffices."""
    path = write_model(
        tmp_path / "model.gguf", "qwen2", context_tokens=2048, pooling="last", layers=1
    )
    texts = [[number % 200 for number in range(2000)]]
    assert cosines(_embed(path, texts=texts), llamacpp_vectors(path, texts)).min() >= 0.9999


def _cosines(path: Path, pooling: str) -> Floats:
    return cosines(_embed(path, pooling=pooling), llamacpp_vectors(path, TEXTS, pooling))


def _embed(path: Path, *, texts: list[list[int]] = TEXTS, **choices: Any) -> Floats:
    with open_embedder(path, tokenizer=False, **choices) as embedder:
        return embedder.embed_tokens(texts)
