"""The body of a request, within limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from enum import Enum

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Send

from edgekit.server.requests import Header

# A client that is still sending may not read the response: so much of its request is read and discarded meanwhile.
DRAINED_BYTES = 16 * 1024 * 1024
DRAINED_S = 2.0


class BodyProblem(Enum):
    TOO_LARGE = "too large"
    TOO_SLOW = "too slow"


async def read_body(
    receive: Receive, headers: Mapping[bytes, bytes], *, max_bytes: int, timeout_s: float
) -> bytes | BodyProblem:
    """The whole body; empty if there is none. Raises ClientDisconnect if the client left before its end."""
    content_length = headers.get(b"content-length", b"0").lstrip(b"0")
    if len(content_length) > len(str(max_bytes)) or int(content_length or b"0") > max_bytes:
        return BodyProblem.TOO_LARGE
    if not content_length and b"transfer-encoding" not in headers:
        return b""
    body, is_complete = bytearray(), False
    try:
        async with asyncio.timeout(timeout_s):
            while not is_complete:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                body += message.get("body", b"")
                if len(body) > max_bytes:
                    return BodyProblem.TOO_LARGE
                is_complete = not message.get("more_body", False)
    except TimeoutError:
        return BodyProblem.TOO_SLOW
    return bytes(body)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that yields the body, then what the client does next."""
    buffered: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return buffered.pop() if buffered else await receive()

    return replay


async def respond(
    send: Send,
    status: int,
    headers: Iterable[Header],
    body: bytes,
    *,
    unread: Receive | None = None,
) -> None:
    """Sends a response. `unread`: the rest of a request that is refused while its client still sends it."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    if unread is not None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await _drain(unread)
        body = b""
    await send({"type": "http.response.body", "body": body})


async def _drain(receive: Receive) -> None:
    """Discards the body until the client has sent everything, has left, or has sent too much."""
    drained = 0
    try:
        async with asyncio.timeout(DRAINED_S):
            while drained < DRAINED_BYTES:
                message = await receive()
                drained += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return
