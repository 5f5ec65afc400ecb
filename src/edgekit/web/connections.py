"""uvicorn's reading of HTTP, with an end to its patience, and so many connections in all and of one client."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgekit.web.rates import network_of
from edgekit.web.security import MALFORMED, bare_answer, busy

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
