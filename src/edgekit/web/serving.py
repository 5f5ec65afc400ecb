"""Settings -> a server that answers until Ctrl-C or SIGTERM, and a browser that shows it."""

from __future__ import annotations

import asyncio
import errno
import logging
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

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgekit.catalog import read_catalog
from edgekit.engines.process import check_port, connectable, in_address, in_use
from edgekit.errors import EdgekitError, UsageError
from edgekit.report.hardware import devices_json, hardware_json
from edgekit.request import Request
from edgekit.web.app import create_app
from edgekit.web.calls import machine_now
from edgekit.web.card_worker import when_started
from edgekit.web.limits import network_of
from edgekit.web.security import MALFORMED, MAX_HEAD_BYTES, bare_answer, busy
from edgekit.web.shutdown import Farewells
from edgekit.web.state import WebState
from edgekit.web.types import DEFAULT_PORT, WebSettings

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


MAX_CONNECTIONS = 256
CONNECTIONS_EACH = 96  # a browser has six; everybody behind a proxy is one client
HEAD_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0  # for a client to take what was sent, up to what the system keeps for it


class PatientProtocol(H11Protocol):
    """Whoever says a letter a minute, or reads none of the answer, would hold a connection for ever."""

    network = ""
    _head_end: asyncio.TimerHandle | None = None
    _read_end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.network = network_of(self.client[0]) if self.client else ""
        own = sum(getattr(one, "network", "") == self.network for one in self.connections)
        if own > CONNECTIONS_EACH:
            transport.abort()
            return
        if len(self.connections) > MAX_CONNECTIONS:
            self.app = busy
        # asyncio does so only for sockets that name their protocol; else a body waits 40 ms for its head
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._count_down()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._count_down()  # a head has begun
        else:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._read_end is None:
            self._read_end = self.loop.call_later(READ_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        if self._read_end is not None:
            self._read_end.cancel()
            self._read_end = None
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """At once: `close` would wait until the last answer is read."""
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's words for it
        """As every refusal. Nothing more where an answer has begun: what still came was the rest of a body."""
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.close()
            return
        headers, body = bare_answer(MALFORMED)
        head = h11.Response(
            status_code=MALFORMED.status, headers=list(headers), reason=b"Bad Request"
        )
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _count_down(self) -> None:
        if self._head_end is None:
            self._head_end = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.abort)

    def _stop(self) -> None:
        if self._head_end is not None:
            self._head_end.cancel()
            self._head_end = None


_log = logging.getLogger("edgekit.web")
_STEPS: tuple[Callable[[], object], ...] = (
    read_catalog,
    lambda: hardware_json(machine_now(Request())),
    devices_json,
)


def warm() -> threading.Thread:
    """In a thread. What goes wrong is told to whoever asks for it."""
    thread = threading.Thread(target=_warm, name="edgekit warming", daemon=True)
    thread.start()
    return thread


def _warm() -> None:
    for step in _STEPS:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - nobody has asked yet
            _log.debug("not read beforehand: %s", error)
