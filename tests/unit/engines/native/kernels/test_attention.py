"""Attention over a batch of texts, compared with float64."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.embed_kernels import kernel_names, use_kernels

from edgekit.engines.native.kernels.types import Floats, Kernels, TextAttention

STARTS = np.array([0, 1, 1, 41, 46, 120], np.int32)  # texts of 1, 0, 40, 5 and 74 tokens
TEXTS = len(STARTS) - 1
LONGEST = 74


@pytest.fixture(params=kernel_names())
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    with use_kernels(request.param) as chosen:
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
            query = np.s_[first:last, head * width : (head + 1) * width]
            shared = head // (heads // kv_heads)
            key = np.s_[first:last, shared * width : (shared + 1) * width]
            scores = q[query].astype(np.float64) @ k[key].T.astype(np.float64) * 0.3
            if slopes is not None:
                scores -= slopes[head] * np.abs(i[:, None] - i)
            if causal:
                scores[i > i[:, None]] = -np.inf
            shares = np.exp(scores - scores.max(1, keepdims=True, initial=-1e30))
            out[query] = shares / shares.sum(1, keepdims=True) @ v[key]
    return out


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("alibi", [True, False])
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
    alibi: bool,
    in_place: bool,
) -> None:
    wide = random(
        (heads + 2 * kv_heads) * width, seed=width
    )  # q, k and v in one array, as in many models
    q = wide[:, : heads * width]
    k, v = np.split(wide[:, heads * width :], 2, axis=1)
    slopes = np.linspace(0.01, 0.9, heads, dtype=np.float32) if alibi else None
    expected = exact(q, k, v, heads, kv_heads, causal=causal, slopes=slopes)
    out = q if in_place else np.full((120, heads * width + 3), np.nan, np.float32)[:, :-3]
    run(kernels, q, k, v, out, heads=heads, kv_heads=kv_heads, causal=causal, slopes=slopes)
    assert np.abs(out - expected).max() < 3e-6


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
    """In four parts that split texts between heads, as the workers do."""
    width = q.shape[1] // heads
    scratch = np.empty(kernels.attention_floats(LONGEST, width), np.float32)
    bounds = np.linspace(0, TEXTS * heads, 5).astype(int)
    for first, last in pairwise(bounds):
        texts = TextAttention(
            q=q, k=k, v=v, out=out, starts=STARTS, heads=heads, kv_heads=kv_heads, head_dim=width,
            scale=0.3, causal=causal, slopes=slopes,
        )  # fmt: skip
        kernels.attention(texts, scratch, int(first), int(last))


def test_attention_with_scores_that_overflow_exp(kernels: Kernels) -> None:
    """exp of the largest score is infinite; only differences between scores matter."""
    q = random(8, 1) * 1000
    k = random(8, 2) * 1000
    v = random(8, 3)
    expected = exact(q, k, v, 1, 1, causal=False, slopes=None)
    out = np.empty_like(q)
    run(kernels, q, k, v, out, heads=1, kv_heads=1, causal=False, slopes=None)
    assert np.isfinite(out).all()
    assert np.abs(out - expected).max() < 1e-5
