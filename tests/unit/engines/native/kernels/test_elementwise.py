"""Norms, activations and rotary embeddings, compared with float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.embed_kernels import kernel_names, use_kernels

from edgekit.engines.native.kernels.types import ActivationKind, Floats, Kernels

Doubles = NDArray[np.float64]
EXTREMES = np.array([-1e30, -200, -90, -30, 0, -0.0, 1e-30, 30, 90, 200, 1e30], np.float32)


@pytest.fixture(params=kernel_names())
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    with use_kernels(request.param) as chosen:
        yield chosen


def random(rows: int, columns: int) -> Floats:
    return np.random.default_rng(rows).standard_normal((rows, columns), dtype=np.float32)


def gelu(x: Doubles) -> Doubles:
    return np.array([v / 2 * (1 + math.erf(v / math.sqrt(2))) for v in x.reshape(-1)]).reshape(
        x.shape
    )


def gelu_tanh(x: Doubles) -> Doubles:
    return np.asarray(x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))))


def silu(x: Doubles) -> Doubles:
    return np.asarray(x / (1 + np.exp(-np.clip(x, -700, None))))


def activate(kernels: Kernels, name: ActivationKind, x: Floats) -> None:
    if name == "gelu":
        kernels.activate(x, None, name)
    else:
        kernels.activate(x, np.ones_like(x), name)


@pytest.mark.parametrize(("name", "exact"), [("gelu", gelu), ("gelu_tanh", gelu_tanh)])
def test_activate_equals_float64(
    kernels: Kernels, name: ActivationKind, exact: Callable[[Doubles], Doubles]
) -> None:
    x = np.linspace(-8, 8, 20_001, dtype=np.float32).reshape(3, -1)
    expected = exact(x.astype(np.float64))
    activate(kernels, name, x)
    assert (np.abs(x - expected) / np.maximum(1, np.abs(expected))).max() < 1e-6


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu"])
def test_activate_at_extremes(kernels: Kernels, name: ActivationKind) -> None:
    """The result is 0 or the number itself, never infinite or NaN."""
    x = EXTREMES[None].copy()
    activate(kernels, name, x)
    assert np.allclose(
        x[0],
        np.where(np.abs(EXTREMES) < 1, EXTREMES / 2, np.maximum(EXTREMES, 0)),
        rtol=1e-6,
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("kind", "exact"), [("silu", silu), ("gelu", gelu), ("gelu_tanh", gelu_tanh)]
)
def test_activate_with_gate_equals_float64(
    kernels: Kernels, kind: ActivationKind, exact: Callable[[Doubles], Doubles]
) -> None:
    wide = random(7, 3001) * 5
    gate, up = wide[:, :1500].copy(), wide[:, 1500:3000]
    expected = exact(gate.astype(np.float64)) * up
    size = np.maximum(1, np.abs(gate)) * np.maximum(1, np.abs(up))
    kernels.activate(gate, up, kind)
    assert (np.abs(gate - expected) / size).max() < 1e-6


@pytest.mark.parametrize("columns", [1, 5, 16, 384, 1000])
def test_layer_norm_equals_float64(kernels: Kernels, columns: int) -> None:
    x, weight, bias = random(50, columns) * 3 + 2, random(1, columns)[0], random(2, columns)[1]
    exact_x = x.astype(np.float64)
    centred = exact_x - exact_x.mean(1, keepdims=True)
    unit = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    out = np.empty((50, columns + 3), np.float32)[:, :columns]
    kernels.layer_norm(x, out, weight, bias, 1e-5)
    assert np.abs(out - (unit * weight + bias)).max() < 1e-5
    kernels.layer_norm(x, x, weight, None, 1e-5)
    assert np.abs(x - unit * weight).max() < 1e-5


@pytest.mark.parametrize("columns", [1, 5, 16, 3584])
def test_rms_norm_equals_float64(kernels: Kernels, columns: int) -> None:
    x, weight = random(30, columns) * 3 + 2, random(1, columns)[0]
    exact_x = x.astype(np.float64)
    expected = exact_x / np.sqrt((exact_x**2).mean(1, keepdims=True) + 1e-6) * weight
    out = np.empty_like(x)
    kernels.rms_norm(x, out, weight, 1e-6)
    assert np.abs(out - expected).max() < 1e-5
    kernels.rms_norm(x, x, weight, 1e-6)
    assert (x == out).all()


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("rope_dims", [2, 10, 64])
def test_rope_equals_float64(kernels: Kernels, rope_dims: int, *, neox: bool) -> None:
    """With fewer dimensions than the head has, the rest is untouched, as are the columns after the heads."""
    half = rope_dims // 2
    x, cos, sin = (
        random(9, 4 * 64 + 5),
        random(9, half + 100)[:, :half],
        random(9, half + 90)[:, 7 : 7 + half],
    )
    first = np.arange(half) if neox else 2 * np.arange(half)
    second = first + half if neox else first + 1
    heads = x[:, :256].astype(np.float64).reshape(9, 4, 64)
    a, b = heads[:, :, first], heads[:, :, second]
    expected = heads.copy()
    expected[:, :, first] = a * cos[:, None] - b * sin[:, None]
    expected[:, :, second] = b * cos[:, None] + a * sin[:, None]
    after_heads = x[:, 256:].copy()
    kernels.rope(x, cos, sin, heads=4, head_dim=64, neox=neox)
    assert np.abs(x[:, :256].reshape(9, 4, 64) - expected).max() < 1e-5
    assert (x[:, :256].reshape(9, 4, 64)[:, :, rope_dims:] == expected[:, :, rope_dims:]).all()
    assert (x[:, 256:] == after_heads).all()
