"""Who may use the gateway: the host a request is for, the site it comes from, and its key."""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from hashlib import sha256

from edgekit.errors import UsageError
from edgekit.gateway.errors import GatewayError
from edgekit.gateway.types import GatewaySettings
from edgekit.server.hosts import LOOPBACK_NAMES, host_name, is_same_site
from edgekit.server.requests import CLOSE, MAX_HEAD_BYTES, Header, RequestHead

MAX_PATH_BYTES = 4096
OPEN_PATHS = frozenset({"/health", "/v1/health"})  # for service managers, which have no key
_REQUESTED, _USUAL = b"access-control-request-headers", b"authorization, content-type"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?|\[[0-9a-f:.]+\]")
_ORIGIN = re.compile(rf"([a-z][a-z0-9+.-]*)://({_HOST.pattern})(?::([0-9]{{1,5}}))?((?:[/?#].*)?)")
# Pages of programs: Electron sends file:// and app://.
_PROGRAM_ORIGIN = re.compile(r"(?!https?:)([a-z][a-z0-9+.-]*://\.?)/?")
METHODS = ("GET", "HEAD", "POST", "OPTIONS")


def parse_origin(text: str) -> str:
    """An origin as browsers send it: lower case, without the default port. UsageError for what none of them sends."""
    if text in {"*", "null"}:
        return text
    if match := _PROGRAM_ORIGIN.fullmatch(text.lower()):
        return match[1]
    match = _ORIGIN.fullmatch(text.lower())
    if match is None:
        raise UsageError(
            f"--allow-origin {text}: write it as https://chat.example or http://host:port"
        )
    scheme, host, port, rest = match.groups()
    if rest.strip("/"):
        raise UsageError(
            f"--allow-origin {text}: leave out what follows the host, because browsers do not send it: {scheme}://{host}"
        )
    is_default = port is None or int(port) == _DEFAULT_PORTS.get(scheme)
    return f"{scheme}://{host}" if is_default else f"{scheme}://{host}:{int(port)}"


def parse_host(text: str) -> str:
    """The name of a host in lower case. UsageError for anything else."""
    name = text.lower()
    if _HOST.fullmatch(f"[{name}]") and ":" in name:
        raise UsageError(f"--allow-host {text}: write an IPv6 address in brackets: [{name}]")
    if not _HOST.fullmatch(name):
        raise UsageError(
            f"--allow-host {text}: only the name, without a scheme, a port or a path: chat.example"
        )
    return name


class Access:
    """The rules of access. `refusal` is None for a request that is let in."""

    def __init__(self, settings: GatewaySettings) -> None:
        """UsageError for settings that would open the server to any web page, or that match no request."""
        origins = frozenset(map(parse_origin, settings.allowed_origins))
        if origins & {"*", "null"} and not settings.api_keys:
            raise UsageError(
                "any web page could use the server (null: from a sandboxed frame): name the sites to allow, or require"
                " a key (--api-key)"
            )
        machine = socket.gethostname().lower()
        own = {*LOOPBACK_NAMES, settings.host.lower(), machine, f"{machine}.local"}
        allowed = set(map(parse_host, settings.allowed_hosts))
        self._names = frozenset(own | allowed)
        # With a key, a page of another site gets no further than here: it does not have the key.
        self._checks_host = not settings.api_keys or bool(allowed)
        self._origins = origins
        self._any_origin = bool(settings.api_keys) and ("*" in origins or not origins)
        self._keys = tuple(sha256(key.encode()).digest() for key in settings.api_keys)

    def refusal(self, head: RequestHead) -> GatewayError | None:
        """The first rule that the request breaks."""
        if head.head_bytes > MAX_HEAD_BYTES or len(head.path) > MAX_PATH_BYTES:
            return GatewayError(
                f"the request headers are too long: at most {MAX_HEAD_BYTES:,} bytes",
                status=431,
                headers=(CLOSE,),
            )
        if head.method not in METHODS:
            return GatewayError(f"method {head.method[:20]} is not allowed", status=405)
        if self._checks_host and not self._is_own(host_name(head.headers.get(b"host", b""))):
            return GatewayError(
                "this server does not answer to the name in the Host header: use localhost or an IP address, or start"
                " the server with --allow-host NAME",
                status=421,
                code="wrong_host",
            )
        if not (is_same_site(head) or self.allowed_origin(head)):
            return GatewayError(
                "pages of other sites may not use this server; start it with --allow-origin ORIGIN to allow one",
                status=403,
                kind="permission_error",
                code="wrong_origin",
            )
        return None if head.path in OPEN_PATHS or head.method == "OPTIONS" else self._key(head)

    def allowed_origin(self, head: RequestHead) -> bytes | None:
        """The site whose page sent the request, if it is another one and may use the server."""
        origin = head.headers.get(b"origin")
        if origin is None or not (self._any_origin or origin.decode("latin-1") in self._origins):
            return None
        return origin

    def cors_headers(self, head: RequestHead) -> tuple[Header, ...]:
        """What a browser needs to hand the response to a page of an allowed site."""
        origin = self.allowed_origin(head)
        if origin is None:
            return ()
        headers: tuple[Header, ...] = (
            (b"access-control-allow-origin", origin),
            (b"vary", b"Origin"),
        )
        if head.method != "OPTIONS":
            return headers
        return (
            *headers,
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", head.headers.get(_REQUESTED, _USUAL)),
            (b"access-control-allow-private-network", b"true"),
            (b"access-control-max-age", b"600"),
        )

    def _is_own(self, name: str) -> bool:
        """Whether it is a name of this server. An IP address is: names are rebound, addresses are not."""
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def has_key(self, head: RequestHead) -> bool:
        """Whether the request has a right key, or needs none."""
        sent = sha256(head.bearer or b"").digest()
        # Every key is compared, so that the time says nothing about which one was close.
        matches = [hmac.compare_digest(sent, key) for key in self._keys]
        return not self._keys or (bool(head.bearer) and any(matches))

    def _key(self, head: RequestHead) -> GatewayError | None:
        if self.has_key(head):
            return None
        problem = "the API key is wrong" if head.bearer else "an API key is required"
        return GatewayError(
            f"{problem}: send Authorization: Bearer KEY",
            status=401,
            kind="authentication_error",
            code="invalid_api_key",
            headers=((b"www-authenticate", b"Bearer"),),
        )
