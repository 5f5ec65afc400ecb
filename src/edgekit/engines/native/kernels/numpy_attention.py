"""Attention in numpy: softmax(q k^T * scale + bias) v for one text and one head."""

from __future__ import annotations

import numpy as np

from edgekit.engines.native.kernels.types import Floats

SCORE_ROWS = 32  # queries whose scores are held at a time


def attention_floats(longest_tokens: int) -> int:
    """Scores of some queries, their sums, and two rows for ALiBi."""
    return (SCORE_ROWS + 2) * longest_tokens + SCORE_ROWS


def attend(
    q: Floats,
    k: Floats,
    v: Floats,
    out: Floats,
    *,
    scale: float,
    causal: bool,
    slope: float,
    scratch: Floats,
) -> None:
    """All queries of a text; `out` may be `q`, because its rows are read before they are written."""
    tokens = len(q)
    if scratch.size < attention_floats(tokens):
        raise ValueError("scratch is too small for a text")
    for first in range(0, tokens, SCORE_ROWS):
        last = min(first + SCORE_ROWS, tokens)
        seen = last if causal else tokens
        scores, rest = _take(scratch, last - first, seen)
        np.matmul(q[first:last], k[:seen].T, out=scores)
        np.multiply(scores, scale, out=scores)
        if slope:
            _lean(scores, first, slope, rest)
        if causal:
            for row in range(last - first):
                scores[row, first + row + 1 :] = -np.inf
        _soften(scores, rest)
        np.matmul(scores, v[:seen], out=out[first:last])


def _take(scratch: Floats, rows: int, columns: int) -> tuple[Floats, Floats]:
    count = rows * columns
    return scratch[:count].reshape(rows, columns), scratch[count:]


def _soften(scores: Floats, rest: Floats) -> None:
    sums, _ = _take(rest, len(scores), 1)
    np.max(scores, axis=1, keepdims=True, out=sums)
    np.subtract(scores, sums, out=scores)
    np.exp(scores, out=scores)
    np.sum(scores, axis=1, keepdims=True, out=sums)
    np.divide(scores, sums, out=scores)


def _lean(scores: Floats, first: int, slope: float, rest: Floats) -> None:
    """ALiBi: the further away, the less."""
    (places, away), _ = _take(rest, 2, scores.shape[1])
    places.fill(1)
    np.cumsum(places, out=places)
    for row in range(len(scores)):
        np.subtract(places, first + row + 1, out=away)
        np.abs(away, out=away)
        np.multiply(away, slope, out=away)
        np.subtract(scores[row], away, out=scores[row])
