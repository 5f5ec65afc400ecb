"""A model's weights as layers, ready to run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgekit.engines.native.families import NativeNorm, Position
from edgekit.engines.native.kernels.types import Floats, Kernels
from edgekit.engines.native.model import NativeModel, NativeRope
from edgekit.engines.native.weights import Matrix, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLayer:
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
    kernels: Kernels
    embedding: Matrix
    positions: Matrix | None  # learned ones
    token_type: Floats | None
    norm_first: Normalize | None  # of the sum of these three
    layers: tuple[NativeLayer, ...]
    norm_last: Normalize | None
    output: Matrix  # from a vector to logits: the model's own, or the embedding once more
    rope_factors: Floats | None  # by which pairs rotate more slowly, if the file has them
    slopes: Floats | None  # of ALiBi
    matrix_bytes: int  # of all layers


@dataclass(frozen=True, slots=True)
class Normalize:
    """Rows of x to unit size, into `out`."""

    kernels: Kernels
    kind: NativeNorm
    weight: Floats
    bias: Floats | None
    epsilon: float

    def __call__(self, x: Floats, out: Floats) -> None:
        if self.kind is NativeNorm.RMS:
            self.kernels.rms_norm(x, out, self.weight, self.epsilon)
        else:
            self.kernels.layer_norm(x, out, self.weight, self.bias, self.epsilon)


def make_network(model: NativeModel, weights: Weights, kernels: Kernels) -> Network:
    """Finds the tensors of each layer, joined or separate in the file."""
    size, family = model.dimensions, model.family
    rows, held = weights.rows, weights.held

    def norm(name: str) -> Normalize | None:
        weight = held.get(f"{name}.weight")
        if weight is None:
            return None
        return Normalize(kernels, family.norm, weight, held.get(f"{name}.bias"), model.epsilon)

    def layer(place: int) -> NativeLayer:
        prefix = f"blk.{place}."
        joined = rows.get(f"{prefix}attn_qkv.weight")
        if joined is None:
            query, key, value = (rows[f"{prefix}attn_{part}.weight"] for part in "qkv")
        else:
            query = joined.part(0, size.query)
            key = joined.part(size.query, size.key)
            value = joined.part(size.query + size.key, size.key)
        gate, up = rows.get(f"{prefix}ffn_gate.weight"), rows[f"{prefix}ffn_up.weight"]
        if gate is None and model.gated:  # in one tensor, the gate's rows first: ggml_geglu
            gate, up = up.part(0, size.inner), up.part(size.inner, size.inner)
        between = norm(prefix + ("ffn_norm" if family.norm_first else "attn_output_norm"))
        assert between is not None  # noqa: S101 - model.py has checked that it is there
        return NativeLayer(
            query=query,
            key=key,
            value=value,
            query_norm=norm(f"{prefix}attn_q_norm"),
            key_norm=norm(f"{prefix}attn_k_norm"),
            attention_out=rows[f"{prefix}attn_output.weight"],
            attention_norm=norm(f"{prefix}post_attention_norm"),
            norm_before=norm(f"{prefix}attn_norm"),
            norm_between=between,
            norm_between_2=norm(f"{prefix}attn_norm_2"),
            gate=gate,
            up=up,
            down=rows[f"{prefix}ffn_down.weight"],
            feed_forward_norm=norm(f"{prefix}post_ffw_norm"),
            norm_after=norm(f"{prefix}layer_output_norm"),
        )

    has_slopes = family.position is Position.ALIBI
    return Network(
        kernels=kernels,
        embedding=rows["token_embd.weight"],
        positions=rows.get("position_embd.weight"),
        token_type=held.get("token_types.weight"),
        norm_first=norm("token_embd_norm"),
        layers=tuple(layer(place) for place in range(size.layers)),
        norm_last=norm("output_norm"),
        output=weights.head,
        rope_factors=held.get("rope_freqs.weight"),
        slopes=np.array(alibi_slopes(size.heads), np.float32) if has_slopes else None,
        matrix_bytes=sum(m.size_bytes for name, m in rows.items() if name.startswith("blk.")),
    )


def alibi_slopes(heads: int, largest_bias: float = 8.0) -> list[float]:
    """One for each head, falling by powers of two. ggml-cpu/ops.cpp:5482-5504 @ b21e4de."""
    whole = 1 << (heads.bit_length() - 1)  # the largest power of two that is not above
    return [
        2.0 ** (-largest_bias / whole * (head + 1))
        if head < whole
        else 2.0 ** (-largest_bias / 2 / whole * (2 * (head - whole) + 1))
        for head in range(heads)
    ]


# --- rotary positions, as ggml-cpu/ops.cpp (rope_yarn) @ b21e4de computes them

_POSITIONS_TOGETHER = 16  # whose angles are computed at a time


def fill_tables(
    rope: NativeRope,
    factors: Floats | None,
    tables: Floats,
    first_position: int = 0,
    last_position: int | None = None,
) -> None:
    """Row i of the cosines and sines [2, positions, pairs] for first_position + i, or for last_position if less."""
    cos, sin = tables
    pairs = cos.shape[1]
    slow = 1.0 if factors is None else factors.astype(np.float64)
    speeds = rope.base ** (-np.arange(pairs, dtype=np.float64) / pairs) / slow
    if rope.yarn_from is None:
        speeds *= rope.interpolate
    else:  # fast pairs keep their speed, slow ones are interpolated
        span = max(0.001, rope.yarn_to - rope.yarn_from)
        kept = 1 - np.clip((np.arange(pairs) - rope.yarn_from) / span, 0, 1)
        speeds *= rope.interpolate * (1 - kept) + kept
    for first in range(0, len(cos), _POSITIONS_TOGETHER):
        last = min(first + _POSITIONS_TOGETHER, len(cos))
        positions = np.arange(first_position + first, first_position + last, dtype=np.float64)
        if last_position is not None:
            np.minimum(positions, last_position, out=positions)
        angles = positions[:, None] * speeds
        cos[first:last] = np.cos(angles) * rope.magnitude
        sin[first:last] = np.sin(angles) * rope.magnitude
