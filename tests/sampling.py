"""The probabilities with which a sampler draws; the sampler itself never lists them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.sampler import Sampler, TopTokens


def probabilities(sampler: Sampler, logits: NDArray[np.float32]) -> dict[int, float]:
    """The possible next tokens and their probabilities, likeliest first."""
    chooser, sampling = sampler._chooser, sampler.sampling
    with sampler._penalties(logits):
        number, top = chooser.highest(logits)
        if sampling.is_greedy:
            return {number: 1.0}
        if sampler._is_short_list:
            last = int(sampler._list_tokens(logits, top)[-1])
            top_tokens = TopTokens(float(logits[last]), last)
        else:
            top_tokens = sampler._top_tokens(logits, top)
        is_equal = logits == top_tokens.least
        is_kept = (logits > top_tokens.least) | (
            is_equal & (np.arange(len(logits)) <= top_tokens.last)
        )
        with np.errstate(over="ignore", under="ignore"):
            weights = np.exp((logits.astype(np.float64) - top) / sampling.temperature) * is_kept
        shares = weights / weights.sum()
        (numbers,) = shares.nonzero()
        numbers = numbers[np.lexsort((numbers, -logits[numbers]))]
    return dict(zip(numbers.tolist(), shares[numbers].tolist(), strict=True))
