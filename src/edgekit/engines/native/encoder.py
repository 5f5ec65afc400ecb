"""The forward pass of embedding models, streamed through a planned amount of memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np

from edgekit.engines.native.crew import Checkpoint, Crew, CrewMember, PassProgress, one_thread
from edgekit.engines.native.encoder_plan import EncoderPlan
from edgekit.engines.native.families import Pooling
from edgekit.engines.native.forward import Buffers, Pass, Tokens, make_buffers, make_worker
from edgekit.engines.native.kernels.types import Floats, Kernels, Starts, TextAttention
from edgekit.engines.native.layers import (
    AddPositions,
    Network,
    attention_tasks,
    make_network,
    make_tables,
)
from edgekit.engines.native.weights import Weights
from edgekit.errors import (
    TextError,
    UsageError,
    WeightsError,
)

if TYPE_CHECKING:
    from edgekit.engines.native.file import FileHeader, WeightFile
    from edgekit.machine.monitor import Monitor


def open_encoder(
    file: WeightFile,
    header: FileHeader,
    *,
    kernels: Kernels,
    monitor: Monitor,
    plan: EncoderPlan,
) -> StreamedEncoder:
    """Reserves and allocates what the plan of this file says, and reads the weights that stay.

    Raises MemoryPressureError if the monitor refuses the memory, WeightsError for weights that are not numbers. The
    caller closes the file.
    """
    if header.name != file.name:
        raise ValueError(f"the header is from {header.name}, but the weights are from {file.name}")
    return StreamedEncoder(file, kernels=kernels, monitor=monitor, plan=plan)


WAIT_S = 0.02  # between two looks at whether another call's pass has ended
Texts = Sequence[Sequence[int]]


class StreamedEncoder:
    """Made by `open_encoder`. Runs one pass at a time; other calls wait."""

    def __init__(
        self, file: WeightFile, *, kernels: Kernels, monitor: Monitor, plan: EncoderPlan
    ) -> None:
        self._file, self._kernels, self._plan = file, kernels, plan
        self._passing = threading.Lock()
        self._closed = False
        with ExitStack() as held:
            for line in plan.lines:
                held.enter_context(monitor.try_allocate(line.size_bytes, line.what))
            self._crew = Crew([make_worker(plan) for _ in range(plan.threads)])
            held.callback(self._crew.close)
            weights = Weights(
                file, plan, kernels, self._crew.first, monitor.check, unpacked=plan.unpacked
            )
            self._network = make_network(plan.model, weights, kernels)
            self._rotary = make_tables(plan.model, self._network.rope_factors, plan.text_tokens)
            self._buffers = make_buffers(plan, plan.pass_tokens)
            self._held = held.pop_all()

    @property
    def width(self) -> int:
        return self._plan.model.dimensions.width

    def encode(self, texts: Texts, into: Floats, checkpoint: Checkpoint) -> None:
        """One pooled vector for each text into the rows of `into`, not scaled yet.

        Raises TextError for a text that is empty, too long, or has tokens that the model does not have. What
        `checkpoint` raises ends the call within one tile, and the encoder stays usable.
        """
        if into.shape != (len(texts), self.width):
            raise ValueError(f"{len(texts)} vectors of {self.width} do not fit into {into.shape}")
        for index, text in enumerate(texts):
            self._check_length(len(text), index)
        while not self._passing.acquire(timeout=WAIT_S):
            checkpoint(0.0)
        try:
            if self._closed:
                raise UsageError("the encoder is closed")
            with one_thread() if self._kernels.name == "numpy" else nullcontext():
                self._encode(texts, into, checkpoint)
        finally:
            self._passing.release()

    def close(self) -> None:
        """Waits for the running pass, ends the threads and frees the memory."""
        with self._passing:
            if not self._closed:
                self._closed = True
                self._held.close()
                del self._network, self._rotary, self._buffers, self._crew

    def _encode(self, texts: Texts, into: Floats, checkpoint: Checkpoint) -> None:
        passes = list(self._passes(texts))
        chunks = sum(-(-sum(map(len, texts[place])) // self._plan.chunk_tokens) for place in passes)
        progress = PassProgress(checkpoint, chunks * self._network.matrix_bytes)
        for place in passes:
            self._run(texts[place], into[place], place.start, progress)
        progress.finish()

    def _run(self, texts: Texts, into: Floats, first: int, progress: PassProgress) -> None:
        texts_pass = TextsPass(
            [len(text) for text in texts],
            plan=self._plan,
            network=self._network,
            crew=self._crew,
            buffers=self._buffers,
            rotary=self._rotary,
            progress=progress,
        )
        ids = self._ids(texts, texts_pass.tokens, first)
        if self._plan.streams:
            self._file.check_unchanged()
        texts_pass.run(ids, into)
        if self._plan.streams:  # what was read in between was still of the same file
            self._file.check_unchanged()

    def _passes(self, texts: Texts) -> Iterator[slice]:
        """Consecutive texts that fit into one pass."""
        first, room = 0, self._plan.pass_tokens
        for index, text in enumerate(texts):
            if len(text) > room:
                yield slice(first, index)
                first, room = index, self._plan.pass_tokens
            room -= len(text)
        if first < len(texts):
            yield slice(first, len(texts))

    def _ids(self, texts: Texts, tokens: int, first: int) -> Tokens:
        ids = np.fromiter(chain.from_iterable(texts), np.int64, tokens)
        vocabulary = self._plan.model.dimensions.vocabulary
        if ids.min() < 0 or ids.max() >= vocabulary:
            for index, text in enumerate(texts, first):
                wrong = [token for token in text if not 0 <= token < vocabulary]
                if wrong:
                    raise TextError(
                        f"token {wrong[0]} is not one of the model's {vocabulary:,}", index=index
                    )
        return ids

    def _check_length(self, tokens: int, index: int) -> None:
        if not tokens:
            raise TextError("it has no tokens", index=index)
        if tokens > self._plan.text_tokens:
            raise TextError(
                f"{tokens:,} tokens; the limit is {self._plan.text_tokens:,} "
                f"({self._plan.text_tokens_because})",
                index=index,
            )


class TextsPass(Pass):
    """One pass over some texts, whose tokens attend to each other."""

    def __init__(
        self,
        lengths: list[int],
        *,
        plan: EncoderPlan,
        network: Network,
        crew: Crew,
        buffers: Buffers,
        rotary: tuple[Floats, ...],
        progress: PassProgress,
    ) -> None:
        """`rotary`: cosines and sines of each position, if the model has them."""
        self._starts: Starts = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=self._starts[1:])
        tokens = int(self._starts[-1])
        super().__init__(
            tokens, plan=plan, network=network, crew=crew, buffers=buffers, progress=progress
        )
        self._pooling, self._rotary = plan.pooling, rotary
        self._chunks = [
            slice(first, min(first + plan.chunk_tokens, tokens))
            for first in range(0, tokens, plan.chunk_tokens)
        ]
        texts = TextAttention(
            q=self.query,
            k=self.key,
            v=self.value,
            out=self.query,
            starts=self._starts,
            heads=self.size.heads,
            kv_heads=self.size.kv_heads,
            head_dim=self.size.head_dim,
            scale=self.size.head_dim**-0.5,
            causal=plan.model.causal,
            slopes=network.slopes,
        )
        self._attention = attention_tasks(self.kernels, texts, plan.threads)

    def run(self, ids: Tokens, into: Floats) -> None:
        self._embed(ids)
        if self.size.rotary:  # each token's row of the tables: positions restart with every text
            positions = np.arange(self.tokens)
            positions -= np.repeat(self._starts[:-1], np.diff(self._starts))
            for table, rows in zip(self._rotary, (self.cos, self.sin), strict=True):
                np.take(table, positions, axis=0, out=rows, mode="clip")
        for layer in self.network.layers:
            for chunk in self._chunks:
                self.make_heads(layer, chunk)
            self.run_round(self._attention)
            for chunk in self._chunks:
                self.after_attention(layer, chunk)
                self.feed_forward(layer, chunk)
        self.normalize(self.network.norm_last, self.x, self.x)
        for place, (start, end) in enumerate(pairwise(self._starts.tolist())):
            pool(self.x[start:end], self._pooling, into[place])

    def _embed(self, ids: Tokens) -> None:
        plan, network = self.plan, self.network
        self.look_up(ids)
        if network.positions is not None:
            add = AddPositions(network.positions, self._starts.tolist(), self.x)
            self.run_round(add.tasks(plan.tile_bytes, plan.scratch_floats))
        norm, token_type = network.norm_first, network.token_type
        if norm is None:
            return

        def finish(_worker: CrewMember, first: int, last: int) -> None:
            x = self.x[first:last]
            if token_type is not None:
                x += token_type
            norm(x, x)

        self.run_by_token(finish, self.x)


SMALLEST_LENGTH = 1e-9  # a shorter vector has no direction worth scaling up


def pool(rows: Floats, pooling: Pooling, into: Floats) -> None:
    """One text's rows [tokens, width] into one vector."""
    if pooling is Pooling.MEAN:
        # Rows are added up one after another; 2,048 of them lose less than 2,048 * 2**-24.
        np.add.reduce(rows, axis=0, out=into)
        into /= np.float32(len(rows))
    else:
        into[:] = rows[0 if pooling is Pooling.CLS else -1]


def scale_row(row: Floats, *, normalize: bool = True) -> None:
    """In place to length 1, unless it is 0. Raises WeightsError for a vector that is not finite."""
    length = float(np.sqrt(np.vdot(row, row)))
    if not np.isfinite(length):  # float64 has room for the squares of large numbers
        wide = row.astype(np.float64)
        length = float(np.sqrt(np.vdot(wide, wide)))
    if not np.isfinite(length):
        raise WeightsError(
            "the model's output is not a finite number: its weights are damaged, or were "
            "converted to a type that cannot represent them"
        )
    if normalize and length > SMALLEST_LENGTH:
        row /= np.float32(length)
