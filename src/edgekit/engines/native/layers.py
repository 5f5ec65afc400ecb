"""A model's weights as layers, and the steps that threads run over them between two looks at the clock.

A step is called with a worker's buffers and a range. Steps of one round write to different places, so they run in any
order and at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.crew import CrewMember, Step, Task
from edgekit.engines.native.families import Activation, NativeNorm, Position
from edgekit.engines.native.kernels.types import BlockError, Floats, Kernels, TextAttention
from edgekit.engines.native.model import NativeModel, NativeRope
from edgekit.engines.native.weights import TensorRows, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    rows: TensorRows
    bias: Floats | None

    @property
    def size_bytes(self) -> int:
        return self.rows.count * self.rows.row_bytes


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
    """A model that is ready to run."""

    kernels: Kernels
    embedding: TensorRows
    positions: TensorRows | None  # learned ones
    token_type: Floats | None
    norm_first: Normalize | None  # of the sum of these three
    layers: tuple[NativeLayer, ...]
    norm_last: Normalize | None
    output: Matrix  # from a vector to logits: the model's own, or the embedding once more
    rope_factors: Floats | None  # by which pairs rotate more slowly, if the file has them
    slopes: Floats | None  # of ALiBi
    matrix_bytes: int  # of all layers


def make_network(model: NativeModel, weights: Weights, kernels: Kernels) -> Network:
    builder = _Builder(model, weights, kernels)
    size = model.dimensions
    layers = tuple(builder.layer(place) for place in range(size.layers))
    slopes = None
    if model.family.position is Position.ALIBI:
        slopes = np.array(alibi_slopes(size.heads), np.float32)
    outside = {"token_embd.weight", "position_embd.weight", "output.weight"}
    return Network(
        kernels=kernels,
        embedding=weights.rows["token_embd.weight"],
        positions=weights.rows.get("position_embd.weight"),
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
    """Finds the tensors of a layer, joined or separate in the file."""

    def __init__(self, model: NativeModel, weights: Weights, kernels: Kernels) -> None:
        self._model, self._weights, self._kernels = model, weights, kernels

    def layer(self, place: int) -> NativeLayer:
        prefix, size = f"blk.{place}.", self._model.dimensions
        query, key, value = self._joined(
            prefix, "attn_qkv", ("attn_q", "attn_k", "attn_v"), (size.query, size.key, size.key)
        )
        gate, up = self._feed_forward(prefix)
        first = self._model.family.norm_first
        between = self.norm(prefix + ("ffn_norm" if first else "attn_output_norm"))
        assert between is not None  # noqa: S101 - model.py has checked that it is there
        return NativeLayer(
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


STEP_FLOPS = 800_000_000  # 8 ms on one core at 100 GFLOPS, 40 ms at 20
UNPACKING_TOKENS = 8  # unpacking a weight takes as long as using it for this many tokens
STEP_FLOATS = 32_768  # of elementwise work
STEPS_PER_THREAD = 4  # so that all threads end a round at about the same time
ROWS_TOGETHER = 16  # a multiple of this suits the matrix multiplication
FAST_ROWS = 96  # fewer rows are slower: half as fast at 16


@dataclass(frozen=True, slots=True)
class Multiply:
    """out = x @ rows.T. The bias is added after the round, to whole tokens, which is four times as fast."""

    rows: TensorRows
    x: Floats
    out: Floats

    def __call__(self, worker: CrewMember, first: int, last: int) -> None:
        self.rows.multiply(worker, self.x, self.out[:, first:last], first, last)

    def tasks(self, threads: int, tile_bytes: int) -> Iterator[Task]:
        step = _rows_per_step(self.rows, len(self.x), threads, tile_bytes)
        return _ranges(self, self.rows.count, step)


@dataclass(frozen=True, slots=True)
class Gated:
    """out = activation(x @ gate.T + gate's bias) * (x @ up.T + up's bias), for the same rows of both."""

    gate: Matrix
    up: Matrix
    activation: Activation
    x: Floats
    out: Floats

    def __call__(self, worker: CrewMember, first: int, last: int) -> None:
        tokens, count = len(self.x), last - first
        out = self.out[:, first:last]
        side = worker.side[: tokens * count].reshape(tokens, count)
        for matrix, into in ((self.gate, out), (self.up, side)):
            matrix.rows.multiply(worker, self.x, into, first, last)
            if matrix.bias is not None:
                np.add(into, matrix.bias[first:last], out=into)
        self.gate.rows.kernels.activate(out, side, self.activation.value)

    def tasks(self, threads: int, tile_bytes: int, side_floats: int) -> Iterator[Task]:
        step = min(
            _rows_per_step(matrix.rows, 2 * len(self.x), threads, tile_bytes)
            for matrix in (self.gate, self.up)
        )
        return _ranges(self, self.gate.rows.count, max(1, min(step, side_floats // len(self.x))))


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


@dataclass(frozen=True, slots=True)
class FinishHeads:
    """Adds the bias of queries, keys or values, normalises and rotates them, where the model has these."""

    kernels: Kernels
    x: Floats
    heads: int
    head_dim: int
    bias: Floats | None
    norm: Normalize | None
    cos: Floats | None
    sin: Floats | None
    neox: bool

    @property
    def is_idle(self) -> bool:
        return self.bias is None and self.norm is None and self.cos is None

    def __call__(self, _worker: CrewMember, first: int, last: int) -> None:
        self.prepare(first, last)
        self.rotate(first, last)

    def prepare(self, first: int, last: int) -> None:
        x = self.x[first:last]
        if self.bias is not None:
            x += self.bias
        if self.norm is not None:
            parts = x.reshape(-1, len(self.norm.weight))  # of one head, or of all heads together
            self.norm(parts, parts)

    def rotate(self, first: int, last: int) -> None:
        if self.cos is not None and self.sin is not None:
            self.kernels.rope(
                self.x[first:last],
                self.cos[first:last],
                self.sin[first:last],
                heads=self.heads,
                head_dim=self.head_dim,
                neox=self.neox,
            )


@dataclass(frozen=True, slots=True)
class LookUp:
    """The embedding table's row of each token, into x."""

    table: TensorRows
    tokens: NDArray[np.int64]
    x: Floats

    def __call__(self, worker: CrewMember, first: int, last: int) -> None:
        table, size = self.table, self.table.row_bytes
        packed = worker.packed[: (last - first) * size]
        tokens = self.tokens[first:last]
        if table.kept is not None:
            np.take(
                table.kept.reshape(table.count, size),
                tokens,
                axis=0,
                out=packed.reshape(-1, size),
                mode="clip",
            )
        else:
            what = f"tensor {table.name}"
            for place, token in enumerate(tokens.tolist()):
                into = packed[place * size : (place + 1) * size]
                table.file.read_into(table.offset + token * size, into, what=what)
        try:
            table.kernels.dequantize(table.kind, packed, self.x[first:last].reshape(-1))
        except BlockError as error:
            raise table.bad(int(tokens[table.row_of(error)])) from error

    def tasks(self, tile_bytes: int) -> Iterator[Task]:
        step = min(tile_bytes // self.table.row_bytes, STEP_FLOATS // self.table.columns)
        return _ranges(self, len(self.tokens), max(1, step))


@dataclass(frozen=True, slots=True)
class AddPositions:
    """Adds the table's rows first..last to the tokens at these positions of their texts."""

    table: TensorRows
    starts: Sequence[int]
    x: Floats

    def __call__(self, worker: CrewMember, first: int, last: int) -> None:
        width = self.table.columns
        rows = worker.scratch[: (last - first) * width]
        self.table.unpack(worker, rows, first, last)
        rows = rows.reshape(last - first, width)
        for start, end in pairwise(self.starts):
            count = min(last, end - start) - first
            if count > 0:
                self.x[start + first : start + first + count] += rows[:count]

    def tasks(self, tile_bytes: int, scratch_floats: int) -> Iterator[Task]:
        longest = max(end - start for start, end in pairwise(self.starts))
        step = min(tile_bytes // self.table.row_bytes, scratch_floats // self.table.columns)
        return _ranges(self, longest, max(1, step))


def token_tasks(step: Step, tokens: int, floats_each: int) -> Iterator[Task]:
    """A step over tokens, in parts that are worth a thread."""
    return _ranges(step, tokens, max(1, STEP_FLOATS // floats_each))


def attention_tasks(kernels: Kernels, texts: TextAttention, threads: int) -> list[Task]:
    """Pairs of a text and a head, joined so that each step takes about as long."""

    def step(worker: CrewMember, first: int, last: int) -> None:
        kernels.attention(texts, worker.scratch, first, last)

    lengths = np.diff(texts.starts).astype(np.int64)
    costs = 4 * lengths * lengths * texts.head_dim + 2_000  # flops of one head; and a call's own
    fair = int(costs.sum()) * texts.heads // (threads * STEPS_PER_THREAD)
    most = max(1, min(STEP_FLOPS, fair))
    tasks: list[Task] = []
    first = gathered = 0
    for text, cost in enumerate(costs.tolist()):
        begin = text * texts.heads
        for head in range(begin, begin + texts.heads):
            if gathered and gathered + cost > most:
                tasks.append((step, first, head))
                first, gathered = head, 0
            gathered += cost
    tasks.append((step, first, len(lengths) * texts.heads))
    return tasks


def _rows_per_step(rows: TensorRows, tokens: int, threads: int, tile_bytes: int) -> int:
    """As many rows as fit into a tile, take some 10 ms, and leave work for every thread."""
    by_time = STEP_FLOPS // (2 * (tokens + UNPACKING_TOKENS) * rows.columns)
    by_share = -(-rows.count // (threads * STEPS_PER_THREAD)) if threads > 1 else rows.count
    least = min(FAST_ROWS, -(-rows.count // threads))
    step = min(max(by_time, FAST_ROWS // 2), max(by_share, least))
    if rows.kept is None:
        step = min(step, tile_bytes // rows.row_bytes)
    return max(1, step if step < ROWS_TOGETHER else step - step % ROWS_TOGETHER)


def _ranges(step: Step, count: int, size: int) -> Iterator[Task]:
    return ((step, first, min(first + size, count)) for first in range(0, count, size))


# --- rotary positions, as ggml-cpu/ops.cpp (rope_yarn) @ b21e4de computes them

_POSITIONS_TOGETHER = 16  # whose angles are computed at a time


def make_tables(model: NativeModel, factors: Floats | None, positions: int) -> tuple[Floats, ...]:
    """Cosines and sines of the positions from 0 on; nothing for a model without rotary positions."""
    if model.rope is None:
        return ()
    shape = (positions, model.dimensions.rotary // 2)
    cos, sin = np.empty(shape, np.float32), np.empty(shape, np.float32)
    fill_tables(model.rope, factors, cos, sin)
    return cos, sin


def fill_tables(
    rope: NativeRope,
    factors: Floats | None,
    cos: Floats,
    sin: Floats,
    *,
    first_position: int = 0,
    last_position: int | None = None,
) -> None:
    """Row i of cos and sin [positions, pairs] for first_position + i, or for last_position if that is less."""
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
