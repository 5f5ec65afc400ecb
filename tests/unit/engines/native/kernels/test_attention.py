"""Attention over texts that lie one after another, against the same in float64."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.embed_kernels import names, using

from edgekit.engines.native.kernels.types import Floats, Kernels, TextAttention

STARTS = np.array([0, 1, 1, 41, 46, 120], np.int32)  # texts of 1, 0, 40, 5 and 74 tokens
TEXTS = len(STARTS) - 1
LONGEST = 74


@pytest.fixture(params=names())
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    with using(request.param) as chosen:
        yield chosen


def random(columns: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((120, columns), dtype=np.float32)


def exact(
    q: Floats,
    k: Floats,
    v: Floats,
    heads: int,
    kv_heads: int,
    *,
    causal: bool,
    slopes: Floats | None,
) -> NDArray[np.float64]:
    width = q.shape[1] // heads
    out = np.zeros(q.shape)
    for first, last in pairwise(STARTS):
        i = np.arange(last - first)
        for head in range(heads):
            own = np.s_[first:last, head * width : (head + 1) * width]
            shared = head // (heads // kv_heads)
            theirs = np.s_[first:last, shared * width : (shared + 1) * width]
            scores = q[own].astype(np.float64) @ k[theirs].T.astype(np.float64) * 0.3
            if slopes is not None:
                scores -= slopes[head] * np.abs(i[:, None] - i)
            if causal:
                scores[i > i[:, None]] = -np.inf
            shares = np.exp(scores - scores.max(1, keepdims=True, initial=-1e30))
            out[own] = shares / shares.sum(1, keepdims=True) @ v[theirs]
    return out


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("leaning", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width"), [(4, 4, 32), (6, 2, 64), (3, 1, 5), (2, 2, 20)]
)
def test_attention(
    kernels: Kernels,
    heads: int,
    kv_heads: int,
    width: int,
    *,
    causal: bool,
    leaning: bool,
    in_place: bool,
) -> None:
    wide = random(
        (heads + 2 * kv_heads) * width, seed=width
    )  # q, k and v in one array, as many models have it
    q = wide[:, : heads * width]
    k, v = np.split(wide[:, heads * width :], 2, axis=1)
    slopes = np.linspace(0.01, 0.9, heads, dtype=np.float32) if leaning else None
    wanted = exact(q, k, v, heads, kv_heads, causal=causal, slopes=slopes)
    out = q if in_place else np.full((120, heads * width + 3), np.nan, np.float32)[:, :-3]
    run(kernels, q, k, v, out, heads=heads, kv_heads=kv_heads, causal=causal, slopes=slopes)
    assert np.abs(out - wanted).max() < 3e-6


def run(
    kernels: Kernels,
    q: Floats,
    k: Floats,
    v: Floats,
    out: Floats,
    *,
    heads: int,
    kv_heads: int,
    causal: bool,
    slopes: Floats | None,
) -> None:
    """In four pieces that cut texts in the middle, as workers share them."""
    width = q.shape[1] // heads
    scratch = np.empty(kernels.attention_floats(LONGEST, width), np.float32)
    cuts = np.linspace(0, TEXTS * heads, 5).astype(int)
    for first, last in pairwise(cuts):
        texts = TextAttention(
            q=q, k=k, v=v, out=out, starts=STARTS, heads=heads, kv_heads=kv_heads, head_dim=width,
            scale=0.3, causal=causal, slopes=slopes,
        )  # fmt: skip
        kernels.attention(texts, scratch, int(first), int(last))


def test_scores_far_apart(kernels: Kernels) -> None:
    """exp of the largest score would be infinite; only differences count."""
    q = random(8, 1) * 1000
    k = random(8, 2) * 1000
    v = random(8, 3)
    wanted = exact(q, k, v, 1, 1, causal=False, slopes=None)
    out = np.empty_like(q)
    run(kernels, q, k, v, out, heads=1, kv_heads=1, causal=False, slopes=None)
    assert np.isfinite(out).all()
    assert np.abs(out - wanted).max() < 1e-5
