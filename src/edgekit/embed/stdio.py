"""Lines of JSON on standard input -> lines of JSON on standard output, for programs in any language.

docs/embed.md has the protocol. Requests share passes; each can be called off or given a deadline. What is in
flight is bounded: who does not read the answers is not read from either.
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
from itertools import chain
from typing import TYPE_CHECKING, Any

from edgekit.embed.bulk.rows import row_bytes_for
from edgekit.engines.native.types import Floats
from edgekit.errors import (
    CancelledError,
    DeadlineError,
    EdgekitError,
    OutputError,
    TextError,
    UsageError,
)
from edgekit.units import MB

if TYPE_CHECKING:
    from edgekit.embed.embedder import Embedder


PROTOCOL = 1
MOST_LINE_BYTES = 8 * MB  # a request: as much as a row of a bulk job
IN_FLIGHT = 64  # requests that are read and not yet answered
MOST_TEXTS = 4096
ID_CHARACTERS = 200
FLOAT, BASE64 = "float", "base64"
TERMINATED = 128 + 15  # SIGTERM, as shells count
INTERRUPTED = 128 + 2

_FIELDS = frozenset({"id", "texts", "prefix", "deadline_ms", "encoding"})
_PIECE_BYTES = 64 * 1024
_LAST_ANSWERS_S = 0.5  # after a signal: for those who are still waiting
_DAY_MS = 86_400_000
_FLOAT_WIDTH = "U16"  # -1.1754944e-38 has 14 characters

Id = str | int
Answer = Iterable[bytes]  # a line, piece by piece: made by the thread that writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class StdioRequest:
    id: Id
    texts: tuple[str, ...]
    prefix: str | None
    ends_at: float | None  # time.monotonic()
    encoding: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    id: Id


@dataclass(frozen=True, slots=True, kw_only=True)
class LineLimits:
    """What is read and not yet answered, by the embedder's budget."""

    line_bytes: int  # of one request
    texts: int  # of one request
    held_bytes: int  # lines of all that are in flight
    held_texts: int


def line_bytes_within(budget_bytes: int) -> int:
    """The longest line that a budget allows."""
    return min(row_bytes_for(budget_bytes), MOST_LINE_BYTES)


