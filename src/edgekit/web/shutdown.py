"""The server ends in order: streams of events are told and closed, and who still waits for an answer is let go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

BYE = b"event: bye\ndata: {}\n\n"
EVENTS = "/events"  # how the path of every stream ends


class Farewells:
    """Who listens just now. `say` is called from the server's loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self.are_said = False

    def say(self) -> None:
        self.are_said = True
        for task in self._tasks:
            task.cancel()

    @contextmanager
    def heard(self) -> Iterator[None]:
        """What runs inside is broken off, in order, when the farewells are said; all else passes."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a server's code runs in tasks
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self.are_said:
                raise
            task.uncancel()
        finally:
            self._tasks.discard(task)


class Farewell:
    """The middleware."""

    def __init__(self, app: ASGIApp, *, farewells: Farewells) -> None:
        self._app, self._farewells = app, farewells

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"].endswith(EVENTS):
            await self._stream(scope, receive, send)
        else:
            await self._app(scope, self._until_the_end(receive), send)

    def _until_the_end(self, receive: Receive) -> Receive:
        """The end of the server looks like the end of the client: a call notices, and is called off."""

        async def listen() -> Message:
            with self._farewells.heard():
                return await receive()
            return {"type": "http.disconnect"}

        return listen

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = False

        async def watched(message: Message) -> None:
            nonlocal is_open
            is_open = message["type"] == "http.response.start" or message.get("more_body", False)
            await send(message)

        with self._farewells.heard():
            await self._app(scope, receive, watched)
            return
        if is_open:
            await send({"type": "http.response.body", "body": BYE})
