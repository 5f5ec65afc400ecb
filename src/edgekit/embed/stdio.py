"""`edgekit embed --stdio`: JSON lines with requests on standard input, JSON lines with vectors on standard output.

docs/embed.md describes the protocol. Requests share passes; each can be cancelled or given a deadline. The work in
flight is bounded: no request is read while too many answers wait to be written.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from edgekit.embed.bulk.json_lines import (
    NotJsonError,
    broken_character,
    kind_of,
    read_object,
)
from edgekit.embed.bulk.output import number_texts, write_all
from edgekit.embed.bulk.rows import bounded_lines, row_bytes_for
from edgekit.engines.native.kernels.types import Floats
from edgekit.errors import (
    CancelledError,
    EdgekitError,
    OutputError,
    TextError,
    UsageError,
)

if TYPE_CHECKING:
    from edgekit.embed.embedder import Embedder


PROTOCOL = 1
IN_FLIGHT = 64  # requests that were read and are not answered yet
MOST_TEXTS = 4096
ID_CHARACTERS = 200
FLOAT, BASE64 = "float", "base64"
TERMINATED = 128 + 15  # exit code for SIGTERM, as in a shell
INTERRUPTED = 128 + 2

_FIELDS = frozenset({"id", "texts", "prefix", "deadline_ms", "encoding"})
_LAST_ANSWERS_S = 0.5  # after a signal, to answer the requests that still run
_DAY_MS = 86_400_000

Id = str | int
Answer = Iterable[bytes]  # a line in pieces, encoded by the thread that writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class StdioRequest:
    id: Id
    texts: tuple[str, ...]
    prefix: str | None
    ends_at: float | None  # the deadline, by time.monotonic()
    encoding: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    id: Id


@dataclass(frozen=True, slots=True, kw_only=True)
class LineLimits:
    """Limits on requests that were read and are not answered yet, from the embedder's budget."""

    line_bytes: int  # of one request
    texts: int  # of one request
    held_bytes: int  # of all requests in flight
    held_texts: int  # of all requests in flight


