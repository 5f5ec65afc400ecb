"""Keeps requests for a stranger's address away from this machine and from its own network.

Forms of an address are not taken apart here: the system's resolver says what a host means (`0x7f.1` is 127.0.0.1), and
the connection says where it ended.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from edgekit.errors import PrivateAddressError, UsageError
from edgekit.sources.endpoint import hub_endpoint, ollama_registry

if TYPE_CHECKING:
    import httpx2

# IANA's registries of special-purpose and multicast addresses. No public server has one of these.
_NOT_PUBLIC_V4 = tuple(
    ipaddress.IPv4Network(block)
    for block in (
        "0.0.0.0/8",  # this network: 0.0.0.0 reaches this machine
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # behind a carrier's NAT
        "127.0.0.0/8",  # this machine
        "169.254.0.0/16",  # link-local: the metadata service of a cloud
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")  # what is outside is local, multicast or reserved
_NOT_PUBLIC_V6 = tuple(
    ipaddress.IPv6Network(block)
    for block in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
)
# Blocks whose addresses carry an IPv4 address, and how many bits stand right of it.
_CARRIERS = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),  # IPv4-mapped
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (ipaddress.IPv6Network("2002::/16"), 80),  # 6to4
)
# Names that are never public: RFC 6761, 6762, 8375, and the one that ICANN keeps for private use.
_LOCAL_SUFFIXES = (".localhost", ".local", ".home.arpa", ".internal")


def is_public(address: str) -> bool:
    """Whether a server that anybody can reach may have this address; `address` as the system writes it."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv4Address):
        return not any(found in block for block in _NOT_PUBLIC_V4)
    for block, shift in _CARRIERS:
        if found in block:
            return is_public(str(ipaddress.IPv4Address(int(found) >> shift & 0xFFFF_FFFF)))
    return found in _GLOBAL_V6 and not any(found in block for block in _NOT_PUBLIC_V6)


def is_elsewhere(peer: str, own: str) -> bool:
    """Whether a connection between these left for a public server: both ends alike are this machine."""
    return peer != own and is_public(peer)


def is_local_name(host: str) -> bool:
    """Whether it is the name of a machine near by, whatever a resolver says; a number is no name."""
    name = host.lower().rstrip(".")
    is_bare = "." not in name and ":" not in name and not name[:1].isdigit()
    return is_bare or name.endswith(_LOCAL_SUFFIXES)


class Guard:
    """Watches over one request: PrivateAddressError before it is sent to an address that is not public.

    The sites of HF_ENDPOINT and EDGEKIT_OLLAMA_REGISTRY may be anywhere: whoever runs this chose them.
    Where a proxy is configured the connection ends at the proxy, which asks a resolver of its own: then only what the
    name means here is checked, and a name that means nothing here is passed on.
    """

    def __init__(self, address: str, *, name: str) -> None:
        """Raises httpx2.InvalidURL. The client's own reading of the address counts, not another's."""
        import httpx2

        url = httpx2.URL(address)
        self._name = name
        self._host, self._port = connected_place(url)
        self._is_trusted = _site(url) in _trusted_sites()
        self._connects_to: tuple[str, int] | None = None

    def check_host(self) -> None:
        """Waits for the resolver: call it where that may be waited for."""
        if self._is_trusted:
            return
        if is_local_name(self._host) or not all(map(is_public, self._addresses())):
            raise self._refusal()

    def watch(self, event: str, info: Mapping[str, Any]) -> None:
        """For the client's trace: a name may mean something else by the time the connection is made."""
        if event.endswith("connect_tcp.started"):
            self._connects_to = info["host"], info["port"]
        elif event.endswith("connect_tcp.complete"):
            self._check_connection(info["return_value"])

    def _check_connection(self, stream: Any) -> None:
        """Closes and refuses one that ended at this machine or near by. What is open already was checked so."""
        import httpx2

        is_proxy = self._connects_to != (self._host, self._port)
        if self._is_trusted or is_proxy:
            return
        try:
            peer, own = (stream.get_extra_info(end)[0] for end in ("server_addr", "client_addr"))
        except OSError as error:  # it is broken off already
            stream.close()
            raise httpx2.ConnectError(str(error)) from error
        if not is_elsewhere(peer, own):
            stream.close()
            raise self._refusal()

    def _addresses(self) -> Iterator[str]:
        """All that the host means here, as the client's connection would ask; none where it means nothing."""
        host = self._host.rstrip(".")
        with contextlib.suppress(ValueError):  # a name
            yield str(ipaddress.ip_address(host))
            return
        with contextlib.suppress(OSError, UnicodeError):  # the connection will say so
            for *_, place in socket.getaddrinfo(host, self._port, type=socket.SOCK_STREAM):
                yield str(place[0])

    def _refusal(self) -> PrivateAddressError:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return PrivateAddressError(
            f"{self._name}: {host} is, or resolves to, an address of this machine or a "
            "private network, which is not allowed (edgekit web --allow-private allows "
            "it)"
        )


def connected_place(url: httpx2.URL) -> tuple[str, int]:
    """Host and port as the client connects to them."""
    return url.raw_host.decode("ascii"), url.port or {"http": 80}.get(url.scheme, 443)


def _site(url: httpx2.URL) -> tuple[str, str, int]:
    return (url.scheme, *connected_place(url))


def _trusted_sites() -> set[tuple[str, str, int]]:
    import httpx2

    sites = set()
    for address in (hub_endpoint, ollama_registry):
        with contextlib.suppress(UsageError, httpx2.InvalidURL):  # said where it is needed
            sites.add(_site(httpx2.URL(address())))
    return sites
