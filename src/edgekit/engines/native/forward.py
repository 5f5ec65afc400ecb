"""The forward pass through all layers, and the generator's version of it, which reads a KV cache.

`Pass` has the parts that the encoder and the generator share: heads, sums and feed-forward, computed tile by tile. Its
subclasses `TextsPass` (encoder.py) and `StreamPass` decide which tokens attend to which.

Work is divided into rounds, and a round into steps. A step is a function of one thread's buffers and a range of rows or
tokens. The steps of a round write to different places, so the threads run them in any order and at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.buffers import PassPlan, arena_floats
from edgekit.engines.native.cache import CacheRun, LayerCache
from edgekit.engines.native.crew import Crew, CrewMember, PassProgress, Step, Task
from edgekit.engines.native.families import Position
from edgekit.engines.native.kernels.types import BlockError, CacheAttention, CacheKind, Floats
from edgekit.engines.native.layers import NativeLayer, Network, Normalize, fill_tables
from edgekit.engines.native.weights import Matrix
from edgekit.errors import WeightsError

if TYPE_CHECKING:
    from edgekit.engines.native.stream_plan import StreamPlan


Tokens = NDArray[np.int64]

STEP_FLOPS = 800_000_000  # the most work of one step: 8 ms on one core at 100 GFLOPS, 40 ms at 20
UNPACKING_TOKENS = 8  # unpacking a weight takes as long as using it for this many tokens
STEP_FLOATS = 32_768  # elementwise work of one step
STEPS_PER_THREAD = 4  # small steps let all threads finish a round at about the same time
ROWS_TOGETHER = 16  # a multiple of this suits the matrix multiplication
FAST_ROWS = 96  # fewer rows are slower: half as fast at 16


class Buffers:
    """The arrays that a pass writes to, allocated once for the largest pass."""

    def __init__(self, plan: PassPlan, tokens: int, *, rotary_tables: int = 2) -> None:
        size = plan.model.dimensions
        self.x = np.empty((tokens, size.width), np.float32)  # hidden states, one row per token
        self.query = np.empty((tokens, size.query), np.float32)
        # Holds keys and values first, and later the hidden layer of the feed-forward.
        self.arena = np.empty(arena_floats(plan.model, tokens, plan.chunk_tokens), np.float32)
        # Intermediate rows of one chunk.
        self.chunk = np.empty((plan.chunk_tokens, size.width), np.float32)
        # Cosines and sines of each token's position. With sinks, two more tables for queries that see the sinks.
        self.rotary = np.empty((rotary_tables, tokens, size.rotary // 2), np.float32)


def make_worker(plan: PassPlan) -> CrewMember:
    return CrewMember(
        packed=np.empty(plan.tile_bytes, np.uint8),
        scratch=np.empty(plan.scratch_floats, np.float32),
        side=np.empty(plan.side_floats, np.float32),
    )


class Pass:
    """One batch of tokens going through all layers. Every array is a view of the buffers, cut to these tokens."""

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
        self.attended = self.query  # result of attention, which overwrites the queries
        keys = buffers.arena[: 2 * tokens * self.size.key].reshape(2, tokens, self.size.key)
        self.key, self.value = keys
        self.rotary = buffers.rotary[:, :tokens]
        self.chunk_rows = buffers.chunk
        self._arena, self._crew, self._progress = buffers.arena, crew, progress

    # --- rounds

    def run_round(self, tasks: Iterable[Task], work: int = 0) -> None:
        """Runs the tasks on all threads. `work` is the share of the progress, in bytes of weights."""
        task_list = list(tasks)
        self._progress.begin_round(work, len(task_list))
        if task_list:
            self._crew.run(task_list, self._progress.pause)

    def run_by_token(self, step: Step, rows: Floats) -> None:
        """Runs a step over all rows, one per token, in parts that are large enough to be worth a thread."""
        self.run_round(ranges(step, len(rows), STEP_FLOATS // rows.shape[1]))

    def multiply(self, *parts: tuple[Matrix, Floats, Floats]) -> None:
        """Compute out = x @ matrix.T for each (matrix, x, out), in one round.

        Callers add the bias after the round, to complete rows, which is four times as fast.
        """

        def step(matrix: Matrix, x: Floats, out: Floats) -> Step:
            return lambda worker, first, last: matrix.multiply(
                worker, x, out[:, first:last], first, last
            )

        tasks = chain.from_iterable(
            ranges(step(matrix, x, out), matrix.count, self._rows_per_step(matrix, len(x)))
            for matrix, x, out in parts
        )
        self.run_round(tasks, sum(matrix.size_bytes for matrix, _, _ in parts))

    def _rows_per_step(self, matrix: Matrix, tokens: int) -> int:
        """How many rows one step multiplies: they fit into a tile, take some 10 ms, and leave work for every thread."""
        count, threads = matrix.count, self.plan.threads
        rows_by_time = STEP_FLOPS // (2 * (tokens + UNPACKING_TOKENS) * matrix.columns)
        rows_by_share = -(-count // (threads * STEPS_PER_THREAD)) if threads > 1 else count
        fewest_rows = min(FAST_ROWS, -(-count // threads))
        rows = min(max(rows_by_time, FAST_ROWS // 2), max(rows_by_share, fewest_rows))
        if matrix.in_memory is None:
            rows = min(rows, self.plan.tile_bytes // matrix.row_bytes)
        return rows if rows < ROWS_TOGETHER else rows - rows % ROWS_TOGETHER

    def normalize(self, norm: Normalize | None, x: Floats, out: Floats) -> None:
        if norm is None:
            return

        def step(_worker: CrewMember, first: int, last: int) -> None:
            norm(x[first:last], out[first:last])

        self.run_by_token(step, x)

    # --- the parts of a pass

    def look_up(self, ids: Tokens) -> None:
        """Fills x with the embedding of each token."""
        table = self.network.embedding
        row_bytes = table.row_bytes

        def step(worker: CrewMember, first: int, last: int) -> None:
            packed, tokens = worker.packed[: (last - first) * row_bytes], ids[first:last]
            if table.in_memory is not None:
                rows = table.in_memory.reshape(table.count, row_bytes)
                np.take(rows, tokens, axis=0, out=packed.reshape(-1, row_bytes), mode="clip")
            else:
                for row, token in zip(packed.reshape(-1, row_bytes), tokens.tolist(), strict=True):
                    offset = table.offset + token * row_bytes
                    table.file.read_into(offset, row, what=f"tensor {table.name}")
            try:
                self.kernels.dequantize(table.kind, packed, self.x[first:last].reshape(-1))
            except BlockError as error:
                raise table.bad_weight(int(tokens[table.row_of(error)])) from error

        rows_per_step = min(self.plan.tile_bytes // row_bytes, STEP_FLOATS // table.columns)
        self.run_round(ranges(step, len(ids), rows_per_step))

    def make_heads(self, layer: NativeLayer, chunk: slice) -> None:
        """Computes a chunk's queries, keys and values, with biases and norms, rotated to their positions."""
        x = self.x[chunk]
        if layer.norm_before is not None:
            source, x = x, self.chunk_rows[: len(x)]
            self.normalize(layer.norm_before, source, x)
        self.multiply(
            (layer.query, x, self.query[chunk]),
            (layer.key, x, self.key[chunk]),
            (layer.value, x, self.value[chunk]),
        )

        def finish(_worker: CrewMember, first: int, last: int) -> None:
            tokens = slice(chunk.start + first, chunk.start + last)
            for heads, bias, norm in (
                (self.query[tokens], layer.query.bias, layer.query_norm),
                (self.key[tokens], layer.key.bias, layer.key_norm),
                (self.value[tokens], layer.value.bias, None),
            ):
                if bias is not None:
                    np.add(heads, bias, out=heads)
                if norm is not None:
                    # A row is one head, or all heads of a token, as long as the norm's weight.
                    rows = heads.reshape(-1, len(norm.weight))
                    norm(rows, rows)
            self.place_heads(tokens)

        floats_each = self.size.query + 2 * self.size.key
        self.run_round(ranges(finish, len(x), STEP_FLOATS // floats_each))

    def place_heads(self, tokens: slice) -> None:
        """Rotates queries and keys to their positions."""
        if self.size.rotary:
            self.rotate(self.query[tokens], self.rotary[:2, tokens])
            self.rotate(self.key[tokens], self.rotary[:2, tokens])

    def rotate(self, heads: Floats, tables: Floats) -> None:
        self.kernels.rope(
            heads,
            *tables,
            heads=heads.shape[1] // self.size.head_dim,
            head_dim=self.size.head_dim,
            neox=self.plan.model.family.position is Position.ROPE_NEOX,
        )

    def after_attention(self, layer: NativeLayer, chunk: slice) -> None:
        """Adds attention's output to the layer's input and normalises the sum.

        With norm_first, x becomes the sum and chunk_rows its normalised copy; otherwise x becomes the normalised sum.
        """
        x, out = self.x[chunk], self.chunk_rows[: chunk.stop - chunk.start]
        self.multiply((layer.attention_out, self.attended[chunk], out))
        bias, attention_norm = layer.attention_out.bias, layer.attention_norm
        between_norm, second_norm = layer.norm_between, layer.norm_between_2

        def norm_first(_worker: CrewMember, first: int, last: int) -> None:
            x_rows, out_rows = x[first:last], out[first:last]
            _add_normalized(x_rows, bias, attention_norm, out_rows)
            between_norm(x_rows, out_rows)

        def norm_after(_worker: CrewMember, first: int, last: int) -> None:
            out_rows, x_rows = out[first:last], x[first:last]
            _add(out_rows, bias, x_rows)
            if second_norm is not None:
                between_norm(out_rows, out_rows)
                out_rows += x_rows
                second_norm(out_rows, x_rows)
            else:
                between_norm(out_rows, x_rows)

        self.run_by_token(norm_first if self.plan.model.family.norm_first else norm_after, x)

    def feed_forward(self, layer: NativeLayer, chunk: slice) -> None:
        """Adds the feed-forward's output to x. Without norm_first, x is then normalised."""
        x, out = self.x[chunk], self.chunk_rows[: chunk.stop - chunk.start]
        inner = self._arena[: len(x) * self.size.inner].reshape(len(x), self.size.inner)
        source = out if self.plan.model.family.norm_first else x
        gate, up = layer.gate, layer.up
        if gate is not None:

            def multiply_gated(worker: CrewMember, first: int, last: int) -> None:
                """activation(x @ gate.T + its bias) * (x @ up.T + its bias), for the same rows of both."""
                gate_rows = inner[:, first:last]
                up_rows = worker.side[: gate_rows.size].reshape(gate_rows.shape)
                for matrix, target in ((gate, gate_rows), (up, up_rows)):
                    matrix.multiply(worker, source, target, first, last)
                    if matrix.bias is not None:
                        np.add(target, matrix.bias[first:last], out=target)
                self.kernels.activate(gate_rows, up_rows, self.plan.model.family.activation.value)

            rows_per_step = min(
                self.plan.side_floats // len(x),
                *(self._rows_per_step(matrix, 2 * len(x)) for matrix in (gate, up)),
            )
            tasks = ranges(multiply_gated, gate.count, rows_per_step)
            self.run_round(tasks, gate.size_bytes + up.size_bytes)
        else:
            self.multiply((up, source, inner))

            def activate(_worker: CrewMember, first: int, last: int) -> None:
                """Adds the bias and applies GELU, the activation of all families without a gate."""
                rows = inner[first:last]
                if up.bias is not None:
                    rows += up.bias
                self.kernels.activate(rows, None, "gelu")

            self.run_by_token(activate, inner)
        self.multiply((layer.down, inner, out))
        bias, norm_after, added_norm = layer.down.bias, layer.norm_after, layer.feed_forward_norm

        def finish(_worker: CrewMember, first: int, last: int) -> None:
            out_rows, x_rows = out[first:last], x[first:last]
            if norm_after is None:
                _add_normalized(x_rows, bias, added_norm, out_rows)
            else:
                _add(out_rows, bias, x_rows)
                norm_after(out_rows, x_rows)

        self.run_by_token(finish, x)


def ranges(step: Step, count: int, size: int) -> Iterator[Task]:
    """Divides a step over 0..count into tasks of at most `size` rows, and at least one."""
    size = max(1, size)
    return ((step, first, min(first + size, count)) for first in range(0, count, size))


def _add(rows: Floats, bias: Floats | None, summand: Floats) -> None:
    """Adds `summand` and the bias to the rows, in place."""
    rows += summand
    if bias is not None:
        rows += bias


def _add_normalized(
    rows: Floats, bias: Floats | None, norm: Normalize | None, summand: Floats
) -> None:
    """Adds `summand` and its bias to the rows, after normalising it if the model has a norm for it."""
    if norm is None:
        _add(rows, bias, summand)
        return
    if bias is not None:
        summand += bias
    norm(summand, summand)
    rows += summand


# --- the generator's pass

TASK_FLOPS = 4_000_000  # attention work that is worth another thread
ROUND_FLOPS = 200_000_000  # of one thread before it checks the clock again: about 20 ms
TASKS_PER_THREAD = 2


class StreamBuffers(Buffers):
    """The arrays that the generator's pass writes to, except the KV cache."""

    def __init__(self, plan: StreamPlan) -> None:
        tokens, size = plan.chunk_tokens, plan.model.dimensions
        super().__init__(plan, tokens, rotary_tables=4 if plan.has_sinks else 2)
        self.attended = np.empty((tokens, size.query), np.float32)
        # For each query and head: the largest score, and the sum of exponentials.
        self.state = np.empty((tokens, size.heads, 2), np.float32)
        self.sink_query = np.empty_like(self.query) if plan.has_sinks else None
        # Cosines and sines for layers with a sliding window.
        self.local_rotary = np.empty_like(self.rotary) if plan.model.local_rope else None
        # New keys and values, packed as the cache stores them.
        self.keys = np.empty((tokens, plan.k_row_bytes), np.uint8)
        self.values = np.empty((tokens, plan.v_row_bytes), np.uint8)
        self.logits = np.empty(size.vocabulary, np.float32)


class StreamPass(Pass):
    """One chunk of the session's tokens, starting at `position`, going through all layers."""

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
            tokens, plan=plan, network=network, crew=crew, buffers=buffers, progress=progress
        )
        self._stream, self._buffers, self._caches = plan, buffers, caches
        self._position = position
        self.attended = buffers.attended[:tokens]
        self._state = buffers.state[:tokens]
        self._keys, self._values = buffers.keys[:tokens], buffers.values[:tokens]
        # Queries beyond the window see the sinks as if they were at its last position.
        beyond_window = plan.has_sinks and position + tokens > plan.context_tokens
        self._sink_query: Floats | None = None
        if beyond_window and buffers.sink_query is not None:
            self._sink_query = buffers.sink_query[:tokens]
        self._k_kind = cast("CacheKind", plan.cache_k.name)  # the plan has refused all others
        self._v_kind = cast("CacheKind", plan.cache_v.name)

    def run(self, ids: Tokens, logits: Floats | None) -> None:
        """Reads the tokens into the cache. Writes the next token's logits into `logits`, unless it is None."""
        model, network = self._stream.model, self.network
        self.look_up(ids)
        if model.embedding_scale != 1:
            self.x *= np.float32(model.embedding_scale)
        full, local = self._buffers.rotary, self._buffers.local_rotary
        last_position = self._stream.context_tokens - 1
        for rope, tables in ((model.rope, full), (model.local_rope, local)):
            if rope is not None and tables is not None:
                chunk_tables, position = tables[:, : self.tokens], self._position
                fill_tables(rope, network.rope_factors, chunk_tables[:2], position)
                if self._sink_query is not None:
                    fill_tables(
                        rope, network.rope_factors, chunk_tables[2:], position, last_position
                    )
        everything = slice(0, self.tokens)
        layers = zip(network.layers, self._caches, model.windows, strict=True)
        for number, (layer, cache, window) in enumerate(layers):
            self.rotary = full if window is None or local is None else local
            chunk_run = CacheRun(self._keys, self._values, self._position, cache.ring.reach)
            try:
                self.make_heads(layer, everything)
            except BlockError as error:
                raise self._not_finite(f"keys or values of layer {number}") from error
            self._attend(cache.runs_to_attend(chunk_run))
            cache.store(chunk_run)
            self.after_attention(layer, everything)
            self.feed_forward(layer, everything)
        if logits is None:
            return
        x, norm, output = self.x[-1:], network.norm_last, network.output
        if norm is not None:
            x = self.chunk_rows[:1]
            self.normalize(norm, self.x[-1:], x)
        self.multiply((output, x, logits[None]))
        if output.bias is not None:
            logits += output.bias
        if not (math.isfinite(logits.max()) and math.isfinite(logits.min())):
            raise self._not_finite("the logits")

    def _not_finite(self, what: str) -> WeightsError:
        return WeightsError(
            f"{what} are not finite numbers: the weights are damaged, or belong to different models",
            file=self.network.embedding.file.name,
        )

    def place_heads(self, tokens: slice) -> None:
        """Rotates queries and keys to their positions, and packs keys and values as the cache stores them."""
        if self._sink_query is not None:
            self._sink_query[tokens] = self.query[tokens]
            self.rotate(self._sink_query[tokens], self.rotary[2:, tokens])
        super().place_heads(tokens)
        self.kernels.store(self._k_kind, self.key[tokens], self._keys[tokens])
        self.kernels.store(self._v_kind, self.value[tokens], self._values[tokens])

    def _attend(self, run_lists: Iterator[list[CacheRun]]) -> None:
        """Computes attention over the lists of cached runs, one list after another.

        The threads share the key heads, and also the queries if there are few heads. Each round takes few enough cells
        to be short.
        """
        self.attended.fill(0)
        self._state[:, :, 0] = -math.inf
        self._state[:, :, 1] = 0
        size = self.size
        # Work for one cell, one query, and all heads that share a key head.
        cell_flops = 4 * size.query // size.kv_heads
        for runs in run_lists:
            cells = sum(len(run.keys) for run in runs)
            flops = cells * cell_flops * self.tokens * size.kv_heads
            tasks = max(1, min(flops // TASK_FLOPS, self.plan.threads * TASKS_PER_THREAD))
            heads_per_task = -(-size.kv_heads // tasks)
            tasks_per_head = -(-tasks // size.kv_heads)
            queries_per_task = -(-self.tokens // tasks_per_head)
            cells_per_round = max(
                1, ROUND_FLOPS // (cell_flops * heads_per_task * queries_per_task)
            )
            for part in _split_runs(runs, cells_per_round):
                steps = (
                    self._attention_step(part, first, first + queries_per_task)
                    for first in range(0, self.tokens, queries_per_task)
                )
                self.run_round(
                    task for step in steps for task in ranges(step, size.kv_heads, heads_per_task)
                )
        self.kernels.settle(self.attended, self._state, size.heads, size.head_dim)

    def _attention_step(self, runs: Sequence[CacheRun], first: int, last: int) -> Step:
        """A step that lets the queries first..last attend to these runs, for a range of key heads."""
        query, out, state = (rows[first:last] for rows in (self.query, self.attended, self._state))
        sink_query = None if self._sink_query is None else self._sink_query[first:last]

        def step(worker: CrewMember, first_head: int, last_head: int) -> None:
            for run in runs:
                attention = CacheAttention(
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
                self.kernels.attend(attention, worker.scratch, first_head, last_head)

        return step


def _split_runs(runs: Sequence[CacheRun], max_cells: int) -> Iterator[list[CacheRun]]:
    """Divides the runs into lists of at most `max_cells` cells, cutting runs where necessary."""
    part: list[CacheRun] = []
    capacity = max_cells
    for run in runs:
        first, count = 0, len(run.keys)
        while first < count:
            last = min(count, first + capacity)
            if last - first < count:
                piece = replace(
                    run,
                    keys=run.keys[first:last],
                    values=run.values[first:last],
                    position=run.position + first,
                )
            else:  # the complete run needs no new views
                piece = run
            part.append(piece)
            capacity -= last - first
            first = last
            if not capacity:
                yield part
                part, capacity = [], max_cells
    if part:
        yield part
