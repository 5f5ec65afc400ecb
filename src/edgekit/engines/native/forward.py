"""The forward pass: what it does with a chunk of tokens, and the pass of the generator, which reads a cache.

`Pass` has the parts that encoder and generator share: heads, sums, feed-forward, tile by tile. Which tokens attend to
which is decided by its subclasses: `TextsPass` (encoder.py) and `StreamPass`. A round is what may run at the same time:
the steps of one matrix, or of a few that have the same input.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.buffers import PassPlan, arena_floats
from edgekit.engines.native.cache import CacheRun, LayerCache, Packed
from edgekit.engines.native.crew import Crew, CrewMember, PassProgress, Step, Task
from edgekit.engines.native.families import Position
from edgekit.engines.native.kernels.types import BlockError, CacheAttention, CacheKind, Floats
from edgekit.engines.native.layers import (
    FinishHeads,
    Gated,
    LookUp,
    Matrix,
    Multiply,
    NativeLayer,
    Network,
    Normalize,
    fill_tables,
    token_tasks,
)
from edgekit.errors import WeightsError

if TYPE_CHECKING:
    from edgekit.bill.types import CacheType
    from edgekit.engines.native.model import NativeRope
    from edgekit.engines.native.stream_plan import StreamPlan


Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Everything that a pass writes to, as large as the largest pass needs it."""

    x: Floats  # hidden states, one row per token
    query: Floats
    arena: Floats  # keys and values, then feed-forward
    chunk: Floats  # the tokens of a chunk, between two steps
    cos: Floats  # of each token
    sin: Floats


