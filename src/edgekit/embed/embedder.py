"""A GGUF file and a memory budget -> vectors of texts. One embedder serves any number of threads and tasks."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from edgekit.embed.passes import EmbedCall, Passes
from edgekit.engines.native.encoder import scale_row
from edgekit.engines.native.types import Encoder, Floats, Limits
from edgekit.errors import CancelledError, TextError, UsageError
from edgekit.units import format_bytes

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from edgekit.embed.types import EmbedPlan, Prefixes
    from edgekit.engines.native.tokenizer.text import TextTokenizer
    from edgekit.machine.monitor import Monitor, Reservation

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderParts:
    """All that an embedder is made of, opened and paid for."""

    plan: EmbedPlan
    encoder: Encoder
    monitor: Monitor
    tokenizer: Callable[[], TextTokenizer]  # UsageError where it was opened without one
    vocabulary: int  # rows of the token table
    prefixes: Callable[[], Prefixes]
    normalize: bool
    truncate: bool
    limits: Limits
    rows: Floats  # a vector for each text of the largest pass
    held: ExitStack = field(repr=False)  # the file, the buffers


class Embedder:
    """Made by `open_embedder`. Close it, or use it in a `with`."""

    def __init__(self, ready: EmbedderParts) -> None:
        self._ready = ready
        self._passes = Passes(
            ready.encoder,
            rows=ready.rows,
            pass_tokens=ready.plan.pass_tokens,
            check=ready.monitor.check,
            finish=self._finish,
            ended=self._ended,
        )

    @property
    def label(self) -> str:
        return self._ready.plan.label

    @property
    def dimensions(self) -> int:
        """Floats in a vector."""
        return self._ready.plan.dimensions

    @property
    def plan(self) -> EmbedPlan:
        """What is held, line by line, settled before the first weight was read."""
        return self._ready.plan

    @property
    def monitor(self) -> Monitor:
        """What is reserved, and what limits it."""
        return self._ready.monitor

    def prefix(self, task: str) -> str:
        """What the model was trained to see before a 'query' or a 'document'; UsageError where that is unknown."""
        prefixes = self._ready.prefixes()
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
        """One row for each text, scaled to length 1 unless asked otherwise; a lone str is one text.

        TextError names the text that cannot be embedded, DeadlineError and CancelledError end the call between two
        tiles, MemoryPressureError says what would be broken. `progress` is told the share that is done, from another
        thread.
        """
        texts, prefix = _checked(texts), _checked_prefix(prefix)
        return self._wait(
            self._job(
                len(texts),
                lambda index: self._tokens(texts, index, prefix),
                deadline_s=deadline_s,
                cancel=cancel,
                progress=progress,
            )
        )

    def embed_tokens(
        self,
        texts: Sequence[Sequence[int]],
        *,
        deadline_s: float | None = None,
        cancel: threading.Event | None = None,
        progress: Progress | None = None,
    ) -> Floats:
        """Like `embed`, of texts that somebody else has cut: nothing is added to their tokens."""
        texts = tuple(texts)
        return self._wait(
            self._job(
                len(texts),
                lambda index: self._counted(texts[index], index),
                deadline_s=deadline_s,
                cancel=cancel,
                progress=progress,
            )
        )

    async def aembed(
        self,
        texts: str | Iterable[str],
        *,
        prefix: str = "",
        deadline_s: float | None = None,
        progress: Progress | None = None,
    ) -> Floats:
        """`embed` for an event loop, which it never holds: a task that is cancelled stops the work too.

        `progress` is called in the loop, and what it raises is the loop's.
        """
        texts, prefix = _checked(texts), _checked_prefix(prefix)
        import asyncio  # 3 MiB, for callers that have it already

        loop = asyncio.get_running_loop()
        job = self._job(
            len(texts),
            lambda index: self._tokens(texts, index, prefix),
            deadline_s=deadline_s,
            cancel=None,
            progress=None if progress is None else lambda share: _in_loop(loop, progress, share),
        )
        if not job.count:
            return job.allocate()
        self._passes.submit(job)
        try:
            return await asyncio.wrap_future(job.done)
        finally:
            job.cancel.set()  # a job that has ended does not mind

    def tokens(self, text: str, *, prefix: str = "") -> Sequence[int]:
        """What `embed` runs for this text, special tokens included; TextError as it would raise."""
        try:
            return self._tokens([text], 0, prefix)
        except TextError as error:
            raise TextError(error.what) from error

    def count_tokens(self, text: str, *, prefix: str = "") -> int:
        return len(self.tokens(text, prefix=prefix))

    def close(self) -> None:
        """Ends the calls that are still waiting, and gives everything back. Twice is as good as once."""
        self._passes.close()

    def _ended(self) -> None:
        self._ready.encoder.close()
        self._ready.held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

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

    def _job(
        self,
        count: int,
        tokens_of: Callable[[int], Sequence[int]],
        *,
        deadline_s: float | None,
        cancel: threading.Event | None,
        progress: Progress | None,
    ) -> EmbedCall:
        if deadline_s is not None and not (_is_number(deadline_s) and math.isfinite(deadline_s)):
            raise UsageError(
                f"the deadline must be a number of seconds (got {str(deadline_s)[:40]!r})"
            )
        held: list[Reservation] = []

        def allocate() -> Floats:
            size_bytes = count * self.dimensions * 4
            what = f"{count:,} vectors ({format_bytes(size_bytes)})"
            held.append(self._ready.monitor.try_allocate(size_bytes, what))
            return np.zeros((count, self.dimensions), dtype=np.float32)

        def release() -> None:
            for reserved in held:
                reserved.release()

        return EmbedCall(
            count=count,
            tokens_of=tokens_of,
            allocate=allocate,
            cancel=cancel or threading.Event(),
            ends_at=None if deadline_s is None else time.monotonic() + deadline_s,
            progress=progress,
            release=release,
        )

    def _wait(self, job: EmbedCall) -> Floats:
        if not job.count:
            return job.allocate()
        self._passes.submit(job)
        try:
            return job.done.result()
        except BaseException:
            job.done.cancel()  # Ctrl-C while waiting: the pass ends at its next tile
            raise

    def _tokens(self, texts: Sequence[str], index: int, prefix: str) -> Sequence[int]:
        ready, text = self._ready, texts[index]
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
        try:
            return ready.tokenizer().encode(
                prefix + text[:most], limit_tokens=ready.plan.text_tokens, truncate=ready.truncate
            )
        except TextError as error:
            raise TextError(error.what, index=index) from error

    def _counted(self, tokens: Sequence[int], index: int) -> Sequence[int]:
        most = self._ready.plan.text_tokens
        if len(tokens) == 0:
            raise TextError("it has no tokens", index=index)
        if len(tokens) > most:
            raise TextError(
                f"{len(tokens):,} tokens; the limit is {most:,} "
                f"({self._ready.plan.text_tokens_because})",
                index=index,
            )
        count = self._ready.vocabulary
        for token in tokens:
            if not (_is_whole(token) and 0 <= token < count):
                raise TextError(
                    f"{str(token)[:40]!r} is not a valid token (0 to {count - 1:,})", index=index
                )
        return tokens

    def _finish(self, row: Floats, into: Floats) -> None:
        into[:] = row[: len(into)]
        scale_row(into, normalize=self._ready.normalize)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(token: object) -> bool:
    return isinstance(token, int | np.integer)


def _checked_prefix(prefix: object) -> str:
    if not isinstance(prefix, str):
        raise UsageError(f"a prefix must be a string (got {str(prefix)[:40]!r})")
    return prefix


def _checked(texts: str | Iterable[str]) -> Sequence[str]:
    """A copy: the caller's list may change while it waits."""
    return (texts,) if isinstance(texts, str) else tuple(texts)


def _in_loop(loop: AbstractEventLoop, progress: Progress, share: float) -> None:
    if loop.is_closed():
        raise CancelledError("cancelled, because its event loop is closed")
    loop.call_soon_threadsafe(progress, share)
