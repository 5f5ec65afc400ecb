"""Kept tokens and their probabilities beside real llama.cpp's, from the logits of a random model."""

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
WAYS: tuple[dict[str, Any], ...] = (
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
FIELDS = {"repeat_last": "repeat_last_n"}


@cache
def replies(path: Path) -> tuple[NDArray[np.float32], list[dict[int, float]]]:
    """Logits less a number that is the same for all, and what is left of the tokens each way."""
    vocabulary = sentencepiece()
    write_model(path, "llama", kind="F32", layers=1, width=64, inner=64, heads=2, kv_heads=2, head_dim=32, spread=0.3)  # fmt: skip
    # One byte of a letter is not told of: such a token must not come.
    banned = [number for number, kind in enumerate(vocabulary.types) if kind == BYTE]
    common = {
        "prompt": PROMPT,
        "n_predict": 1,
        "n_probs": len(vocabulary.tokens),
        "logit_bias": [[number, False] for number in banned],
        "seed": 3,
    }
    requests = [
        {FIELDS.get(field, field): value for field, value in placement.items()}
        | {"post_sampling_probs": True}
        for placement in WAYS
    ]
    told = llamacpp_replies(path, [("/completion", common | more) for more in ({}, *requests)])
    chances = [reply["completion_probabilities"][0] for reply in told]
    logits = np.full(len(vocabulary.tokens), -np.inf, np.float32)
    for top_logprob in chances[0]["top_logprobs"]:
        logits[top_logprob["id"]] = top_logprob["logprob"]
    logits[banned] = -np.inf
    return logits, [
        {top_prob["id"]: top_prob["prob"] for top_prob in row["top_probs"]} for row in chances[1:]
    ]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("xllamacpp")
    return replies(tmp_path_factory.mktemp("sampling") / "model.gguf")


def shift_of(logits: NDArray[np.float32], theirs: dict[int, float], penalty: float) -> float:
    """What the server leaves out of its logits: only a penalty shows it. A token that was likely tells how far it fell,
    which is a half of a logit below 0 or a third of one above; all others confirm it.
    """
    seen, other = PROMPT[-1], 500
    fell = float(logits[seen] - logits[other]) - math.log(theirs[seen] / theirs[other])
    below, above = -fell / (penalty - 1), fell / (1 - 1 / penalty)
    unlikely = PROMPT[1]
    rose = float(logits[unlikely] - logits[other]) - math.log(theirs[unlikely] / theirs[other])
    logit = below if rose > fell else above  # below 0 the unlikely one falls further
    return logit - float(logits[seen])


@pytest.mark.parametrize("number", range(len(WAYS)), ids=[str(placement) for placement in WAYS])
def test_llama_cpp_keeps_the_same_tokens(told: Any, number: int) -> None:
    logits, rows = told
    placement, theirs = WAYS[number], rows[number]
    if penalty := placement.get("repeat_penalty"):
        row = rows[WAYS.index(OFF | {"repeat_penalty": penalty})]
        logits = logits + np.float32(shift_of(logits, row, penalty))
    sampler = Sampler(Sampling(**placement, seed=1), len(logits))
    for token in PROMPT:
        sampler.accept(token)
    ours = probabilities(sampler, logits)
    assert set(ours) == set(theirs)
    for token, share in ours.items():
        assert share == pytest.approx(theirs[token], rel=2e-4, abs=1e-7)
