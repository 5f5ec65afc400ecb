"""A request's body, read whole before anybody looks at it: bounded in bytes and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import Message, Receive

from edgekit.web.types import MAX_BODY_BYTES

BODY_TIMEOUT_S = 10.0
# A client that is still sending does not see an answer: what it sends is thrown away, up to here.
DRAINED_BYTES = 16 * 1024 * 1024
DRAINED_S = 2.0


class TooLargeError(Exception):
    """413."""


class TooSlowError(Exception):
    """408."""


class GoneError(Exception):
    """The client went away before it had said everything."""


async def bounded(receive: Receive, headers: Mapping[bytes, bytes]) -> Receive:
    """`receive` once more, with the body already here. Raises what stands above."""
    stated = headers.get(b"content-length", b"0").lstrip(b"0")
    if len(stated) > 9 or int(stated or b"0") > MAX_BODY_BYTES:
        raise TooLargeError
    if not stated and b"transfer-encoding" not in headers:
        return receive
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await _read(receive)
    except TimeoutError as error:
        raise TooSlowError from error
    return _again(body, receive)


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise TooLargeError
        if not message.get("more_body", False):
            return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again


async def drain(receive: Receive) -> None:
    """Until the client has said everything, has gone, or has said too much."""
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
