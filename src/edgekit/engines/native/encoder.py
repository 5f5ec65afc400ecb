"""The forward pass of embedding models, streamed through a planned amount of memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np

from edgekit.engines.native.crew import Checkpoint, Crew, CrewMember, PassProgress, Task, one_thread
from edgekit.engines.native.encoder_plan import EncoderPlan
from edgekit.engines.native.families import Pooling
from edgekit.engines.native.forward import (
    STEP_FLOPS,
    STEPS_PER_THREAD,
    Buffers,
    Pass,
    Tokens,
    make_worker,
    ranges,
)
from edgekit.engines.native.kernels.types import Floats, Kernels, Starts, TextAttention
from edgekit.engines.native.layers import Network, fill_tables
from edgekit.engines.native.weights import Matrix, Weights
from edgekit.errors import (
    TextError,
    UsageError,
    WeightsError,
)

if TYPE_CHECKING:
    from edgekit.engines.native.file import FileHeader, WeightFile
    from edgekit.machine.monitor import Monitor


WAIT_S = 0.02  # how often a waiting call runs its checkpoint
Texts = Sequence[Sequence[int]]


class StreamedEncoder:
    """An encoder that reads weights while it runs. It runs one pass at a time; other calls wait."""

    def __init__(
        self,
        file: WeightFile,
        header: FileHeader,
        *,
        kernels: Kernels,
        monitor: Monitor,
        plan: EncoderPlan,
    ) -> None:
        """Allocates what the plan says, and reads the weights that stay in memory.

        Raises MemoryPressureError if the monitor refuses the memory, WeightsError for weights that are not numbers.
        The caller closes the file.
        """
        if header.name != file.name:
            raise ValueError(
                f"the header is from {header.name}, but the weights are from {file.name}"
            )
        self._file, self._kernels, self._plan = file, kernels, plan
        self.width = plan.model.dimensions.width
        self._pass_lock = threading.Lock()
        self._closed = False
        with ExitStack() as resources:
            for line in plan.lines:
                resources.enter_context(monitor.try_allocate(line.size_bytes, line.what))
            self._crew = Crew([make_worker(plan) for _ in range(plan.threads)])
            resources.callback(self._crew.close)
            weights = Weights(file, plan, kernels, self._crew.workers[0], monitor.check)
            self._network = Network(plan.model, weights, kernels)
            pairs = plan.model.dimensions.rotary // 2
            self._rotary = np.empty((2, plan.text_tokens, pairs), np.float32)
            if plan.model.rope is not None:
                fill_tables(plan.model.rope, self._network.rope_factors, self._rotary)
            self._buffers = Buffers(plan, plan.pass_tokens)
            self._resources = resources.pop_all()

    def encode(self, texts: Texts, into: Floats, checkpoint: Checkpoint) -> None:
        """Writes one pooled vector for each text into the rows of `into`, not yet scaled to length 1.

        Raises TextError for a text that is empty, too long, or has tokens that the model does not have. An exception
        from `checkpoint` ends the call within one tile, and the encoder stays usable.
        """
        if into.shape != (len(texts), self.width):
            raise ValueError(f"{len(texts)} vectors of {self.width} do not fit into {into.shape}")
        for index, text in enumerate(texts):
            tokens = len(text)
            if not tokens:
                raise TextError("it has no tokens", index=index)
            if tokens > self._plan.text_tokens:
                raise TextError(
                    f"{tokens:,} tokens; the limit is {self._plan.text_tokens:,} "
                    f"({self._plan.text_tokens_because})",
                    index=index,
                )
        while not self._pass_lock.acquire(timeout=WAIT_S):
            checkpoint(0.0)
        try:
            if self._closed:
                raise UsageError("the encoder is closed")
            with one_thread() if self._kernels.name == "numpy" else nullcontext():
                passes = list(self._divide_into_passes(texts))
                pass_sizes = (sum(map(len, texts[pass_texts])) for pass_texts in passes)
                chunks = sum(-(-tokens // self._plan.chunk_tokens) for tokens in pass_sizes)
                progress = PassProgress(checkpoint, chunks * self._network.matrix_bytes)
                for pass_texts in passes:
                    self._run_pass(texts[pass_texts], into[pass_texts], pass_texts.start, progress)
                progress.finish()
        finally:
            self._pass_lock.release()

    def close(self) -> None:
        """Waits for the running pass, ends the threads and frees the memory."""
        with self._pass_lock:
            if not self._closed:
                self._closed = True
                self._resources.close()
                del self._network, self._rotary, self._buffers, self._crew

    def _run_pass(self, texts: Texts, into: Floats, first: int, progress: PassProgress) -> None:
        texts_pass = TextsPass(
            [len(text) for text in texts],
            plan=self._plan,
            network=self._network,
            crew=self._crew,
            buffers=self._buffers,
            rotary=self._rotary,
            progress=progress,
        )
        ids = np.fromiter(chain.from_iterable(texts), np.int64, texts_pass.tokens)
        vocabulary = self._plan.model.dimensions.vocabulary
        if ids.min() < 0 or ids.max() >= vocabulary:
            for index, text in enumerate(texts, first):
                wrong = [token for token in text if not 0 <= token < vocabulary]
                if wrong:
                    raise TextError(
                        f"token {wrong[0]} is not one of the model's {vocabulary:,}", index=index
                    )
        if self._plan.streams:
            self._file.check_unchanged()
        texts_pass.run(ids, into)
        if self._plan.streams:  # so all weights of this pass came from the same file
            self._file.check_unchanged()

    def _divide_into_passes(self, texts: Texts) -> Iterator[slice]:
        """Divides the texts into runs of consecutive texts that fit into one pass."""
        first, capacity = 0, self._plan.pass_tokens
        for index, text in enumerate(texts):
            if len(text) > capacity:
                yield slice(first, index)
                first, capacity = index, self._plan.pass_tokens
            capacity -= len(text)
        if first < len(texts):
            yield slice(first, len(texts))


class TextsPass(Pass):
    """One pass over several texts. The tokens of each text attend to each other."""

    def __init__(
        self,
        lengths: list[int],
        *,
        plan: EncoderPlan,
        network: Network,
        crew: Crew,
        buffers: Buffers,
        rotary: Floats,
        progress: PassProgress,
    ) -> None:
        """`rotary` has the cosines and sines of each position in a text."""
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
        """Computes all layers for the tokens of all texts, and writes the pooled vector of each text into `into`."""
        network = self.network
        self.look_up(ids)
        if network.positions is not None:
            self._add_positions(network.positions)
        norm, token_type = network.norm_first, network.token_type
        if norm is not None:

            def normalize_input(_worker: CrewMember, first: int, last: int) -> None:
                x = self.x[first:last]
                if token_type is not None:
                    x += token_type
                norm(x, x)

            self.run_by_token(normalize_input, self.x)
        if self.size.rotary:  # each token's row of the tables: positions restart with every text
            positions = np.arange(self.tokens)
            positions -= np.repeat(self._starts[:-1], np.diff(self._starts))
            for table, rows in zip(self._rotary, self.rotary, strict=True):
                np.take(table, positions, axis=0, out=rows, mode="clip")
        for layer in network.layers:
            for chunk in self._chunks:
                self.make_heads(layer, chunk)
            self.run_round(self._attention)
            for chunk in self._chunks:
                self.after_attention(layer, chunk)
                self.feed_forward(layer, chunk)
        self.normalize(network.norm_last, self.x, self.x)
        for index, (start, end) in enumerate(pairwise(self._starts.tolist())):
            pool(self.x[start:end], self._pooling, into[index])

    def _add_positions(self, table: Matrix) -> None:
        """Adds the learned vector of each position to the token at that position of its text."""
        spans, width = list(pairwise(self._starts.tolist())), table.columns

        def step(worker: CrewMember, first: int, last: int) -> None:
            rows = worker.scratch[: (last - first) * width]
            table.unpack(worker, rows, first, last)
            rows = rows.reshape(last - first, width)
            for start, end in spans:
                count = min(last, end - start) - first
                if count > 0:
                    self.x[start + first : start + first + count] += rows[:count]

        longest = max(end - start for start, end in spans)
        rows_per_step = min(
            self.plan.tile_bytes // table.row_bytes, self.plan.scratch_floats // width
        )
        self.run_round(ranges(step, longest, rows_per_step))


def attention_tasks(kernels: Kernels, texts: TextAttention, threads: int) -> list[Task]:
    """Divides all pairs of a text and a head into tasks that take about the same time."""

    def step(worker: CrewMember, first: int, last: int) -> None:
        kernels.attention(texts, worker.scratch, first, last)

    lengths = np.diff(texts.starts).astype(np.int64)
    # The work of one head, in flops, and the overhead of a call.
    costs = 4 * lengths * lengths * texts.head_dim + 2_000
    fair_share = int(costs.sum()) * texts.heads // (threads * STEPS_PER_THREAD)
    max_cost = max(1, min(STEP_FLOPS, fair_share))
    tasks: list[Task] = []
    first = task_cost = 0
    for text, cost in enumerate(costs.tolist()):
        begin = text * texts.heads
        for task in range(begin, begin + texts.heads):
            if task_cost and task_cost + cost > max_cost:
                tasks.append((step, first, task))
                first, task_cost = task, 0
            task_cost += cost
    tasks.append((step, first, len(lengths) * texts.heads))
    return tasks


SMALLEST_LENGTH = 1e-9  # a shorter vector has no direction worth scaling up


def pool(rows: Floats, pooling: Pooling, into: Floats) -> None:
    """Writes the pooled vector of one text's rows [tokens, width] into `into`."""
    if pooling is Pooling.MEAN:
        # Rows are added up one after another; 2,048 of them lose less than 2,048 * 2**-24.
        np.add.reduce(rows, axis=0, out=into)
        into /= np.float32(len(rows))
    else:
        into[:] = rows[0 if pooling is Pooling.CLS else -1]


def scale_row(row: Floats, *, normalize: bool = True) -> None:
    """Scales a vector to length 1 in place, unless it is 0. Raises WeightsError for a vector that is not finite."""
    length = float(np.sqrt(np.vdot(row, row)))
    if not np.isfinite(length):  # the squares of large numbers overflow float32, but not float64
        doubles = row.astype(np.float64)
        length = float(np.sqrt(np.vdot(doubles, doubles)))
    if not np.isfinite(length):
        raise WeightsError(
            "the model's output is not a finite number: its weights are damaged, or were "
            "converted to a type that cannot represent them"
        )
    if normalize and length > SMALLEST_LENGTH:
        row /= np.float32(length)
