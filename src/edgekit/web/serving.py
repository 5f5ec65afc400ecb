"""Settings -> a server that answers until Ctrl-C or SIGTERM, and a browser that shows it."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import uvicorn

from edgekit.engines.process import check_port, connectable, in_address, in_use
from edgekit.errors import EdgekitError, UsageError
from edgekit.web.app import create_app
from edgekit.web.card_worker import when_started
from edgekit.web.connections import PatientProtocol
from edgekit.web.farewell import Farewells
from edgekit.web.security import MAX_HEAD_BYTES
from edgekit.web.state import WebState
from edgekit.web.types import DEFAULT_PORT, WebSettings
from edgekit.web.warming import warm

if TYPE_CHECKING:
    from types import FrameType

TRIED_PORTS = 20
BACKLOG = 256
KEEP_ALIVE_S = 30
GRACE_S = 1  # what is still being answered then is cut off
LAST_WORD_S = 0.05
PATIENCE_S = 1.9  # a thread that waits for a slow server does not hold up the end

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


def listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens; without a port on the first of ours that is free. UsageError for one that is taken."""
    if port is not None:
        check_port(host, port)
        return _listening(host, port)
    for candidate in range(DEFAULT_PORT, DEFAULT_PORT + TRIED_PORTS):
        with suppress(_TakenError):
            return _listening(host, candidate)
    last = DEFAULT_PORT + TRIED_PORTS - 1
    raise UsageError(
        f"ports {DEFAULT_PORT} to {last} on {host} are all in use; use --port 0 to pick any free port"
    )


class _TakenError(UsageError):
    pass


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _TakenError(str(in_use(host, port))) from error
        raise UsageError(
            f"cannot listen on {host} port {port}: {error.strerror}; for this machine only, use 127.0.0.1"
        ) from error


def address_of(settings: WebSettings, path: str = "/", **fields: str) -> str:
    """Where a browser finds a page. With a token it lets its reader in."""
    place = f"http://{in_address(connectable(settings.host))}:{settings.port}{path}"
    query = urlencode(fields | ({"token": settings.token} if settings.token else {}))
    return f"{place}?{query}" if query else place


def serve(
    settings: WebSettings, listening: socket.socket, *, on_ready: Callable[[WebSettings], None]
) -> None:
    """Until a signal ends it, and this process. Raises what `on_ready` does, once all is closed."""

    def ready(settled: WebSettings) -> None:
        on_ready(settled)
        warm()

    server = make_server(settings, listening, on_ready=ready)
    server.run(sockets=[listening])
    if server.fault is not None:
        raise server.fault
    if server.is_ending:
        _leave()  # Python's own end waits for threads, and a second signal would break it off


def make_server(
    settings: WebSettings, listening: socket.socket, *, on_ready: Callable[[WebSettings], None]
) -> PageServer:
    """`on_ready` is told the settings with the port that it became, once the server answers."""
    settings = replace(settings, port=listening.getsockname()[1])
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level="error",  # requests that make no sense are no news
        access_log=False,  # an address may have the token in it
        server_header=False,
        proxy_headers=False,  # who asks is who is connected, whatever a header claims
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )
    return PageServer(
        config,
        state=app.state.edgekit,
        farewells=app.state.farewells,
        on_ready=lambda: on_ready(settings),
    )


class PageServer(uvicorn.Server):
    """uvicorn's, which ends in order: streams are told, and a signal is no error."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        state: WebState,
        farewells: Farewells,
        on_ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._state, self._farewells, self._on_ready = state, farewells, on_ready
        self.is_ending = False
        self.fault: EdgekitError | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        try:
            self._on_ready()
        except EdgekitError as error:  # raised in the end: here it would tear the loop down
            self.fault, self.should_exit = error, True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.close()
        await asyncio.sleep(LAST_WORD_S)  # who follows a job is told that it was called off
        self._farewells.say()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but what was asked for is not raised once more in the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            if not self.is_ending:  # else the process ends now, and a second signal is still ours
                for number, handler in before.items():
                    signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first ends it in order, the second at once: uvicorn would show what it broke off."""
        if self.is_ending:
            when_started(_leave)
        self.is_ending = True
        last = threading.Timer(PATIENCE_S, _leave)
        last.daemon = True
        last.start()
        super().handle_exit(sig, frame)


def _leave() -> None:
    """Nothing is lost: what is being read is read again, and files are written whole or not at all."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)


def show_browser(address: str) -> bool:
    """Whether one may come up. Whatever it does, the server goes on."""
    if sys.platform.startswith("linux") and not any(map(os.environ.get, _DISPLAYS)):
        return False  # a browser in the terminal would take it over
    threading.Thread(target=_open, args=(address,), daemon=True).start()
    return True


def _open(address: str) -> Any:
    with suppress(Exception):
        return webbrowser.open(address)
