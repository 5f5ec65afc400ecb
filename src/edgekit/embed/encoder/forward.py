"""The tokens of one pass -> a vector for each text, layer by layer and tile by tile.

The texts lie one after another, without padding. Every matrix is read once for a chunk of tokens,
which is the whole pass unless it is long or the budget is small. A round is what may run at the
same time: the steps of one matrix, or of a few that have the same input.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from edgekit.embed.budget import EncoderPlan, arena_floats
from edgekit.embed.encoder.crew import Crew, Task, Worker
from edgekit.embed.encoder.layers import Layer, Matrix, Network
from edgekit.embed.encoder.share import Share
from edgekit.embed.encoder.steps import (
    AddPlaces,
    Attend,
    Gated,
    LookUp,
    Multiply,
    Normalize,
    Turn,
    attention_tasks,
    token_tasks,
)
from edgekit.embed.kernels.types import Kernels, Starts
from edgekit.embed.pooling import pool
from edgekit.embed.types import Floats
from edgekit.engine.stream.types import Position

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


def make_buffers(plan: EncoderPlan) -> Buffers:
    size, tokens = plan.model.dimensions, plan.pass_tokens
    return Buffers(
        x=np.empty((tokens, size.width), np.float32),
        query=np.empty((tokens, size.query), np.float32),
        arena=np.empty(arena_floats(plan.model, tokens, plan.chunk_tokens), np.float32),
        chunk=np.empty((plan.chunk_tokens, size.width), np.float32),
        cos=np.empty((tokens, size.rotary // 2), np.float32),
        sin=np.empty((tokens, size.rotary // 2), np.float32),
    )


class Forward:
    """One pass. Everything in it is a view of the buffers, cut to the tokens at hand."""

    def __init__(
        self,
        lengths: list[int],
        *,
        plan: EncoderPlan,
        network: Network,
        kernels: Kernels,
        crew: Crew,
        buffers: Buffers,
        share: Share,
    ) -> None:
        self._share = share
        self._plan, self._network, self._kernels, self._crew = plan, network, kernels, crew
        self._family, size = plan.model.family, plan.model.dimensions
        self._size = size
        self._starts: Starts = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=self._starts[1:])
        self.tokens = tokens = int(self._starts[-1])
        self._chunk_rows = buffers.chunk
        self._arena = buffers.arena
        self.x = buffers.x[:tokens]
        self._query = buffers.query[:tokens]
        keys = buffers.arena[: 2 * tokens * size.key].reshape(2, tokens, size.key)
        self._key, self._value = keys
        self._cos, self._sin = buffers.cos[:tokens], buffers.sin[:tokens]
        self._chunks = [
            slice(first, min(first + plan.chunk_tokens, tokens))
            for first in range(0, tokens, plan.chunk_tokens)
        ]
        self._attention = self._attention_tasks()

    def run(self, ids: Tokens, into: Floats) -> None:
        self._embed(ids)
        if self._size.rotary:
            self._place_tokens()
        for layer in self._network.layers:
            for chunk in self._chunks:
                self._to_heads(layer, chunk)
            self._round(self._attention)
            for chunk in self._chunks:
                self._after_attention(layer, chunk)
                self._feed_forward(layer, chunk)
        self._finish()
        for place, (start, end) in enumerate(pairwise(self._starts.tolist())):
            pool(self.x[start:end], self._plan.pooling, into[place])

    # --- before and after the layers

    def _embed(self, ids: Tokens) -> None:
        plan, network = self._plan, self._network
        look_up = LookUp(network.embedding, ids, self.x)
        self._round(look_up.tasks(plan.tile_bytes))
        if network.places is not None:
            add = AddPlaces(network.places, self._starts.tolist(), self.x)
            self._round(add.tasks(plan.tile_bytes, plan.scratch_floats))
        norm, token_type = network.norm_first, network.token_type
        if norm is None:
            return

        def finish(_worker: Worker, first: int, last: int) -> None:
            x = self.x[first:last]
            if token_type is not None:
                x += token_type
            norm(x, x)

        self._round(token_tasks(finish, self.tokens, self._size.width))

    def _place_tokens(self) -> None:
        """Each token's row of the rotary tables: places begin anew with every text."""
        places = np.arange(self.tokens)
        places -= np.repeat(self._starts[:-1], np.diff(self._starts))
        for table, into in zip(self._network.rotary, (self._cos, self._sin), strict=True):
            np.take(table, places, axis=0, out=into, mode="clip")

    def _finish(self) -> None:
        norm = self._network.norm_last
        if norm is None:
            return

        def finish(_worker: Worker, first: int, last: int) -> None:
            norm(self.x[first:last], self.x[first:last])

        self._round(token_tasks(finish, self.tokens, self._size.width))

    # --- a layer

    def _to_heads(self, layer: Layer, chunk: slice) -> None:
        """Queries, keys and values of a chunk, turned to their places."""
        x = self.x[chunk]
        norm = layer.norm_before
        if norm is not None:
            source, x = x, self._chunk_rows[: len(x)]
            into = x

            def before(_worker: Worker, first: int, last: int) -> None:
                norm(source[first:last], into[first:last])

            self._round(token_tasks(before, len(x), self._size.width))
        self._multiply(
            (layer.query, x, self._query[chunk]),
            (layer.key, x, self._key[chunk]),
            (layer.value, x, self._value[chunk]),
        )
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

    def _after_attention(self, layer: Layer, chunk: slice) -> None:
        """The sum of a layer's input and its attention, normalised: in x, or beside it."""
        x, out = self.x[chunk], self._chunk_rows[: chunk.stop - chunk.start]
        self._multiply((layer.attention_out, self._query[chunk], out))
        bias, norm, again = layer.attention_out.bias, layer.norm_between, layer.norm_between_2

        def norm_first(_worker: Worker, first: int, last: int) -> None:
            there = x[first:last]
            _add(there, bias, out[first:last])
            norm(there, out[first:last])

        def norm_after(_worker: Worker, first: int, last: int) -> None:
            here, there = out[first:last], x[first:last]
            _add(here, bias, there)
            if again is not None:
                norm(here, here)
                here += there
                again(here, there)
            else:
                norm(here, there)

        step = norm_first if self._family.norm_first else norm_after
        self._round(token_tasks(step, len(x), self._size.width))

    def _feed_forward(self, layer: Layer, chunk: slice) -> None:
        x, out = self.x[chunk], self._chunk_rows[: chunk.stop - chunk.start]
        inner = self._arena[: len(x) * self._size.inner].reshape(len(x), self._size.inner)
        source = out if self._family.norm_first else x
        if layer.gate is None:
            self._multiply((layer.up, source, inner))
            self._activate(layer.up.bias, inner)
        else:
            self._multiply_gated(layer.gate, layer.up, source, inner)
        self._multiply((layer.down, inner, out))
        bias, norm = layer.down.bias, layer.norm_after

        def finish(_worker: Worker, first: int, last: int) -> None:
            here, there = out[first:last], x[first:last]
            if norm is None:
                _add(there, bias, here)
            else:
                _add(here, bias, there)
                norm(here, there)

        self._round(token_tasks(finish, len(x), self._size.width))

    def _activate(self, bias: Floats | None, inner: Floats) -> None:
        """A feed-forward without a gate: families have GELU there."""

        def step(_worker: Worker, first: int, last: int) -> None:
            rows = inner[first:last]
            if bias is not None:
                rows += bias
            self._kernels.gelu(rows)

        self._round(token_tasks(step, len(inner), inner.shape[1]))

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

    def _attention_tasks(self) -> list[Task]:
        step = Attend(
            self._kernels,
            self._query,
            self._key,
            self._value,
            self._starts,
            self._size.heads,
            self._size.kv_heads,
            self._size.head_dim,
            self._plan.model.causal,
            self._network.slopes,
        )
        return attention_tasks(step, self._plan.threads)


def _add(rows: Floats, bias: Floats | None, more: Floats) -> None:
    rows += more
    if bias is not None:
        rows += bias
