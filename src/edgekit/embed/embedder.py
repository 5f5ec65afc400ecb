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
    """One call of `embed`: its texts, its vectors, how far it is, and what may end it early."""

    count: int
    tokens_of: Callable[[int], Sequence[int]]  # of the text with this index; raises TextError
    cancel: threading.Event
    ends_at: float | None = None  # the deadline, by time.monotonic()
    progress: Callable[[float], None] | None = None
    done: Future[Floats] = field(default_factory=Future)
    vectors: Floats | None = None  # None: not allocated yet
    reserved: Reservation | None = None  # memory for the vectors, until the call ends
    begun: int = 0  # texts that are in a pass or finished
    finished: int = 0
    next_tokens: Sequence[int] | None = None  # of a text that was too long for the last pass

    def result(self) -> Floats:
        """Waits for the vectors."""
        try:
            return self.done.result()
        except BaseException:
            self.done.cancel()  # on Ctrl-C the pass ends at its next tile
            raise

    def fail(self, error: BaseException) -> None:
        """Ends the call with this error, unless it has ended already."""
        with suppress(InvalidStateError):  # the caller has cancelled it
            self.done.set_exception(error)
        self.release()

    def succeed(self, vectors: Floats) -> None:
        with suppress(InvalidStateError):
            self.done.set_result(vectors)
        self.release()

    def release(self) -> None:
        """Frees the memory that is reserved for the vectors. Idempotent."""
        if self.reserved is not None:
            self.reserved.release()

    def end_early(self, now: float) -> bool:
        """Ends the call if it was cancelled or its deadline has passed. True if it has ended, for any reason."""
        if self.done.done():
            return True
        if self.cancel.is_set():
            self.fail(CancelledError("cancelled"))
        elif self.ends_at is not None and now > self.ends_at:
            self.fail(DeadlineError("not finished in time"))
        return self.done.done()

    def report(self, share: float) -> None:
        """Calls `progress`. An exception from it ends this call."""
        if self.progress is not None and not self.done.done():
            try:
                self.progress(share)
            except BaseException as error:  # noqa: BLE001 - it goes back to the caller
                self.fail(error)


class _PassText(NamedTuple):
    """A text of the pass that runs now."""

    call: EmbedCall
    number: int  # its index in the call
    tokens: Sequence[int]


class _AbandonedError(Exception):
    """Stops a pass for which no call waits any more."""


