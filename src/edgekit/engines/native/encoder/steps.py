"""What threads do between two looks at the clock. A step is called with a worker's buffers and a range.

Steps of one round write to different places, so they run in any order and at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.arrays import Floats
from edgekit.engines.native.encoder.crew import CrewMember, Step, Task
from edgekit.engines.native.encoder.weights import TensorRows
from edgekit.engines.native.kernels.types import BlockError, Kernels, Starts
from edgekit.engines.native.types import Activation, NativeNorm

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
class Attend:
    """Attention of each text's tokens to each other; the queries are written over."""

    kernels: Kernels
    q: Floats
    k: Floats
    v: Floats
    starts: Starts
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    slopes: Floats | None

    def __call__(self, worker: CrewMember, first: int, last: int) -> None:
        self.kernels.attention(
            self.q,
            self.k,
            self.v,
            self.q,
            self.starts,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            causal=self.causal,
            slopes=self.slopes,
            scratch=worker.scratch,
            first=first,
            last=last,
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


def attention_tasks(step: Attend, threads: int) -> list[Task]:
    """Pairs of a text and a head, joined or not so that each step takes about as long."""
    lengths = np.diff(step.starts).astype(np.int64)
    costs = 4 * lengths * lengths * step.head_dim + 2_000  # flops of one head; and a call's own
    fair = int(costs.sum()) * step.heads // (threads * STEPS_PER_THREAD)
    most = max(1, min(STEP_FLOPS, fair))
    tasks: list[Task] = []
    first = gathered = 0
    for text, cost in enumerate(costs.tolist()):
        begin = text * step.heads
        for head in range(begin, begin + step.heads):
            if gathered and gathered + cost > most:
                tasks.append((step, first, head))
                first, gathered = head, 0
            gathered += cost
    tasks.append((step, first, len(lengths) * step.heads))
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
