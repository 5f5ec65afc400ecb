"""A Rope -> tables of cosines and sines, as ggml-cpu/ops.cpp (rope_yarn) @ b21e4de computes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekit.embed.types import Floats
from edgekit.engine.stream.types import Rope

_ROWS = 64  # places whose angles are worked out at a time


def fill_tables(rope: Rope, factors: Floats | None, cos: Floats, sin: Floats) -> None:
    """Row p of cos and sin [places, pairs] for place p, p = 0, 1, ..."""
    pairs = cos.shape[1]
    slow = 1.0 if factors is None else factors.astype(np.float64)
    speeds = rope.base ** (-np.arange(pairs, dtype=np.float64) / pairs) / slow
    speeds *= _blend(rope, pairs)
    for first in range(0, len(cos), _ROWS):
        places = np.arange(first, min(first + _ROWS, len(cos)), dtype=np.float64)
        angles = places[:, None] * speeds
        cos[first : first + _ROWS] = np.cos(angles) * rope.magnitude
        sin[first : first + _ROWS] = np.sin(angles) * rope.magnitude


def _blend(rope: Rope, pairs: int) -> NDArray[np.float64]:
    """What each pair's speed is multiplied with: fast pairs keep theirs, slow ones are interpolated."""
    if rope.yarn_from is None:
        return np.full(pairs, rope.interpolate)
    span = max(0.001, rope.yarn_to - rope.yarn_from)
    kept: NDArray[np.float64] = 1 - np.clip((np.arange(pairs) - rope.yarn_from) / span, 0, 1)
    return np.asarray(rope.interpolate * (1 - kept) + kept)
