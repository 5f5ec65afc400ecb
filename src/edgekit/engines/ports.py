"""Whether a server can listen on a port, and the hosts of addresses."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from edgekit.errors import UsageError

LARGEST_PORT = 65_535
_ENGINE = re.compile(r"edgekit[/\\]engines[/\\]\w+[/\\]child\.py")  # the process of an engine
_EDGEKIT = re.compile(r"edgekit(?:-models)?(?:\.exe)?")  # the command, or the package after -m
_NAME_CHARS = 60


def check_port(host: str, port: int) -> None:
    """UsageError if the port cannot be used; 0: any free port."""
    if not 0 <= port <= LARGEST_PORT:
        raise UsageError(f"port {port:,} is not between 0 and {LARGEST_PORT:,}")
    results = [_bind_error(family, address) for family, address in _addresses(host, port)]
    errors = [error for error in results if error is not None]
    codes = {error.errno for error in errors}
    if errno.EADDRINUSE in codes:
        raise in_use(host, port)
    if None in results:
        return
    why = errors[0].strerror if errors else "no such address"
    advice = "choose another host or port"
    if codes & {errno.EACCES, errno.EPERM}:
        advice = "ports below 1024 are reserved for the administrator: choose a higher one"
    elif codes & {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
        advice = "use 127.0.0.1 for this machine only, 0.0.0.0 for all its addresses"
    raise UsageError(f"cannot listen on port {port} of {host}: {why}; {advice}")


def free_port(host: str) -> int:
    """A port that is free now, for a program that cannot report which one it chose."""
    family, address = _addresses(host, 0)[0]
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.bind(address)
        port: int = probe.getsockname()[1]
        return port


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a server that listens on `host`. UsageError if it is not an address."""
    return all(
        ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
        for _, address in _addresses(host, 0)
    )


def in_use(host: str, port: int) -> UsageError:
    """The error for a port that another process listens on."""
    return UsageError(
        f"port {port} of {host} is already in use{_owner_of(port)}; stop it, or choose "
        "another port (0 picks a free one)"
    )


def _addresses(host: str, port: int) -> list[tuple[int, Any]]:
    """The socket family and address of each address of the host. UsageError if it has none."""
    try:
        results = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"{host!r} is not an address of this machine ({getattr(error, 'strerror', error)}); use 127.0.0.1 for this "
            "machine only, 0.0.0.0 for all its addresses"
        ) from error
    return [(family, address) for family, _, _, _, address in results]


def _bind_error(family: int, address: Any) -> OSError | None:
    """The error of a bind like llama.cpp's; None if it works. SO_REUSEADDR ignores sockets in TIME_WAIT."""
    # On Windows SO_REUSEADDR would take the port from another program.
    exclusive = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)
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


def _owner_of(port: int) -> str:
    """A phrase for the process that holds the port; empty if unknown, as for processes of other users."""
    try:
        listeners = set()
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status != psutil.CONN_LISTEN or not connection.laddr:
                continue
            if connection.pid and connection.laddr.port == port:
                listeners.add(connection.pid)
        if not listeners:
            return ""
        process = psutil.Process(min(listeners))
        words: list[str] = process.cmdline()
        served = [after for before, after in pairwise(words) if before == "serve"]
        is_ours = served and any(_EDGEKIT.fullmatch(Path(word).name) for word in words[:3])
        if is_ours or (len(words) > 1 and any(_ENGINE.search(word) for word in words)):
            model = (served[0] if is_ours else words[-1])[:_NAME_CHARS]
            ours = ", started by this program" if process.ppid() == os.getpid() else ""
            return f" by a model that edgekit already runs ({model}, process {process.pid}{ours})"
        # Only the name of another program: its arguments may be secret.
        return f" by process {process.pid} ({process.name()[:_NAME_CHARS]})"
    except (psutil.Error, OSError, RuntimeError):  # macOS tells only the administrator
        return ""


def connectable(host: str) -> str:
    """The host that clients connect to: a loopback address if the server listens on all addresses."""
    wild = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}  # noqa: S104 - compared, not bound
    return wild.get(host, host)


def url_of(host: str, port: int | str) -> str:
    """The address for clients of a server that listens there."""
    return f"http://{in_address(connectable(host))}:{port}"


def in_address(host: str) -> str:
    """The host as written in a URL."""
    return f"[{host}]" if ":" in host else host
