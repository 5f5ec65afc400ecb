"""Web addresses: what may be shown of one, whose site it is, and where a redirect may lead."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from edgekit.errors import (
    EdgekitError,
    PrivateAddressError,
    RemoteAccessError,
    RemoteInspectError,
    UsageError,
)

if TYPE_CHECKING:
    import httpx2


Site = tuple[str, str, int]  # scheme, host, port: who gets to see what is sent there

_PORTS = {"http": 80, "https": 443}


def shown(url: str) -> str:
    """The address without user, password, query and fragment: the parts that may be secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:  # half an IPv6 address: nobody can say where its secrets are
        return url.partition(":")[0] + ":..."
    host = _printable(parts.netloc.rpartition("@")[2])
    path = quote(parts.path, safe="/%:@!$&'()*+,;=~-._")
    return urlunsplit((parts.scheme, host, path, "", ""))


def host_of(url: str) -> str:
    """'host' or 'host:port', for messages."""
    return _printable(urlsplit(url).netloc.rpartition("@")[2])


def _printable(host: str) -> str:
    """A server may redirect to a host with escape sequences in its name, which a message must not repeat."""
    return "".join(c if c.isprintable() else "?" for c in host)


def has_secrets(url: str) -> bool:
    """Whether more than `shown` is needed to ask for it again."""
    parts = urlsplit(url)
    return bool(parts.query) or "@" in parts.netloc


def site_of(url: str) -> Site:
    """Raises ValueError for what is not a web address."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(url)
    return parts.scheme, parts.hostname.lower(), parts.port or _PORTS[parts.scheme]


def is_loopback(site: Site) -> bool:
    host = site[1]
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_private_way(site: Site) -> bool:
    """Whether a secret may travel there: encrypted, or not leaving this machine."""
    return site[0] == "https" or is_loopback(site)


def redirect_target(source: str, location: str, *, name: str) -> str:
    """Where `source` sends us on to; the error says why not."""
    try:
        target = urljoin(source, location)
        here, there = site_of(source), site_of(target)
    except ValueError as error:
        message = f"{name}: {host_of(source)} redirects to something that is not a web address"
        raise RemoteInspectError(f"{message}; nothing was downloaded, check the address") from error
    if here[0] == "https" and there[0] == "http":
        raise RemoteInspectError(
            f"{name}: {host_of(source)} redirects from https to plain http "
            f"({host_of(target)}), which is not followed; use an https address"
        )
    # A stranger must not be able to point us at a service that only this machine can see.
    if is_loopback(there) and not is_loopback(here):
        raise PrivateAddressError(
            f"{name}: {host_of(source)} redirects to this machine ({host_of(target)}), "
            "which is not followed"
        )
    return target


DEFAULT_REGISTRY = "https://registry.ollama.ai"

_TRUE = {"1", "ON", "YES", "TRUE"}  # huggingface_hub/constants.py: ENV_VARS_TRUE_VALUES


def hub_library() -> ModuleType:
    """huggingface_hub, on first use: a local file needs none."""
    try:
        import huggingface_hub
        from huggingface_hub import constants  # noqa: F401 - reads its settings when it is imported
    except ValueError as error:
        raise UsageError(
            f"invalid huggingface_hub setting ({error}): check HF_ENDPOINT and the "
            "HF_HUB_... variables"
        ) from error
    return huggingface_hub


def hub_client() -> httpx2.Client:
    """The hub's own client: its proxies, its certificates, the factory a program may have set."""
    try:
        client: httpx2.Client = hub_library().get_session()
    except EdgekitError:
        raise
    except Exception as error:  # a factory may raise anything; the words may hold a password
        said = "" if "@" in str(error) else f": {error}"
        raise UsageError(
            f"cannot set up the network ({type(error).__name__}{said}); check HTTP_PROXY, "
            "HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE"
        ) from error
    return client


def env_is_true(name: str) -> bool:
    """Read now, not when huggingface_hub was imported: a program may set it later."""
    return os.environ.get(name, "").upper() in _TRUE


def is_offline() -> bool:
    """The rule of huggingface_hub/constants.py @ 2.4.0; its client then refuses every host."""
    asked = "HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE") else "TRANSFORMERS_OFFLINE"
    return env_is_true(asked)


def hub_endpoint() -> str:
    """HF_ENDPOINT, or the public hub; without a slash at the end."""
    address = os.environ.get("HF_ENDPOINT")
    if not address:
        address = str(hub_library().constants.ENDPOINT)
    return _checked("HF_ENDPOINT", address)


def ollama_registry() -> str:
    """EDGEKIT_OLLAMA_REGISTRY, or Ollama's own; without a slash at the end."""
    variable = "EDGEKIT_OLLAMA_REGISTRY"
    return _checked(variable, os.environ.get(variable) or DEFAULT_REGISTRY)


def _checked(variable: str, address: str) -> str:
    try:
        site_of(address)
    except ValueError as error:
        raise UsageError(
            f"{variable}={shown(address)!r} is not a web address: write https:// and the host"
        ) from error
    return address.rstrip("/")


def hub_token() -> str | None:
    """HF_TOKEN, then the file that `hf auth login` writes; None when implicit tokens are off."""
    if env_is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        return None
    library = hub_library()
    _refuse_pipe(Path(library.constants.HF_TOKEN_PATH))
    try:
        token: str | None = library.get_token()
    except Exception as error:  # a login provider failed: its errors share no class but this
        raise RemoteAccessError(
            f"cannot get the Hugging Face token ({type(error).__name__}): log in again "
            "with `hf auth login`, or set HF_TOKEN"
        ) from error
    if token is not None and not (token.isascii() and token.isprintable()):
        raise RemoteAccessError(
            "the Hugging Face token (HF_TOKEN or `hf auth login`) has characters that no "
            "token contains: set it again"
        )
    return token


def _refuse_pipe(path: Path) -> None:
    """The hub's library opens the file as it is: a pipe without a writer would hold it for ever.

    A pipe that the user named in HF_TOKEN_PATH has a writer: <(...) of a shell.
    """
    if not os.environ.get("HF_TOKEN_PATH") and path.is_fifo():
        raise RemoteAccessError(
            f"{path} is a pipe: log in again with `hf auth login`, or set HF_TOKEN"
        )


def token_for(url: str) -> str | None:
    """The token, if `url` is on the hub's own site and nobody on the way can read it."""
    site = site_of(url)
    if site != site_of(hub_endpoint()) or not is_private_way(site):
        return None
    return hub_token()


def is_hub(url: str) -> bool:
    return site_of(url) == site_of(hub_endpoint())


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
