"""Web addresses: what may be shown of them, where redirects may lead, and which may be requested.

Also the hub's endpoint and token, as huggingface_hub finds them, and the guard that keeps requests for untrusted
addresses away from this machine and its network (SSRF).
"""

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
from edgekit.sources.reference import HUB_HOSTS

if TYPE_CHECKING:
    import httpx2


Site = tuple[str, str, int]  # scheme, host, port: they identify who receives a request

_PORTS = {"http": 80, "https": 443}


def redact(url: str) -> str:
    """The address without user, password, query and fragment, which may be secrets."""
    try:
        parts, host = urlsplit(url), host_of(url)
    except ValueError:  # half an IPv6 address, in which a secret could be anywhere
        return url.partition(":")[0] + ":..."
    path = quote(parts.path, safe="/%:@!$&'()*+,;=~-._")
    return urlunsplit((parts.scheme, host, path, "", ""))


def host_of(url: str) -> str:
    """'host' or 'host:port', for messages: a server may redirect to a host with escape sequences in its name."""
    host = urlsplit(url).netloc.rpartition("@")[2]
    return "".join(letter if letter.isprintable() else "?" for letter in host)


def has_secrets(url: str) -> bool:
    """Whether the address has parts that `redact` removes, without which it cannot be requested again."""
    parts = urlsplit(url)
    return bool(parts.query) or "@" in parts.netloc


def site_of(url: str) -> Site:
    """Scheme, host and port. Raises ValueError for something that is not a web address."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(url)
    return parts.scheme, parts.hostname.lower(), parts.port or _PORTS[parts.scheme]


def is_loopback(site: Site) -> bool:
    """Whether the host is this machine, by its name or its IP address."""
    host = site[1]
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def redirect_target(source: str, location: str, *, name: str) -> str:
    """The address that `source` redirects to. Raises RemoteInspectError if it must not be followed."""
    try:
        target = urljoin(source, location)
        source_site, target_site = site_of(source), site_of(target)
    except ValueError as error:
        message = f"{name}: {host_of(source)} redirects to something that is not a web address"
        raise RemoteInspectError(f"{message}; nothing was downloaded, check the address") from error
    if source_site[0] == "https" and target_site[0] == "http":
        raise RemoteInspectError(
            f"{name}: {host_of(source)} redirects from https to plain http "
            f"({host_of(target)}), which is not followed; use an https address"
        )
    # A remote server must not be able to redirect us to a service that only this machine can reach.
    if is_loopback(target_site) and not is_loopback(source_site):
        raise PrivateAddressError(
            f"{name}: {host_of(source)} redirects to this machine ({host_of(target)}), "
            "which is not followed"
        )
    return target


DEFAULT_REGISTRY = "https://registry.ollama.ai"

_TRUE = {"1", "ON", "YES", "TRUE"}  # huggingface_hub/constants.py: ENV_VARS_TRUE_VALUES


def hub_library() -> ModuleType:
    """huggingface_hub, imported on first use: local files do not need it."""
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
    """huggingface_hub's HTTP client, with its proxies, certificates and any factory that a program has set."""
    try:
        client: httpx2.Client = hub_library().get_session()
    except EdgekitError:
        raise
    except Exception as error:  # a factory may raise anything; the message may contain a password
        reason = "" if "@" in str(error) else f": {error}"
        raise UsageError(
            f"cannot set up the network ({type(error).__name__}{reason}); check HTTP_PROXY, "
            "HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE"
        ) from error
    return client


def env_is_true(name: str) -> bool:
    """Whether the variable is true now: huggingface_hub reads it at import, but a program may set it later."""
    return os.environ.get(name, "").upper() in _TRUE


def is_offline() -> bool:
    """Whether huggingface_hub is in offline mode (constants.py @ 2.4.0), in which its client refuses every host."""
    is_set = bool(os.environ.get("HF_HUB_OFFLINE"))
    return env_is_true("HF_HUB_OFFLINE" if is_set else "TRANSFORMERS_OFFLINE")


