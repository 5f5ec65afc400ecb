"""What every pass does with a chunk of tokens: heads, sums, feed-forward, tile by tile.

Which tokens attend to which is a subclass's: a text's to each other (forward.py), or to a cache. A round is what may
run at the same time: the steps of one matrix, or of a few that have the same input.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.arrays import Floats
from edgekit.engines.native.encoder.crew import Crew, CrewMember, Step, Task
from edgekit.engines.native.encoder.layers import EncoderLayer, Matrix, Network
from edgekit.engines.native.encoder.share import WorkShare
from edgekit.engines.native.encoder.steps import (
    Gated,
    LookUp,
    Multiply,
    Normalize,
    Turn,
    token_tasks,
)
from edgekit.engines.native.kernels.types import Kernels
from edgekit.engines.native.tensors import arena_floats
from edgekit.engines.native.types import NativeModel, Position

Tokens = NDArray[np.int64]


class PassPlan(Protocol):
    """What a pass follows, whoever planned it."""

    @property
    def model(self) -> NativeModel: ...

    @property
    def threads(self) -> int: ...

    @property
    def chunk_tokens(self) -> int: ...

    @property
    def tile_bytes(self) -> int: ...

    @property
    def side_floats(self) -> int: ...

    @property
    def scratch_floats(self) -> int: ...


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