class Passes:
    """One thread that runs the encoder, and the queue of calls."""

    def __init__(self, parts: EmbedderParts) -> None:
        self._parts = parts
        self._process = os.getpid()
        self._calls: deque[EmbedCall] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def submit(self, call: EmbedCall) -> None:
        """Queues a call. Raises UsageError for a call that would wait forever."""
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
            self._calls.append(call)
            self._changed.notify()

    def close(self) -> None:
        """Ends all calls, then waits for the thread to end (unless it runs in that thread itself)."""
        if os.getpid() != self._process:
            return  # the threads belong to the parent process
        with self._changed:
            is_first_close = not self._closing
            self._closing = True
            self._changed.notify()
        if self._thread is None:
            if is_first_close:
                self._end()
        elif self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._calls)
                if self._closing:
                    break
            self._run_pass()  # a separate function: its vectors are freed before the next wait
        self._end()

    def _end(self) -> None:
        """Fails the remaining calls and closes the encoder and the file."""
        self._fail_all(CancelledError("the embedder was closed"))
        self._parts.encoder.close()
        self._parts.resources.close()

    def _run_pass(self) -> None:
        """Embeds the next texts of the queue."""
        try:
            texts = self._gather()
            self._drop_ended()
            while texts and not self._encode(texts):
                texts = [text for text in texts if not text.call.done.done()]
        except _AbandonedError:
            pass
        except BaseException as error:  # noqa: BLE001 - no caller may wait forever
            self._fail_all(error)
        self._drop_ended()

    def _encode(self, texts: list[_PassText]) -> bool:
        """Fills in the vectors of these texts.

        Returns False after a bad text: its call has failed, and the other texts must be run again.
        """
        rows = self._parts.rows[: len(texts)]
        try:
            self._parts.encoder.encode(
                [text.tokens for text in texts], rows, lambda share: self._checkpoint(texts, share)
            )
        except TextError as error:
            bad = texts[error.index or 0]
            bad.call.fail(TextError(error.what, index=bad.number))
            return False
        except EdgekitError as error:
            for call in _calls_of(texts):
                call.fail(error)
        else:
            for row, text in zip(rows, texts, strict=True):
                if text.call.vectors is not None:
                    vector = text.call.vectors[text.number]
                    vector[:] = row[: len(vector)]
                    try:
                        scale_row(vector, normalize=self._parts.normalize)
                    except EdgekitError as error:
                        text.call.fail(error)
                text.call.finished += 1
            for call in _calls_of(texts):
                call.report(call.finished / call.count)
                is_finished = call.finished == call.count and not call.done.done()
                if is_finished and call.vectors is not None:
                    call.succeed(call.vectors)
        return True

    def _gather(self) -> list[_PassText]:
        """Collects the texts of a pass: one from each call in turn, while their tokens fit.

        The next pass starts with another call, so that no call waits long.
        """
        with self._changed:
            turns = deque(self._calls)
            self._calls.rotate(-1)
        texts: list[_PassText] = []
        left_tokens = self._parts.plan.pass_tokens
        while turns and len(texts) < len(self._parts.rows):
            call = turns.popleft()
            tokens = self._next_tokens(call)
            if tokens is None:
                continue
            if len(tokens) > left_tokens:
                call.next_tokens = tokens  # for a later pass
                continue
            texts.append(_PassText(call, call.begun, tokens))
            call.next_tokens = None
            call.begun += 1
            left_tokens -= len(tokens)
            turns.append(call)
        return texts

    def _next_tokens(self, call: EmbedCall) -> Sequence[int] | None:
        """The tokens of the call's next text. Before the first one, the memory for the call's vectors is allocated.

        None if the call has no text left, has ended, or must wait until another call frees memory.
        """
        if call.begun == call.count or call.end_early(time.monotonic()):
            return None
        try:
            if not self._allocate_vectors(call):
                return None
            return call.tokens_of(call.begun) if call.next_tokens is None else call.next_tokens
        except Exception as error:  # noqa: BLE001 - other calls go on
            call.fail(error)
            return None

    def _allocate_vectors(self, call: EmbedCall) -> bool:
        """Allocates the call's vectors. False if another call must free memory first."""
        if call.vectors is not None:
            return True
        shape = (call.count, self._parts.plan.dimensions)
        size_bytes = math.prod(shape) * 4
        what = f"{call.count:,} vectors ({format_bytes(size_bytes)})"
        try:
            call.reserved = self._parts.monitor.try_allocate(size_bytes, what)
        except MemoryPressureError:
            with self._changed:
                if any(other.vectors is not None for other in self._calls if not other.done.done()):
                    return False
            raise
        call.vectors = np.zeros(shape, dtype=np.float32)
        return True

    def _checkpoint(self, texts: list[_PassText], share: float) -> None:
        """Runs between tiles: ends cancelled calls, checks the memory and reports progress."""
        now = time.monotonic()
        with self._changed:
            is_closing, calls = self._closing, tuple(self._calls)
        for call in calls:
            call.end_early(now)
        running = [call for call in _calls_of(texts) if not call.done.done()]
        if is_closing or not running:
            raise _AbandonedError
        self._parts.monitor.check()
        for call in running:
            in_pass = call.begun - call.finished
            call.report((call.finished + share * in_pass) / call.count)

    def _drop_ended(self) -> None:
        """Removes calls that have ended from the queue and frees their memory."""
        with self._changed:
            ended = [call for call in self._calls if call.done.done()]
            self._calls = deque(call for call in self._calls if not call.done.done())
        for call in ended:
            call.release()

    def _fail_all(self, error: BaseException) -> None:
        with self._changed:
            calls, self._calls = tuple(self._calls), deque()
        for call in calls:
            call.fail(error)


