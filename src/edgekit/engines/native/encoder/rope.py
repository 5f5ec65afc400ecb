"""A Rope -> tables of cosines and sines, as ggml-cpu/ops.cpp (rope_yarn) @ b21e4de computes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.arrays import Floats
from edgekit.engines.native.types import NativeModel, NativeRope

_ROWS = 16  # places whose angles are worked out at a time


def make_tables(model: NativeModel, factors: Floats | None, places: int) -> tuple[Floats, ...]:
    """Cosines and sines of so many places from 0 on; nothing where heads do not turn."""
    if model.rope is None:
        return ()
    shape = (places, model.dimensions.rotary // 2)
    cos, sin = np.empty(shape, np.float32), np.empty(shape, np.float32)
    fill_tables(model.rope, factors, cos, sin)
    return cos, sin


def fill_tables(
    rope: NativeRope,
    factors: Floats | None,
    cos: Floats,
    sin: Floats,
    *,
    first_place: int = 0,
    last_place: int | None = None,
) -> None:
    """Row i of cos and sin [places, pairs] for first_place + i, and for last_place beyond that."""
    pairs = cos.shape[1]
    slow = 1.0 if factors is None else factors.astype(np.float64)
    speeds = rope.base ** (-np.arange(pairs, dtype=np.float64) / pairs) / slow
    speeds *= _blend(rope, pairs)
    for first in range(0, len(cos), _ROWS):
        last = min(first + _ROWS, len(cos))
        places = np.arange(first_place + first, first_place + last, dtype=np.float64)
        if last_place is not None:
            np.minimum(places, last_place, out=places)
        angles = places[:, None] * speeds
        cos[first:last] = np.cos(angles) * rope.magnitude
        sin[first:last] = np.sin(angles) * rope.magnitude


def _blend(rope: NativeRope, pairs: int) -> NDArray[np.float64]:
    """What each pair's speed is multiplied with: fast pairs keep theirs, slow ones are interpolated."""
    if rope.yarn_from is None:
        return np.full(pairs, rope.interpolate)
    span = max(0.001, rope.yarn_to - rope.yarn_from)
    kept: NDArray[np.float64] = 1 - np.clip((np.arange(pairs) - rope.yarn_from) / span, 0, 1)
    return np.asarray(rope.interpolate * (1 - kept) + kept)