def limits_within(budget_bytes: int, dimensions: int) -> LineLimits:
    """A request may be as long as a row of a bulk job, and its vectors may take half of that."""
    line_bytes = row_bytes_for(budget_bytes)
    texts = max(line_bytes // 2 // (4 * dimensions), 1)
    return LineLimits(
        line_bytes=line_bytes,
        texts=min(texts, MOST_TEXTS),
        held_bytes=2 * line_bytes,
        held_texts=2 * texts,
    )


class RequestError(UsageError):
    """A line is not a valid request. `id` is the request's id if it has a valid one."""

    def __init__(self, message: str, *, id: Id | None = None) -> None:  # noqa: A002 - the protocol's word
        self.id = id
        super().__init__(message)


def serve(
    embedder: Embedder,
    *,
    prefix: str = "",
    ready: Mapping[str, Any] | None = None,
    source: int = 0,
    target: int = 1,
) -> int:
    """Answers requests until the input ends or nobody reads the answers any more. Returns the exit code.

    It is 0, or after SIGTERM 143 and after Ctrl-C 130: both cancel the requests that still run. `prefix` is for
    requests without one; `ready` is added to the first line. Standard output is only for the protocol: what libraries
    print meanwhile goes to standard error. Raises OutputError if answers cannot be written.
    """
    server = _Server(embedder, prefix, dict(ready or {}))
    if target == 1:
        target = os.dup(1)
        os.dup2(2, 1)
    return asyncio.run(server.run(source, target))


class _Server:
    """Reads and writes in two threads, so that neither blocks the event loop in which requests are answered."""

    def __init__(self, embedder: Embedder, prefix: str, ready: dict[str, Any]) -> None:
        self._embedder, self._prefix, self._ready = embedder, prefix, ready
        self._running: dict[Id, asyncio.Task[None]] = {}  # tasks that can still be cancelled
        # Those, and the ones that write their answer.
        self._answering: set[asyncio.Task[None]] = set()
        self._in_flight: list[StdioRequest] = []  # requests whose answer is not written in full
        self._capacity = asyncio.Condition()
        self._limits = limits_within(embedder.plan.budget_bytes, embedder.dimensions)

    async def run(self, source: int, target: int) -> int:
        """Serves until the input ends, the reader leaves or a signal comes. Returns the exit code."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()
        self._writer = _AnswerWriter(target, loop, lambda: _settle(ended, 0))
        for number, code in ((signal.SIGTERM, TERMINATED), (signal.SIGINT, INTERRUPTED)):
            stop = partial(_settle, ended, code)
            if sys.platform == "win32":
                signal.signal(number, lambda *_, stop=stop: loop.call_soon_threadsafe(stop))
            else:
                loop.add_signal_handler(number, stop)
        reading = asyncio.create_task(self._read(source, loop))
        reading.add_done_callback(lambda _: _settle(ended, 0))
        code = await ended
        if reading.done() and not reading.cancelled():
            reading.result()
        reading.cancel()
        for task in tuple(self._running.values()):
            task.cancel()
        if self._answering:
            await asyncio.wait(self._answering, timeout=_LAST_ANSWERS_S)
        if self._writer.fault is not None:
            raise OutputError(f"cannot write to standard output: {self._writer.fault.strerror}")
        return code

    async def _read(self, source: int, loop: asyncio.AbstractEventLoop) -> None:
        """Writes the first line, then reads until the input ends and everything is answered."""
        first_line = {
            "ready": True,
            "protocol": PROTOCOL,
            "model": self._embedder.label,
            "dimensions": self._embedder.dimensions,
            "limits": {
                "line_bytes": self._limits.line_bytes,
                "texts": self._limits.texts,
                "in_flight": IN_FLIGHT,
            },
            **self._ready,
        }
        await self._writer.write([_line(first_line)])
        lines: asyncio.Queue[bytes | RequestError | None] = asyncio.Queue()
        ahead = threading.Semaphore(1)  # lines that may still be read ahead

        def put(line: bytes | RequestError | None) -> None:
            ahead.acquire()
            loop.call_soon_threadsafe(lines.put_nowait, line)

        reader = partial(_read_lines, source, self._limits.line_bytes, put)
        threading.Thread(target=reader, daemon=True).start()
        while (line := await lines.get()) is not None:
            ahead.release()
            try:
                if isinstance(line, RequestError):
                    raise line
                request = read_line(line, most_texts=self._limits.texts)
                del line  # frees it before the texts are embedded
                if request is not None:
                    await self._take(request)
            except RequestError as error:
                await self._writer.write([_error_line(error.id, error)])
        while self._answering:
            await asyncio.wait(self._answering)

    async def _take(self, request: StdioRequest | Cancel) -> None:
        """Cancels a request, or waits until there is capacity for a new one and starts it."""
        if isinstance(request, Cancel):
            if (running := self._running.get(request.id)) is not None:
                running.cancel()
            return  # no effect on a request that is already answered
        if request.id in self._running:
            raise RequestError("a request with this id is still running", id=request.id)

        def has_capacity() -> bool:
            requests = [*self._in_flight, request]
            return len(requests) == 1 or (
                len(requests) <= IN_FLIGHT
                and sum(pending.size_bytes for pending in requests) <= self._limits.held_bytes
                and sum(len(pending.texts) for pending in requests) <= self._limits.held_texts
            )

        async with self._capacity:
            await self._capacity.wait_for(has_capacity)
        task = asyncio.create_task(self._answer(request))
        self._running[request.id] = task
        self._in_flight.append(request)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        # Starts the task, so that it answers even if it is cancelled at once.
        await asyncio.sleep(0)

    async def _answer(self, request: StdioRequest) -> None:
        """Writes the vectors of a request, or the error that prevented them."""
        try:
            left_s = None if request.ends_at is None else request.ends_at - time.monotonic()
            prefix = self._prefix if request.prefix is None else request.prefix
            vectors = await self._embedder.aembed(request.texts, prefix=prefix, deadline_s=left_s)
            answer: Answer = _vector_line(request, vectors)
        except asyncio.CancelledError:
            answer = [_error_line(request.id, CancelledError("cancelled"))]
        except Exception as error:  # noqa: BLE001 - a bug that one request triggers must not end the others
            answer = [_error_line(request.id, error)]
        del self._running[request.id]
        try:
            await self._writer.write(answer)
        finally:
            self._in_flight.remove(request)
        async with self._capacity:
            self._capacity.notify_all()


def _read_lines(
    source: int, line_bytes: int, put: Callable[[bytes | RequestError | None], None]
) -> None:
    """Calls `put` with every line, with an error instead of a line over the limit, and with None at the end."""
    with suppress(RuntimeError):  # the loop is closed
        with suppress(OSError), open(source, "rb", closefd=False) as file:
            # Not from position 0: a byte order mark is not part of the protocol.
            for line in bounded_lines(file, 1, line_bytes):
                if line.data is None:
                    put(RequestError(f"a line longer than {line_bytes:,} bytes"))
                else:
                    put(line.data.removesuffix(b"\n"))
        put(None)  # the input has ended, or the parent process has closed it


class _AnswerWriter:
    """A thread that writes, so that a slow reader delays only the requests whose answers it has not read.

    When the reader closes its end, or writing fails (then `fault` is set), the writer calls `on_lost` and cancels every
    pending and later `write`.
    """

    def __init__(
        self, target: int, loop: asyncio.AbstractEventLoop, on_lost: Callable[[], None]
    ) -> None:
        self.fault: OSError | None = None
        self._target, self._loop, self._on_lost = target, loop, on_lost
        self._is_lost = False
        self._unwritten: set[asyncio.Future[None]] = set()
        self._waiting: queue.SimpleQueue[tuple[Answer, asyncio.Future[None]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()
        if sys.platform != "win32":
            threading.Thread(target=self._watch, daemon=True).start()

    async def write(self, answer: Answer) -> None:
        """Returns when the answer was passed to the operating system."""
        written: asyncio.Future[None] = self._loop.create_future()
        if self._is_lost:
            written.cancel()
        else:
            self._unwritten.add(written)
            written.add_done_callback(self._unwritten.discard)
            self._waiting.put((answer, written))
        await asyncio.shield(written)

    def _work(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            while True:
                answer, written = self._waiting.get()
                try:
                    for piece in answer:
                        write_all(self._target, piece)
                except OSError as error:
                    self._loop.call_soon_threadsafe(self._stop, error)
                    return
                self._loop.call_soon_threadsafe(_settle, written, None)

    def _watch(self) -> None:
        """Waits until the reader closes its end, which a process that writes nothing would not notice."""
        poll = select.poll()
        poll.register(self._target, 0)  # errors are always reported
        events = poll.poll()[0][1]
        if events & (select.POLLERR | select.POLLHUP):
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._stop, None)

    def _stop(self, error: OSError | None) -> None:
        """Cancels every pending write, because no more answers can be written."""
        if self._is_lost:
            return
        self._is_lost = True
        self.fault = None if isinstance(error, BrokenPipeError) else error
        self._on_lost()
        for written in tuple(self._unwritten):
            written.cancel()


def read_line(line: bytes, *, most_texts: int) -> StdioRequest | Cancel | None:
    """The request in a line; None for a blank line. Raises RequestError."""
    if not line.strip():
        return None
    try:
        fields = read_object(line)
    except NotJsonError as error:
        raise RequestError(str(error)) from error
    identity: Any = fields.get("id")
    if isinstance(identity, str):
        is_valid = 0 < len(identity) <= ID_CHARACTERS and broken_character(identity) is None
    else:  # every JSON parser reads integers below 2**53 exactly
        is_valid = type(identity) is int and abs(identity) < 2**53
    if not is_valid:
        raise RequestError(
            f"a request needs an id: a string of up to {ID_CHARACTERS} characters, or a whole "
            "number below 2**53"
        )
    if "cancel" in fields:
        if fields["cancel"] is not True or fields.keys() != {"id", "cancel"}:
            raise RequestError(
                'to cancel a request send {"id": ..., "cancel": true} and nothing else', id=identity
            )
        return Cancel(id=identity)
    try:
        return _request(fields, most_texts, len(line))
    except UsageError as error:
        raise RequestError(str(error), id=identity) from error


def _request(fields: Mapping[str, Any], most_texts: int, line_bytes: int) -> StdioRequest:
    """The request with these fields, whose id is valid. Raises UsageError."""
    if unknown := sorted(fields.keys() - _FIELDS):
        raise UsageError(
            f"unknown field {unknown[0][:40]!r}; choose from {', '.join(sorted(_FIELDS))}"
        )
    texts = fields.get("texts")
    if not isinstance(texts, list):
        raise UsageError(f"texts must be a list of strings, not {kind_of(texts)}")
    if not 0 < len(texts) <= most_texts:
        raise UsageError(f"{len(texts):,} texts; a request may have 1 to {most_texts:,}")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(f"text {index} is {kind_of(text)}")
        if broken_character(text) is not None:
            raise UsageError(f"text {index} is not a valid string")
    prefix = fields.get("prefix")
    is_text = isinstance(prefix, str) and broken_character(prefix) is None
    if prefix is not None and not is_text:
        raise UsageError("prefix is not a valid string")
    limit_ms, ends_at = fields.get("deadline_ms"), None
    if limit_ms is not None:
        is_number = isinstance(limit_ms, int | float) and not isinstance(limit_ms, bool)
        if not is_number or not 0 < limit_ms <= _DAY_MS:
            raise UsageError("deadline_ms must be a number of milliseconds, up to one day")
        ends_at = time.monotonic() + limit_ms / 1000
    if (encoding := fields.get("encoding", FLOAT)) not in (FLOAT, BASE64):
        raise UsageError(f"encoding must be {FLOAT!r} or {BASE64!r}")
    return StdioRequest(
        id=fields["id"],
        texts=tuple(texts),
        prefix=prefix,
        ends_at=ends_at,
        encoding=encoding,
        # A text with an emoji takes 4 bytes per character.
        size_bytes=max(line_bytes, sum(map(sys.getsizeof, texts))),
    )


def _vector_line(request: StdioRequest, vectors: Floats) -> Iterator[bytes]:
    """The pieces of the answer's line, one for each vector, so that a long line is never in memory at once."""
    yield f'{{"id":{json.dumps(request.id)},"vectors":['.encode()
    for index, vector in enumerate(vectors):
        if request.encoding == FLOAT:
            encoded = f"[{','.join(number_texts(vector))}]"
        else:
            packed = vector.astype("<f4", copy=False).tobytes()
            encoded = f'"{base64.b64encode(packed).decode()}"'
        yield f"{',' if index else ''}{encoded}".encode()
    yield b"]}\n"


def _error_line(identity: Id | None, error: Exception) -> bytes:
    """The answer for a request that failed. An error that is not EdgeKit's own is an InternalError."""
    is_ours = isinstance(error, EdgekitError)
    fields: dict[str, Any] = {
        "type": type(error).__name__ if is_ours else "InternalError",
        "message": str(error) if is_ours else f"{type(error).__name__}: {error}"[:1000],
    }
    if isinstance(error, TextError) and error.index is not None:
        fields["index"] = error.index
    return _line({"id": identity, "error": fields})


def _line(fields: Mapping[str, Any]) -> bytes:
    """The fields as one line of JSON."""
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _settle(future: asyncio.Future[Any], value: object) -> None:
    """Sets the result, unless the future is already done."""
    if not future.done():
        future.set_result(value)
