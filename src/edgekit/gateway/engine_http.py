"""HTTP to engines: httpx's own transport, over asyncio's streams.

httpx adds a layer for other event loops, which costs as much for each event of a stream as everything else together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import httpcore2

# A port of this machine on which nothing listens refuses at once: only an engine that is too busy takes long.
CONNECT_TIMEOUT_S = 60.0
# What an engine that is not there, dies, or does not speak HTTP raises.
GONE = (
    OSError,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.TimeoutException,
)


def make_client() -> httpcore2.AsyncConnectionPool:
    """The client of all engines. It uses no proxies: engines are on this machine.

    There is no timeout for a response: an engine may be silent for minutes while it reads a long prompt, and if it
    dies, its connection ends. No connection is used twice: an engine closes an idle one at any time, and llama.cpp
    keeps a thread for each.
    """
    return httpcore2.AsyncConnectionPool(
        max_connections=None, max_keepalive_connections=0, network_backend=_Backend()
    )


class _Backend(httpcore2.AsyncNetworkBackend):
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109 - httpcore's signature
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> httpcore2.AsyncNetworkStream:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return _Stream(*await asyncio.open_connection(host, port))
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"{host} port {port} does not answer") from error
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error


class _Stream(httpcore2.AsyncNetworkStream):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002, ASYNC109
        try:
            return await self._reader.read(max_bytes)
        except OSError as error:
            raise httpcore2.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109
        try:
            self._writer.write(buffer)
            await self._writer.drain()
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from error

    async def aclose(self) -> None:
        self._writer.close()

    def get_extra_info(self, info: str) -> Any:  # noqa: ARG002
        return None
