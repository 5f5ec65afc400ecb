"""Listening sockets, and uvicorn's HTTP protocol with limits on connections and time."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import h11
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgekit.engines.ports import in_use
from edgekit.errors import UsageError
from edgekit.server.clients import CONNECTIONS_EACH, MAX_CONNECTIONS, network_of
from edgekit.server.requests import Header

BACKLOG = 256
HEAD_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0  # for a client to read a response once the socket's send buffer is full
KEEP_ALIVE_S = 30


def listen_on(host: str, ports: Iterable[int]) -> socket.socket | None:
    """A socket that listens on the first of these ports that is free; None if all are in use.

    Raises UsageError for a host or a port that nothing can listen on.
    """
    for port in ports:
        try:
            family, _, _, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            return socket.create_server(address[:2], family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UsageError(
                    f"cannot listen on {host} port {port}: {error.strerror}; for this machine "
                    "only, use 127.0.0.1"
                ) from error
    return None


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. UsageError if the port is in use, or cannot be used."""
    listening = listen_on(host, (port,))
    if listening is None:
        raise in_use(host, port)
    return listening


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedAnswers:
    """How a server answers connections that its application does not see."""

    busy: ASGIApp  # above the limit of connections
    malformed: Callable[[], tuple[tuple[Header, ...], bytes]]  # not HTTP: all headers and the body


class PatientProtocol(H11Protocol):
    """uvicorn's protocol with limits on connections, and time limits for sending a head and reading a response."""

    connections_each: ClassVar[int] = CONNECTIONS_EACH
    max_connections: ClassVar[int] = MAX_CONNECTIONS
    answers: ClassVar[FixedAnswers]

    network = ""
    _head_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.network = network_of(self.client[0]) if self.client else ""
        count = sum(getattr(other, "network", "") == self.network for other in self.connections)
        if count > self.connections_each:
            transport.abort()
            return
        if len(self.connections) > self.max_connections:
            self.app = self.answers.busy
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
        headers, body = self.answers.malformed()
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
