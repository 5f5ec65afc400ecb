"""A host and a port -> whether a server can listen there, asked by a real bind, and who does already."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from contextlib import closing
from typing import Any

from edgekit.errors import UsageError

LARGEST_PORT = 65_535
_ENGINE = re.compile(r"edgekit[/\\]engines[/\\]\w+[/\\]child\.py")  # the process of an engine
_NAME_CHARS = 60
_NOT_HERE = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def check_port(host: str, port: int) -> None:
    """UsageError where nothing can listen there; 0 is any port that is free."""
    if not 0 <= port <= LARGEST_PORT:
        raise UsageError(f"port {port:,} is not between 0 and {LARGEST_PORT:,}")
    refused = [_refusal(family, address) for family, address in _addresses(host, port)]
    for error in refused:
        if error is not None and error.errno == errno.EADDRINUSE:
            raise in_use(host, port)
    if None in refused:
        return
    why = next((error.strerror for error in refused if error is not None), "no such address")
    raise UsageError(f"cannot listen on port {port} of {host}: {why}; {_advice(refused)}")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there. UsageError where there is no such address."""
    return all(
        ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
        for _, address in _addresses(host, 0)
    )


def in_use(host: str, port: int) -> UsageError:
    return UsageError(
        f"port {port} of {host} is already in use{_by_whom(port)}; stop it, or choose "
        "another port (0 picks a free one)"
    )


def _addresses(host: str, port: int) -> list[tuple[int, Any]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"{host!r} is not an address of this machine ({getattr(error, 'strerror', error)}); use 127.0.0.1 for this "
            "machine only, 0.0.0.0 for all its addresses"
        ) from error
    return [(family, address) for family, _, _, _, address in found]


def _refusal(family: int, address: Any) -> OSError | None:
    """As llama.cpp binds: a port whose last connections are only fading away is free."""
    exclusive = getattr(
        socket, "SO_EXCLUSIVEADDRUSE", None
    )  # Windows: REUSEADDR takes it from others
    try:
        with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR if exclusive is None else exclusive, 1
            )
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error
    return None


def _advice(refused: list[OSError | None]) -> str:
    codes = {error.errno for error in refused if error is not None}
    if codes & {errno.EACCES, errno.EPERM}:
        return "ports below 1024 are reserved for the administrator: choose a higher one"
    if codes & _NOT_HERE:
        return "use 127.0.0.1 for this machine only, 0.0.0.0 for all its addresses"
    return "choose another"


def _by_whom(port: int) -> str:
    """As far as the system tells: other users' processes are theirs."""
    import psutil

    try:
        listeners = {
            one.pid
            for one in psutil.net_connections(kind="tcp")
            if one.pid and one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port
        }
        return _named(psutil.Process(min(listeners))) if listeners else ""
    except (psutil.Error, OSError, RuntimeError):  # macOS tells nobody but the administrator
        return ""


def _named(process: Any) -> str:
    """Of another program only its name: what it was started with may be secret."""
    words: list[str] = process.cmdline()
    if len(words) > 1 and any(_ENGINE.search(word) for word in words):
        model = words[-1][:_NAME_CHARS]
        own = ", started by this program" if process.ppid() == os.getpid() else ""
        return f" by a model that edgekit already runs ({model}, process {process.pid}{own})"
    return f" by process {process.pid} ({process.name()[:_NAME_CHARS]})"


def connectable(host: str) -> str:
    """Where to reach a server that listens on `host`: every address of this machine is reached by one."""
    wild = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}  # noqa: S104 - not bound, asked
    return wild.get(host, host)


def in_address(host: str) -> str:
    """As an URL has it."""
    return f"[{host}]" if ":" in host else host
