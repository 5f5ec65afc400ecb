"""A model's weights by name -> layers: what a pass multiplies, adds and normalises, in its order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgekit.engines.native.arrays import Floats
from edgekit.engines.native.encoder.steps import Normalize
from edgekit.engines.native.encoder.weights import EncoderWeights, TensorRows
from edgekit.engines.native.kernels.types import Kernels
from edgekit.engines.native.types import NativeModel, Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    rows: TensorRows
    bias: Floats | None

    @property
    def size_bytes(self) -> int:
        return self.rows.count * self.rows.row_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderLayer:
    query: Matrix
    key: Matrix
    value: Matrix
    query_norm: Normalize | None
    key_norm: Normalize | None
    attention_out: Matrix
    attention_norm: Normalize | None  # of what attention adds, before the sum
    norm_before: Normalize | None  # of attention's input
    norm_between: Normalize  # before the feed-forward, or after attention's sum
    norm_between_2: Normalize | None  # after another sum with the layer's input
    gate: Matrix | None
    up: Matrix
    down: Matrix
    feed_forward_norm: Normalize | None  # of what it adds, before the sum
    norm_after: Normalize | None  # after the feed-forward's sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A model that is ready to run."""

    embedding: TensorRows
    places: TensorRows | None  # where places are learned
    token_type: Floats | None
    norm_first: Normalize | None  # of the sum of these
    layers: tuple[EncoderLayer, ...]
    norm_last: Normalize | None
    output: Matrix  # from the last vector to the next token: its own, or the embedding once more
    rope_factors: Floats | None  # by which pairs turn more slowly, where the file has them
    slopes: Floats | None  # where scores fall with the distance
    matrix_bytes: int  # of all layers


def make_network(model: NativeModel, weights: EncoderWeights, kernels: Kernels) -> Network:
    builder = _Builder(model, weights, kernels)
    size = model.dimensions
    layers = tuple(builder.layer(place) for place in range(size.layers))
    slopes = None
    if model.family.position is Position.ALIBI:
        slopes = np.array(alibi_slopes(size.heads), np.float32)
    outside = {"token_embd.weight", "position_embd.weight", "output.weight"}
    return Network(
        embedding=weights.rows["token_embd.weight"],
        places=weights.rows.get("position_embd.weight"),
        token_type=weights.held.get("token_types.weight"),
        norm_first=builder.norm("token_embd_norm"),
        layers=layers,
        norm_last=builder.norm("output_norm"),
        output=Matrix(rows=weights.head, bias=weights.held.get("output.bias")),
        rope_factors=weights.held.get("rope_freqs.weight"),
        slopes=slopes,
        matrix_bytes=sum(
            rows.count * rows.row_bytes
            for name, rows in weights.rows.items()
            if name not in outside
        ),
    )


class _Builder:
    """Picks the tensors of a layer, whatever form the file has them in."""

    def __init__(self, model: NativeModel, weights: EncoderWeights, kernels: Kernels) -> None:
        self._model, self._weights, self._kernels = model, weights, kernels

    def layer(self, place: int) -> EncoderLayer:
        prefix, size = f"blk.{place}.", self._model.dimensions
        query, key, value = self._joined(
            prefix, "attn_qkv", ("attn_q", "attn_k", "attn_v"), (size.query, size.key, size.key)
        )
        gate, up = self._feed_forward(prefix)
        first = self._model.family.norm_first
        between = self.norm(prefix + ("ffn_norm" if first else "attn_output_norm"))
        assert between is not None  # noqa: S101 - model.py has checked that it is there
        return EncoderLayer(
            query=query,
            key=key,
            value=value,
            query_norm=self.norm(f"{prefix}attn_q_norm"),
            key_norm=self.norm(f"{prefix}attn_k_norm"),
            attention_out=self._matrix(f"{prefix}attn_output"),
            attention_norm=self.norm(f"{prefix}post_attention_norm"),
            norm_before=self.norm(f"{prefix}attn_norm"),
            norm_between=between,
            norm_between_2=self.norm(f"{prefix}attn_norm_2"),
            gate=gate,
            up=up,
            down=self._matrix(f"{prefix}ffn_down"),
            feed_forward_norm=self.norm(f"{prefix}post_ffw_norm"),
            norm_after=self.norm(f"{prefix}layer_output_norm"),
        )

    def norm(self, name: str) -> Normalize | None:
        weight = self._weights.held.get(f"{name}.weight")
        if weight is None:
            return None
        return Normalize(
            self._kernels,
            self._model.family.norm,
            weight,
            self._weights.held.get(f"{name}.bias"),
            self._model.epsilon,
        )

    def _feed_forward(self, prefix: str) -> tuple[Matrix | None, Matrix]:
        inner = self._model.dimensions.inner
        if not self._model.gated:
            return None, self._matrix(f"{prefix}ffn_up")
        if f"{prefix}ffn_gate.weight" in self._weights.rows:
            return self._matrix(f"{prefix}ffn_gate"), self._matrix(f"{prefix}ffn_up")
        both = self._matrix(f"{prefix}ffn_up")  # the gate's rows first: ggml_geglu
        return _part(both, 0, inner), _part(both, inner, inner)

    def _joined(
        self, prefix: str, whole: str, names: tuple[str, ...], counts: tuple[int, ...]
    ) -> list[Matrix]:
        if f"{prefix}{whole}.weight" not in self._weights.rows:
            return [self._matrix(prefix + name) for name in names]
        joined, first, parts = self._matrix(prefix + whole), 0, []
        for count in counts:
            parts.append(_part(joined, first, count))
            first += count
        return parts

    def _matrix(self, name: str) -> Matrix:
        return Matrix(
            rows=self._weights.rows[f"{name}.weight"], bias=self._weights.held.get(f"{name}.bias")
        )


def _part(matrix: Matrix, first: int, count: int) -> Matrix:
    bias = None if matrix.bias is None else matrix.bias[first : first + count]
    return Matrix(rows=matrix.rows.part(first, count), bias=bias)


def alibi_slopes(heads: int, largest_bias: float = 8.0) -> list[float]:
    """One for each head, falling by powers of two. ggml-cpu/ops.cpp:5482-5504 @ b21e4de."""
    whole = 1 << (heads.bit_length() - 1)  # the largest power of two that is not above
    return [
        2.0 ** (-largest_bias / whole * (head + 1))
        if head < whole
        else 2.0 ** (-largest_bias / 2 / whole * (2 * (head - whole) + 1))
        for head in range(heads)
    ]
