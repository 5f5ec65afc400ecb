"""The gateway as a server in a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Self

import uvicorn

from edgekit.engines.ports import check_port, connectable, in_address
from edgekit.errors import EdgekitError
from edgekit.gateway.app import busy, create_gateway, malformed_answer
from edgekit.gateway.types import GatewaySettings, Models
from edgekit.server.connections import KEEP_ALIVE_S, FixedAnswers, PatientProtocol, listen
from edgekit.server.requests import MAX_HEAD_BYTES

GRACE_S = 3  # for open responses at the end


class GatewayServer:
    """Serves from `start` until `stop`; as a context manager, during the block."""

    def __init__(
        self,
        settings: GatewaySettings,
        models: Models,
        *,
        memory_bytes: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.address = ""  # once it listens: "http://127.0.0.1:8080"
        self._app = create_gateway(settings, models, memory_bytes=memory_bytes)
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Returns when it listens. UsageError if the port is in use, or cannot be used."""
        settings = self.settings
        check_port(settings.host, settings.port)
        listening = listen(settings.host, settings.port)

        class GatewayProtocol(PatientProtocol):
            answers = FixedAnswers(busy=busy, malformed=malformed_answer)
            max_connections = settings.max_connections
            connections_each = settings.connections_each

        config = uvicorn.Config(
            self._app,
            http=GatewayProtocol,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            log_level="critical",  # malformed requests and clients that left are not worth a line
            access_log=False,
            server_header=False,
            proxy_headers=False,  # the client is the peer, whatever a header claims
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        ready = threading.Event()
        server = _Server(config, ready.set)

        def serve() -> None:
            try:
                server.run(sockets=[listening])
            finally:
                listening.close()
                ready.set()

        thread = threading.Thread(target=serve, name="edgekit gateway", daemon=True)
        thread.start()
        ready.wait()
        if not server.started:
            thread.join()
            raise EdgekitError("the server did not start; its log says why")
        self._server, self._thread = server, thread
        host = in_address(connectable(settings.host))
        self.address = f"http://{host}:{listening.getsockname()[1]}"

    def stop(self) -> None:
        """Ends open responses after a moment, and returns when nothing listens any more. Idempotent."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Server(uvicorn.Server):
    """uvicorn's server, which says when it accepts connections."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()
