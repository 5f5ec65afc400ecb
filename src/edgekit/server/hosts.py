"""The names that a server answers to, and requests from other sites.

A page of another site can make its own name point to this machine (DNS rebinding). The browser then sends the page's
requests here, with that name as the host.
"""

from __future__ import annotations

from collections.abc import Iterable

from edgekit.server.requests import RequestHead

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_SAME_SITE = frozenset({None, b"same-origin", b"none"})  # programs send no Sec-Fetch-Site


def host_name(host: bytes) -> str:
    """The name in a Host header, without the port, in lower case."""
    text = host.decode("latin-1").lower()
    name, colon, port = text.rpartition(":")
    return name if colon and (port.isdecimal() or not port) else text


def is_named(head: RequestHead, names: Iterable[str]) -> bool:
    """Whether the request is for one of these names."""
    return host_name(head.headers.get(b"host", b"")) in names


def is_same_site(head: RequestHead) -> bool:
    """Whether a request comes from this server's own page, or from a program that is not a browser."""
    origin = head.headers.get(b"origin")
    is_same_origin = origin is None or origin.rpartition(b"://")[2] == head.headers.get(b"host")
    return head.headers.get(b"sec-fetch-site") in _SAME_SITE and is_same_origin
