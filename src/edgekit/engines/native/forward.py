"""What every pass does with a chunk of tokens: heads, sums, feed-forward, tile by tile.

Which tokens attend to which is a subclass's: a text's to each other (forward.py), or to a cache. A round is what may
run at the same time: the steps of one matrix, or of a few that have the same input.
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
from edgekit.engines.native.crew import Crew, CrewMember, Step, Task, WorkShare
from edgekit.engines.native.families import Position
from edgekit.engines.native.kernels.types import BlockError, CacheAttention, CacheKind, Kernels
from edgekit.engines.native.layers import (
    EncoderLayer,
    Gated,
    LookUp,
    Matrix,
    Multiply,
    Network,
    Normalize,
    Turn,
    fill_tables,
    token_tasks,
)
from edgekit.engines.native.types import Floats
from edgekit.errors import WeightsError

if TYPE_CHECKING:
    from edgekit.bill.cache_types import CacheType
    from edgekit.engines.native.model import NativeRope
    from edgekit.engines.native.stream_plan import StreamPlan


Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """All that a pass writes to, as large as the largest pass needs it."""

    x: Floats  # the tokens
    query: Floats
    arena: Floats  # keys and values, then feed-forward
    chunk: Floats  # a chunk of tokens, on its way
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
    """Everything in it is a view of the buffers, cut to the tokens at hand."""

    def __init__(
        self,
        tokens: int,
        *,
        plan: PassPlan,
        network: Network,
        kernels: Kernels,
        crew: Crew,
        buffers: Buffers,
        share: WorkShare,
    ) -> None:
        self._share = share
        self._plan, self._network, self._kernels, self._crew = plan, network, kernels, crew
        self._family, size = plan.model.family, plan.model.dimensions
        self._size = size
        self.tokens = tokens
        self._chunk_rows = buffers.chunk
        self._arena = buffers.arena
        self.x = buffers.x[:tokens]
        self._query = buffers.query[:tokens]
        self._mixed = self._query  # what attention makes: it writes over the queries
        keys = buffers.arena[: 2 * tokens * size.key].reshape(2, tokens, size.key)
        self._key, self._value = keys
        self._cos, self._sin = buffers.cos[:tokens], buffers.sin[:tokens]

    # --- before and after the layers

    def _look_up(self, ids: Tokens) -> None:
        self._round(LookUp(self._network.embedding, ids, self.x).tasks(self._plan.tile_bytes))

    def _normalize(self, norm: Normalize | None, x: Floats, out: Floats) -> None:
        if norm is None:
            return

        def step(_worker: CrewMember, first: int, last: int) -> None:
            norm(x[first:last], out[first:last])

        self._by_token(step, x)

    # --- a layer

    def _to_heads(self, layer: EncoderLayer, chunk: slice) -> None:
        """Queries, keys and values of a chunk, turned to their places."""
        x = self.x[chunk]
        if layer.norm_before is not None:
            source, x = x, self._chunk_rows[: len(x)]
            self._normalize(layer.norm_before, source, x)
        self._multiply(
            (layer.query, x, self._query[chunk]),
            (layer.key, x, self._key[chunk]),
            (layer.value, x, self._value[chunk]),
        )
        self._turn_heads(layer, chunk)

    def _turn_heads(self, layer: EncoderLayer, chunk: slice) -> None:
        turns = self._size.rotary > 0
        steps = (
            self._turn(self._query, chunk, layer.query, layer.query_norm, turns=turns),
            self._turn(self._key, chunk, layer.key, layer.key_norm, turns=turns),
            self._turn(self._value, chunk, layer.value, None, turns=False),
        )
        self._round(
            chain.from_iterable(
                token_tasks(step, len(step.x), step.x.shape[1])
                for step in steps
                if not step.is_idle
            )
        )

    def _after_attention(self, layer: EncoderLayer, chunk: slice) -> None:
        """The sum of a layer's input and its attention, normalised: in x, or beside it."""
        x, out = self.x[chunk], self._chunk_rows[: chunk.stop - chunk.start]
        self._multiply((layer.attention_out, self._mixed[chunk], out))
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

        self._by_token(norm_first if self._family.norm_first else norm_after, x)

    def _feed_forward(self, layer: EncoderLayer, chunk: slice) -> None:
        x, out = self.x[chunk], self._chunk_rows[: chunk.stop - chunk.start]
        inner = self._arena[: len(x) * self._size.inner].reshape(len(x), self._size.inner)
        source = out if self._family.norm_first else x
        if layer.gate is None:
            self._multiply((layer.up, source, inner))
            self._activate(layer.up.bias, inner)
        else:
            self._multiply_gated(layer.gate, layer.up, source, inner)
        self._multiply((layer.down, inner, out))
        bias, norm, own_norm = layer.down.bias, layer.norm_after, layer.feed_forward_norm

        def finish(_worker: CrewMember, first: int, last: int) -> None:
            here, there = out[first:last], x[first:last]
            if norm is None:
                _add_normalized(there, bias, own_norm, here)
            else:
                _add(here, bias, there)
                norm(here, there)

        self._by_token(finish, x)

    def _activate(self, bias: Floats | None, inner: Floats) -> None:
        """A feed-forward without a gate: families have GELU there."""

        def step(_worker: CrewMember, first: int, last: int) -> None:
            rows = inner[first:last]
            if bias is not None:
                rows += bias
            self._kernels.gelu(rows)

        self._by_token(step, inner)

    # --- rounds

    def _multiply(self, *parts: tuple[Matrix, Floats, Floats]) -> None:
        threads, tile_bytes = self._plan.threads, self._plan.tile_bytes
        tasks = chain.from_iterable(
            Multiply(matrix.rows, x, out).tasks(threads, tile_bytes) for matrix, x, out in parts
        )
        self._round(tasks, sum(matrix.size_bytes for matrix, _, _ in parts))

    def _multiply_gated(self, gate: Matrix, up: Matrix, x: Floats, out: Floats) -> None:
        step = Gated(gate.rows, gate.bias, up.rows, up.bias, self._family.activation, x, out)
        tasks = step.tasks(self._plan.threads, self._plan.tile_bytes, self._plan.side_floats)
        self._round(tasks, gate.size_bytes + up.size_bytes)

    def _by_token(self, step: Step, rows: Floats) -> None:
        self._round(token_tasks(step, len(rows), rows.shape[1]))

    def _round(self, tasks: Iterable[Task], work: int = 0) -> None:
        together = list(tasks)
        self._share.begin(work, len(together))
        if together:
            self._crew.run(together, self._share.pause)

    def _turn(
        self, rows: Floats, chunk: slice, matrix: Matrix, norm: Normalize | None, *, turns: bool
    ) -> Turn:
        return Turn(
            self._kernels,
            rows[chunk],
            rows.shape[1] // self._size.head_dim,
            self._size.head_dim,
            matrix.bias,
            norm,
            self._cos[chunk] if turns else None,
            self._sin[chunk] if turns else None,
            self._family.position is Position.ROPE_NEOX,
        )


