"""The embedder: texts in, vectors out. One embedder serves any number of threads and tasks."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self, cast

import numpy as np

from edgekit.embed.types import Encoder, prefixes_of
from edgekit.engines.native.crew import no_thread
from edgekit.engines.native.encoder import scale_row
from edgekit.engines.native.file import Closeable, Limits
from edgekit.engines.native.kernels.types import Floats
from edgekit.errors import (
    CancelledError,
    DeadlineError,
    EdgekitError,
    MemoryPressureError,
    TextError,
    UsageError,
)
from edgekit.units import format_bytes

if TYPE_CHECKING:
    from edgekit.embed.types import EmbedPlan
    from edgekit.engines.native.tokenizer.text import TextTokenizer
    from edgekit.machine.monitor import Monitor, Reservation


@dataclass(slots=True, eq=False)
class EmbedCall:
    """One call: its texts, its vectors, and how it may end early."""

    count: int
    tokens_of: Callable[[int], Sequence[int]]  # of a text, when its turn comes; raises TextError
    cancel: threading.Event
    ends_at: float | None = None  # time.monotonic()
    progress: Callable[[float], None] | None = None
    done: Future[Floats] = field(default_factory=Future)
    vectors: Floats | None = None  # None: not allocated yet
    reserved: Reservation | None = None  # for the vectors, until it ends
    begun: int = 0  # texts that are in a pass or finished
    finished: int = 0
    waiting: Sequence[int] | None = None  # tokens of the next text, if the last pass was full

    def result(self) -> Floats:
        """Waits for the vectors."""
        try:
            return self.done.result()
        except BaseException:
            self.done.cancel()  # on Ctrl-C the pass ends at its next tile
            raise

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):  # the caller has cancelled it
            self.done.set_exception(error)
        self.release()

    def succeed(self, vectors: Floats) -> None:
        with suppress(InvalidStateError):
            self.done.set_result(vectors)
        self.release()

    def release(self) -> None:
        if self.reserved is not None:
            self.reserved.release()

    def end_early(self, now: float) -> bool:
        """Whether it has ended; ends it if it was cancelled or its time is up."""
        if self.done.done():
            return True
        if self.cancel.is_set():
            self.fail(CancelledError("cancelled"))
        elif self.ends_at is not None and now > self.ends_at:
            self.fail(DeadlineError("not finished in time"))
        return self.done.done()

    def report(self, share: float) -> None:
        """Calls `progress`; what that raises ends the job."""
        if self.progress is not None and not self.done.done():
            try:
                self.progress(share)
            except BaseException as error:  # noqa: BLE001 - it goes back to the caller
                self.fail(error)


class _PassText(NamedTuple):
    job: EmbedCall
    place: int  # of the text in its job
    tokens: Sequence[int]


class _AbandonedError(Exception):
    """No call waits for this pass any more."""


class Passes:
    """One thread that runs the encoder, and the queue of calls."""

    def __init__(self, parts: EmbedderParts) -> None:
        self._parts = parts
        self._process = os.getpid()
        self._jobs: deque[EmbedCall] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def submit(self, job: EmbedCall) -> None:
        """Queues it. Raises UsageError if it would wait forever."""
        if os.getpid() != self._process:
            raise UsageError(
                "this embedder was opened before the process was forked, so its threads "
                "are not here: open it in the process that uses it"
            )
        if threading.current_thread() is self._thread:
            raise UsageError(
                "a progress callback runs in the embedding thread, so it cannot embed "
                "anything itself"
            )
        with self._changed:
            if self._closing:
                raise CancelledError("the embedder is closed")
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="edgekit-embed", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise no_thread(error) from error
                self._thread = thread
            self._jobs.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Ends all calls; returns when the thread has ended, unless it is this one."""
        if os.getpid() != self._process:
            return  # the threads belong to the parent process
        with self._changed:
            first, self._closing = not self._closing, True
            self._changed.notify()
        if self._thread is None:
            if first:
                self._end()
        elif self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._jobs)
                if self._closing:
                    break
            self._one_pass()  # a function of its own: its vectors are freed before the next wait
        self._end()

    def _end(self) -> None:
        self._fail_all(CancelledError("the embedder was closed"))
        self._parts.encoder.close()
        self._parts.held.close()

    def _one_pass(self) -> None:
        try:
            pieces = self._gather()
            self._drop_ended()
            while pieces and not self._encode(pieces):
                pieces = [piece for piece in pieces if not piece.job.done.done()]
        except _AbandonedError:
            pass
        except BaseException as error:  # noqa: BLE001 - no caller may wait forever
            self._fail_all(error)
        self._drop_ended()

    def _encode(self, pieces: list[_PassText]) -> bool:
        """False: one text was bad. Its job has failed, and the others must be run again."""
        rows = self._parts.rows[: len(pieces)]
        try:
            self._parts.encoder.encode(
                [piece.tokens for piece in pieces], rows, lambda share: self._pause(pieces, share)
            )
        except TextError as error:
            bad = pieces[error.index or 0]
            bad.job.fail(TextError(error.what, index=bad.place))
            return False
        except EdgekitError as error:
            for job in _jobs_of(pieces):
                job.fail(error)
        else:
            for row, piece in zip(rows, pieces, strict=True):
                if piece.job.vectors is not None:
                    vector = piece.job.vectors[piece.place]
                    vector[:] = row[: len(vector)]
                    try:
                        scale_row(vector, normalize=self._parts.normalize)
                    except EdgekitError as error:
                        piece.job.fail(error)
                piece.job.finished += 1
            for job in _jobs_of(pieces):
                job.report(job.finished / job.count)
                if job.finished == job.count and job.vectors is not None and not job.done.done():
                    job.succeed(job.vectors)
        return True

    def _gather(self) -> list[_PassText]:
        """One text of each job in turn, as many as a pass holds. The next pass begins with the next job."""
        with self._changed:
            turns = deque(self._jobs)
            self._jobs.rotate(-1)
        pieces: list[_PassText] = []
        left_tokens = self._parts.plan.pass_tokens
        while turns and len(pieces) < len(self._parts.rows):
            job = turns.popleft()
            tokens = self._next_tokens(job)
            if tokens is None:
                continue
            if len(tokens) > left_tokens:
                job.waiting = tokens  # in a later pass
                continue
            pieces.append(_PassText(job, job.begun, tokens))
            job.waiting = None
            job.begun += 1
            left_tokens -= len(tokens)
            turns.append(job)
        return pieces

    def _next_tokens(self, job: EmbedCall) -> Sequence[int] | None:
        """The tokens of its next text, after its vectors are allocated.

        None: there is none, its memory must wait for another job, or it has failed.
        """
        if job.begun == job.count or job.end_early(time.monotonic()):
            return None
        try:
            if not self._has_vectors(job):
                return None
            return job.tokens_of(job.begun) if job.waiting is None else job.waiting
        except Exception as error:  # noqa: BLE001 - it concerns this job alone
            job.fail(error)
            return None

    def _has_vectors(self, job: EmbedCall) -> bool:
        """Allocates its vectors. False: another job will free the memory for them."""
        if job.vectors is not None:
            return True
        shape = (job.count, self._parts.plan.dimensions)
        size_bytes = math.prod(shape) * 4
        what = f"{job.count:,} vectors ({format_bytes(size_bytes)})"
        try:
            job.reserved = self._parts.monitor.try_allocate(size_bytes, what)
        except MemoryPressureError:
            with self._changed:
                if any(one.vectors is not None for one in self._jobs if not one.done.done()):
                    return False
            raise
        job.vectors = np.zeros(shape, dtype=np.float32)
        return True

    def _pause(self, pieces: list[_PassText], share: float) -> None:
        """Between tiles: ends cancelled calls, checks the memory, reports progress."""
        now = time.monotonic()
        with self._changed:
            closing, everybody = self._closing, tuple(self._jobs)
        for job in everybody:
            job.end_early(now)
        waiting = [job for job in _jobs_of(pieces) if not job.done.done()]
        if closing or not waiting:
            raise _AbandonedError
        self._parts.monitor.check()
        for job in waiting:
            in_pass = job.begun - job.finished
            job.report((job.finished + share * in_pass) / job.count)

    def _drop_ended(self) -> None:
        with self._changed:
            ended = [job for job in self._jobs if job.done.done()]
            self._jobs = deque(job for job in self._jobs if not job.done.done())
        for job in ended:
            job.release()

    def _fail_all(self, error: BaseException) -> None:
        with self._changed:
            jobs, self._jobs = tuple(self._jobs), deque()
        for job in jobs:
            job.fail(error)