def hub_endpoint() -> str:
    """HF_ENDPOINT, or the public hub; without a slash at the end."""
    address = os.environ.get(_ENDPOINT) or str(hub_library().constants.ENDPOINT)
    return _require_web_address(_ENDPOINT, address)


_ENDPOINT, _NO_TOKEN = "HF_ENDPOINT", "HF_HUB_DISABLE_IMPLICIT_TOKEN"


@contextlib.contextmanager
def hub_at(address: str) -> Iterator[None]:
    """Make this address the hub. It gets the token only if HF_ENDPOINT names it anyway, or it is Hugging Face's own.

    An address that was typed, copied from a page or sent by another program must not be enough to receive a secret.
    """
    endpoint = _require_web_address("--from", address)
    scheme, host, _ = site = site_of(endpoint)
    is_trusted = scheme == "https" and host in HUB_HOSTS
    with contextlib.suppress(UsageError):  # HF_ENDPOINT is not an address, and is not used
        is_trusted = is_trusted or site == site_of(hub_endpoint())
    before = {name: os.environ.get(name) for name in (_ENDPOINT, _NO_TOKEN)}
    os.environ[_ENDPOINT] = endpoint
    if not is_trusted:
        os.environ[_NO_TOKEN] = "1"
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def ollama_registry() -> str:
    """EDGEKIT_OLLAMA_REGISTRY, or Ollama's own; without a slash at the end."""
    variable = "EDGEKIT_OLLAMA_REGISTRY"
    return _require_web_address(variable, os.environ.get(variable) or DEFAULT_REGISTRY)


def _require_web_address(variable: str, address: str) -> str:
    """The address without a slash at the end. UsageError if the variable does not hold a web address."""
    try:
        site_of(address)
    except ValueError as error:
        raise UsageError(
            f"{variable}={redact(address)!r} is not a web address: write https:// and the host"
        ) from error
    return address.rstrip("/")


def hub_token() -> str | None:
    """HF_TOKEN, then the file that `hf auth login` writes; None when implicit tokens are off."""
    if env_is_true(_NO_TOKEN):
        return None
    library = hub_library()
    path = Path(library.constants.HF_TOKEN_PATH)
    # get_token() blocks forever on a pipe without a writer. If HF_TOKEN_PATH names a pipe, the user provides a writer.
    if not os.environ.get("HF_TOKEN_PATH") and path.is_fifo():
        raise RemoteAccessError(
            f"{path} is a pipe: log in again with `hf auth login`, or set HF_TOKEN"
        )
    try:
        token: str | None = library.get_token()
    except Exception as error:  # login providers raise errors without a common class
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


def token_for(url: str) -> str | None:
    """The hub token for a request to `url`; None unless that is the hub, over https or on this machine."""
    site = site_of(url)
    is_confidential = site[0] == "https" or is_loopback(site)
    return hub_token() if is_hub(url) and is_confidential else None


def is_hub(url: str) -> bool:
    return site_of(url) == site_of(hub_endpoint())


# Blocks of IPv4 addresses that no public server has, from IANA's special-purpose and multicast registries.
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
# Blocks whose addresses contain an IPv4 address, and the number of bits to the right of it.
_IPV4_IN_IPV6 = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),  # IPv4-mapped
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (ipaddress.IPv6Network("2002::/16"), 80),  # 6to4
)
# Names that are never public: RFC 6761, 6762, 8375, and ICANN's for private use.
_LOCAL_SUFFIXES = (".localhost", ".local", ".home.arpa", ".internal")


