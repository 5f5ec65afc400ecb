"""The kernels in numpy: always there, and the reference for the native ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import numpy as np

from edgekit.engines.native.kernels import (
    numpy_blocks,
    numpy_cache,
    numpy_codebooks,
    numpy_elements,
    numpy_super,
)
from edgekit.engines.native.kernels.numpy_attention import attend, attention_floats
from edgekit.engines.native.kernels.types import (
    BlockError,
    Bytes,
    CacheKind,
    Floats,
    GateKind,
    Starts,
)
from edgekit.engines.native.kernels.workspace import (
    CODEBOOK_SLICE_ELEMENTS,
    SLICE_ELEMENTS,
    U8,
    Workspace,
)
from edgekit.engines.native.scratch import TILE_FLOATS
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
    "Q2_K": numpy_super.q2_k,
    "Q3_K": numpy_super.q3_k,
    "Q4_K": numpy_super.q4_k,
    "Q5_K": numpy_super.q5_k,
    "Q6_K": numpy_super.q6_k,
    "IQ1_S": numpy_codebooks.iq1_s,
    "IQ1_M": numpy_codebooks.iq1_m,
    "IQ2_XXS": numpy_codebooks.iq2_xxs,
    "IQ2_XS": numpy_codebooks.iq2_xs,
    "IQ2_S": numpy_codebooks.iq2_s,
    "IQ3_XXS": numpy_codebooks.iq3_xxs,
    "IQ3_S": numpy_codebooks.iq3_s,
    "IQ4_NL": numpy_blocks.iq4_nl,
    "IQ4_XS": numpy_codebooks.iq4_xs,
    "TQ1_0": numpy_super.tq1_0,
    "TQ2_0": numpy_super.tq2_0,
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
        step = _slice_elements(kind) // kind.block_elements
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
        return attention_floats(longest_tokens)

    def attention(
        self,
        q: Floats,
        k: Floats,
        v: Floats,
        out: Floats,
        starts: Starts,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        causal: bool,
        slopes: Floats | None,
        scratch: Floats,
        first: int,
        last: int,
    ) -> None:
        _refuse(heads % kv_heads != 0, f"{heads} heads do not share {kv_heads} evenly")
        for task in range(first, last):
            text, head = divmod(task, heads)
            rows = slice(int(starts[text]), int(starts[text + 1]))
            own = slice(head * head_dim, (head + 1) * head_dim)
            shared = head // (heads // kv_heads)
            theirs = slice(shared * head_dim, (shared + 1) * head_dim)
            attend(
                q[rows, own],
                k[rows, theirs],
                v[rows, theirs],
                out[rows, own],
                scale=scale,
                causal=causal,
                slope=0.0 if slopes is None else float(slopes[head]),
                scratch=scratch,
            )

    def store(self, kind: CacheKind, x: Floats, into: Bytes) -> None:
        numpy_cache.store(kind, x, into)

    def attend_floats(self, rows: int, head_dim: int) -> int:
        del rows
        return numpy_cache.attend_floats(head_dim)

    def attend(
        self,
        q: Floats,
        k: Bytes,
        v: Bytes,
        out: Floats,
        state: Floats,
        *,
        k_kind: CacheKind,
        v_kind: CacheKind,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        cells: int,
        first_position: int,
        query_position: int,
        reach: int | None,
        scratch: Floats,
        first: int,
        last: int,
    ) -> None:
        _refuse(min(kv_heads, head_dim) < 1, "a number of heads or of their values is not positive")
        _refuse(heads % kv_heads != 0, f"{heads} heads do not share {kv_heads} evenly")
        _refuse(q.shape[1] != heads * head_dim or q.shape != out.shape, "q or out is not the heads")
        _refuse(state.shape != (len(q), heads, 2), "state has the wrong shape")
        _refuse(not 0 <= first <= last <= kv_heads, "there are no such key heads")
        _refuse(min(cells, first_position, query_position, reach or 0) < 0, "a place is negative")
        _refuse(scratch.size < numpy_cache.attend_floats(head_dim), "scratch is too small")
        k_bytes = numpy_cache.row_bytes(k_kind, head_dim)
        v_bytes = numpy_cache.row_bytes(v_kind, head_dim)
        span = numpy_cache.CacheSpan(
            q=q,
            k=numpy_cache.as_rows(k, cells * kv_heads, k_bytes).reshape(cells, kv_heads, k_bytes),
            v=numpy_cache.as_rows(v, cells * kv_heads, v_bytes).reshape(cells, kv_heads, v_bytes),
            out=out,
            state=state,
            k_kind=k_kind,
            v_kind=v_kind,
            group=heads // kv_heads,
            head_dim=head_dim,
            scale=scale,
            ahead=query_position - first_position,
            reach=reach,
        )
        numpy_cache.attend(span, range(first, last), scratch, self._workspace())

    def settle(self, out: Floats, state: Floats, *, heads: int, head_dim: int) -> None:
        _refuse(out.shape[1] != heads * head_dim, "out is not the heads")
        _refuse(state.shape != (len(out), heads, 2), "state has the wrong shape")
        numpy_cache.settle(out, state, heads=heads, head_dim=head_dim)

    def layer_norm(
        self, x: Floats, out: Floats, weight: Floats, bias: Floats | None, eps: float
    ) -> None:
        numpy_elements.layer_norm(x, out, weight, bias, eps)

    def rms_norm(self, x: Floats, out: Floats, weight: Floats, eps: float) -> None:
        numpy_elements.rms_norm(x, out, weight, eps)

    def gelu(self, x: Floats) -> None:
        numpy_elements.activate(x, None, "gelu")

    def gelu_tanh(self, x: Floats) -> None:
        numpy_elements.activate(x, None, "gelu_tanh")

    def gate(self, gate: Floats, up: Floats, kind: GateKind) -> None:
        _refuse(gate.shape != up.shape, "gate and up have different shapes")
        numpy_elements.activate(gate, up, kind)

    def rope(
        self, x: Floats, cos: Floats, sin: Floats, *, heads: int, head_dim: int, neox: bool
    ) -> None:
        _refuse(2 * cos.shape[1] > head_dim, "more rotated values than a head has")
        numpy_elements.rope(x, cos, sin, heads=heads, head_dim=head_dim, neox=neox)

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


def _slice_elements(kind: TensorType) -> int:
    return CODEBOOK_SLICE_ELEMENTS if kind.name.startswith("IQ") else SLICE_ELEMENTS


def _refuse(wrong: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    if wrong:
        raise ValueError(what)
