"""The kernels in numpy: always available, and the reference for those in C."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import numpy as np

from edgekit.engines.native.kernels import numpy_blocks, numpy_cache, numpy_codebooks
from edgekit.engines.native.kernels.numpy_blocks import (
    CODEBOOK_SLICE_ELEMENTS,
    PART_FLOATS,
    SLICE_ELEMENTS,
    U8,
    Workspace,
    parts,
    row_parts,
)
from edgekit.engines.native.kernels.types import (
    BlockError,
    Bytes,
    CacheAttention,
    CacheKind,
    Floats,
    GateKind,
    TextAttention,
)
from edgekit.engines.native.stream_plan import TILE_FLOATS
from edgekit.errors import UnknownDtypeError
from edgekit.formats.dtype import TensorType

Unpack = Callable[[U8, Floats, Workspace], None]

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

    def __init__(self) -> None:
        self._local = threading.local()

    def dequantize(self, kind: TensorType, source: Bytes, into: Floats) -> int:
        unpack = _unpacker(kind)
        packed = np.frombuffer(source, np.uint8)
        blocks, rest = divmod(packed.size, kind.block_bytes)
        if rest:
            raise ValueError(f"{packed.size:,} bytes are not whole blocks of {kind.name}")
        if into.size < blocks * kind.block_elements or not into.flags.c_contiguous:
            raise ValueError(
                f"{blocks:,} blocks of {kind.name} do not fit into {into.size:,} floats"
            )
        table = packed.reshape(blocks, kind.block_bytes)
        flat = into.reshape(-1)[: blocks * kind.block_elements]
        is_codebook = kind.name.startswith("IQ")
        slice_elements = CODEBOOK_SLICE_ELEMENTS if is_codebook else SLICE_ELEMENTS
        step = slice_elements // kind.block_elements
        work = self._workspace()
        for first in range(0, blocks, step):
            part = table[first : first + step]
            at = first * kind.block_elements
            out = flat[at : at + len(part) * kind.block_elements]
            try:
                unpack(part, out.reshape(len(part), kind.block_elements), work)
            except BlockError as error:
                raise BlockError(first + error.block) from None
        return flat.size

    def scratch_floats(self, kind: TensorType, columns: int) -> int:
        kind.row_bytes(columns)
        return max(TILE_FLOATS, columns)

    def multiply(
        self, kind: TensorType, weights: Bytes, x: Floats, out: Floats, scratch: Floats
    ) -> None:
        columns = x.shape[1]
        rows = out.shape[1]
        row_bytes = kind.row_bytes(columns)
        packed = np.frombuffer(weights, np.uint8)
        _refuse(packed.size != rows * row_bytes, f"{packed.size:,} bytes are not {rows:,} rows")
        _refuse(x.shape[0] != out.shape[0], "x and out have different numbers of rows")
        _refuse(scratch.size < max(1, columns), "scratch is smaller than a row")
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

    def attention_floats(self, longest_tokens: int, head_dim: int) -> int:
        del head_dim
        return text_floats(longest_tokens)

    def attention(self, texts: TextAttention, scratch: Floats, first: int, last: int) -> None:
        heads, kv_heads, width = texts.heads, texts.kv_heads, texts.head_dim
        _refuse(heads % kv_heads != 0, f"{heads} heads do not share {kv_heads} evenly")
        for task in range(first, last):
            text, head = divmod(task, heads)
            rows = slice(int(texts.starts[text]), int(texts.starts[text + 1]))
            own = slice(head * width, (head + 1) * width)
            shared = head // (heads // kv_heads)
            theirs = slice(shared * width, (shared + 1) * width)
            attend_text(
                texts.q[rows, own],
                texts.k[rows, theirs],
                texts.v[rows, theirs],
                texts.out[rows, own],
                scale=texts.scale,
                causal=texts.causal,
                slope=0.0 if texts.slopes is None else float(texts.slopes[head]),
                scratch=scratch,
            )

    def store(self, kind: CacheKind, x: Floats, into: Bytes) -> None:
        numpy_cache.store(kind, x, into)

    def attend_floats(self, head_dim: int) -> int:
        return numpy_cache.attend_floats(head_dim)

    def attend(self, span: CacheAttention, scratch: Floats, first: int, last: int) -> None:
        q, heads, kv_heads, width = span.q, span.heads, span.kv_heads, span.head_dim
        places = (span.cells, span.first_position, span.query_position, span.reach or 0)
        _refuse(min(kv_heads, width) < 1, "a number of heads or of their values is not positive")
        _refuse(heads % kv_heads != 0, f"{heads} heads do not share {kv_heads} evenly")
        _refuse(
            q.shape[1] != heads * width or q.shape != span.out.shape, "q or out is not the heads"
        )
        _refuse(span.state.shape != (len(q), heads, 2), "state has the wrong shape")
        _refuse(not 0 <= first <= last <= kv_heads, "there are no such key heads")
        _refuse(min(places) < 0, "a place is negative")
        _refuse(scratch.size < numpy_cache.attend_floats(width), "scratch is too small")
        numpy_cache.attend(span, range(first, last), scratch, self._workspace())

    def settle(self, out: Floats, state: Floats, *, heads: int, head_dim: int) -> None:
        _refuse(out.shape[1] != heads * head_dim, "out is not the heads")
        _refuse(state.shape != (len(out), heads, 2), "state has the wrong shape")
        numpy_cache.settle(out, state, heads=heads, head_dim=head_dim)

    def layer_norm(
        self, x: Floats, out: Floats, weight: Floats, bias: Floats | None, eps: float
    ) -> None:
        _layer_norm(x, out, weight, bias, eps)

    def rms_norm(self, x: Floats, out: Floats, weight: Floats, eps: float) -> None:
        _rms_norm(x, out, weight, eps)

    def gelu(self, x: Floats) -> None:
        _activate(x, None, "gelu")

    def gate(self, gate: Floats, up: Floats, kind: GateKind) -> None:
        _refuse(gate.shape != up.shape, "gate and up have different shapes")
        _activate(gate, up, kind)

    def rope(
        self, x: Floats, cos: Floats, sin: Floats, *, heads: int, head_dim: int, neox: bool
    ) -> None:
        _refuse(2 * cos.shape[1] > head_dim, "more rotated values than a head has")
        _rope(x, cos, sin, heads=heads, head_dim=head_dim, neox=neox)

    def _workspace(self) -> Workspace:
        work: Workspace | None = getattr(self._local, "work", None)
        if work is None:
            work = self._local.work = Workspace()
        return work


def _unpacker(kind: TensorType) -> Unpack:
    unpack = UNPACK.get(kind.name)
    if unpack is None:
        raise UnknownDtypeError(
            f"unsupported tensor type {kind.name}: no row in engines/native/kernels/numpy_kernels.py"
        )
    return unpack


def _refuse(wrong: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    if wrong:
        raise ValueError(what)


# --- attention inside a text

SCORE_ROWS = 32  # queries whose scores are held at a time


def text_floats(longest_tokens: int) -> int:
    """Scores of some queries, their sums, and two rows for ALiBi."""
    return (SCORE_ROWS + 2) * longest_tokens + SCORE_ROWS


def attend_text(
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
    """Softmax(q k^T * scale + bias) v for a text and head. `out` may be `q`: rows are read before they are written."""
    tokens = len(q)
    if scratch.size < text_floats(tokens):
        raise ValueError("scratch is too small for a text")
    for first in range(0, tokens, SCORE_ROWS):
        last = min(first + SCORE_ROWS, tokens)
        seen = last if causal else tokens
        scores, rest = _take(scratch, last - first, seen)
        np.matmul(q[first:last], k[:seen].T, out=scores)
        np.multiply(scores, scale, out=scores)
        if slope:
            _add_alibi(scores, first, slope, rest)
        if causal:
            for row in range(last - first):
                scores[row, first + row + 1 :] = -np.inf
        _softmax(scores, rest)
        np.matmul(scores, v[:seen], out=out[first:last])


def _take(scratch: Floats, rows: int, columns: int) -> tuple[Floats, Floats]:
    count = rows * columns
    return scratch[:count].reshape(rows, columns), scratch[count:]


def _softmax(scores: Floats, rest: Floats) -> None:
    sums, _ = _take(rest, len(scores), 1)
    np.max(scores, axis=1, keepdims=True, out=sums)
    np.subtract(scores, sums, out=scores)
    np.exp(scores, out=scores)
    np.sum(scores, axis=1, keepdims=True, out=sums)
    np.divide(scores, sums, out=scores)


def _add_alibi(scores: Floats, first: int, slope: float, rest: Floats) -> None:
    """Scores fall with the distance."""
    (places, away), _ = _take(rest, 2, scores.shape[1])
    places.fill(1)
    np.cumsum(places, out=places)
    for row in range(len(scores)):
        np.subtract(places, first + row + 1, out=away)
        np.abs(away, out=away)
        np.multiply(away, slope, out=away)
        np.subtract(scores[row], away, out=scores[row])


# --- norms, activations and rotary positions

LARGEST_POWER = 88.0  # exp of more overflows float32
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


def _layer_norm(x: Floats, out: Floats, weight: Floats, bias: Floats | None, eps: float) -> None:
    sums = np.empty(min(len(x), PART_FLOATS), np.float32)
    for rows in row_parts(len(x), PART_FLOATS):
        part, into = x[rows], out[rows]
        means = sums[: len(part)]
        np.sum(part, axis=1, out=means)
        np.divide(means, x.shape[1], out=means)
        np.subtract(part, means[:, None], out=into)
        _to_unit(into, means, eps)
        np.multiply(into, weight, out=into)
        if bias is not None:
            np.add(into, bias, out=into)


def _rms_norm(x: Floats, out: Floats, weight: Floats, eps: float) -> None:
    sums = np.empty(min(len(x), PART_FLOATS), np.float32)
    for rows in row_parts(len(x), PART_FLOATS):
        into = out[rows]
        np.copyto(into, x[rows])
        _to_unit(into, sums[: len(into)], eps)
        np.multiply(into, weight, out=into)


def _activate(x: Floats, up: Floats | None, kind: GateKind) -> None:
    buffers = np.empty((3, PART_FLOATS), np.float32)
    for place in parts(*x.shape):
        part = x[place]
        a, b, c = (buffer[: part.size].reshape(part.shape) for buffer in buffers)
        ACTIVATIONS[kind](part, a, b, c)
        if up is not None:
            np.multiply(part, up[place], out=part)


def _rope(x: Floats, cos: Floats, sin: Floats, *, heads: int, head_dim: int, neox: bool) -> None:
    half = cos.shape[1]
    buffers = np.empty((2, max(PART_FLOATS, half)), np.float32)
    for rows in row_parts(len(x), max(1, PART_FLOATS // max(1, half))):
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
