"""Web addresses: what may be shown of one, whose site it is, and where a redirect may lead."""

from __future__ import annotations

import ipaddress
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from edgekit.errors import PrivateAddressError, RemoteInspectError

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
