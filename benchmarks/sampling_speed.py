"""Sampling one of 262,144 tokens, compared with plain and with careful numpy: needs numpy.

    python benchmarks/sampling_speed.py

Plain numpy sorts the vocabulary. Careful numpy uses argpartition for a top-k, and does not sort if no order is needed.
Each figure is the best CPU time of nine rounds; bytes are the peak allocation of one token.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.chat import Sampling
from edgekit.engines.native.sampler import Sampler

VOCABULARY = 262_144
ROUNDS, TOKENS = 9, 6
SETTINGS = {
    "llama.cpp's defaults": Sampling(seed=1),
    "defaults, penalty 1.1": Sampling(repeat_penalty=1.1, seed=1),
    "top-k 1,024": Sampling(top_k=1024, top_p=1.0, min_p=0.0, seed=1),
    "temperature alone": Sampling(top_k=0, top_p=1.0, min_p=0.0, seed=1),
    "min-p 0.05 alone": Sampling(top_k=0, top_p=1.0, seed=1),
    "top-p 0.95 alone": Sampling(top_k=0, min_p=0.0, seed=1),
    "greedy": Sampling(temperature=0.0),
}
SPREADS = ("peaked", "flat")
Floats = NDArray[np.float32]
Work = Callable[[], int]


def main() -> None:
    print("| settings | logits | us | plain numpy, times | careful numpy, times | bytes | plain |")
    print("|---|---|---|---|---|---|---|")
    for title, sampling in SETTINGS.items():
        for spread in SPREADS:
            logits = _logits(spread)
            functions = (
                _ours(logits, sampling),
                _plain(logits, sampling),
                _careful(logits, sampling),
            )
            ours, plain, careful = _cpu_s(functions)
            peaks = [f"{_peak_bytes(function):,}" for function in functions[:2]]
            print(
                f"| {title} | {spread} | {ours * 1e6:,.0f} | {plain / ours:.1f} | {careful / ours:.1f} |"
                f" {' | '.join(peaks)} |"
            )


def _logits(spread: str) -> Floats:
    """Peaked: probabilities fall as 1 / rank^1.5, like word frequencies; flat: nearly equal."""
    random = np.random.default_rng(1)
    if spread == "flat":
        return random.normal(scale=0.1, size=VOCABULARY).astype(np.float32)
    return np.asarray(-1.5 * np.log(1 + random.permutation(VOCABULARY)), np.float32)


def _ours(logits: Floats, sampling: Sampling) -> Work:
    sampler = Sampler(sampling, VOCABULARY)
    for token in range(64):
        sampler.accept(token)
    return lambda: sampler.sample(logits)


def _plain(logits: Floats, sampling: Sampling) -> Work:
    random = np.random.default_rng(sampling.seed)

    def function() -> int:
        values = _penalised(logits, sampling)
        if sampling.temperature == 0:
            return int(values.argmax())
        order = np.argsort(values)[::-1]
        if sampling.top_k:
            order = order[: sampling.top_k]
        return _choose(order, values, sampling, random)

    return function


def _careful(logits: Floats, sampling: Sampling) -> Work:
    random = np.random.default_rng(sampling.seed)

    def function() -> int:
        values = _penalised(logits, sampling)
        if sampling.temperature == 0:
            return int(values.argmax())
        if sampling.top_k:
            best = np.argpartition(values, VOCABULARY - sampling.top_k)[-sampling.top_k :]
            order = best[np.argsort(values[best])[::-1]]
        elif sampling.top_p < 1:
            order = np.argsort(values)[::-1]
        else:
            order = np.arange(VOCABULARY)
        return _choose(order, values, sampling, random)

    return function


def _penalised(logits: Floats, sampling: Sampling) -> Floats:
    if sampling.repeat_penalty == 1:
        return logits
    values, recent = logits.copy(), np.arange(64)
    recent_values = values[recent]
    values[recent] = np.where(
        recent_values > 0,
        recent_values / sampling.repeat_penalty,
        recent_values * sampling.repeat_penalty,
    )
    return values


def _choose(
    order: NDArray[np.intp], values: Floats, sampling: Sampling, random: np.random.Generator
) -> int:
    candidates = values[order]
    probabilities = _softmax(candidates)
    if sampling.top_p < 1:
        count = int(np.searchsorted(np.cumsum(probabilities), sampling.top_p)) + 1
        order, candidates, probabilities = order[:count], candidates[:count], probabilities[:count]
    if sampling.min_p > 0:
        is_likely = probabilities >= sampling.min_p * probabilities.max()
        order, candidates = order[is_likely], candidates[is_likely]
    return int(random.choice(order, p=_softmax(candidates / np.float32(sampling.temperature))))


def _softmax(values: Floats) -> NDArray[np.float64]:
    weights = np.exp((values - values.max()).astype(np.float64))
    return np.asarray(weights / weights.sum())


def _cpu_s(functions: Sequence[Work]) -> list[float]:
    """All take turns, so that a busy machine slows all of them equally."""
    best = [float("inf")] * len(functions)
    for _ in range(ROUNDS):
        for index, function in enumerate(functions):
            begin = time.process_time()
            for _ in range(TOKENS):
                function()
            best[index] = min(best[index], (time.process_time() - begin) / TOKENS)
    return best


def _peak_bytes(function: Work) -> int:
    tracemalloc.start()
    begin, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    function()
    peak = tracemalloc.get_traced_memory()[1] - begin
    tracemalloc.stop()
    return peak


if __name__ == "__main__":
    main()