def _calls_of(texts: list[_PassText]) -> tuple[EmbedCall, ...]:
    return tuple(dict.fromkeys(text.call for text in texts))


Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderParts:
    """What an embedder consists of, with the file open and its memory reserved."""

    plan: EmbedPlan
    encoder: Encoder
    monitor: Monitor
    tokenizer: TextTokenizer | None  # None: only `embed_tokens` works
    vocabulary: int  # rows of the token table
    keys: Mapping[str, object]  # metadata of the file
    normalize: bool
    truncate: bool
    limits: Limits
    rows: Floats  # the encoder's output: a row for each text of a full pass
    resources: ExitStack = field(repr=False)  # closes the file and releases the buffers


class Embedder(Closeable):
    """Returned by `open_embedder`. Close it, or use it in a `with` statement."""

    def __init__(self, parts: EmbedderParts) -> None:
        self._parts = parts
        self.plan = parts.plan  # the memory it uses, decided before the first weight was read
        self.monitor = parts.monitor  # the memory that is reserved, and its limits
        self.label = parts.plan.label
        self.dimensions = parts.plan.dimensions  # floats in a vector
        self._passes = Passes(parts)

    def prefix(self, task: str) -> str:
        """The model's prefix for a 'query' or a 'document'. Raises UsageError if it is unknown."""
        prefixes = prefixes_of(self._parts.keys)
        prefix = {"query": prefixes.query, "document": prefixes.document}.get(task)
        if prefix is None:
            raise UsageError(f"a prefix is for a query or a document, not {task[:40]!r}")
        return prefix

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
        limit_tokens, vocabulary = self.plan.text_tokens, self._parts.vocabulary

        def tokens_of(index: int) -> Sequence[int]:
            tokens = texts[index]
            if len(tokens) == 0:
                raise TextError("it has no tokens", index=index)
            if len(tokens) > limit_tokens:
                because = self.plan.text_tokens_because
                raise TextError(
                    f"{len(tokens):,} tokens; the limit is {limit_tokens:,} ({because})",
                    index=index,
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

        call = self._submit(count, tokens_of, deadline_s, None if progress is None else report)
        try:
            return await asyncio.wrap_future(call.done)
        finally:
            call.cancel.set()  # no effect on a call that has ended

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
        """Queues a call. A call without texts succeeds at once."""
        is_number = isinstance(deadline_s, int | float) and not isinstance(deadline_s, bool)
        if deadline_s is not None and not (is_number and math.isfinite(deadline_s)):
            raise UsageError(
                f"the deadline must be a number of seconds (got {str(deadline_s)[:40]!r})"
            )
        call = EmbedCall(
            count=count,
            tokens_of=tokens_of,
            cancel=cancel or threading.Event(),
            ends_at=None if deadline_s is None else time.monotonic() + deadline_s,
            progress=progress,
        )
        if count:
            self._passes.submit(call)
        else:
            call.succeed(np.zeros((0, self.dimensions), dtype=np.float32))
        return call

    def _texts(
        self, texts: str | Iterable[str], prefix: str
    ) -> tuple[int, Callable[[int], Sequence[int]]]:
        """The number of texts, and a function from the index of a text to its tokens."""
        # A copy, because the caller may change its list during the call.
        copy = (texts,) if isinstance(texts, str) else tuple(texts)
        if not isinstance(prefix, str):
            raise UsageError(f"a prefix must be a string (got {str(prefix)[:40]!r})")
        return len(copy), lambda index: self._tokens(copy[index], index, prefix)

    def _tokens(self, text: object, index: int, prefix: str) -> Sequence[int]:
        """The tokens of one text with its prefix. Raises TextError, with `index`, if it cannot be embedded."""
        parts = self._parts
        if not isinstance(text, str):
            raise TextError(f"it is of type {type(text).__name__}, not a string", index=index)
        if not text.strip():
            raise TextError("it is empty", index=index)
        limit_bytes = parts.limits.text_bytes
        if len(text) > limit_bytes and not parts.truncate:  # a character has at least one byte
            raise TextError(
                f"{len(text):,} characters; the limit is {limit_bytes:,} (Limits.text_bytes)",
                index=index,
            )
        if parts.tokenizer is None:
            raise UsageError(
                "this embedder was opened without a tokenizer: only embed_tokens works"
            )
        try:
            return parts.tokenizer.encode(
                prefix + text[:limit_bytes],
                limit_tokens=parts.plan.text_tokens,
                truncate=parts.truncate,
            )
        except TextError as error:
            raise TextError(error.what, index=index) from error
