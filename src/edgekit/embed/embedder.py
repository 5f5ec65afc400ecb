"""The embedder: texts in, vectors out. One embedder serves any number of threads and tasks."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

import numpy as np

from edgekit.embed.passes import EmbedCall, Passes
from edgekit.embed.types import Encoder, prefixes_of
from edgekit.engines.native.encoder import scale_row
from edgekit.engines.native.file import Closeable, Limits
from edgekit.engines.native.kernels.types import Floats
from edgekit.errors import CancelledError, TextError, UsageError
from edgekit.units import format_bytes

if TYPE_CHECKING:
    from edgekit.embed.types import EmbedPlan
    from edgekit.engines.native.tokenizer.text import TextTokenizer
    from edgekit.machine.monitor import Monitor, Reservation

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
        self._passes = Passes(
            ready.encoder,
            rows=ready.rows,
            pass_tokens=ready.plan.pass_tokens,
            check=ready.monitor.check,
            finish=self._finish,
            ended=self._release,
        )

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

    def _release(self) -> None:
        self._ready.encoder.close()
        self._ready.held.close()

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
        held: list[Reservation] = []

        def allocate() -> Floats:
            size_bytes = count * self.dimensions * 4
            what = f"{count:,} vectors ({format_bytes(size_bytes)})"
            held.append(self.monitor.try_allocate(size_bytes, what))
            return np.zeros((count, self.dimensions), dtype=np.float32)

        def release() -> None:
            for reserved in held:
                reserved.release()

        job = EmbedCall(
            count=count,
            tokens_of=tokens_of,
            allocate=allocate,
            cancel=cancel or threading.Event(),
            ends_at=None if deadline_s is None else time.monotonic() + deadline_s,
            progress=progress,
            release=release,
        )
        if count:
            self._passes.submit(job)
        else:
            job.succeed(allocate())
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

    def _finish(self, row: Floats, into: Floats) -> None:
        into[:] = row[: len(into)]
        scale_row(into, normalize=self._ready.normalize)
