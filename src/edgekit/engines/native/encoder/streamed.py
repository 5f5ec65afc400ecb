"""A plan carried out: memory reserved and allocated, weights read, threads started, texts encoded."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from edgekit.engines.native.arrays import Floats
from edgekit.engines.native.encoder.blas import one_thread
from edgekit.engines.native.encoder.crew import Crew
from edgekit.engines.native.encoder.forward import Forward
from edgekit.engines.native.encoder.layers import make_network
from edgekit.engines.native.encoder.passing import Tokens, make_buffers, make_worker
from edgekit.engines.native.encoder.plan import EncoderPlan
from edgekit.engines.native.encoder.rope import make_tables
from edgekit.engines.native.encoder.share import WorkShare
from edgekit.engines.native.encoder.weights import EncoderWeights
from edgekit.engines.native.types import Checkpoint
from edgekit.errors import TextError, UsageError

if TYPE_CHECKING:
    from edgekit.engines.native.file import WeightFile
    from edgekit.engines.native.kernels.types import Kernels
    from edgekit.machine.monitor import Monitor

WAIT_S = 0.02  # between two looks at whether another call's pass has ended
Texts = Sequence[Sequence[int]]


class StreamedEncoder:
    """Made by `open_encoder`. One pass at a time: who comes while one runs, waits."""

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
            weights = EncoderWeights(
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

        TextError for a text that is empty, too long, or has tokens that the model does not have.
        What `checkpoint` raises ends the call within one tile, and the encoder stays usable.
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
        """Waits for the pass that runs, ends the threads and gives the memory back."""
        with self._passing:
            if not self._closed:
                self._closed = True
                self._held.close()
                del self._network, self._rotary, self._buffers, self._crew

    def _encode(self, texts: Texts, into: Floats, checkpoint: Checkpoint) -> None:
        passes = list(self._passes(texts))
        share = WorkShare(checkpoint, sum(self._work(texts[place]) for place in passes))
        for place in passes:
            self._run(texts[place], into[place], place.start, share)
        share.finish()

    def _run(self, texts: Texts, into: Floats, first: int, share: WorkShare) -> None:
        forward = Forward(
            [len(text) for text in texts],
            plan=self._plan,
            network=self._network,
            kernels=self._kernels,
            crew=self._crew,
            buffers=self._buffers,
            rotary=self._rotary,
            share=share,
        )
        ids = self._ids(texts, forward.tokens, first)
        if self._plan.streams:
            self._file.check_unchanged()
        forward.run(ids, into)
        if self._plan.streams:  # what was read in between was still of the same file
            self._file.check_unchanged()

    def _work(self, texts: Texts) -> int:
        """Bytes of weights that a pass goes through."""
        chunks = -(-sum(map(len, texts)) // self._plan.chunk_tokens)
        return chunks * self._network.matrix_bytes

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