def _jobs_of(pieces: list[_PassText]) -> tuple[EmbedCall, ...]:
    return tuple(dict.fromkeys(piece.job for piece in pieces))


Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderParts:
    """What an embedder is made of: opened, with its memory reserved."""

    plan: EmbedPlan
    encoder: Encoder
    monitor: Monitor
    tokenizer: TextTokenizer | None  # None: only `embed_tokens` works
    vocabulary: int  # rows of the token table
    keys: Mapping[str, object]  # of the file
    normalize: bool
    truncate: bool
    limits: Limits
    rows: Floats  # a vector for each text of the largest pass
    held: ExitStack = field(repr=False)  # closes the file and releases the buffers


class Embedder(Closeable):
    """Returned by `open_embedder`. Close it, or use it in a `with` statement."""

    def __init__(self, ready: EmbedderParts) -> None:
        self._ready = ready
        self.plan = ready.plan  # the memory it uses, decided before the first weight was read
        self.monitor = ready.monitor  # the memory that is reserved, and its limits
        self.label = ready.plan.label
        self.dimensions = ready.plan.dimensions  # floats in a vector
        self._passes = Passes(ready)

    def prefix(self, task: str) -> str:
        """The model's prefix for a 'query' or a 'document'. Raises UsageError if it is unknown."""
        prefixes = prefixes_of(self._ready.keys)
        found = {"query": prefixes.query, "document": prefixes.document}.get(task)
        if found is None:
            raise UsageError(f"a prefix is for a query or a document, not {task[:40]!r}")
        return found

    def embed(
        self,
        texts: str | Iterable[str],
        *,
        prefix: str = "",
        deadline_s: float | None = None,
        cancel: threading.Event | None = None,
        progress: Progress | None = None,
    ) -> Floats:
        """One row for each text, scaled to length 1 unless `normalize` is False; a single str is one text.

        Raises TextError for a text that cannot be embedded, MemoryPressureError before a memory limit is exceeded, and
        DeadlineError or CancelledError between two tiles. `progress` is called with the share done, in another thread.
        """
        count, tokens_of = self._texts(texts, prefix)
        return self._submit(count, tokens_of, deadline_s, progress, cancel).result()

    def embed_tokens(
        self,
        texts: Sequence[Sequence[int]],
        *,
        deadline_s: float | None = None,
        cancel: threading.Event | None = None,
        progress: Progress | None = None,
    ) -> Floats:
        """Like `embed`, for texts that are tokenized already: no special tokens are added."""
        texts = tuple(texts)
        most, vocabulary = self.plan.text_tokens, self._ready.vocabulary

        def tokens_of(index: int) -> Sequence[int]:
            tokens = texts[index]
            if len(tokens) == 0:
                raise TextError("it has no tokens", index=index)
            if len(tokens) > most:
                because = self.plan.text_tokens_because
                raise TextError(
                    f"{len(tokens):,} tokens; the limit is {most:,} ({because})", index=index
                )
            for token in cast("Sequence[object]", tokens):
                if not (isinstance(token, int | np.integer) and 0 <= token < vocabulary):
                    raise TextError(
                        f"{str(token)[:40]!r} is not a valid token (0 to {vocabulary - 1:,})",
                        index=index,
                    )
            return tokens

        return self._submit(len(texts), tokens_of, deadline_s, progress, cancel).result()

    async def aembed(
        self,
        texts: str | Iterable[str],
        *,
        prefix: str = "",
        deadline_s: float | None = None,
        progress: Progress | None = None,
    ) -> Floats:
        """`embed` for an event loop, which it never blocks. Cancelling the task stops the work too.

        `progress` is called in the loop; its exceptions go to the loop's handler.
        """
        count, tokens_of = self._texts(texts, prefix)
        import asyncio  # 3 MiB, which callers of this method have loaded already

        loop = asyncio.get_running_loop()

        def report(share: float) -> None:
            if loop.is_closed():
                raise CancelledError("cancelled, because its event loop is closed")
            if progress is not None:
                loop.call_soon_threadsafe(progress, share)

        job = self._submit(count, tokens_of, deadline_s, None if progress is None else report)
        try:
            return await asyncio.wrap_future(job.done)
        finally:
            job.cancel.set()  # no effect on a job that has ended

    def tokens(self, text: str, *, prefix: str = "") -> Sequence[int]:
        """The tokens that `embed` runs for this text, with special tokens. Raises TextError as `embed` does."""
        try:
            return self._tokens(text, 0, prefix)
        except TextError as error:
            raise TextError(error.what) from error

    def count_tokens(self, text: str, *, prefix: str = "") -> int:
        return len(self.tokens(text, prefix=prefix))

    def close(self) -> None:
        """Ends the calls that are still waiting and releases everything. Idempotent."""
        self._passes.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        import asyncio

        await asyncio.to_thread(self.close)

    def _submit(
        self,
        count: int,
        tokens_of: Callable[[int], Sequence[int]],
        deadline_s: float | None,
        progress: Progress | None,
        cancel: threading.Event | None = None,
    ) -> EmbedCall:
        is_number = isinstance(deadline_s, int | float) and not isinstance(deadline_s, bool)
        if deadline_s is not None and not (is_number and math.isfinite(deadline_s)):
            raise UsageError(
                f"the deadline must be a number of seconds (got {str(deadline_s)[:40]!r})"
            )
        job = EmbedCall(
            count=count,
            tokens_of=tokens_of,
            cancel=cancel or threading.Event(),
            ends_at=None if deadline_s is None else time.monotonic() + deadline_s,
            progress=progress,
        )
        if count:
            self._passes.submit(job)
        else:
            job.succeed(np.zeros((0, self.dimensions), dtype=np.float32))
        return job

    def _texts(
        self, texts: str | Iterable[str], prefix: str
    ) -> tuple[int, Callable[[int], Sequence[int]]]:
        """The number of texts, and a function that returns the tokens of one."""
        # A copy, because the caller may change its list during the call.
        copy = (texts,) if isinstance(texts, str) else tuple(texts)
        if not isinstance(prefix, str):
            raise UsageError(f"a prefix must be a string (got {str(prefix)[:40]!r})")
        return len(copy), lambda index: self._tokens(copy[index], index, prefix)

    def _tokens(self, text: object, index: int, prefix: str) -> Sequence[int]:
        ready = self._ready
        if not isinstance(text, str):
            raise TextError(f"it is of type {type(text).__name__}, not a string", index=index)
        if not text.strip():
            raise TextError("it is empty", index=index)
        most = ready.limits.text_bytes
        if len(text) > most and not ready.truncate:  # a character has at least one byte
            raise TextError(
                f"{len(text):,} characters; the limit is {most:,} (Limits.text_bytes)",
                index=index,
            )
        if ready.tokenizer is None:
            raise UsageError(
                "this embedder was opened without a tokenizer: only embed_tokens works"
            )
        try:
            return ready.tokenizer.encode(
                prefix + text[:most], limit_tokens=ready.plan.text_tokens, truncate=ready.truncate
            )
        except TextError as error:
            raise TextError(error.what, index=index) from error