def make_buffers(plan: PassPlan, pass_tokens: int) -> Buffers:
    size, tokens = plan.model.dimensions, pass_tokens
    return Buffers(
        x=np.empty((tokens, size.width), np.float32),
        query=np.empty((tokens, size.query), np.float32),
        arena=np.empty(arena_floats(plan.model, tokens, plan.chunk_tokens), np.float32),
        chunk=np.empty((plan.chunk_tokens, size.width), np.float32),
        cos=np.empty((tokens, size.rotary // 2), np.float32),
        sin=np.empty((tokens, size.rotary // 2), np.float32),
    )


def make_worker(plan: PassPlan) -> CrewMember:
    return CrewMember(
        packed=np.empty(plan.tile_bytes, np.uint8),
        scratch=np.empty(plan.scratch_floats, np.float32),
        side=np.empty(plan.side_floats, np.float32),
    )


class Pass:
    """Some tokens on their way through the layers. Every array is a view of the buffers, cut to these tokens."""

    def __init__(
        self,
        tokens: int,
        *,
        plan: PassPlan,
        network: Network,
        crew: Crew,
        buffers: Buffers,
        progress: PassProgress,
    ) -> None:
        self.tokens, self.plan, self.network = tokens, plan, network
        self.size, self.kernels = plan.model.dimensions, network.kernels
        self.x = buffers.x[:tokens]
        self.query = buffers.query[:tokens]
        self.attended = self.query  # attention's result: here it overwrites the queries
        keys = buffers.arena[: 2 * tokens * self.size.key].reshape(2, tokens, self.size.key)
        self.key, self.value = keys
        self.cos, self.sin = buffers.cos[:tokens], buffers.sin[:tokens]
        self.chunk_rows = buffers.chunk
        self._arena, self._crew, self._progress = buffers.arena, crew, progress

    # --- rounds

    def run_round(self, tasks: Iterable[Task], work: int = 0) -> None:
        together = list(tasks)
        self._progress.begin_round(work, len(together))
        if together:
            self._crew.run(together, self._progress.pause)

    def run_by_token(self, step: Step, rows: Floats) -> None:
        self.run_round(token_tasks(step, len(rows), rows.shape[1]))

    def multiply(self, *parts: tuple[Matrix, Floats, Floats]) -> None:
        """Compute out = x @ matrix.T for each (matrix, x, out), in one round. A bias is not added."""
        threads, tile_bytes = self.plan.threads, self.plan.tile_bytes
        tasks = chain.from_iterable(
            Multiply(matrix.rows, x, out).tasks(threads, tile_bytes) for matrix, x, out in parts
        )
        self.run_round(tasks, sum(matrix.size_bytes for matrix, _, _ in parts))

    def normalize(self, norm: Normalize | None, x: Floats, out: Floats) -> None:
        if norm is None:
            return

        def step(_worker: CrewMember, first: int, last: int) -> None:
            norm(x[first:last], out[first:last])

        self.run_by_token(step, x)

    # --- the parts of a pass

    def look_up(self, ids: Tokens) -> None:
        """The tokens' rows of the embedding table, into x."""
        self.run_round(LookUp(self.network.embedding, ids, self.x).tasks(self.plan.tile_bytes))

    def make_heads(self, layer: NativeLayer, chunk: slice) -> None:
        """Queries, keys and values of a chunk, rotated to their positions."""
        x = self.x[chunk]
        if layer.norm_before is not None:
            source, x = x, self.chunk_rows[: len(x)]
            self.normalize(layer.norm_before, source, x)
        self.multiply(
            (layer.query, x, self.query[chunk]),
            (layer.key, x, self.key[chunk]),
            (layer.value, x, self.value[chunk]),
        )
        self.finish_heads(layer, chunk)

    def finish_heads(self, layer: NativeLayer, chunk: slice) -> None:
        """Biases, norms and rotation."""
        rotates = self.size.rotary > 0
        steps = (
            self.head_step(self.query, chunk, layer.query, layer.query_norm, rotates=rotates),
            self.head_step(self.key, chunk, layer.key, layer.key_norm, rotates=rotates),
            self.head_step(self.value, chunk, layer.value, None, rotates=False),
        )
        self.run_round(
            chain.from_iterable(
                token_tasks(step, len(step.x), step.x.shape[1])
                for step in steps
                if not step.is_idle
            )
        )

    def head_step(
        self, rows: Floats, chunk: slice, matrix: Matrix, norm: Normalize | None, *, rotates: bool
    ) -> FinishHeads:
        return FinishHeads(
            self.kernels,
            rows[chunk],
            rows.shape[1] // self.size.head_dim,
            self.size.head_dim,
            matrix.bias,
            norm,
            self.cos[chunk] if rotates else None,
            self.sin[chunk] if rotates else None,
            self.plan.model.family.position is Position.ROPE_NEOX,
        )

    def after_attention(self, layer: NativeLayer, chunk: slice) -> None:
        """The sum of a layer's input and its attention, normalised: into x, or into the chunk's rows."""
        x, out = self.x[chunk], self.chunk_rows[: chunk.stop - chunk.start]
        self.multiply((layer.attention_out, self.attended[chunk], out))
        bias, norm, again = layer.attention_out.bias, layer.norm_between, layer.norm_between_2
        own_norm = layer.attention_norm

        def norm_first(_worker: CrewMember, first: int, last: int) -> None:
            there, here = x[first:last], out[first:last]
            _add_normalized(there, bias, own_norm, here)
            norm(there, here)

        def norm_after(_worker: CrewMember, first: int, last: int) -> None:
            here, there = out[first:last], x[first:last]
            _add(here, bias, there)
            if again is not None:
                norm(here, here)
                here += there
                again(here, there)
            else:
                norm(here, there)

        self.run_by_token(norm_first if self.plan.model.family.norm_first else norm_after, x)

    def feed_forward(self, layer: NativeLayer, chunk: slice) -> None:
        x, out = self.x[chunk], self.chunk_rows[: chunk.stop - chunk.start]
        inner = self._arena[: len(x) * self.size.inner].reshape(len(x), self.size.inner)
        source = out if self.plan.model.family.norm_first else x
        if layer.gate is not None:
            gated = Gated(layer.gate, layer.up, self.plan.model.family.activation, source, inner)
            tasks = gated.tasks(self.plan.threads, self.plan.tile_bytes, self.plan.side_floats)
            self.run_round(tasks, layer.gate.size_bytes + layer.up.size_bytes)
        else:
            self.multiply((layer.up, source, inner))
            up_bias = layer.up.bias

            def activate(_worker: CrewMember, first: int, last: int) -> None:
                """Families without a gate have GELU."""
                rows = inner[first:last]
                if up_bias is not None:
                    rows += up_bias
                self.kernels.activate(rows, None, "gelu")

            self.run_by_token(activate, inner)
        self.multiply((layer.down, inner, out))
        bias, norm, own_norm = layer.down.bias, layer.norm_after, layer.feed_forward_norm

        def finish(_worker: CrewMember, first: int, last: int) -> None:
            here, there = out[first:last], x[first:last]
            if norm is None:
                _add_normalized(there, bias, own_norm, here)
            else:
                _add(here, bias, there)
                norm(here, there)

        self.run_by_token(finish, x)


def _add(rows: Floats, bias: Floats | None, more: Floats) -> None:
    rows += more
    if bias is not None:
        rows += bias


def _add_normalized(
    rows: Floats, bias: Floats | None, norm: Normalize | None, more: Floats
) -> None:
    """As `_add`, but `more` and its bias are normalised first where the model has a norm for it."""
    if norm is None:
        _add(rows, bias, more)
        return
    if bias is not None:
        more += bias
    norm(more, more)
    rows += more


# --- the generator's pass

TASK_FLOPS = 4_000_000  # of attention: less is not worth another thread
ROUND_FLOPS = 200_000_000  # the most of one thread before the next look at the clock: some 20 ms
TASKS_PER_THREAD = 2


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """Cosines and sines of a chunk's positions."""

    rope: NativeRope
    cos: Floats
    sin: Floats
    sink_cos: Floats | None  # for attention to the sinks
    sink_sin: Floats | None

    @property
    def size_bytes(self) -> int:
        tables = (self.cos, self.sin, self.sink_cos, self.sink_sin)
        return sum(table.nbytes for table in tables if table is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBuffers:
    """Everything that a chunk writes to, except the cache."""

    common: Buffers
    attended: Floats
    state: Floats  # of each query and head: the largest score, the sum of exponentials
    sink_query: Floats | None
    rotary: RotaryTables | None
    local_rotary: RotaryTables | None  # of layers with a window
    keys: Packed  # as the cache stores them
    values: Packed
    logits: Floats

    @property
    def rotary_tables(self) -> tuple[RotaryTables, ...]:
        both = (self.rotary, self.local_rotary)
        return tuple(tables for tables in both if tables is not None)


def make_stream_buffers(plan: StreamPlan) -> StreamBuffers:
    model, tokens = plan.model, plan.chunk_tokens
    size = model.dimensions
    common = make_buffers(plan, tokens)

    def table() -> Floats:
        return np.empty((tokens, size.rotary // 2), np.float32)

    def tables(rope: NativeRope | None, cos: Floats, sin: Floats) -> RotaryTables | None:
        if rope is None:
            return None
        sinks = (table(), table()) if plan.has_sinks else (None, None)
        return RotaryTables(rope, cos, sin, *sinks)

    has_local = model.local_rope is not None
    return StreamBuffers(
        common=common,
        attended=np.empty((tokens, size.query), np.float32),
        state=np.empty((tokens, size.heads, 2), np.float32),
        sink_query=np.empty((tokens, size.query), np.float32) if plan.has_sinks else None,
        rotary=tables(model.rope, common.cos, common.sin),
        local_rotary=tables(model.local_rope, table(), table()) if has_local else None,
        keys=np.empty((tokens, plan.k_row_bytes), np.uint8),
        values=np.empty((tokens, plan.v_row_bytes), np.uint8),
        logits=np.empty(size.vocabulary, np.float32),
    )


class StreamPass(Pass):
    """The tokens from `position` on, through all layers."""

    def __init__(
        self,
        tokens: int,
        position: int,
        *,
        plan: StreamPlan,
        network: Network,
        crew: Crew,
        buffers: StreamBuffers,
        caches: Sequence[LayerCache],
        progress: PassProgress,
    ) -> None:
        super().__init__(
            tokens, plan=plan, network=network, crew=crew, buffers=buffers.common, progress=progress
        )
        self._stream, self._buffers, self._caches = plan, buffers, caches
        self._position = position
        self.attended = buffers.attended[:tokens]
        self._state = buffers.state[:tokens]
        self._keys, self._values = buffers.keys[:tokens], buffers.values[:tokens]
        # Queries beyond the window see the sinks as if they were at its last position.
        leaves = plan.has_sinks and position + tokens > plan.context_tokens
        self._sink_query = (
            buffers.sink_query[:tokens] if leaves and buffers.sink_query is not None else None
        )
        self._rotary = buffers.rotary
        self._k_kind, self._v_kind = cache_kind(plan.cache_k), cache_kind(plan.cache_v)

    def run(self, ids: Tokens, logits: Floats | None) -> None:
        """`logits`: where those of the token after the last are written, if they are needed."""
        model = self._stream.model
        self.look_up(ids)
        if model.embedding_scale != 1:
            self.x *= np.float32(model.embedding_scale)
        for tables in self._buffers.rotary_tables:
            self._fill(tables)
        everything = slice(0, self.tokens)
        layers = zip(self.network.layers, self._caches, model.windows, strict=True)
        for place, (layer, cache, window) in enumerate(layers):
            is_local = window is not None
            self._rotary = self._buffers.local_rotary if is_local else self._buffers.rotary
            own = CacheRun(self._keys, self._values, self._position, cache.ring.reach)
            try:
                self.make_heads(layer, everything)
            except BlockError as error:
                raise self._not_finite(f"keys or values of layer {place}") from error
            self._attend(cache.stretches(own))
            cache.keep(own)
            self.after_attention(layer, everything)
            self.feed_forward(layer, everything)
        if logits is not None:
            self._make_logits(logits)

    def _fill(self, tables: RotaryTables) -> None:
        factors, first = self.network.rope_factors, self._position
        cos, sin = tables.cos[: self.tokens], tables.sin[: self.tokens]
        fill_tables(tables.rope, factors, cos, sin, first_position=first)
        if tables.sink_cos is None or tables.sink_sin is None or self._sink_query is None:
            return
        cos, sin = tables.sink_cos[: self.tokens], tables.sink_sin[: self.tokens]
        last = self._stream.context_tokens - 1
        fill_tables(tables.rope, factors, cos, sin, first_position=first, last_position=last)

    def _make_logits(self, logits: Floats) -> None:
        last = self.chunk_rows[:1]
        norm, output = self.network.norm_last, self.network.output
        self.normalize(norm, self.x[-1:], last)
        self.multiply((output, last if norm is not None else self.x[-1:], logits[None]))
        if output.bias is not None:
            logits += output.bias
        if not (math.isfinite(logits.max()) and math.isfinite(logits.min())):
            raise self._not_finite("the logits")

    def _not_finite(self, what: str) -> WeightsError:
        return WeightsError(
            f"{what} are not finite numbers: the weights are damaged, or belong to different models",
            file=self.network.embedding.file.name,
        )

    def finish_heads(self, layer: NativeLayer, chunk: slice) -> None:
        """Also packs keys and values as the cache stores them."""
        rotary = self._rotary
        if rotary is not None:
            self.cos, self.sin = rotary.cos, rotary.sin
        rotates = rotary is not None
        query = self.head_step(self.query, chunk, layer.query, layer.query_norm, rotates=rotates)
        sink_query = None
        if self._sink_query is not None:
            cos, sin = (rotary.sink_cos, rotary.sink_sin) if rotary else (None, None)
            sink_query = replace(query, x=self._sink_query, cos=cos, sin=sin)
        key = self.head_step(self.key, chunk, layer.key, layer.key_norm, rotates=rotates)
        value = self.head_step(self.value, chunk, layer.value, None, rotates=False)

        def step(worker: CrewMember, first: int, last: int) -> None:
            query.prepare(first, last)
            if sink_query is not None:
                sink_query.x[first:last] = query.x[first:last]
                sink_query.rotate(first, last)
            query.rotate(first, last)
            key(worker, first, last)
            self.kernels.store(self._k_kind, key.x[first:last], self._keys[first:last])
            value(worker, first, last)
            self.kernels.store(self._v_kind, value.x[first:last], self._values[first:last])

        self.run_round(token_tasks(step, self.tokens, self.size.query + 2 * self.size.key))

    # --- attention

    def _attend(self, lists: Iterator[list[CacheRun]]) -> None:
        self.attended.fill(0)
        self._state[:, :, 0] = -math.inf
        self._state[:, :, 1] = 0
        for runs in lists:
            for tasks in self._attention_rounds(runs):
                self.run_round(tasks)
        self.kernels.settle(self.attended, self._state, self.size.heads, self.size.head_dim)

    def _attention_rounds(self, runs: list[CacheRun]) -> Iterator[list[Task]]:
        """Key heads are divided among the threads, and queries too where heads are few; a round has so few cells
        that it is short.
        """
        size = self.size
        cell_flops = 4 * size.query // size.kv_heads  # of one query, and the heads of one key head
        cells = sum(len(run.keys) for run in runs)
        flops = cells * cell_flops * self.tokens * size.kv_heads
        wanted = max(1, min(flops // TASK_FLOPS, self.plan.threads * TASKS_PER_THREAD))
        heads = -(-size.kv_heads // wanted)
        rows = -(-self.tokens // -(-wanted // size.kv_heads))
        most_cells = max(1, ROUND_FLOPS // (cell_flops * heads * rows))
        for part in _split_runs(runs, most_cells):
            yield [
                (
                    self._attention_step(part, first, first + rows),
                    head,
                    min(head + heads, size.kv_heads),
                )
                for first in range(0, self.tokens, rows)
                for head in range(0, size.kv_heads, heads)
            ]

    def _attention_step(self, runs: Sequence[CacheRun], first: int, last: int) -> Step:
        """The queries first..last over these cells."""
        query, out, state = (
            self.query[first:last],
            self.attended[first:last],
            self._state[first:last],
        )
        sink_query = None if self._sink_query is None else self._sink_query[first:last]

        def step(worker: CrewMember, first_head: int, last_head: int) -> None:
            for run in runs:
                span = CacheAttention(
                    q=sink_query if run.is_sink and sink_query is not None else query,
                    k=run.keys,
                    v=run.values,
                    out=out,
                    state=state,
                    k_kind=self._k_kind,
                    v_kind=self._v_kind,
                    heads=self.size.heads,
                    kv_heads=self.size.kv_heads,
                    head_dim=self.size.head_dim,
                    scale=self._stream.model.query_scale,
                    cells=len(run.keys),
                    first_position=run.position,
                    query_position=self._position + first,
                    reach=run.reach,
                )
                self.kernels.attend(span, worker.scratch, first_head, last_head)

        return step


def _split_runs(runs: Sequence[CacheRun], most_cells: int) -> Iterator[list[CacheRun]]:
    """The same cells, at most `most_cells` in a list."""
    part: list[CacheRun] = []
    capacity = most_cells
    for run in runs:
        first, count = 0, len(run.keys)
        while first < count:
            last = min(count, first + capacity)
            part.append(
                replace(
                    run,
                    keys=run.keys[first:last],
                    values=run.values[first:last],
                    position=run.position + first,
                )
                if last - first < count
                else run
            )
            capacity -= last - first
            first = last
            if not capacity:
                yield part
                part, capacity = [], most_cells
    if part:
        yield part


def cache_kind(kind: CacheType) -> CacheKind:
    """Its name for the kernels; the plan has refused all others."""
    return cast("CacheKind", kind.name)
