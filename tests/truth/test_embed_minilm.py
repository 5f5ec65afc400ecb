"""all-MiniLM-L6-v2: our vectors compared with those of sentence-transformers (recorded) and of llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.embed_models import Reference, minilm, minilm_reference
from tests.embed_oracle import cosines, llamacpp_vectors
from tests.thoroughness import LONG, sampled, wide

from edgekit.embed import open_embedder
from edgekit.engines.native.kernels.types import Floats

MIN_COSINE = {"F32": 0.9999, "F16": 0.9999, "Q8_0": 0.999}  # recorded with F32 weights


@cache
def rows() -> Sequence[Reference]:
    """In the normal run every third of the 46 texts."""
    return sampled(minilm_reference(), each=3, turn=2)


@cache
def recorded() -> Floats:
    return np.stack([row.vector for row in rows()])


@cache
def ours(kind: str) -> Floats:
    return _embed(kind)


@pytest.mark.parametrize("kind", MIN_COSINE if LONG else ["Q8_0"])
def test_vectors_equal_sentence_transformers(kind: str) -> None:
    result = cosines(ours(kind), recorded())
    names = [row.name for row in rows()]
    assert {
        name: cosine
        for name, cosine in zip(names, result, strict=True)
        if cosine < MIN_COSINE[kind]
    } == {}


@pytest.mark.parametrize("kind", MIN_COSINE if LONG else ["Q8_0"])
def test_vectors_equal_llama_cpp(kind: str) -> None:
    """For the same tokens, because llama.cpp splits Korean and Hindi differently from the model's tokenizer."""
    pytest.importorskip("xllamacpp")
    tokens = [row.tokens for row in rows()]
    _check_near(ours(kind), llamacpp_vectors(minilm(kind), tokens))


@wide
@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_fast_kernels_give_the_same_vectors(kind: str) -> None:
    pytest.importorskip("xllamacpp")
    _check_near(ours(kind), _embed(kind, engine="llama.cpp"))


def _check_near(our_vectors: Floats, their_vectors: Floats) -> None:
    """For Q8_0 llama.cpp rounds activations too, so that three of its 46 vectors (none of ours) are below 0.999.

    Those three may differ as much from ours.
    """
    similarity, their_accuracy = (
        cosines(our_vectors, their_vectors),
        cosines(their_vectors, recorded()),
    )
    names = [row.name for row in rows()]
    different = {
        name
        for name, cosine, accuracy in zip(names, similarity, their_accuracy, strict=True)
        if cosine < 0.999 <= accuracy
    }
    assert different == set()
    assert similarity.min() >= 0.998
    assert (similarity >= 0.999).sum() >= len(names) - 2


def test_small_budget_gives_the_same_vectors() -> None:
    kind = "F16" if LONG else "Q8_0"
    assert cosines(ours(kind), _embed(kind, memory_budget="40M")).min() >= 0.999999


def test_tokens_equal_those_of_the_models_own_tokenizer() -> None:
    with open_embedder(minilm("F16")) as embedder:
        result = {row.name: list(embedder.tokens(row.text)) for row in minilm_reference()}
    assert result == {row.name: list(row.tokens) for row in minilm_reference()}


def test_similar_texts_have_similar_vectors() -> None:
    """Two pairs of similar texts: the nearest vector is that of the other text of the pair."""
    texts = [
        "A cat sits on the mat.",
        "A kitten is lying on the rug.",
        "Interest rates rose again last month.",
        "The central bank raised its rate for the third time.",
    ]
    with open_embedder(minilm("Q8_0")) as embedder:
        vectors = embedder.embed(texts)
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -1)
    assert similarity.argmax(axis=1).tolist() == [1, 0, 3, 2]


def _embed(kind: str, **choices: Any) -> Floats:
    with open_embedder(minilm(kind), **choices) as embedder:
        return embedder.embed([row.text for row in rows()])
