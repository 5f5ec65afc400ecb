"""What one token of 262,144 allocates: a table of what is allowed, measured."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgekit.engines.chat import Sampling
from edgekit.engines.native.sampler import Sampler
from edgekit.engines.native.stream_plan import BEST_TOKENS, sampler_bytes
from edgekit.units import KIB

VOCABULARY = 262_144
SMALL = VOCABULARY // 8
OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
FLAT, PEAKED = 0.01, 4.0
OBJECTS_BYTES = 4 * KIB  # Python's own: frames, numbers, views

# What may be allocated for one token, and what is allowed for it: categorical nothing, top-k 8 KB up to 1,024
# tokens, top-p one vector of 2 MB. None grows with the vocabulary.
TABLE: dict[str, tuple[dict[str, Any], float, int]] = {
    "greedy": ({"temperature": 0.0}, FLAT, 0),
    "categorical": (OFF, FLAT, 0),
    "categorical, peaked": (OFF, PEAKED, 0),
    "temperature": (OFF | {"temperature": 1.7}, FLAT, 0),
    "min-p": (OFF | {"min_p": 0.05}, FLAT, 0),
    "top-k 40": (OFF | {"top_k": 40}, PEAKED, 8 * KIB),
    "top-k 1,024": (OFF | {"top_k": BEST_TOKENS}, FLAT, 8 * KIB),
    "defaults": ({}, PEAKED, 8 * KIB),
    "defaults with a penalty": ({"repeat_penalty": 1.1}, PEAKED, 8 * KIB),
    "top-k 100,000": (OFF | {"top_k": 100_000}, FLAT, 512 * KIB),
    "top-p, peaked": (OFF | {"top_p": 0.5}, PEAKED, 512 * KIB),
    "top-p, flat": (OFF | {"top_p": 0.95}, FLAT, 512 * KIB),
    "top-p over all equal": (OFF | {"top_p": 0.95}, 0.0, 512 * KIB),
    "top-k over all equal": (OFF | {"top_k": 40}, 0.0, 8 * KIB),
}


def logits_of(vocabulary: int, deviation: float) -> NDArray[np.float32]:
    values = np.random.default_rng(1).normal(scale=deviation, size=vocabulary)
    return values.astype(np.float32)


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that was allocated at once while it ran, beyond what was there before."""
    tracemalloc.start()
    try:
        begin, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        work()
        return tracemalloc.get_traced_memory()[1] - begin
    finally:
        tracemalloc.stop()


def token_bytes(vocabulary: int, changes: dict[str, Any], deviation: float) -> int:
    logits = logits_of(vocabulary, deviation)
    sampler = Sampler(Sampling(**changes, seed=1), vocabulary)
    for token in range(64):
        sampler.accept(token)
    sampler.sample(logits)  # what numpy and Python keep from the first call on
    return peak_bytes(lambda: sampler.sample(logits))


@pytest.mark.parametrize("row", TABLE)
def test_a_token_allocates_no_more_than_the_table_says(row: str) -> None:
    changes, deviation, allowed_bytes = TABLE[row]
    result = token_bytes(VOCABULARY, changes, deviation)
    assert result <= allowed_bytes + OBJECTS_BYTES
    assert result <= token_bytes(SMALL, changes, deviation) + allowed_bytes // 8 + OBJECTS_BYTES


def test_the_measure_sees_what_numpy_allocates() -> None:
    """A plain version holds several vectors of the vocabulary's length."""
    logits = logits_of(VOCABULARY, FLAT)

    def plain() -> None:
        weights = np.exp(logits - logits.max())
        np.cumsum(weights)

    assert peak_bytes(plain) > 2 * VOCABULARY * 4


@pytest.mark.parametrize("vocabulary", [1, 32_000, 128_256, VOCABULARY, VOCABULARY + 1])
def test_a_sampler_allocates_what_the_bill_says(vocabulary: int) -> None:
    chooser = Sampler(Sampling(), vocabulary)._chooser
    arrays = [array for array in vars(chooser).values() if isinstance(array, np.ndarray)]
    assert sum(array.nbytes for array in arrays) == sampler_bytes(vocabulary)
    made = peak_bytes(lambda: Sampler(Sampling(seed=1), vocabulary))
    assert sampler_bytes(vocabulary) <= made <= sampler_bytes(vocabulary) + 16 * KIB


def test_the_workspace_is_a_sixth_of_one_vector_of_pairs() -> None:
    """Where a sorted copy of the vocabulary would be 2 MB."""
    assert sampler_bytes(VOCABULARY) < VOCABULARY * 8 // 6


def test_hundreds_of_tokens_leave_nothing_behind() -> None:
    logits = logits_of(SMALL, PEAKED)
    sampler = Sampler(Sampling(repeat_penalty=1.1, seed=1), SMALL)
    for _ in range(20):
        sampler.accept(sampler.sample(logits))
    # What a token leaves would be left each time; what other threads of the tests allocate is not.
    assert any(_grown_bytes(sampler, logits) < 4 * KIB for _ in range(4))


def _grown_bytes(sampler: Sampler, logits: NDArray[np.float32]) -> int:
    tracemalloc.start()
    try:
        begin, _ = tracemalloc.get_traced_memory()
        for _ in range(300):
            sampler.accept(sampler.sample(logits))
        return tracemalloc.get_traced_memory()[0] - begin
    finally:
        tracemalloc.stop()