def is_public(address: str) -> bool:
    """Whether a public server may have this address, in the system's notation."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv4Address):
        return not any(ip in block for block in _NOT_PUBLIC_V4)
    for block, shift in _IPV4_IN_IPV6:
        if ip in block:
            return is_public(str(ipaddress.IPv4Address(int(ip) >> shift & 0xFFFF_FFFF)))
    return ip in _GLOBAL_V6 and not any(ip in block for block in _NOT_PUBLIC_V6)


def is_elsewhere(peer: str, local: str) -> bool:
    """Whether the peer's address is public and not our end's: equal addresses mean that the peer is this machine."""
    return peer != local and is_public(peer)


def is_local_name(host: str) -> bool:
    """Whether it is a name reserved for local machines, regardless of DNS. IP addresses are not names."""
    name = host.lower().rstrip(".")
    is_bare = "." not in name and ":" not in name and not name[:1].isdigit()
    return is_bare or name.endswith(_LOCAL_SUFFIXES)


def is_public_host(address: str) -> bool:
    """Whether the host of the address is outside of this machine and its network. May block on the resolver."""
    import httpx2

    host, port = connection_target(httpx2.URL(address))
    return not is_local_name(host) and all(map(is_public, _addresses(host, port)))


class Guard:
    """Raises PrivateAddressError before a request is sent to an address that is not public.

    It does not parse address notations itself: the system's resolver does (`0x7f.1` is 127.0.0.1), and the peer of the
    connection is checked as well. The sites of HF_ENDPOINT and EDGEKIT_OLLAMA_REGISTRY may be anywhere: the user chose
    them. Behind a proxy the peer is the proxy, which has its own resolver: then only the local resolution is checked,
    and a name that does not resolve locally is allowed.
    """

    def __init__(self, address: str, *, name: str) -> None:
        """Parses the address like the client does. Raises httpx2.InvalidURL."""
        import httpx2

        url = httpx2.URL(address)
        self._name = name
        self._host, self._port = connection_target(url)
        self._is_trusted = False
        for trusted in (hub_endpoint, ollama_registry):
            with contextlib.suppress(UsageError, httpx2.InvalidURL):  # reported where it is used
                self._is_trusted |= _site(httpx2.URL(trusted())) == _site(url)
        self._connects_to: tuple[str, int] | None = None

    def check_host(self) -> None:
        """Raises PrivateAddressError if the host is not public. May block on the resolver."""
        if self._is_trusted:
            return
        addresses = _addresses(self._host, self._port)
        if is_local_name(self._host) or not all(map(is_public, addresses)):
            raise self._refusal()

    def watch(self, event: str, info: Mapping[str, Any]) -> None:
        """The client's trace callback: closes a connection whose peer is loopback or private.

        The name may resolve differently by then. Pooled connections were checked when they were opened.
        """
        if event.endswith("connect_tcp.started"):
            self._connects_to = info["host"], info["port"]
        is_proxy = self._connects_to != (self._host, self._port)
        if not event.endswith("connect_tcp.complete") or self._is_trusted or is_proxy:
            return
        import httpx2

        stream = info["return_value"]
        try:
            peer = stream.get_extra_info("server_addr")[0]
            local = stream.get_extra_info("client_addr")[0]
        except OSError as error:  # it is already closed
            stream.close()
            raise httpx2.ConnectError(str(error)) from error
        if not is_elsewhere(peer, local):
            stream.close()
            raise self._refusal()

    def _refusal(self) -> PrivateAddressError:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return PrivateAddressError(
            f"{self._name}: {host} is, or resolves to, an address of this machine or a "
            "private network, which is not allowed (edgekit web --allow-private allows "
            "it)"
        )


def _addresses(host: str, port: int) -> Iterator[str]:
    """Every IP address of the host, as this machine resolves it; none if it cannot be resolved."""
    host = host.rstrip(".")
    with contextlib.suppress(ValueError):  # not an IP address but a name
        yield str(ipaddress.ip_address(host))
        return
    with contextlib.suppress(OSError, UnicodeError):  # the connection will report it
        for *_, socket_address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            yield str(socket_address[0])


def connection_target(url: httpx2.URL) -> tuple[str, int]:
    """Host and port as the client connects to them."""
    return url.raw_host.decode("ascii"), url.port or {"http": 80}.get(url.scheme, 443)


def _site(url: httpx2.URL) -> Site:
    return (url.scheme, *connection_target(url))