def limits_within(budget_bytes: int, dimensions: int) -> LineLimits:
    """The vectors of a request are at most half as large as its line may be."""
    line_bytes = line_bytes_within(budget_bytes)
    texts = max(line_bytes // 2 // (4 * dimensions), 1)
    return LineLimits(
        line_bytes=line_bytes,
        texts=min(texts, MOST_TEXTS),
        held_bytes=2 * line_bytes,
        held_texts=2 * texts,
    )


class RequestError(UsageError):
    """A line that is no request; `id` where it had one."""

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
    """Answers until the input ends: 0. SIGTERM and Ctrl-C call off what runs: 143 and 130.

    `prefix` is for requests that name none; `ready` is told in the first line beside the limits. The descriptors belong
    to the protocol: what any library prints meanwhile goes to standard error. Ends with 0 when nobody reads the answers
    any more; OutputError when they cannot be written.
    """
    server = _Server(embedder, prefix, dict(ready or {}))
    if target != 1:
        return asyncio.run(server.run(source, target))
    own = os.dup(1)
    os.dup2(2, 1)
    return asyncio.run(server.run(source, own))


class _Server:
    """One loop; a thread that reads and one that writes, so that neither can hold it up."""

    def __init__(self, embedder: Embedder, prefix: str, ready: dict[str, Any]) -> None:
        self._embedder, self._prefix, self._ready = embedder, prefix, ready
        self._running: dict[Id, asyncio.Task[None]] = {}  # what can still be called off
        self._answering: set[asyncio.Task[None]] = set()
        self._held: list[StdioRequest] = []  # read, and not yet answered in full
        self._room = asyncio.Condition()
        self._limits = limits_within(embedder.plan.budget_bytes, embedder.dimensions)

    async def run(self, source: int, target: int) -> int:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()
        self._writer = _Writer(target, loop, lambda: _settle(ended, 0))
        _on_signals(loop, lambda code: _settle(ended, code))
        reading = asyncio.create_task(self._read(source, loop))
        reading.add_done_callback(lambda _: _settle(ended, 0))
        code = await ended
        if reading.done() and not reading.cancelled():
            reading.result()
        await self._call_off(reading)
        if self._writer.fault is not None:
            raise OutputError(f"cannot write to standard output: {self._writer.fault.strerror}")
        return code

    def _first_line(self) -> bytes:
        return _line(
            {
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
        )

    async def _read(self, source: int, loop: asyncio.AbstractEventLoop) -> None:
        """Says hello; then until the input ends and everything is answered."""
        await self._writer.write([self._first_line()])
        lines = _LineReader(source, loop, self._limits.line_bytes)
        while (line := await lines.next()) is not None:
            try:
                asked = read_line(line, most_texts=self._limits.texts)
                del line  # not held beside its texts
                await self._take(asked)
            except RequestError as error:
                await self._writer.write([_error_line(error.id, error)])
        while self._answering:
            await asyncio.wait(self._answering)

    async def _take(self, asked: StdioRequest | Cancel | None) -> None:
        if asked is None:
            return
        if isinstance(asked, Cancel):
            if (running := self._running.get(asked.id)) is not None:
                running.cancel()
            return  # one that is answered already has nothing left to call off
        if asked.id in self._running:
            raise RequestError("a request with this id is still running", id=asked.id)
        async with self._room:
            await self._room.wait_for(lambda: self._has_room_for(asked))
        task = asyncio.create_task(self._answer(asked))
        self._running[asked.id] = task
        self._held.append(asked)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        await asyncio.sleep(0)  # it has begun, and will answer even if it is called off at once

    def _has_room_for(self, asked: StdioRequest) -> bool:
        held = [*self._held, asked]
        return len(held) == 1 or (
            len(held) <= IN_FLIGHT
            and sum(one.size_bytes for one in held) <= self._limits.held_bytes
            and sum(len(one.texts) for one in held) <= self._limits.held_texts
        )

    async def _answer(self, asked: StdioRequest) -> None:
        try:
            answer: Answer = _vector_line(asked, await self._vectors(asked))
        except asyncio.CancelledError:
            answer = [_error_line(asked.id, CancelledError("cancelled"))]
        except Exception as error:  # noqa: BLE001 - a fault of ours in one request must not cost the others theirs
            answer = [_error_line(asked.id, error)]
        del self._running[asked.id]
        try:
            await self._writer.write(answer)
        finally:
            self._held.remove(asked)
        async with self._room:
            self._room.notify_all()

    async def _vectors(self, asked: StdioRequest) -> Floats:
        left_s = None if asked.ends_at is None else asked.ends_at - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise DeadlineError("not finished in time")
        prefix = self._prefix if asked.prefix is None else asked.prefix
        return await self._embedder.aembed(asked.texts, prefix=prefix, deadline_s=left_s)

    async def _call_off(self, reading: asyncio.Task[None]) -> None:
        """Nothing new is read; who still waits is told, if they read quickly."""
        reading.cancel()
        for task in tuple(self._running.values()):
            task.cancel()
        if self._answering:
            await asyncio.wait(self._answering, timeout=_LAST_ANSWERS_S)


@dataclass(frozen=True, slots=True)
class _TooLong:
    """Stands for a line that was longer than the limit, of which nothing was kept."""

    limit_bytes: int


class _LineReader:
    """A thread that waits for input, and takes no more than one line ahead."""

    def __init__(self, source: int, loop: asyncio.AbstractEventLoop, line_bytes: int) -> None:
        self._lines: asyncio.Queue[bytes | _TooLong | None] = asyncio.Queue()
        self._wanted = threading.Semaphore(1)  # lines that may still be taken ahead
        words = (source, loop, line_bytes)
        threading.Thread(target=self._work, args=words, daemon=True).start()

    async def next(self) -> bytes | _TooLong | None:
        """None: the input has ended."""
        line = await self._lines.get()
        self._wanted.release()
        return line

    def _work(self, source: int, loop: asyncio.AbstractEventLoop, line_bytes: int) -> None:
        with suppress(RuntimeError):  # the loop has gone
            for line in chain(_bounded_lines(source, line_bytes), (None,)):
                self._wanted.acquire()
                loop.call_soon_threadsafe(self._lines.put_nowait, line)


def _bounded_lines(source: int, most: int) -> Iterator[bytes | _TooLong]:
    """A last line without its end counts too."""
    held = bytearray()
    too_long = False
    while piece := _read_piece(source):
        first, *more = piece.split(b"\n")
        for part, ends in ((first, bool(more)), *((one, True) for one in more[:-1])):
            too_long = too_long or len(held) + len(part) > most
            if too_long:
                held = bytearray()
            else:
                held += part
            if ends:
                yield _TooLong(most) if too_long else bytes(held)
                held, too_long = bytearray(), False
        if more:
            held += more[-1]
    if held or too_long:
        yield _TooLong(most) if too_long else bytes(held)


def _read_piece(source: int) -> bytes:
    try:
        return os.read(source, _PIECE_BYTES)
    except OSError:  # closed by whoever started us
        return b""


class _Writer:
    """A thread that writes, so that a reader who takes its time holds nobody but those who wait for it.

    When nobody reads any more, or nothing can be written (then `fault` says why), `lost` is called, and who waits for
    a write, or asks for one later, is cancelled.
    """

    def __init__(
        self, target: int, loop: asyncio.AbstractEventLoop, lost: Callable[[], None]
    ) -> None:
        self.fault: OSError | None = None
        self._target, self._loop, self._lost = target, loop, lost
        self._is_lost = False
        self._unwritten: set[asyncio.Future[None]] = set()
        self._waiting: queue.SimpleQueue[tuple[Answer, asyncio.Future[None]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()
        if sys.platform != "win32":
            threading.Thread(target=self._watch, daemon=True).start()

    async def write(self, answer: Answer) -> None:
        """Returns when the answer is with the system."""
        written: asyncio.Future[None] = self._loop.create_future()
        if self._is_lost:
            written.cancel()
        else:
            self._unwritten.add(written)
            written.add_done_callback(self._unwritten.discard)
            self._waiting.put((answer, written))
        await asyncio.shield(written)

    def _work(self) -> None:
        with suppress(RuntimeError):  # the loop has gone
            while True:
                answer, written = self._waiting.get()
                try:
                    self._write(answer)
                except OSError as error:
                    self._loop.call_soon_threadsafe(self._lose, error)
                    return
                self._loop.call_soon_threadsafe(_settle, written, None)

    def _watch(self) -> None:
        """Waits until the other end is closed, which an idle process would not notice by writing."""
        poll = select.poll()
        poll.register(self._target, 0)  # errors are told unasked
        seen = poll.poll()[0][1]
        if seen & (select.POLLERR | select.POLLHUP):
            with suppress(RuntimeError):  # the loop has gone
                self._loop.call_soon_threadsafe(self._lose, None)

    def _lose(self, error: OSError | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self.fault = None if isinstance(error, BrokenPipeError) else error
        self._lost()
        for written in tuple(self._unwritten):
            written.cancel()

    def _write(self, answer: Answer) -> None:
        for piece in answer:
            view = memoryview(piece)
            while view:
                view = view[os.write(self._target, view) :]


def read_line(line: bytes | _TooLong, *, most_texts: int) -> StdioRequest | Cancel | None:
    """What a line asks for; None for an empty one. RequestError says what is wrong with it."""
    if isinstance(line, _TooLong):
        raise RequestError(f"a line longer than {line.limit_bytes:,} bytes")
    if not line.strip():
        return None
    try:
        told = read_object(line)
    except NotJsonError as error:
        raise RequestError(str(error)) from error
    identity = _identity(told)
    try:
        if "cancel" in told:
            return _cancel(told, identity)
        return _request(told, identity, most_texts, len(line))
    except UsageError as error:
        raise RequestError(str(error), id=identity) from error


def _identity(told: Mapping[str, Any]) -> Id:
    found = told.get("id")
    if (
        isinstance(found, str)
        and 0 < len(found) <= ID_CHARACTERS
        and broken_character(found) is None
    ):
        return found
    if isinstance(found, int) and not isinstance(found, bool) and abs(found) < 2**53:
        return found  # whole in every language's JSON
    raise RequestError(
        f"a request needs an id: a string of up to {ID_CHARACTERS} characters, or a whole "
        "number below 2**53"
    )


def _cancel(told: Mapping[str, Any], identity: Id) -> Cancel:
    if told["cancel"] is not True or told.keys() != {"id", "cancel"}:
        raise UsageError('to cancel a request send {"id": ..., "cancel": true} and nothing else')
    return Cancel(id=identity)


def _request(
    told: Mapping[str, Any], identity: Id, most_texts: int, line_bytes: int
) -> StdioRequest:
    if unknown := sorted(told.keys() - _FIELDS):
        raise UsageError(
            f"unknown field {unknown[0][:40]!r}; choose from {', '.join(sorted(_FIELDS))}"
        )
    texts = _texts(told.get("texts"), most_texts)
    return StdioRequest(
        id=identity,
        texts=texts,
        prefix=_optional_text(told.get("prefix"), "prefix"),
        ends_at=_ends_at(told.get("deadline_ms")),
        encoding=_encoding(told.get("encoding", FLOAT)),
        size_bytes=max(line_bytes, sum(map(sys.getsizeof, texts))),  # one emoji: 4 bytes a letter
    )


def _texts(found: object, most: int) -> tuple[str, ...]:
    if not isinstance(found, list):
        raise UsageError(f"texts must be a list of strings, not {kind_of(found)}")
    if not 0 < len(found) <= most:
        raise UsageError(f"{len(found):,} texts; a request may have 1 to {most:,}")
    for index, text in enumerate(found):
        if not isinstance(text, str):
            raise UsageError(f"text {index} is {kind_of(text)}")
        _optional_text(text, f"text {index}")
    return tuple(found)


def _optional_text(found: object, what: str) -> str | None:
    if found is None:
        return None
    if not isinstance(found, str) or broken_character(found) is not None:
        raise UsageError(f"{what} is not a valid string")
    return found


def _ends_at(found: object) -> float | None:
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found <= _DAY_MS:
        raise UsageError("deadline_ms must be a number of milliseconds, up to one day")
    return time.monotonic() + found / 1000


def _encoding(found: object) -> str:
    if found not in (FLOAT, BASE64):
        raise UsageError(f"encoding must be {FLOAT!r} or {BASE64!r}")
    return str(found)


def _vector_line(asked: StdioRequest, vectors: Floats) -> Iterator[bytes]:
    """Vector by vector: the line of a large answer is never held whole."""
    encode = {FLOAT: _numbers, BASE64: _packed}[asked.encoding]
    yield f'{{"id":{json.dumps(asked.id)},"vectors":['.encode()
    for place, vector in enumerate(vectors):
        yield f"{',' if place else ''}{encode(vector)}".encode()
    yield b"]}\n"


def _numbers(vector: Floats) -> str:
    return f"[{','.join(vector.astype(_FLOAT_WIDTH).tolist())}]"


def _packed(vector: Floats) -> str:
    return f'"{base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()}"'


def _error_line(identity: Id | None, error: Exception) -> bytes:
    known = isinstance(error, EdgekitError)
    told: dict[str, Any] = {
        "type": type(error).__name__ if known else "InternalError",
        "message": str(error) if known else f"{type(error).__name__}: {error}"[:1000],
    }
    if isinstance(error, TextError) and error.index is not None:
        told["index"] = error.index
    return _line({"id": identity, "error": told})


def _line(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"


def _settle(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


def _on_signals(loop: asyncio.AbstractEventLoop, end: Callable[[int], None]) -> None:
    for number, code in ((signal.SIGTERM, TERMINATED), (signal.SIGINT, INTERRUPTED)):
        if sys.platform == "win32":
            signal.signal(number, lambda *_, code=code: loop.call_soon_threadsafe(end, code))
        else:
            loop.add_signal_handler(number, end, code)


# 8 MB of "[]," are 2.7 million lists. What a text itself has of these characters counts too, so the limits are
# those of a source file of 4 MB.
CONTAINERS = 200_000
VALUES = 1_000_000

_KINDS = {dict: "an object", list: "a list", bool: "true or false", type(None): "null"}


class NotJsonError(ValueError):
    """The message says why."""


def read_object(line: bytes) -> dict[str, Any]:
    for what, count, limit in (
        ("lists and objects", line.count(b"[") + line.count(b"{"), CONTAINERS),
        ("values", line.count(b","), VALUES),
    ):
        if count > limit:
            raise NotJsonError(f"up to {count:,} {what}; the limit is {limit:,}")
    text = decoded(line)
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise NotJsonError("not valid JSON: nested too deeply") from error
    except json.JSONDecodeError as error:
        raise NotJsonError(f"not valid JSON: {error}") from error
    except ValueError as error:  # a number of 5,000 digits
        raise NotJsonError(f"not valid JSON: {error}"[:300]) from error
    if not isinstance(found, dict):
        raise NotJsonError(f"expected an object with fields, found {kind_of(found)}")
    return found


def decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJsonError(f"not UTF-8 at byte {error.start:,} of the line") from error


def kind_of(value: object) -> str:
    return _KINDS.get(type(value), "a number" if isinstance(value, int | float) else "a string")


def broken_character(text: str) -> int | None:
    """Where a text has a lone half of a surrogate pair, which JSON can spell and which is no character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None
