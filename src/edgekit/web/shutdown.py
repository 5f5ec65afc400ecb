"""Graceful shutdown: close event streams with a final event and cancel pending requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

BYE = b"event: bye\ndata: {}\n\n"
EVENTS = "/events"  # the path of every event stream ends with it


class Shutdown:
    """Tasks to cancel at the end. `begin` is called from the server's loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._has_begun = False

    def begin(self) -> None:
        self._has_begun = True
        for task in self._tasks:
            task.cancel()

    @contextmanager
    def cancels(self) -> Iterator[None]:
        """`begin` breaks off the block, and execution continues after it; any other cancellation propagates."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a server's code runs in tasks
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._has_begun:
                raise
            task.uncancel()
        finally:
            self._tasks.discard(task)


class ShutdownMiddleware:
    def __init__(self, app: ASGIApp, *, shutdown: Shutdown) -> None:
        self._app, self._shutdown = app, shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = False

        async def receive_until_shutdown() -> Message:
            """A call sees the shutdown as a disconnect, and is cancelled."""
            with self._shutdown.cancels():
                return await receive()
            return {"type": "http.disconnect"}

        async def watched_send(message: Message) -> None:
            nonlocal is_open
            is_open = message["type"] == "http.response.start" or message.get("more_body", False)
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif not scope["path"].endswith(EVENTS):
            await self._app(scope, receive_until_shutdown, send)
        else:
            with self._shutdown.cancels():
                await self._app(scope, receive, watched_send)
                return
            if is_open:
                await send({"type": "http.response.body", "body": BYE})
