"""The uvicorn server of `edgekit web`: listen, serve until a signal, shut down in order, open a browser."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import threading
import warnings
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgekit.engines.ports import check_port, connectable, in_address, in_use
from edgekit.errors import EdgekitError, UsageError
from edgekit.index import read_index
from edgekit.report.hardware import devices_json, hardware_json
from edgekit.request import Request
from edgekit.web.app import create_app
from edgekit.web.calls import WebState, machine_now
from edgekit.web.cards import when_started
from edgekit.web.limits import network_of
from edgekit.web.security import MAX_HEAD_BYTES, busy, malformed_answer
from edgekit.web.types import DEFAULT_PORT, WebSettings

if TYPE_CHECKING:
    from types import FrameType


TRIED_PORTS = 20
BACKLOG = 256
MAX_CONNECTIONS = 256
CONNECTIONS_EACH = 96  # a browser opens six; everyone behind a proxy is one client
HEAD_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0  # for a client to read a response once the socket's send buffer is full
KEEP_ALIVE_S = 30
LAST_EVENT_S = 0.05  # for streams to send the end of a cancelled job
GRACE_S = 1  # then open requests are cut off
PATIENCE_S = 1.9  # then the process exits, even if a thread still waits for a slow server

# Run in advance, so that the first page does not wait for them.
_STEPS: tuple[Callable[[], object], ...] = (
    read_index,
    lambda: hardware_json(machine_now(Request())),
    devices_json,
)
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")

_log = logging.getLogger("edgekit.web")


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket. Without a port, on the first that is free from DEFAULT_PORT on. Raises UsageError."""
    if port is not None:
        check_port(host, port)
    last_port = DEFAULT_PORT + TRIED_PORTS - 1
    candidates = range(DEFAULT_PORT, last_port + 1) if port is None else (port,)
    for candidate in candidates:
        try:
            family, _, _, _, address = socket.getaddrinfo(
                host, candidate, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            return socket.create_server(address[:2], family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UsageError(
                    f"cannot listen on {host} port {candidate}: {error.strerror}; for this machine "
                    "only, use 127.0.0.1"
                ) from error
            if port is not None:
                raise in_use(host, port) from error
    raise UsageError(
        f"ports {DEFAULT_PORT} to {last_port} on {host} are all in use; use --port 0 to pick any free port"
    )


def address_of(settings: WebSettings, path: str = "/", **fields: str) -> str:
    """The URL of a page, with the token if there is one."""
    base = f"http://{in_address(connectable(settings.host))}:{settings.port}{path}"
    query = urlencode(fields | ({"token": settings.token} if settings.token else {}))
    return f"{base}?{query}" if query else base


def serve(
    settings: WebSettings, listening: socket.socket, *, on_ready: Callable[[WebSettings], None]
) -> None:
    """Serves until a signal ends this process. An error from `on_ready` shuts the server down and is raised again."""

    def ready(settled: WebSettings) -> None:
        on_ready(settled)
        warm()

    server = make_server(settings, listening, on_ready=ready)
    server.run(sockets=[listening])
    if server.fault is not None:
        raise server.fault
    if server.is_ending:
        _exit()  # Python's normal exit waits for threads


def make_server(
    settings: WebSettings, listening: socket.socket, *, on_ready: Callable[[WebSettings], None]
) -> PageServer:
    """The server. It calls `on_ready` with the settings and the actual port as soon as it accepts requests."""
    settings = replace(settings, port=listening.getsockname()[1])
    # FastAPI builds its routes on the first request and silences this warning of pydantic meanwhile,
    # which another thread that changes the warning filters can undo.
    warnings.filterwarnings("ignore", message="The 'alias' attribute")
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level="error",  # malformed requests are not worth a warning
        access_log=False,  # an address may contain the token
        server_header=False,
        proxy_headers=False,  # the client is the peer, whatever a header claims
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )
    return PageServer(config, app.state.edgekit, on_ready=lambda: on_ready(settings))


class PageServer(uvicorn.Server):
    """uvicorn's server with a graceful end: jobs and streams get a last event, and a signal means exit code 0."""

    def __init__(
        self, config: uvicorn.Config, state: WebState, *, on_ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._state, self._on_ready = state, on_ready
        self.is_ending = False
        self.fault: EdgekitError | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        try:
            self._on_ready()
        except EdgekitError as error:  # raised after the shutdown: here it would tear the loop down
            self.fault, self.should_exit = error, True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.close()
        await asyncio.sleep(LAST_EVENT_S)
        self._state.shutdown.begin()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Like uvicorn's, but does not raise the signal again at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            if not self.is_ending:  # else the process exits now; a second signal is still ours
                for number, handler in before.items():
                    signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal shuts down in order, the second exits at once, without uvicorn's tracebacks."""
        if self.is_ending:
            when_started(_exit)
        self.is_ending = True
        timer = threading.Timer(PATIENCE_S, _exit)
        timer.daemon = True
        timer.start()
        super().handle_exit(sig, frame)


def _exit() -> None:
    """Ends the process at once. Safe at any time, because files are written atomically."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)


def show_browser(address: str) -> bool:
    """Opens a browser in a thread, and ignores its errors. Returns False where no browser can open."""
    if sys.platform.startswith("linux") and not any(map(os.environ.get, _DISPLAYS)):
        return False  # a text browser would take over the terminal

    def open_quietly() -> None:
        with suppress(Exception):
            webbrowser.open(address)

    threading.Thread(target=open_quietly, daemon=True).start()
    return True


class PatientProtocol(H11Protocol):
    """uvicorn's protocol with limits on connections, and time limits for sending a head and reading a response."""

    network = ""
    _head_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.network = network_of(self.client[0]) if self.client else ""
        count = sum(getattr(other, "network", "") == self.network for other in self.connections)
        if count > CONNECTIONS_EACH:
            transport.abort()
            return
        if len(self.connections) > MAX_CONNECTIONS:
            self.app = busy
        # asyncio sets this only on sockets created with a protocol number; without it a body may wait 40 ms
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._start_head_timer()  # a head has begun
        else:
            self._stop_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._read_timer is None:
            self._read_timer = self.loop.call_later(READ_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Aborts the connection, because `close` would wait until the client has read the last response."""
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's message
        """Sends our JSON. If a response has already begun, only closes: the bytes were the rest of a body."""
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.close()
            return
        headers, body = malformed_answer()
        head = h11.Response(status_code=400, headers=list(headers), reason=b"Bad Request")
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.abort)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def warm() -> threading.Thread:
    """Runs the steps in a thread. An error is reported later, by the request that needs the result."""

    def run_steps() -> None:
        for step in _STEPS:
            try:
                step()
            except Exception as error:  # noqa: BLE001 - no request waits for it yet
                _log.debug("not read beforehand: %s", error)

    thread = threading.Thread(target=run_steps, name="edgekit warming", daemon=True)
    thread.start()
    return thread
