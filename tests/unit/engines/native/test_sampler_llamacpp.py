"""Sampler compared with llama.cpp itself: candidates and probabilities from the logits of a random model."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.embed_models import write_model
from tests.embed_vocabularies import BYTE, sentencepiece
from tests.sampling import probabilities
from tests.served_oracle import llamacpp_replies

from edgekit.engines.chat import Sampling
from edgekit.engines.native.sampler import Sampler

PROMPT = [1, 300, 310, 320, 310, 400]
OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
SAMPLINGS: tuple[dict[str, Any], ...] = (
    OFF,
    {},
    OFF | {"top_k": 7},
    OFF | {"top_p": 0.6},
    OFF | {"min_p": 0.3},
    OFF | {"top_k": 30, "top_p": 0.8, "min_p": 0.1, "temperature": 1.7},
    OFF | {"top_p": 0.9, "min_p": 0.02, "temperature": 0.3},
    {"temperature": 0.0},
    OFF | {"repeat_penalty": 1.5},
    OFF | {"repeat_penalty": 1.5, "repeat_last": 3, "top_k": 40},
)
LLAMACPP_NAMES = {"repeat_last": "repeat_last_n"}


@cache
def replies(path: Path) -> tuple[NDArray[np.float32], list[dict[int, float]]]:
    """The logits (minus an unknown constant), and for each sampling the candidates with their probabilities."""
    vocabulary = sentencepiece()
    write_model(path, "llama", kind="F32", layers=1, width=64, inner=64, heads=2, kv_heads=2, head_dim=32, spread=0.3)  # fmt: skip
    # The server omits tokens that are only part of a character, so they are banned.
    banned = [number for number, kind in enumerate(vocabulary.types) if kind == BYTE]
    common = {
        "prompt": PROMPT,
        "n_predict": 1,
        "n_probs": len(vocabulary.tokens),
        "logit_bias": [[number, False] for number in banned],
        "seed": 3,
    }
    requests = [
        {LLAMACPP_NAMES.get(field, field): value for field, value in sampling.items()}
        | {"post_sampling_probs": True}
        for sampling in SAMPLINGS
    ]
    responses = llamacpp_replies(
        path, [("/completion", common | extra) for extra in ({}, *requests)]
    )
    probabilities_of = [reply["completion_probabilities"][0] for reply in responses]
    logits = np.full(len(vocabulary.tokens), -np.inf, np.float32)
    for top_logprob in probabilities_of[0]["top_logprobs"]:
        logits[top_logprob["id"]] = top_logprob["logprob"]
    logits[banned] = -np.inf
    return logits, [
        {top_prob["id"]: top_prob["prob"] for top_prob in row["top_probs"]}
        for row in probabilities_of[1:]
    ]


@pytest.fixture(scope="module")
def llamacpp_results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("xllamacpp")
    return replies(tmp_path_factory.mktemp("sampling") / "model.gguf")


def shift_of(logits: NDArray[np.float32], expected: dict[int, float], penalty: float) -> float:
    """The constant that the server subtracts from its logits, found from the effect of the repeat penalty.

    With a penalty of 1.5 a repeated token loses a half of a logit below 0, or a third of one above.
    """
    likely, unseen = PROMPT[-1], 500
    drop = float(logits[likely] - logits[unseen]) - math.log(expected[likely] / expected[unseen])
    below, above = -drop / (penalty - 1), drop / (1 - 1 / penalty)
    unlikely = PROMPT[1]
    unlikely_drop = float(logits[unlikely] - logits[unseen]) - math.log(
        expected[unlikely] / expected[unseen]
    )
    logit = below if unlikely_drop > drop else above  # below 0 the unlikely token drops further
    return logit - float(logits[likely])


@pytest.mark.parametrize(
    "number", range(len(SAMPLINGS)), ids=[str(sampling) for sampling in SAMPLINGS]
)
def test_sampler_candidates_equal_llamacpp(llamacpp_results: Any, number: int) -> None:
    logits, rows = llamacpp_results
    sampling, expected = SAMPLINGS[number], rows[number]
    if penalty := sampling.get("repeat_penalty"):
        row = rows[SAMPLINGS.index(OFF | {"repeat_penalty": penalty})]
        logits = logits + np.float32(shift_of(logits, row, penalty))
    sampler = Sampler(Sampling(**sampling, seed=1), len(logits))
    for token in PROMPT:
        sampler.accept(token)
    actual = probabilities(sampler, logits)
    assert set(actual) == set(expected)
    for token, share in actual.items():
        assert share == pytest.approx(expected[token], rel=2e-4, abs=1e-7)
