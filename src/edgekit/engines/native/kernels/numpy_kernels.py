"""The kernels in numpy: always available, and the reference for those in C."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from edgekit.engines.native.kernels import numpy_blocks, numpy_cache, numpy_codebooks
from edgekit.engines.native.kernels.numpy_blocks import (
    PART_FLOATS,
    SLICE_ELEMENTS,
    U8,
    first_of,
    parts,
    refuse,
    row_parts,
)
from edgekit.engines.native.kernels.types import (
    ActivationKind,
    BlockError,
    Bytes,
    Floats,
    TextAttention,
)
from edgekit.engines.native.stream_plan import multiply_floats
from edgekit.errors import UnknownDtypeError
from edgekit.formats.dtype import TensorType

Unpack = Callable[[U8, Floats], None]

UNPACK: Mapping[str, Unpack] = {
    "F32": numpy_blocks.f32,
    "F16": numpy_blocks.f16,
    "BF16": numpy_blocks.bf16,
    "Q4_0": numpy_blocks.q4_0,
    "Q4_1": numpy_blocks.q4_1,
    "Q5_0": numpy_blocks.q5_0,
    "Q5_1": numpy_blocks.q5_1,
    "Q8_0": numpy_blocks.q8_0,
    "Q2_K": numpy_blocks.q2_k,
    "Q3_K": numpy_blocks.q3_k,
    "Q4_K": numpy_blocks.q4_k,
    "Q5_K": numpy_blocks.q5_k,
    "Q6_K": numpy_blocks.q6_k,
    "IQ1_S": numpy_codebooks.iq1_s,
    "IQ1_M": numpy_codebooks.iq1_m,
    "IQ2_XXS": numpy_codebooks.iq2_xxs,
    "IQ2_XS": numpy_codebooks.iq2_xs,
    "IQ2_S": numpy_codebooks.iq2_s,
    "IQ3_XXS": numpy_codebooks.iq3_xxs,
    "IQ3_S": numpy_codebooks.iq3_s,
    "IQ4_NL": numpy_blocks.iq4_nl,
    "IQ4_XS": numpy_codebooks.iq4_xs,
    "TQ1_0": numpy_blocks.tq1_0,
    "TQ2_0": numpy_blocks.tq2_0,
    "MXFP4": numpy_blocks.mxfp4,
}


class NumpyKernels:
    name = "numpy"
    scratch_floats = staticmethod(multiply_floats)
    store = staticmethod(numpy_cache.store)
    attend = staticmethod(numpy_cache.attend)
    attend_floats = staticmethod(numpy_cache.attend_floats)
    settle = staticmethod(numpy_cache.settle)

    def dequantize(self, kind: TensorType, source: Bytes, into: Floats) -> None:
        unpack = UNPACK.get(kind.name)
        if unpack is None:
            raise UnknownDtypeError(
                f"unsupported tensor type {kind.name}: no row in engines/native/kernels/numpy_kernels.py"
            )
        packed = np.frombuffer(source, np.uint8)
        blocks, rest = divmod(packed.size, kind.block_bytes)
        refuse(rest != 0, f"{packed.size:,} bytes are not whole blocks of {kind.name}")
        refuse(
            into.size < blocks * kind.block_elements or not into.flags.c_contiguous,
            f"{blocks:,} blocks of {kind.name} do not fit into {into.size:,} floats",
        )
        table = packed.reshape(blocks, kind.block_bytes)
        flat = into.reshape(-1)[: blocks * kind.block_elements]
        step = SLICE_ELEMENTS // kind.block_elements
        for first in range(0, blocks, step):
            part = table[first : first + step]
            at = first * kind.block_elements
            out = flat[at : at + len(part) * kind.block_elements]
            try:
                unpack(part, out.reshape(len(part), kind.block_elements))
            except BlockError as error:
                raise BlockError(first + error.block) from None

    def multiply(
        self, kind: TensorType, weights: Bytes, x: Floats, out: Floats, scratch: Floats
    ) -> None:
        columns = x.shape[1]
        rows = out.shape[1]
        row_bytes = kind.row_bytes(columns)
        packed = np.frombuffer(weights, np.uint8)
        refuse(packed.size != rows * row_bytes, f"{packed.size:,} bytes are not {rows:,} rows")
        refuse(x.shape[0] != out.shape[0], "x and out have different numbers of rows")
        refuse(scratch.size < max(1, columns), "scratch is smaller than a row")
        step = max(1, scratch.size // max(1, columns))
        for first in range(0, rows, step):
            count = min(step, rows - first)
            tile = scratch[: count * columns]
            try:
                self.dequantize(kind, packed[first * row_bytes : (first + count) * row_bytes], tile)
            except BlockError as error:
                before = first * (columns // kind.block_elements)
                raise BlockError(before + error.block) from None
            np.matmul(x, tile.reshape(count, columns).T, out=out[:, first : first + count])

    def attention_floats(self, longest_tokens: int, _head_dim: int) -> int:
        """Scores of some queries, their sums, and two rows for ALiBi."""
        return (SCORE_ROWS + 2) * longest_tokens + SCORE_ROWS

    def attention(self, texts: TextAttention, scratch: Floats, first: int, last: int) -> None:
        heads, kv_heads, width = texts.heads, texts.kv_heads, texts.head_dim
        refuse(heads % kv_heads != 0, f"{heads} heads do not share {kv_heads} evenly")
        for task in range(first, last):
            text, head = divmod(task, heads)
            start, end = int(texts.starts[text]), int(texts.starts[text + 1])
            needed = self.attention_floats(end - start, width)
            refuse(scratch.size < needed, "scratch is too small for a text")
            kv_head = head // (heads // kv_heads)
            _attend_text(texts, slice(start, end), head, kv_head, scratch)

    def layer_norm(
        self, x: Floats, out: Floats, weight: Floats, bias: Floats | None, eps: float
    ) -> None:
        for rows in row_parts(len(x), NORM_ROWS):
            part, into = x[rows], out[rows]
            means = part.sum(axis=1, keepdims=True) / x.shape[1]
            np.subtract(part, means, out=into)
            _divide_by_root_mean_square(into, eps)
            into *= weight
            if bias is not None:
                into += bias

    def rms_norm(self, x: Floats, out: Floats, weight: Floats, eps: float) -> None:
        for rows in row_parts(len(x), NORM_ROWS):
            into = out[rows]
            np.copyto(into, x[rows])
            _divide_by_root_mean_square(into, eps)
            into *= weight

    def activate(self, x: Floats, up: Floats | None, kind: ActivationKind) -> None:
        refuse(up is not None and x.shape != up.shape, "gate and up have different shapes")
        for place in parts(*x.shape):
            ACTIVATIONS[kind](x[place])
            if up is not None:
                x[place] *= up[place]

    def rope(
        self, x: Floats, cos: Floats, sin: Floats, *, heads: int, head_dim: int, neox: bool
    ) -> None:
        half = cos.shape[1]
        refuse(2 * half > head_dim, "more rotated values than a head has")
        for rows in row_parts(len(x), max(1, PART_FLOATS // (2 * head_dim))):
            for head in range(heads):
                values = x[rows, head * head_dim : (head + 1) * head_dim]
                a = values[:, :half] if neox else values[:, 0 : 2 * half : 2]
                b = values[:, half : 2 * half] if neox else values[:, 1 : 2 * half : 2]
                a_sin, b_sin = a * sin[rows], b * sin[rows]
                a *= cos[rows]
                a -= b_sin
                b *= cos[rows]
                b += a_sin


SCORE_ROWS = 32  # queries whose scores are held at a time


def _attend_text(
    texts: TextAttention, rows: slice, head: int, kv_head: int, scratch: Floats
) -> None:
    """Softmax(q k^T * scale + bias) v for a text and head. `out` may be `q`: rows are read before they are written."""
    width = texts.head_dim
    own = slice(head * width, (head + 1) * width)
    shared = slice(kv_head * width, (kv_head + 1) * width)
    q, out = texts.q[rows, own], texts.out[rows, own]
    k, v = texts.k[rows, shared], texts.v[rows, shared]
    tokens = len(q)
    for first in range(0, tokens, SCORE_ROWS):
        last = min(first + SCORE_ROWS, tokens)
        seen = last if texts.causal else tokens
        scores = first_of(scratch, last - first, seen)
        rest = scratch[scores.size :]
        np.matmul(q[first:last], k[:seen].T, out=scores)
        np.multiply(scores, texts.scale, out=scores)
        if texts.slopes is not None:
            positions, distances = first_of(rest, 2, seen)
            positions.fill(1)
            np.cumsum(positions, out=positions)
            for row in range(last - first):
                np.subtract(positions, first + row + 1, out=distances)
                np.abs(distances, out=distances)
                np.multiply(distances, float(texts.slopes[head]), out=distances)
                np.subtract(scores[row], distances, out=scores[row])
        if texts.causal:
            for row in range(last - first):
                scores[row, first + row + 1 :] = -np.inf
        sums = first_of(rest, last - first, 1)
        np.max(scores, axis=1, keepdims=True, out=sums)
        np.subtract(scores, sums, out=scores)
        np.exp(scores, out=scores)
        np.sum(scores, axis=1, keepdims=True, out=sums)
        np.divide(scores, sums, out=scores)
        np.matmul(scores, v[:seen], out=out[first:last])


# --- norms, activations and rotary positions

NORM_ROWS = 2048  # rows that are normalised together
LARGEST_POWER = 88.0  # exp of more overflows float32
TANH_IS_ONE = 10.0  # to float32, and x^3 stays small

# erf(x) ~ x P(x^2) / Q(x^2) on [-4, 4], within 4e-7. The highest powers first.
ERF_P = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
ERF_Q = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)


def _divide_by_root_mean_square(rows: Floats, eps: float) -> None:
    squares = np.vecdot(rows, rows)
    rows /= np.sqrt(squares / rows.shape[1] + eps)[:, None]


def _polynomial(coefficients: tuple[float, ...], x: Floats) -> Floats:
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value *= x
        value += coefficient
    return value


def _gelu(x: Floats) -> None:
    """Half of x, plus half of x times erf(x / sqrt 2)."""
    z = x * np.float32(0.7071067811865476)
    np.clip(z, -4, 4, out=z)
    x *= 0.5
    half_erf = x * z
    z *= z
    half_erf *= _polynomial(ERF_P, z)
    half_erf /= _polynomial(ERF_Q, z)
    x += half_erf


def _gelu_tanh(x: Floats) -> None:
    """(1 + tanh z) / 2 is 1 / (1 + exp -2z), z = sqrt(2 / pi) (x + 0.044715 x^3)."""
    power = np.clip(x, -TANH_IS_ONE, TANH_IS_ONE)
    squares = power * power
    squares *= 0.044715
    squares += 1
    power *= squares
    power *= -1.5957691216057308
    _divide_by_one_plus_exp(x, power)


def _silu(x: Floats) -> None:
    _divide_by_one_plus_exp(x, -x)


def _divide_by_one_plus_exp(x: Floats, power: Floats) -> None:
    """`x /= 1 + exp(power)`, in place; overwrites `power`, too."""
    np.minimum(power, LARGEST_POWER, out=power)
    np.exp(power, out=power)
    power += 1
    x /= power


ACTIVATIONS: Mapping[ActivationKind, Callable[[Floats], None]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}
