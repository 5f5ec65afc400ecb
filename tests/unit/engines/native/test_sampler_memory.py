"""Memory that Sampler allocates per token, with a vocabulary of 262,144 tokens."""

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

# Sampling, deviation of the logits, bytes allowed per token. Categorical sampling needs nothing, top-k up to 1,024
# tokens needs 8 KiB, top-p and larger top-k need 512 KiB.
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
    """The peak of what `work` allocates."""
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
    sampler.sample(logits)  # allocate what numpy and Python keep after the first call
    return peak_bytes(lambda: sampler.sample(logits))


@pytest.mark.parametrize("row", TABLE)
def test_sampler_allocates_no_more_per_token_than_the_table(row: str) -> None:
    changes, deviation, allowed_bytes = TABLE[row]
    result = token_bytes(VOCABULARY, changes, deviation)
    assert result <= allowed_bytes + OBJECTS_BYTES
    assert result <= token_bytes(SMALL, changes, deviation) + allowed_bytes // 8 + OBJECTS_BYTES


def test_peak_bytes_includes_numpy_arrays() -> None:
    """A plain implementation holds several vectors of the vocabulary's size."""
    logits = logits_of(VOCABULARY, FLAT)

    def plain() -> None:
        weights = np.exp(logits - logits.max())
        np.cumsum(weights)

    assert peak_bytes(plain) > 2 * VOCABULARY * 4


@pytest.mark.parametrize("vocabulary", [1, 32_000, 128_256, VOCABULARY, VOCABULARY + 1])
def test_sampler_arrays_equal_sampler_bytes(vocabulary: int) -> None:
    chooser = Sampler(Sampling(), vocabulary)._chooser
    arrays = [array for array in vars(chooser).values() if isinstance(array, np.ndarray)]
    assert sum(array.nbytes for array in arrays) == sampler_bytes(vocabulary)
    peak = peak_bytes(lambda: Sampler(Sampling(seed=1), vocabulary))
    assert sampler_bytes(vocabulary) <= peak <= sampler_bytes(vocabulary) + 16 * KIB


def test_sampler_bytes_are_below_a_sixth_of_a_sorted_vocabulary() -> None:
    """A sorted copy of the vocabulary, 8 bytes per token, would be 2 MiB."""
    assert sampler_bytes(VOCABULARY) < VOCABULARY * 8 // 6


def test_sampler_memory_does_not_grow_with_the_tokens() -> None:
    logits = logits_of(SMALL, PEAKED)
    sampler = Sampler(Sampling(repeat_penalty=1.1, seed=1), SMALL)
    for _ in range(20):
        sampler.accept(sampler.sample(logits))
    # A leak would show in each of four rounds; allocations of other threads do not.
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
