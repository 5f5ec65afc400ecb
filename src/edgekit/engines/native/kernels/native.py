"""The kernels in C: the module _native behind the calls of `Kernels`."""

from __future__ import annotations

from edgekit.engines.native.kernels import _native
from edgekit.engines.native.kernels.codebooks import CODEBOOKS, read_codebooks
from edgekit.engines.native.kernels.types import (
    BlockError,
    Bytes,
    CacheKind,
    Floats,
    GateKind,
    Starts,
)
from edgekit.errors import UnknownDtypeError
from edgekit.formats.dtype import TensorType

ACTIVATIONS = {"gelu": 0, "gelu_tanh": 1, "silu": 2}  # enum activation in csrc/native.h
CACHE_KINDS = {"f32": 0, "f16": 1, "q8_0": 2}  # enum cache_kind
NEED_CODEBOOKS = (*CODEBOOKS, "IQ1_M")


class NativeKernels:
    name = "native"

    def __init__(self) -> None:
        self._codebooks_loaded = False
        self._ids = frozenset(_native.type_ids())

    def dequantize(self, kind: TensorType, source: Bytes, into: Floats) -> int:
        bad = _native.dequantize(self._id(kind), source, into)
        if bad >= 0:
            raise BlockError(bad)
        size = len(source) if isinstance(source, bytes | bytearray) else source.nbytes
        return size // kind.block_bytes * kind.block_elements

    def scratch_floats(self, kind: TensorType, columns: int) -> int:
        kind.row_bytes(columns)
        return _native.scratch_floats()

    def multiply(
        self, kind: TensorType, weights: Bytes, x: Floats, out: Floats, scratch: Floats
    ) -> None:
        bad = _native.multiply(self._id(kind), weights, x, out, scratch)
        if bad >= 0:
            raise BlockError(bad)

    def attention_floats(self, longest_tokens: int, head_dim: int) -> int:
        return _native.attention_floats(longest_tokens, head_dim)

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
        _native.attention(
            q, k, v, out, starts, heads, kv_heads, head_dim, scale, causal, slopes, scratch, first, last
        )  # fmt: skip

    def store(self, kind: CacheKind, x: Floats, into: Bytes) -> None:
        bad = _native.store(CACHE_KINDS[kind], x, into)
        if bad >= 0:
            raise BlockError(bad)

    def attend_floats(self, rows: int, head_dim: int) -> int:
        del rows
        return _native.attend_floats(head_dim)

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
        _native.attend(
            q, k, v, out, state, CACHE_KINDS[k_kind], CACHE_KINDS[v_kind], heads, kv_heads, head_dim,
            scale, cells, first_position, query_position, reach, scratch, first, last,
        )  # fmt: skip

    def settle(self, out: Floats, state: Floats, *, heads: int, head_dim: int) -> None:
        _native.settle(out, state, heads, head_dim)

    def layer_norm(
        self, x: Floats, out: Floats, weight: Floats, bias: Floats | None, eps: float
    ) -> None:
        _native.layer_norm(x, out, weight, bias, eps)

    def rms_norm(self, x: Floats, out: Floats, weight: Floats, eps: float) -> None:
        _native.rms_norm(x, out, weight, None, eps)

    def gelu(self, x: Floats) -> None:
        _native.activate(x, None, ACTIVATIONS["gelu"])

    def gelu_tanh(self, x: Floats) -> None:
        _native.activate(x, None, ACTIVATIONS["gelu_tanh"])

    def gate(self, gate: Floats, up: Floats, kind: GateKind) -> None:
        _native.activate(gate, up, ACTIVATIONS[kind])

    def rope(
        self, x: Floats, cos: Floats, sin: Floats, *, heads: int, head_dim: int, neox: bool
    ) -> None:
        _native.rope(x, cos, sin, heads, head_dim, neox)

    def _id(self, kind: TensorType) -> int:
        if kind.ggml_id not in self._ids:
            raise UnknownDtypeError(
                f"unsupported tensor type {kind.name}: no row in engines/native/kernels/csrc/types.h"
            )
        if kind.name in NEED_CODEBOOKS and not self._codebooks_loaded:
            _native.load_codebooks(read_codebooks())
            self._codebooks_loaded = True
        return kind.ggml_id


def held_bytes() -> int:
    """What the extension itself holds: its tables, and the codebooks once a tensor needed them."""
    return _native.held_bytes()
