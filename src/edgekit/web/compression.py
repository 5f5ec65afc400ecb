"""Compresses answers with gzip for clients that accept it.

No answer contains the token or the cookie, and other sites cannot make a browser call this server, so the size of a
compressed answer reveals no secret (the attack called BREACH). Pages about the token are sent by `Security`, which is
outside this middleware, as they are.
"""

from __future__ import annotations

import gzip
from functools import partial

from anyio import CapacityLimiter, to_thread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgekit.server.requests import Header
from edgekit.web.types import EVENTS

MIN_BYTES = 1024  # shorter answers fit into one packet
THREAD_BYTES = 32 * 1024  # longer ones would block the server's loop for milliseconds
THREADS = 2
LEVEL = 5
_TYPES = frozenset({b"application/json", b"image/svg+xml", b"text/html", b"text/plain"})
VARY: Header = (b"vary", b"Accept-Encoding")


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether a client with this Accept-Encoding header accepts gzip."""
    weights: dict[str, bool] = {}
    for item in accept_encoding.lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        weight = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        weights[name] = weight.strip("0.") != ""
    return weights.get("gzip", weights.get("*", False))


class Compression:
    """The middleware. Answers in several parts and event streams pass through unchanged."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._threads = CapacityLimiter(THREADS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].endswith(EVENTS):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        may_compress = accepts_gzip(headers.get(b"accept-encoding", b"").decode("latin-1"))
        start: Message | None = None

        async def send_compressed(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message  # sent with the first part of the body, which decides
                return
            if start is not None:
                is_whole = not message.get("more_body", False)
                body = message.get("body", b"")
                if is_whole and len(body) >= MIN_BYTES and _is_compressible(start):
                    headers = [*start["headers"], VARY]
                    if may_compress:
                        body = await self._compress(body)
                        headers = _compressed_headers(headers, len(body))
                    start = {**start, "headers": headers}
                    message = {**message, "body": body}
                await send(start)
                start = None
            await send(message)

        await self._app(scope, receive, send_compressed)

    async def _compress(self, body: bytes) -> bytes:
        compress = partial(gzip.compress, body, compresslevel=LEVEL, mtime=0)
        if len(body) < THREAD_BYTES:
            return compress()
        return await to_thread.run_sync(compress, limiter=self._threads)


def _is_compressible(start: Message) -> bool:
    headers = dict(start["headers"])
    content_type = headers.get(b"content-type", b"").partition(b";")[0].strip()
    return content_type in _TYPES and b"content-encoding" not in headers


def _compressed_headers(headers: list[Header], size: int) -> list[Header]:
    """The headers for a compressed body of this size. A strong ETag would claim the same bytes, so it becomes weak."""
    result: list[Header] = [
        (b"content-encoding", b"gzip"),
        (b"content-length", str(size).encode()),
    ]
    for name, value in headers:
        if name == b"etag" and not value.startswith(b"W/"):
            result.append((name, b"W/" + value))
        elif name != b"content-length":
            result.append((name, value))
    return result
