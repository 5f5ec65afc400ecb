"""A model's weights as layers, ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from edgekit.engines.native.families import NativeNorm, Position
from edgekit.engines.native.kernels.types import Floats, Kernels
from edgekit.engines.native.model import NativeModel, NativeRope
from edgekit.engines.native.weights import Matrix, Weights


@dataclass(frozen=True, slots=True)
class Normalize:
    """A norm with its weights: writes the normalised rows of x into `out`."""

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


class Network:
    """The layers of a model, and the tensors before and after them."""

    def __init__(self, model: NativeModel, weights: Weights, kernels: Kernels) -> None:
        size, family = model.dimensions, model.family
        rows, held = weights.rows, weights.held

        def norm(name: str) -> Normalize | None:
            weight = held.get(f"{name}.weight")
            if weight is None:
                return None
            return Normalize(kernels, family.norm, weight, held.get(f"{name}.bias"), model.epsilon)

        self.kernels = kernels
        self.embedding = rows["token_embd.weight"]
        self.positions = rows.get("position_embd.weight")  # learned positions
        self.token_type = held.get("token_types.weight")
        self.norm_first = norm("token_embd_norm")  # applied to the sum of these three
        self.layers = [
            NativeLayer(f"blk.{number}.", model, rows, norm) for number in range(size.layers)
        ]
        self.norm_last = norm("output_norm")
        self.output = weights.head
        # Each pair of values rotates more slowly by its factor.
        self.rope_factors = held.get("rope_freqs.weight")
        self.slopes: Floats | None = None
        if family.position is Position.ALIBI:
            self.slopes = np.array(alibi_slopes(size.heads), np.float32)
        layer_matrices = (matrix for name, matrix in rows.items() if name.startswith("blk."))
        self.matrix_bytes = sum(matrix.size_bytes for matrix in layer_matrices)


class NativeLayer:
    """The matrices and norms of one layer. Tensors that are joined in the file are separate here."""

    def __init__(
        self,
        prefix: str,
        model: NativeModel,
        rows: Mapping[str, Matrix],
        norm: Callable[[str], Normalize | None],
    ) -> None:
        size = model.dimensions
        joined = rows.get(f"{prefix}attn_qkv.weight")
        if joined is None:
            self.query, self.key, self.value = (
                rows[f"{prefix}attn_{part}.weight"] for part in "qkv"
            )
        else:
            self.query = joined.part(0, size.query)
            self.key = joined.part(size.query, size.key)
            self.value = joined.part(size.query + size.key, size.key)
        self.query_norm = norm(f"{prefix}attn_q_norm")
        self.key_norm = norm(f"{prefix}attn_k_norm")
        self.attention_out = rows[f"{prefix}attn_output.weight"]
        # Applied to attention's output, before it is added to the layer's input.
        self.attention_norm = norm(f"{prefix}post_attention_norm")
        self.norm_before = norm(f"{prefix}attn_norm")  # applied to attention's input
        # Applied to the sum after attention.
        between = norm(prefix + ("ffn_norm" if model.family.norm_first else "attn_output_norm"))
        assert between is not None  # noqa: S101 - model.py has checked that it is there
        self.norm_between = between
        # Applied after norm_between, to the sum of its result and the layer's input.
        self.norm_between_2 = norm(f"{prefix}attn_norm_2")
        self.gate, self.up = rows.get(f"{prefix}ffn_gate.weight"), rows[f"{prefix}ffn_up.weight"]
        if self.gate is None and model.gated:  # one tensor with the gate's rows first: ggml_geglu
            both = self.up
            self.gate, self.up = both.part(0, size.inner), both.part(size.inner, size.inner)
        self.down = rows[f"{prefix}ffn_down.weight"]
        # Applied to the feed-forward's output, before it is added.
        self.feed_forward_norm = norm(f"{prefix}post_ffw_norm")
        # Applied to the sum after the feed-forward.
        self.norm_after = norm(f"{prefix}layer_output_norm")


def alibi_slopes(heads: int, largest_bias: float = 8.0) -> list[float]:
    """The ALiBi slope of each head, a falling power of two. ggml-cpu/ops.cpp:5482-5504 @ b21e4de."""
    power = 1 << (heads.bit_length() - 1)  # the largest power of two up to `heads`
    exponents = [-largest_bias / power * (head + 1) for head in range(power)]
    exponents += [
        -largest_bias / 2 / power * (2 * extra_head + 1) for extra_head in range(heads - power)
    ]
    return [2.0**exponent for exponent in exponents]


# --- rotary positions, as ggml-cpu/ops.cpp (rope_yarn) @ b21e4de computes them

_POSITIONS_TOGETHER = 16  # positions whose angles are computed at a time


def fill_tables(
    rope: NativeRope,
    factors: Floats | None,
    tables: Floats,
    first_position: int = 0,
    last_position: int | None = None,
) -> None:
    """Fills the tables of cosines and sines [2, positions, pairs].

    Row i is for position first_position + i, but at most for last_position.
    """
    cos, sin = tables
    pairs = cos.shape[1]
    # How far each pair of values rotates from one position to the next, in radians.
    speeds = rope.base ** (-np.arange(pairs, dtype=np.float64) / pairs)
    if factors is not None:
        speeds /= factors
    if rope.yarn_from is None:
        speeds *= rope.interpolate
    else:  # fast pairs keep their speed, slow ones are interpolated
        span = max(0.001, rope.yarn_to - rope.yarn_from)
        full_speed_share = 1 - np.clip((np.arange(pairs) - rope.yarn_from) / span, 0, 1)
        speeds *= rope.interpolate * (1 - full_speed_share) + full_speed_share
    for first in range(0, len(cos), _POSITIONS_TOGETHER):
        last = min(first + _POSITIONS_TOGETHER, len(cos))
        positions = np.arange(first_position + first, first_position + last, dtype=np.float64)
        if last_position is not None:
            np.minimum(positions, last_position, out=positions)
        angles = positions[:, None] * speeds
        cos[first:last] = np.cos(angles) * rope.magnitude
        sin[first:last] = np.sin(angles) * rope.magnitude
