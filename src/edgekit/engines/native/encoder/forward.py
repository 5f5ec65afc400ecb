"""The tokens of one pass -> a vector for each text, layer by layer and tile by tile.

The texts lie one after another, without padding. Every matrix is read once for a chunk of tokens,
which is the whole pass unless it is long or the budget is small.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from edgekit.engines.native.arrays import Floats
from edgekit.engines.native.encoder.crew import Crew, CrewMember, Task
from edgekit.engines.native.encoder.layers import Network
from edgekit.engines.native.encoder.passing import Buffers, Pass, Tokens
from edgekit.engines.native.encoder.plan import EncoderPlan
from edgekit.engines.native.encoder.share import WorkShare
from edgekit.engines.native.encoder.steps import AddPlaces, Attend, attention_tasks
from edgekit.engines.native.kernels.types import Kernels, Starts
from edgekit.engines.native.pooling import pool


class Forward(Pass):
    """One pass over some texts."""

    def __init__(
        self,
        lengths: list[int],
        *,
        plan: EncoderPlan,
        network: Network,
        kernels: Kernels,
        crew: Crew,
        buffers: Buffers,
        rotary: tuple[Floats, ...],
        share: WorkShare,
    ) -> None:
        """`rotary`: cosines and sines of each place, where heads turn."""
        self._starts: Starts = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=self._starts[1:])
        super().__init__(
            int(self._starts[-1]),
            plan=plan,
            network=network,
            kernels=kernels,
            crew=crew,
            buffers=buffers,
            share=share,
        )
        self._pooling, self._rotary = plan.pooling, rotary
        self._chunks = [
            slice(first, min(first + plan.chunk_tokens, self.tokens))
            for first in range(0, self.tokens, plan.chunk_tokens)
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
        self._normalize(self._network.norm_last, self.x, self.x)
        for place, (start, end) in enumerate(pairwise(self._starts.tolist())):
            pool(self.x[start:end], self._pooling, into[place])

    def _embed(self, ids: Tokens) -> None:
        plan, network = self._plan, self._network
        self._look_up(ids)
        if network.places is not None:
            add = AddPlaces(network.places, self._starts.tolist(), self.x)
            self._round(add.tasks(plan.tile_bytes, plan.scratch_floats))
        norm, token_type = network.norm_first, network.token_type
        if norm is None:
            return

        def finish(_worker: CrewMember, first: int, last: int) -> None:
            x = self.x[first:last]
            if token_type is not None:
                x += token_type
            norm(x, x)

        self._by_token(finish, self.x)

    def _place_tokens(self) -> None:
        """Each token's row of the rotary tables: places begin anew with every text."""
        places = np.arange(self.tokens)
        places -= np.repeat(self._starts[:-1], np.diff(self._starts))
        for table, into in zip(self._rotary, (self._cos, self._sin), strict=True):
            np.take(table, places, axis=0, out=into, mode="clip")

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
