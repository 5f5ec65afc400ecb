"""Whether a server can listen on a port, and the address at which it is reached."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from edgekit.engines import process as ports
from edgekit.engines.process import check_port
from edgekit.errors import (
    UsageError,
)

pytest.importorskip("xllamacpp")


def test_a_port_of_another_program() -> None:
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for host in ("127.0.0.1", "localhost", "0.0.0.0"):
            with pytest.raises(
                UsageError, match=rf"port {port} of {host} is already in use by process \d+"
            ):
                check_port(host, port)
    check_port("127.0.0.1", port)


def test_a_port_whose_connections_fade_away_is_free() -> None:
    with closing(socket.socket()) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with closing(socket.create_connection(("127.0.0.1", port))):
            accepted, _ = other.accept()
            accepted.close()  # the side that closes first waits
    check_port("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no such host", "203.0.113.7", "x" * 70])
def test_an_address_of_somebody_else(host: str) -> None:
    with pytest.raises(UsageError, match=r"use 127.0.0.1"):
        check_port(host, 0)


def test_where_a_server_is_reached() -> None:
    assert [ports.connectable(host) for host in ("0.0.0.0", "::", "10.0.0.1")] == [
        "127.0.0.1",
        "::1",
        "10.0.0.1",
    ]
    assert ports.in_address("::1") == "[::1]"
