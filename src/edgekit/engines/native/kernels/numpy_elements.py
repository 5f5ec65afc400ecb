"""Norms, activations and rotary positions in numpy: what is done with each row or each number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from edgekit.engines.native.kernels.types import Floats, GateKind

PART_FLOATS = (
    8192  # numbers that are worked on at a time, so that buffers do not grow with the text
)
LARGEST_POWER = 88.0  # exp of more is no float32
TANH_IS_ONE = 10.0  # to float32, and x^3 stays small

# erf(x) ~ x P(x^2) / Q(x^2) on [-4, 4], the highest power first; within 4e-7 of erf.
ERF_ABOVE = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
ERF_BELOW = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)

Activation = Callable[[Floats, Floats, Floats, Floats], None]
Part = tuple[slice, slice]


def layer_norm(x: Floats, out: Floats, weight: Floats, bias: Floats | None, eps: float) -> None:
    sums = np.empty(min(len(x), PART_FLOATS), np.float32)
    for rows in _row_parts(len(x), PART_FLOATS):
        part, into = x[rows], out[rows]
        means = sums[: len(part)]
        np.sum(part, axis=1, out=means)
        np.divide(means, x.shape[1], out=means)
        np.subtract(part, means[:, None], out=into)
        _to_unit(into, means, eps)
        np.multiply(into, weight, out=into)
        if bias is not None:
            np.add(into, bias, out=into)


def rms_norm(x: Floats, out: Floats, weight: Floats, eps: float) -> None:
    sums = np.empty(min(len(x), PART_FLOATS), np.float32)
    for rows in _row_parts(len(x), PART_FLOATS):
        into = out[rows]
        np.copyto(into, x[rows])
        _to_unit(into, sums[: len(into)], eps)
        np.multiply(into, weight, out=into)


def activate(x: Floats, up: Floats | None, kind: GateKind) -> None:
    buffers = np.empty((3, PART_FLOATS), np.float32)
    for place in parts(*x.shape):
        part = x[place]
        a, b, c = (buffer[: part.size].reshape(part.shape) for buffer in buffers)
        ACTIVATIONS[kind](part, a, b, c)
        if up is not None:
            np.multiply(part, up[place], out=part)


def rope(x: Floats, cos: Floats, sin: Floats, *, heads: int, head_dim: int, neox: bool) -> None:
    half = cos.shape[1]
    buffers = np.empty((2, max(PART_FLOATS, half)), np.float32)
    for rows in _row_parts(len(x), max(1, PART_FLOATS // max(1, half))):
        for head in range(heads):
            own = x[rows, head * head_dim : (head + 1) * head_dim]
            one = own[:, :half] if neox else own[:, 0 : 2 * half : 2]
            other = own[:, half : 2 * half] if neox else own[:, 1 : 2 * half : 2]
            _turn(one, other, cos[rows], sin[rows], buffers)


def _turn(one: Floats, other: Floats, cos: Floats, sin: Floats, buffers: Floats) -> None:
    one_sin, other_sin = (buffer[: one.size].reshape(one.shape) for buffer in buffers)
    np.multiply(one, sin, out=one_sin)
    np.multiply(other, sin, out=other_sin)
    np.multiply(one, cos, out=one)
    np.subtract(one, other_sin, out=one)
    np.multiply(other, cos, out=other)
    np.add(other, one_sin, out=other)


def _row_parts(rows: int, most: int) -> Iterator[slice]:
    for first in range(0, rows, most):
        yield slice(first, min(first + most, rows))


def parts(rows: int, columns: int) -> Iterator[Part]:
    """Pieces of at most PART_FLOATS numbers: several rows, or a part of one."""
    for some in _row_parts(rows, max(1, PART_FLOATS // max(1, columns))):
        for first in range(0, columns, PART_FLOATS):
            yield some, slice(first, first + PART_FLOATS)


def _to_unit(rows: Floats, sums: Floats, eps: float) -> None:
    np.vecdot(rows, rows, out=sums)
    np.divide(sums, rows.shape[1], out=sums)
    np.add(sums, eps, out=sums)
    np.sqrt(sums, out=sums)
    np.divide(rows, sums[:, None], out=rows)


def _polynomial(coefficients: tuple[float, ...], x: Floats, out: Floats) -> None:
    out.fill(coefficients[0])
    for coefficient in coefficients[1:]:
        np.multiply(out, x, out=out)
        np.add(out, coefficient, out=out)


def _gelu(x: Floats, a: Floats, b: Floats, c: Floats) -> None:
    """Half of x, plus half of x times erf(x / sqrt 2)."""
    np.multiply(x, 0.7071067811865476, out=a)
    np.clip(a, -4, 4, out=a)
    np.multiply(x, 0.5, out=x)
    np.multiply(x, a, out=b)
    np.multiply(a, a, out=a)
    _polynomial(ERF_ABOVE, a, c)
    np.multiply(b, c, out=b)
    _polynomial(ERF_BELOW, a, c)
    np.divide(b, c, out=b)
    np.add(x, b, out=x)


def _divide_by_one_plus_exp(x: Floats, power: Floats) -> None:
    np.minimum(power, LARGEST_POWER, out=power)
    np.exp(power, out=power)
    np.add(power, 1, out=power)
    np.divide(x, power, out=x)


def _gelu_tanh(x: Floats, a: Floats, b: Floats, c: Floats) -> None:
    """(1 + tanh z) / 2 is 1 / (1 + exp -2z), z = sqrt(2 / pi) (x + 0.044715 x^3)."""
    del c
    np.clip(x, -TANH_IS_ONE, TANH_IS_ONE, out=a)
    np.multiply(a, a, out=b)
    np.multiply(b, 0.044715, out=b)
    np.add(b, 1, out=b)
    np.multiply(a, b, out=b)
    np.multiply(b, -1.5957691216057308, out=b)
    _divide_by_one_plus_exp(x, b)


def _silu(x: Floats, a: Floats, b: Floats, c: Floats) -> None:
    del b, c
    np.negative(x, out=a)
    _divide_by_one_plus_exp(x, a)


ACTIVATIONS: Mapping[GateKind, Activation] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}
