"""Whether a server can listen on a port, and the address at which it is reached."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from edgekit.engines.ports import check_port, connectable, in_address
from edgekit.errors import UsageError


def test_check_port_names_the_process_that_listens() -> None:
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


def test_check_port_ignores_connections_that_are_closing() -> None:
    with closing(socket.socket()) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with closing(socket.create_connection(("127.0.0.1", port))):
            accepted, _ = other.accept()
            accepted.close()  # the side that closes first stays in TIME_WAIT
    check_port("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no such host", "203.0.113.7", "x" * 70])
def test_check_port_rejects_an_address_of_another_machine(host: str) -> None:
    with pytest.raises(UsageError, match=r"use 127.0.0.1"):
        check_port(host, 0)


def test_connectable_address_of_a_server() -> None:
    assert [connectable(host) for host in ("0.0.0.0", "::", "10.0.0.1")] == [
        "127.0.0.1",
        "::1",
        "10.0.0.1",
    ]
    assert in_address("::1") == "[::1]"
