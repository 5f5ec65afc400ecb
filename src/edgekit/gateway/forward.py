"""A request on its way to an engine and the response on its way back, chunk by chunk."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import TypeVar

import httpcore2
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from edgekit.gateway.checks import check_request
from edgekit.gateway.engine_http import GONE
from edgekit.gateway.errors import GatewayError, too_many, unavailable
from edgekit.gateway.json_body import read_object
from edgekit.gateway.metrics import Answered, Metrics
from edgekit.gateway.turns import ReadTurns
from edgekit.gateway.types import GatewaySettings, Models, Upstream
from edgekit.server.bodies import BodyProblem, read_body
from edgekit.server.requests import CLOSE, Header
from edgekit.units import MIB

THREAD_BYTES = (
    16 * 1024
)  # a body that takes milliseconds to parse or to check is worked on in a thread
LARGE_BYTES = 256 * 1024  # a body of which a few take much memory
MOST_PENDING_BYTES = 256 * 1024  # of a response, while its client does not read
READ_BYTES = MIB  # of text that an engine reads at once, if its window is small
READ_PIXELS = 64 * 2**20  # of images that an engine decodes at once, to 3 bytes each
MOST_BODIES = 8  # of the largest size, held at once
_SENT_HEADERS: tuple[Header, ...] = (
    (b"Content-Type", b"application/json"),
    (b"Accept-Encoding", b"identity"),
    CLOSE,
)
_PASSED_HEADERS = frozenset(
    {b"content-type", b"content-length", b"cache-control", b"retry-after", b"x-request-id"}
)
_FIRST_ERROR, _FIRST_SERVER_ERROR = 400, 500
_ERROR_BYTES = 64 * 1024  # an error that is longer is passed on as it is
_EVENTS = b"text/event-stream"
_UNBUFFERED: Header = (b"x-accel-buffering", b"no")  # nginx would collect events

Result = TypeVar("Result")

_log = logging.getLogger("edgekit.gateway")


class Forward:
    """The ASGI application for the endpoints of engines."""

    def __init__(
        self,
        settings: GatewaySettings,
        models: Models,
        metrics: Metrics,
        client: Callable[[], httpcore2.AsyncConnectionPool],
    ) -> None:
        self._settings, self._models = settings, models
        self._metrics, self._client = metrics, client
        self._held_bytes = 0  # of the bodies of all open requests
        self._one_large = asyncio.Lock()
        self._text: dict[str, ReadTurns] = {}  # by the engine's name of its model
        self._images: dict[str, ReadTurns] = {}  # apart, so that text does not wait for them

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises GatewayError before the response has begun."""
        path = scope["path"]
        if not self._models.answers(path):
            raise GatewayError(
                f"no endpoint {path[:80]!r} here; see /v1/models for the models and docs/run.md for the endpoints",
                status=404,
                code="unknown_url",
            )
        if scope["method"] != "POST":
            raise GatewayError("send a POST request", status=405, headers=((b"allow", b"POST"),))
        answered = Answered(self._metrics)
        async with self._body(scope, receive) as raw:
            answering = asyncio.create_task(self._answer(path, raw, send, answered))
            leaving = asyncio.create_task(_left(receive))
            try:
                await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    raise ClientDisconnect
                answering.result()
            finally:
                for task in (answering, leaving):
                    task.cancel()
                await asyncio.gather(answering, leaving, return_exceptions=True)
                answered.end()

    @asynccontextmanager
    async def _body(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """The body, which counts against the limit of all bodies until the end of the block."""
        settings, headers = self._settings, dict(scope["headers"])
        limit = settings.max_body_bytes
        size = headers.get(b"content-length", b"0")
        is_known = b"transfer-encoding" not in headers and len(size) <= len(str(limit))
        reserved = int(size) if is_known else limit
        if reserved < LARGE_BYTES:
            reserved = 0
        if self._held_bytes + reserved > MOST_BODIES * limit:
            raise too_many("too many large requests at once")
        self._held_bytes += reserved
        try:
            raw = await read_body(
                receive, headers, max_bytes=limit, timeout_s=settings.body_timeout_s
            )
            if raw is BodyProblem.TOO_LARGE:
                raise GatewayError(
                    f"the body is larger than {limit:,} bytes", status=413, headers=(CLOSE,)
                )
            if isinstance(raw, BodyProblem):
                raise GatewayError("the body took too long to arrive", status=408, headers=(CLOSE,))
            size_bytes = len(raw) if len(raw) >= LARGE_BYTES else 0
            self._held_bytes += size_bytes - reserved  # of a chunked body, the limit was reserved
            reserved = size_bytes
            yield raw
        finally:
            self._held_bytes -= reserved

    async def _answer(self, path: str, raw: bytes, send: Send, answered: Answered) -> None:
        body = await self._in_turn(len(raw), lambda: read_object(raw))
        name = body.get("model")
        if not isinstance(name, str | None):
            raise GatewayError("model: must be the name of a model", status=400, param="model")
        limits = self._models.limits(name or "")
        endpoint = limits.rules.endpoint(path)
        if endpoint is None:
            raise GatewayError(f"{name} has no {path}", status=404, code="unknown_url")
        if why := limits.rules.unserved.get(path):
            rows = self._models.listed()
            shown = rows[0].name if len(rows) == 1 else name  # one answers to any name
            raise GatewayError(f"{shown} {why}", status=400, param="model", code="wrong_model")
        images = await self._in_turn(len(raw), lambda: check_request(body, endpoint, limits))
        async with self._models.using(name or "") as upstream:
            # Written anew: what was checked is what the engine reads, even if a key occurs twice.
            body["model"] = upstream.model
            content = await self._in_turn(len(raw), lambda: json.dumps(body).encode())
            model, most_s = upstream.model, self._settings.read_timeout_s
            most_bytes = max(limits.most_bytes, READ_BYTES)
            with ExitStack() as reading:
                if images.pixels:
                    line = self._images.setdefault(model, ReadTurns(READ_PIXELS, most_s))
                    reading.callback((await line.take(images.pixels)).end)
                line = self._text.setdefault(model, ReadTurns(most_bytes, most_s))
                reading.callback((await line.take(len(content) - images.chars)).end)

                def on_chunk(chunk: bytes) -> None:
                    reading.close()
                    answered.add(chunk)

                await self._pass_on(upstream, endpoint.target, content, send, on_chunk)

    async def _in_turn(self, size_bytes: int, work: Callable[[], Result]) -> Result:
        """What the function returns. Unless the body is small it runs in a thread, so that other responses go on.

        For large bodies one runs at a time, because values take more memory than their text. If the client leaves, this
        still waits for the end of the thread: until then it holds the body.
        """
        if size_bytes < THREAD_BYTES:
            return work()
        if size_bytes < LARGE_BYTES:
            return await asyncio.to_thread(work)
        async with self._one_large:
            working = asyncio.ensure_future(asyncio.to_thread(work))
            try:
                return await asyncio.shield(working)
            finally:
                await asyncio.gather(working, return_exceptions=True)

    async def _pass_on(
        self,
        upstream: Upstream,
        path: str,
        content: bytes,
        send: Send,
        on_chunk: Callable[[bytes], None],
    ) -> None:
        headers: list[tuple[bytes | str, bytes | str]] = [*_SENT_HEADERS]
        if upstream.api_key:
            headers.append(("Authorization", f"Bearer {upstream.api_key}"))
        has_begun, is_stream = False, False
        try:
            async with self._client().stream(
                "POST", upstream.address + path, content=content, headers=headers
            ) as response:
                raw = [(key.lower(), value) for key, value in response.headers]
                kind = dict(raw).get(b"content-type", b"")
                is_stream = kind.startswith(_EVENTS)
                if response.status >= _FIRST_SERVER_ERROR and b"json" not in kind:
                    raise GatewayError(
                        f"the engine failed (HTTP {response.status}); its log says why",
                        status=502,
                        kind="server_error",
                    )
                chunks: AsyncIterator[bytes] = response.aiter_stream()
                if response.status >= _FIRST_ERROR and b"json" in kind:
                    chunks = await _in_openai_format(response.status, chunks)
                passed = [header for header in raw if header[0] in _PASSED_HEADERS]
                passed += [_UNBUFFERED] if is_stream else []
                start = {"status": response.status, "headers": passed}
                await send({"type": "http.response.start", **start})
                has_begun = True

                async def write(chunk: bytes) -> None:
                    on_chunk(chunk)
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})

                await _copy(chunks, write)
        except GONE as error:
            is_busy = isinstance(error, httpcore2.ConnectTimeout)
            problem = "is too busy to take the request" if is_busy else "has stopped"
            gone = unavailable(f"the engine {problem}; try again in a moment")
            if not has_begun:
                raise gone from error
            if not is_stream:
                raise  # the connection is cut: the client sees that the response is incomplete
            _log.warning("an engine stopped in the middle of a response: %s", error)
            await send(
                {
                    "type": "http.response.body",
                    "body": b"\n\ndata: " + gone.body + b"\n\n",
                    "more_body": True,
                }
            )
        await send({"type": "http.response.body", "body": b""})


