"""A model's weights by name -> layers: what a pass multiplies, adds and normalises, in its order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.crew import CrewMember, Step, Task
from edgekit.engines.native.families import Activation, NativeNorm, Position
from edgekit.engines.native.kernels.types import BlockError, Kernels, TextAttention
from edgekit.engines.native.model import NativeModel, NativeRope
from edgekit.engines.native.types import Floats
from edgekit.engines.native.weights import EncoderWeights, TensorRows


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


STEP_FLOPS = 800_000_000  # 8 ms on one core at 100 GFLOPS, 40 ms at 20
UNPACKING_TOKENS = 8  # unpacking a weight takes as long as using it for so many tokens
STEP_FLOATS = 32_768  # of elementwise work
STEPS_PER_THREAD = 4  # so that all threads end a round at about the same time
ROWS_TOGETHER = 16  # tiles of whole groups of rows: what a matrix multiplication likes
FAST_ROWS = 96  # with fewer it spends its time on the tokens' side: half as fast at 16


@dataclass(frozen=True, slots=True)
class Multiply:
    """out = x @ rows.T; a bias is added when the round is over, to whole tokens: four times as fast."""

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
    """out = activation(x @ gate.T + gate_bias) * (x @ up.T + up_bias), of the same rows of both."""

    gate: TensorRows
    gate_bias: Floats | None
    up: TensorRows
    up_bias: Floats | None
    activation: Activation
    x: Floats
    out: Floats

    def __call__(self, worker: CrewMember, first: int, last: int) -> None:
        tokens, count = len(self.x), last - first
        out = self.out[:, first:last]
        side = worker.side[: tokens * count].reshape(tokens, count)
        self.gate.multiply(worker, self.x, out, first, last)
        self.up.multiply(worker, self.x, side, first, last)
        if self.gate_bias is not None:
            out += self.gate_bias[first:last]
        if self.up_bias is not None:
            side += self.up_bias[first:last]
        self.gate.kernels.gate(out, side, self.activation.value)

    def tasks(self, threads: int, tile_bytes: int, side_floats: int) -> Iterator[Task]:
        step = min(
            _rows_per_step(rows, 2 * len(self.x), threads, tile_bytes)
            for rows in (self.gate, self.up)
        )
        return _ranges(self, self.gate.count, max(1, min(step, side_floats // len(self.x))))


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
class Turn:
    """Of queries, keys or values: bias and norm where a model has them, then the rotation of the heads."""

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
        self.turn(first, last)

    def prepare(self, first: int, last: int) -> None:
        x = self.x[first:last]
        if self.bias is not None:
            x += self.bias
        if self.norm is not None:
            width = len(self.norm.weight)  # of one head, or of all of them together
            parts = x.reshape(-1, width)
            self.norm(parts, parts)

    def turn(self, first: int, last: int) -> None:
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
class AddPlaces:
    """The table's rows first..last to the tokens that stand in these places of their texts."""

    table: TensorRows
    starts: Sequence[int]
    x: Floats

    def __call__(self, worker: CrewMember, first: int, last: int) -> None:
        width = self.table.columns
        rows = worker.scratch[: (last - first) * width]
        self.table.unpack(worker, rows, first, last)
        rows = rows.reshape(last - first, width)
        for start, end in zip(self.starts, self.starts[1:], strict=False):
            count = min(last, end - start) - first
            if count > 0:
                self.x[start + first : start + first + count] += rows[:count]

    def tasks(self, tile_bytes: int, scratch_floats: int) -> Iterator[Task]:
        longest = max(end - start for start, end in zip(self.starts, self.starts[1:], strict=False))
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


_ROWS = 16  # places whose angles are worked out at a time


def make_tables(model: NativeModel, factors: Floats | None, places: int) -> tuple[Floats, ...]:
    """Cosines and sines of so many places from 0 on; nothing where heads do not turn."""
    if model.rope is None:
        return ()
    shape = (places, model.dimensions.rotary // 2)
    cos, sin = np.empty(shape, np.float32), np.empty(shape, np.float32)
    fill_tables(model.rope, factors, cos, sin)
    return cos, sin


def fill_tables(
    rope: NativeRope,
    factors: Floats | None,
    cos: Floats,
    sin: Floats,
    *,
    first_place: int = 0,
    last_place: int | None = None,
) -> None:
    """Row i of cos and sin [places, pairs] for first_place + i, and for last_place beyond that."""
    pairs = cos.shape[1]
    slow = 1.0 if factors is None else factors.astype(np.float64)
    speeds = rope.base ** (-np.arange(pairs, dtype=np.float64) / pairs) / slow
    speeds *= _blend(rope, pairs)
    for first in range(0, len(cos), _ROWS):
        last = min(first + _ROWS, len(cos))
        places = np.arange(first_place + first, first_place + last, dtype=np.float64)
        if last_place is not None:
            np.minimum(places, last_place, out=places)
        angles = places[:, None] * speeds
        cos[first:last] = np.cos(angles) * rope.magnitude
        sin[first:last] = np.sin(angles) * rope.magnitude


def _blend(rope: NativeRope, pairs: int) -> NDArray[np.float64]:
    """What each pair's speed is multiplied with: fast pairs keep theirs, slow ones are interpolated."""
    if rope.yarn_from is None:
        return np.full(pairs, rope.interpolate)
    span = max(0.001, rope.yarn_to - rope.yarn_from)
    kept: NDArray[np.float64] = 1 - np.clip((np.arange(pairs) - rope.yarn_from) / span, 0, 1)
    return np.asarray(rope.interpolate * (1 - kept) + kept)
