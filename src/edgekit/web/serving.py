"""The uvicorn server of `edgekit web`: listen, serve until a signal, shut down in order, open a browser."""

from __future__ import annotations

import asyncio
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
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import uvicorn

from edgekit.app.candidates import complete
from edgekit.engines.ports import check_port, url_of
from edgekit.errors import EdgekitError, UsageError
from edgekit.index import read_index
from edgekit.index.completion import complete_name
from edgekit.report.hardware import devices_json, hardware_json
from edgekit.request import Request
from edgekit.server import connections
from edgekit.server.connections import KEEP_ALIVE_S, FixedAnswers, PatientProtocol
from edgekit.server.requests import MAX_HEAD_BYTES
from edgekit.web.app import create_app
from edgekit.web.calls import WebState, machine_now
from edgekit.web.cards import when_started
from edgekit.web.lan import lan_hosts
from edgekit.web.security import busy, malformed_answer
from edgekit.web.specification import Specification
from edgekit.web.types import DEFAULT_PORT, WebSettings

if TYPE_CHECKING:
    from types import FrameType


TRIED_PORTS = 20
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
        return connections.listen(host, port)
    last_port = DEFAULT_PORT + TRIED_PORTS - 1
    listening = connections.listen_on(host, range(DEFAULT_PORT, last_port + 1))
    if listening is None:
        raise UsageError(
            f"ports {DEFAULT_PORT} to {last_port} on {host} are all in use; use --port 0 to pick any free port"
        )
    return listening


def address_of(settings: WebSettings, path: str = "/", **fields: str) -> str:
    """The URL of a page, with the token if there is one."""
    base = f"{url_of(settings.host, settings.port)}{path}"
    query = urlencode(fields | ({"token": settings.token} if settings.token else {}))
    return f"{base}?{query}" if query else base


def lan_addresses_of(settings: WebSettings, path: str = "/", **fields: str) -> tuple[str, ...]:
    """The URLs of a page for other devices in this network, the likeliest first. Empty on loopback."""
    if settings.is_loopback:
        return ()
    return tuple(
        address_of(replace(settings, host=host), path, **fields)
        for host in lan_hosts(settings.host)
    )


def serve(
    settings: WebSettings, listening: socket.socket, *, on_ready: Callable[[WebSettings], None]
) -> None:
    """Serves until a signal ends this process. An error from `on_ready` shuts the server down and is raised again."""

    def ready(settled: WebSettings) -> None:
        on_ready(settled)
        cards = server.state.cards
        warm(
            # the models on this machine, for the first visit: the worker's process checks them
            lambda: cards.make_ahead(complete(Request(machine=machine_now(Request())))),
            lambda: complete_name("qwen3"),
            server.specification.document,
        )

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
        http=PageProtocol,
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
    return PageServer(
        config,
        app.state.edgekit,
        app.state.specification,
        on_ready=lambda: on_ready(settings),
    )


class PageServer(uvicorn.Server):
    """uvicorn's server with a graceful end: jobs and streams get a last event, and a signal means exit code 0."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: WebState,
        specification: Specification,
        *,
        on_ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self.state, self.specification, self._on_ready = state, specification, on_ready
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
        self.state.close()
        await asyncio.sleep(LAST_EVENT_S)
        self.state.shutdown.begin()
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


class PageProtocol(PatientProtocol):
    answers = FixedAnswers(busy=busy, malformed=malformed_answer)


def warm(*more: Callable[[], object]) -> threading.Thread:
    """Runs these steps in a thread, and then more. An error is reported later, by the request that needs the result."""

    def run_steps() -> None:
        for step in (*_STEPS, *more):
            try:
                step()
            except Exception as error:  # noqa: BLE001 - no request waits for it yet
                _log.debug("not read beforehand: %s", error)

    thread = threading.Thread(target=run_steps, name="edgekit warming", daemon=True)
    thread.start()
    return thread