async def _in_openai_format(status: int, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """An engine's error as it is. GatewayError with its text if the engine has another format: {"error": "text"}."""
    begin = b""
    async for chunk in chunks:
        begin += chunk
        if len(begin) > _ERROR_BYTES:
            return _again(begin, chunks)
    with suppress(ValueError, RecursionError):
        reply = json.loads(begin)
        text = reply.get("error") if isinstance(reply, dict) else None
        if isinstance(text, str):
            kind = "server_error" if status >= _FIRST_SERVER_ERROR else "invalid_request_error"
            raise GatewayError(text, status=status, kind=kind)
    return _again(begin, chunks)


async def _again(begin: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield begin
    async for chunk in rest:
        yield chunk


async def _copy(chunks: AsyncIterator[bytes], write: Callable[[bytes], Awaitable[None]]) -> None:
    """Writes every chunk as it comes. Those that have come by the time the last one is written are written as one:
    a system call for each would hold up the streams of other clients.
    """
    pending = bytearray()
    arrived, taken = asyncio.Event(), asyncio.Event()

    async def read() -> None:
        async for chunk in chunks:
            pending.extend(chunk)
            arrived.set()
            while len(pending) > MOST_PENDING_BYTES:
                taken.clear()
                await taken.wait()

    reading = asyncio.create_task(read())
    reading.add_done_callback(lambda _: arrived.set())
    try:
        while not reading.done() or pending:
            await arrived.wait()
            arrived.clear()
            if pending:
                chunk = bytes(pending)
                pending.clear()
                taken.set()
                await write(chunk)
        reading.result()
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _left(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
