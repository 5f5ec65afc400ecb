"""The kernels in C: the module _native behind the calls of `Kernels`."""

from __future__ import annotations

from functools import cache

import edgekit.engines.native.kernels._native as c_kernels
from edgekit.engines.native.kernels.codebooks import CODEBOOKS, read_codebooks
from edgekit.engines.native.kernels.types import (
    ActivationKind,
    BlockError,
    Bytes,
    CacheAttention,
    CacheKind,
    Floats,
    TextAttention,
)
from edgekit.errors import UnknownDtypeError
from edgekit.formats.dtype import TensorType

ACTIVATIONS = {"gelu": 0, "gelu_tanh": 1, "silu": 2}  # enum activation in csrc/native.h
CACHE_KINDS = {"f32": 0, "f16": 1, "q8_0": 2}  # enum cache_kind
NEED_CODEBOOKS = (*CODEBOOKS, "IQ1_M")
TYPE_IDS = frozenset(c_kernels.type_ids())  # ggml's numbers of the tensor types that C can unpack


@cache
def load_codebooks() -> None:
    """Gives the codebooks to the C module. Only the first call does anything."""
    c_kernels.load_codebooks(read_codebooks())


class NativeKernels:
    name = "native"
    attention_floats = staticmethod(c_kernels.attention_floats)
    attend_floats = staticmethod(c_kernels.attend_floats)
    settle = staticmethod(c_kernels.settle)
    layer_norm = staticmethod(c_kernels.layer_norm)

    def dequantize(self, kind: TensorType, source: Bytes, into: Floats) -> None:
        bad_block = c_kernels.dequantize(self._id(kind), source, into)
        if bad_block >= 0:
            raise BlockError(bad_block)

    def scratch_floats(self, kind: TensorType, columns: int) -> int:
        kind.row_bytes(columns)
        return c_kernels.scratch_floats(columns)

    def multiply(
        self, kind: TensorType, weights: Bytes, x: Floats, out: Floats, scratch: Floats
    ) -> None:
        bad_block = c_kernels.multiply(self._id(kind), weights, x, out, scratch)
        if bad_block >= 0:
            raise BlockError(bad_block)

    def attention(self, texts: TextAttention, scratch: Floats, first: int, last: int) -> None:
        t = texts
        c_kernels.attention(
            t.q, t.k, t.v, t.out, t.starts, t.heads, t.kv_heads, t.head_dim, t.scale, t.causal, t.slopes,
            scratch, first, last,
        )  # fmt: skip

    def store(self, kind: CacheKind, x: Floats, into: Bytes) -> None:
        bad_block = c_kernels.store(CACHE_KINDS[kind], x, into)
        if bad_block >= 0:
            raise BlockError(bad_block)

    def attend(self, span: CacheAttention, scratch: Floats, first: int, last: int) -> None:
        s = span
        c_kernels.attend(
            s.q, s.k, s.v, s.out, s.state, CACHE_KINDS[s.k_kind], CACHE_KINDS[s.v_kind], s.heads,
            s.kv_heads, s.head_dim, s.scale, s.cells, s.first_position, s.query_position, s.reach,
            scratch, first, last,
        )  # fmt: skip

    def rms_norm(self, x: Floats, out: Floats, weight: Floats, eps: float) -> None:
        c_kernels.rms_norm(x, out, weight, None, eps)

    def activate(self, x: Floats, up: Floats | None, kind: ActivationKind) -> None:
        c_kernels.activate(x, up, ACTIVATIONS[kind])

    def rope(
        self, x: Floats, cos: Floats, sin: Floats, *, heads: int, head_dim: int, neox: bool
    ) -> None:
        c_kernels.rope(x, cos, sin, heads, head_dim, neox)

    def _id(self, kind: TensorType) -> int:
        """The type's number, when C is ready to unpack it. Raises UnknownDtypeError for any other type."""
        if kind.ggml_id not in TYPE_IDS:
            raise UnknownDtypeError(
                f"unsupported tensor type {kind.name}: no row in engines/native/kernels/csrc/types.h"
            )
        if kind.name in NEED_CODEBOOKS:
            load_codebooks()
        return kind.ggml_id