def _add(rows: Floats, bias: Floats | None, more: Floats) -> None:
    rows += more
    if bias is not None:
        rows += bias


def _add_normalized(
    rows: Floats, bias: Floats | None, norm: Normalize | None, more: Floats
) -> None:
    """As `_add`; where the sum's part has a norm of its own, that is of `more` and its bias."""
    if norm is None:
        _add(rows, bias, more)
        return
    if bias is not None:
        more += bias
    norm(more, more)
    rows += more


TASK_FLOPS = 4_000_000  # of attention: less is not worth another thread
ROUND_FLOPS = 200_000_000  # and no thread has more before the next look at the clock: some 20 ms
TASKS_PER_THREAD = 2


@dataclass(frozen=True, slots=True)
class Turning:
    """How heads turn at the places of a chunk."""

    rope: NativeRope
    cos: Floats
    sin: Floats
    sink_cos: Floats | None  # for a look at the sinks
    sink_sin: Floats | None

    @property
    def size_bytes(self) -> int:
        tables = (self.cos, self.sin, self.sink_cos, self.sink_sin)
        return sum(table.nbytes for table in tables if table is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBuffers:
    """All that a chunk writes to, beside the cache."""

    common: Buffers
    mixed: Floats  # what attention makes
    state: Floats  # of each query and head: the largest score, the sum of shares
    sink_query: Floats | None
    turning: Turning | None
    local_turning: Turning | None  # of layers with a window
    keys: Packed  # as they will be remembered
    values: Packed
    logits: Floats

    @property
    def turnings(self) -> tuple[Turning, ...]:
        both = (self.turning, self.local_turning)
        return tuple(turning for turning in both if turning is not None)


def make_stream_buffers(plan: StreamPlan) -> StreamBuffers:
    model, tokens = plan.model, plan.chunk_tokens
    size = model.dimensions
    common = make_buffers(plan, tokens)
    return StreamBuffers(
        common=common,
        mixed=np.empty((tokens, size.query), np.float32),
        state=np.empty((tokens, size.heads, 2), np.float32),
        sink_query=np.empty((tokens, size.query), np.float32) if plan.has_sinks else None,
        turning=_turning(plan, model.rope, common.cos, common.sin),
        local_turning=_turning(plan, model.local_rope, _table(plan), _table(plan))
        if model.local_rope is not None
        else None,
        keys=np.empty((tokens, plan.k_row_bytes), np.uint8),
        values=np.empty((tokens, plan.v_row_bytes), np.uint8),
        logits=np.empty(size.vocabulary, np.float32),
    )


def _turning(plan: StreamPlan, rope: NativeRope | None, cos: Floats, sin: Floats) -> Turning | None:
    if rope is None:
        return None
    if not plan.has_sinks:
        return Turning(rope, cos, sin, None, None)
    return Turning(rope, cos, sin, _table(plan), _table(plan))


def _table(plan: StreamPlan) -> Floats:
    return np.empty((plan.chunk_tokens, plan.model.dimensions.rotary // 2), np.float32)


class StreamPass(Pass):
    """Some tokens at `position` and on, through all layers."""

    def __init__(
        self,
        tokens: int,
        position: int,
        *,
        plan: StreamPlan,
        network: Network,
        kernels: Kernels,
        crew: Crew,
        buffers: StreamBuffers,
        caches: Sequence[LayerCache],
        share: WorkShare,
    ) -> None:
        super().__init__(
            tokens,
            plan=plan,
            network=network,
            kernels=kernels,
            crew=crew,
            buffers=buffers.common,
            share=share,
        )
        self._stream, self._buffers, self._caches = plan, buffers, caches
        self._position = position
        self._mixed = buffers.mixed[:tokens]
        self._state = buffers.state[:tokens]
        self._keys, self._values = buffers.keys[:tokens], buffers.values[:tokens]
        # Queries that stand beyond the window look at the sinks from its last place.
        leaves = plan.has_sinks and position + tokens > plan.context_tokens
        self._sink_query = (
            buffers.sink_query[:tokens] if leaves and buffers.sink_query is not None else None
        )
        self._turning = buffers.turning
        self._k_kind, self._v_kind = cache_kind(plan.cache_k), cache_kind(plan.cache_v)

    def run(self, ids: Tokens, logits: Floats | None) -> None:
        """`logits`: of the token after the last, where somebody wants them."""
        self._look_up(ids)
        if self._stream.model.embedding_scale != 1:
            self.x *= np.float32(self._stream.model.embedding_scale)
        for turning in self._buffers.turnings:
            self._place(turning)
        everything = slice(0, self.tokens)
        windows = self._stream.model.windows
        layers = zip(self._network.layers, self._caches, windows, strict=True)
        for place, (layer, cache, window) in enumerate(layers):
            local = window is not None
            self._turning = self._buffers.local_turning if local else self._buffers.turning
            own = CacheRun(self._keys, self._values, self._position, cache.ring.reach)
            try:
                self._to_heads(layer, everything)
            except BlockError as error:
                raise self._bad(place) from error
            self._attend(cache.stretches(own))
            cache.keep(own)
            self._after_attention(layer, everything)
            self._feed_forward(layer, everything)
        if logits is not None:
            self._finish(logits)

    def _place(self, turning: Turning) -> None:
        factors, first = self._network.rope_factors, self._position
        cos, sin = turning.cos[: self.tokens], turning.sin[: self.tokens]
        fill_tables(turning.rope, factors, cos, sin, first_place=first)
        if turning.sink_cos is None or turning.sink_sin is None or self._sink_query is None:
            return
        cos, sin = turning.sink_cos[: self.tokens], turning.sink_sin[: self.tokens]
        last = self._stream.context_tokens - 1
        fill_tables(turning.rope, factors, cos, sin, first_place=first, last_place=last)

    def _finish(self, logits: Floats) -> None:
        last = self._chunk_rows[:1]
        norm, output = self._network.norm_last, self._network.output
        self._normalize(norm, self.x[-1:], last)
        self._multiply((output, last if norm is not None else self.x[-1:], logits[None]))
        if output.bias is not None:
            logits += output.bias
        if not (math.isfinite(logits.max()) and math.isfinite(logits.min())):
            raise self._bad(None)

    def _bad(self, layer: int | None) -> WeightsError:
        where = "the logits" if layer is None else f"keys or values of layer {layer}"
        return WeightsError(
            (
                f"{where} are not finite numbers: the weights are damaged, or belong to "
                "different models"
            ),
            file=self._network.embedding.file.name,
        )

    # --- heads

    def _turn_heads(self, layer: EncoderLayer, chunk: slice) -> None:
        turning = self._turning
        if turning is not None:
            self._cos, self._sin = turning.cos, turning.sin
        turns = turning is not None
        query = self._turn(self._query, chunk, layer.query, layer.query_norm, turns=turns)
        key = self._turn(self._key, chunk, layer.key, layer.key_norm, turns=turns)
        value = self._turn(self._value, chunk, layer.value, None, turns=False)
        step = _Heads(
            self._kernels,
            query,
            self._sink_turn(query),
            (key, self._k_kind, self._keys),
            (value, self._v_kind, self._values),
        )
        self._round(token_tasks(step, self.tokens, self._size.query + 2 * self._size.key))

    def _sink_turn(self, query: Turn) -> Turn | None:
        """The same queries, as they look at the sinks."""
        if self._sink_query is None:
            return None
        cos, sin = (
            (self._turning.sink_cos, self._turning.sink_sin) if self._turning else (None, None)
        )
        return replace(query, x=self._sink_query, cos=cos, sin=sin)

    # --- attention

    def _attend(self, lists: Iterator[list[CacheRun]]) -> None:
        self._mixed.fill(0)
        self._state[:, :, 0] = -math.inf
        self._state[:, :, 1] = 0
        for stretches in lists:
            for tasks in self._attention_rounds(stretches):
                self._round(tasks)
        self._kernels.settle(
            self._mixed, self._state, heads=self._size.heads, head_dim=self._size.head_dim
        )

    def _attention_rounds(self, stretches: list[CacheRun]) -> Iterator[list[Task]]:
        """Key heads, and queries where heads are few, shared out; so few cells in a round that it is short."""
        size = self._size
        cell_flops = 4 * size.query // size.kv_heads  # of one query, and the heads of one key head
        cells = sum(len(stretch.keys) for stretch in stretches)
        flops = cells * cell_flops * self.tokens * size.kv_heads
        wanted = max(1, min(flops // TASK_FLOPS, self._plan.threads * TASKS_PER_THREAD))
        heads = -(-size.kv_heads // wanted)
        rows = -(-self.tokens // -(-wanted // size.kv_heads))
        most_cells = max(1, ROUND_FLOPS // (cell_flops * heads * rows))
        for part in _parted(stretches, most_cells):
            yield [
                (self._look(part, first, first + rows), head, min(head + heads, size.kv_heads))
                for first in range(0, self.tokens, rows)
                for head in range(0, size.kv_heads, heads)
            ]

    def _look(self, stretches: list[CacheRun], first: int, last: int) -> Step:
        """Of the queries first..last."""
        return _Look(
            self._kernels,
            stretches,
            self._query[first:last],
            None if self._sink_query is None else self._sink_query[first:last],
            self._mixed[first:last],
            self._state[first:last],
            self._position + first,
            self._stream,
        )


@dataclass(frozen=True, slots=True)
class _Heads:
    """Queries turned, once or twice; keys turned, values not, and both packed as the cache has them."""

    kernels: Kernels
    query: Turn
    sink_query: Turn | None
    key: tuple[Turn, CacheKind, Packed]
    value: tuple[Turn, CacheKind, Packed]

    def __call__(self, worker: CrewMember, first: int, last: int) -> None:
        self.query.prepare(first, last)
        if self.sink_query is not None:
            self.sink_query.x[first:last] = self.query.x[first:last]
            self.sink_query.turn(first, last)
        self.query.turn(first, last)
        for turn, kind, into in (self.key, self.value):
            turn(worker, first, last)
            self.kernels.store(kind, turn.x[first:last], into[first:last])


@dataclass(frozen=True, slots=True)
class _Look:
    """Some queries over stretches of cells, for the key heads first..last."""

    kernels: Kernels
    stretches: Sequence[CacheRun]
    query: Floats
    sink_query: Floats | None
    out: Floats
    state: Floats
    position: int
    plan: StreamPlan

    def __call__(self, worker: CrewMember, first: int, last: int) -> None:
        size = self.plan.model.dimensions
        for stretch in self.stretches:
            query = self.query
            if stretch.is_sink and self.sink_query is not None:
                query = self.sink_query
            span = CacheAttention(
                q=query,
                k=stretch.keys,
                v=stretch.values,
                out=self.out,
                state=self.state,
                k_kind=cache_kind(self.plan.cache_k),
                v_kind=cache_kind(self.plan.cache_v),
                heads=size.heads,
                kv_heads=size.kv_heads,
                head_dim=size.head_dim,
                scale=self.plan.model.query_scale,
                cells=len(stretch.keys),
                first_position=stretch.position,
                query_position=self.position,
                reach=stretch.reach,
            )
            self.kernels.attend(span, worker.scratch, first, last)


def _parted(stretches: Sequence[CacheRun], most_cells: int) -> Iterator[list[CacheRun]]:
    """The same cells, no more than so many in a list."""
    part: list[CacheRun] = []
    room = most_cells
    for stretch in stretches:
        first, count = 0, len(stretch.keys)
        while first < count:
            last = min(count, first + room)
            part.append(
                replace(
                    stretch,
                    keys=stretch.keys[first:last],
                    values=stretch.values[first:last],
                    position=stretch.position + first,
                )
                if last - first < count
                else stretch
            )
            room -= last - first
            first = last
            if not room:
                yield part
                part, room = [], most_cells
    if part:
        yield part


def cache_kind(kind: CacheType) -> CacheKind:
    """Its name, as the kernels call it; the plan has refused all others."""
    return cast("CacheKind", kind.name)
