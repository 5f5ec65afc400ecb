"""Who may ask, how often and how much: one ASGI middleware around everything, and the headers of every answer.

Each gate is a small function: a request in, a refusal or nothing out. Pure ASGI: events pass as they come.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl, quote, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgekit.web.failures import UNEXPECTED, failure_json, small_page
from edgekit.web.limits import Places, Rates
from edgekit.web.shutdown import EVENTS
from edgekit.web.types import MAX_BODY_BYTES, WebSettings

MAX_QUERY_BYTES = 16 * 1024  # a link that restores a page with every flag set has 2 KB
MAX_HEAD_BYTES = 32 * 1024  # such a query, and what browsers say beside it
_BESIDE_A_HEADER = len(b": \r\n")
WRONG_TOKENS_PER_S = 5.0
LONG_TOKEN_CHARS = 16  # nobody guesses one, however often
# Calls that are being answered or wait for it, and streams of events: of one client, and in all.
CALLS_EACH, MOST_CALLS = 32, 256
STREAMS_EACH, MOST_STREAMS = 16, 128
HEALTH = "/healthz"
DOCS = "/api/docs"  # a page, though it stands among the calls

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)

_OWN_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_OWN_SITES = frozenset({b"same-origin", b"none"})
_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE"})
_ALLOW = (b"allow", b"GET, HEAD, POST, DELETE")
_WHERE_IT_IS = "Open the address that edgekit web printed in its terminal: it contains the token."

_log = logging.getLogger("edgekit.web")

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """The head of a request."""

    method: str
    path: str
    query: bytes
    headers: Mapping[bytes, bytes]
    head_bytes: int  # address and headers, as they came
    client: str

    @property
    def is_call(self) -> bool:
        return self.path.startswith("/api/") and self.path != DOCS

    @property
    def is_stream(self) -> bool:
        return self.is_call and self.path.endswith(EVENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An answer that no call was asked for."""

    status: int
    kind: str
    message: str
    headers: tuple[Header, ...] = field(default=())


Gate = Callable[[RequestHead], Refusal | None]

TOO_MANY = Refusal(
    status=429,
    kind="TooManyError",
    message="too many requests from this address; try again in a second",
    headers=((b"retry-after", b"1"),),
)
_CLOSE = ((b"connection", b"close"),)
TOO_MANY_AT_ONCE = Refusal(
    status=429,
    kind="TooManyError",
    message="too many requests in progress from this address; wait for some of them to finish",
    headers=((b"retry-after", b"2"),),
)
BUSY = Refusal(
    status=503,
    kind="BusyError",
    message="too many connections to this server; try again in a moment",
    headers=((b"retry-after", b"5"), *_CLOSE),
)
MALFORMED = Refusal(status=400, kind="UsageError", message="not an HTTP request", headers=_CLOSE)
TOO_LARGE = Refusal(
    status=413,
    kind="TooLargeError",
    message=f"the request body is larger than {MAX_BODY_BYTES:,} bytes",
    headers=_CLOSE,
)
TOO_SLOW = Refusal(
    status=408,
    kind="TooSlowError",
    message="the request body took too long to arrive",
    headers=_CLOSE,
)


class Security:
    """The middleware."""

    def __init__(self, app: ASGIApp, *, settings: WebSettings) -> None:
        self._app = app
        self._rates = Rates(settings.requests_per_s)
        self._calls = Places(most=MOST_CALLS, each=CALLS_EACH)
        self._streams = Places(most=MOST_STREAMS, each=STREAMS_EACH)
        self._gates: tuple[Gate, ...] = (
            self._too_often,
            long_query,
            long_head,
            other_method,
            *((foreign_name(settings),) if settings.is_loopback else ()),
            foreign_site,
            *((Token(settings.token, settings.port).gate,) if settings.token else ()),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = asked_of(scope)
        answer = _Answer(asked, send)
        refusal = next(filter(None, (gate(asked) for gate in self._gates)), None)
        if refusal is not None:
            await answer.refuse(refusal)
            return
        try:
            receive = await bounded(receive, asked.headers)
        except GoneError:
            return
        except (TooLargeError, TooSlowError) as error:
            refusal = TOO_LARGE if isinstance(error, TooLargeError) else TOO_SLOW
            await answer.refuse(refusal, drained=receive)
            return
        if not asked.is_call:
            await self._call(scope, receive, answer)
            return
        places = self._streams if asked.is_stream else self._calls
        if not places.enter(asked.client):
            await answer.refuse(TOO_MANY_AT_ONCE)
            return
        try:
            await self._call(scope, receive, answer)
        finally:
            places.leave(asked.client)

    async def _call(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            await self._app(_as_get(scope, answer.asked), receive, answer.send)
        except Exception:
            _log.exception("a request failed: %s", scope["path"])
            if answer.has_begun:
                raise
            await answer.refuse(Refusal(status=500, kind="InternalError", message=UNEXPECTED))

    def _too_often(self, asked: RequestHead) -> Refusal | None:
        return None if self._rates.take(asked.client) else TOO_MANY


async def busy(scope: Scope, _: Receive, send: Send) -> None:
    """The application of a connection that is one too many."""
    await _Answer(asked_of(scope), send).refuse(BUSY)


def asked_of(scope: Scope) -> RequestHead:
    client = scope.get("client")
    return RequestHead(
        method=scope["method"],
        path=scope["path"],
        query=scope.get("query_string", b""),
        headers=dict(scope["headers"]),
        head_bytes=_head_bytes(scope),
        client=client[0] if client else "",
    )


def _head_bytes(scope: Scope) -> int:
    lines = sum(len(name) + len(value) + _BESIDE_A_HEADER for name, value in scope["headers"])
    return len(scope.get("raw_path") or b"") + len(scope.get("query_string", b"")) + lines


def _as_get(scope: Scope, asked: RequestHead) -> Scope:
    """HEAD is answered as GET is, and whoever sends the answer leaves its body out. A stream has no end to wait for."""
    if asked.method != "HEAD" or asked.is_stream:
        return scope
    return {**scope, "method": "GET"}


class _Answer:
    """Hands an answer on with the headers that every answer has."""

    def __init__(self, asked: RequestHead, send: Send) -> None:
        self.asked, self._send = asked, send
        self.has_begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            headers: list[Header] = list(message.get("headers", ()))
            named = {name for name, _ in headers}
            message = {**message, "headers": [*headers, *HEADERS, *self._caching(named)]}
        await self._send(message)

    def _caching(self, named: set[bytes]) -> tuple[Header, ...]:
        if b"cache-control" in named:
            return ()
        return ((b"cache-control", b"no-store" if self.asked.is_call else b"no-cache"),)

    async def refuse(self, refusal: Refusal, *, drained: Receive | None = None) -> None:
        kind, body = _refusal_body(refusal, self.asked)
        start = {"type": "http.response.start", "status": refusal.status}
        await self.send({**start, "headers": [*_stated(kind, body), *refusal.headers]})
        if drained is not None:
            await self.send({"type": "http.response.body", "body": body, "more_body": True})
            await drain(drained)
            body = b""
        await self.send({"type": "http.response.body", "body": body})


def _stated(kind: bytes, body: bytes) -> tuple[Header, ...]:
    return (b"content-type", kind), (b"content-length", str(len(body)).encode())


def bare_answer(refusal: Refusal) -> tuple[tuple[Header, ...], bytes]:
    """Headers and body where no head could be read."""
    kind, body = _json_body(refusal)
    return (*_stated(kind, body), *refusal.headers, *HEADERS, (b"cache-control", b"no-store")), body


def _json_body(refusal: Refusal) -> tuple[bytes, bytes]:
    told = failure_json(refusal.kind, refusal.message)
    return b"application/json", json.dumps(told).encode()


def _refusal_body(refusal: Refusal, asked: RequestHead) -> tuple[bytes, bytes]:
    if asked.is_call:
        return _json_body(refusal)
    title = HTTPStatus(refusal.status).phrase
    page = small_page(title, refusal.message, link=_same_place(asked), link_text="Try again")
    return b"text/html; charset=utf-8", page.encode()


def long_query(asked: RequestHead) -> Refusal | None:
    if len(asked.query) <= MAX_QUERY_BYTES:
        return None
    message = f"the query string is too long: at most {MAX_QUERY_BYTES:,} bytes"
    return Refusal(status=414, kind="TooLongError", message=message)


def long_head(asked: RequestHead) -> Refusal | None:
    """h11 counts only what is not there yet: a head that came in one piece would pass."""
    if asked.head_bytes <= MAX_HEAD_BYTES:
        return None
    message = f"the request headers are too long: at most {MAX_HEAD_BYTES:,} bytes"
    return Refusal(status=400, kind="TooLongError", message=message, headers=_CLOSE)


def other_method(asked: RequestHead) -> Refusal | None:
    """No answer to OPTIONS: no other site may ask, so none needs to know what it may."""
    if asked.method in _METHODS:
        return None
    message = f"method {asked.method[:20]} not allowed"
    return Refusal(status=405, kind="MethodError", message=message, headers=(_ALLOW,))


def foreign_name(settings: WebSettings) -> Gate:
    """Whoever is asked under another name was looked up in another's name server (DNS rebinding)."""
    names = _OWN_NAMES | {settings.host}

    def gate(asked: RequestHead) -> Refusal | None:
        name = _without_port(asked.headers.get(b"host", b"").decode("latin-1")).lower()
        if name in names:
            return None
        message = "this server answers only this machine: open it as localhost or 127.0.0.1"
        return Refusal(status=421, kind="WrongHostError", message=message)

    return gate


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and (port.isdecimal() or not port) else host


def foreign_site(asked: RequestHead) -> Refusal | None:
    """Browsers say who asks. Programs say nothing, and may."""
    if not asked.is_call:
        return None
    site = asked.headers.get(b"sec-fetch-site")
    origin = asked.headers.get(b"origin")
    own = site is None or site in _OWN_SITES
    if own and (origin is None or origin.rpartition(b"://")[2] == asked.headers.get(b"host")):
        return None
    message = "requests from other sites are not allowed"
    return Refusal(status=403, kind="CrossSiteError", message=message)


class Token:
    """Whoever knows the token, or has the cookie that was given for it, may ask.

    The cookie is as good as any: who guesses tokens, from the same address perhaps, does not lock out who has it. Of
    typed tokens so many are looked at, and no more; a right one is let through all the same where it is too long to be
    guessed.
    """

    def __init__(self, token: str, port: int) -> None:
        self._token = token.encode()
        self._cookie = f"edgekit_{port}"  # cookies know no ports: two servers keep theirs apart
        self._value = secrets.token_hex(32)  # made anew: it tells nothing of the token
        self._guesses = Rates(WRONG_TOKENS_PER_S)
        self._is_long = len(token) >= LONG_TOKEN_CHARS

    def gate(self, asked: RequestHead) -> Refusal | None:
        if asked.path == HEALTH:
            return None
        said, has_cookie = self._said(asked), self._has_cookie(asked)
        if said is None:
            return None if has_cookie else _no_token(asked, "a token is required")
        if not has_cookie:
            refusal = self._weighed(said, asked)
            if refusal is not None:
                return refusal
        return None if self._is_bearer(asked) else self._let_in(asked)

    def _weighed(self, said: bytes, asked: RequestHead) -> Refusal | None:
        may_guess = self._guesses.has(asked.client)
        if hmac.compare_digest(said, self._token) and (may_guess or self._is_long):
            return None
        self._guesses.take(asked.client)
        return _no_token(asked, "the token is wrong") if may_guess else TOO_MANY

    def _said(self, asked: RequestHead) -> bytes | None:
        """The token in a header, or in the address of a page."""
        if self._is_bearer(asked):
            return asked.headers[b"authorization"][len(b"bearer ") :].strip()
        if asked.is_call:
            return None
        said = dict(parse_qsl(asked.query.decode("latin-1"))).get("token")
        return None if said is None else said.encode()

    def _has_cookie(self, asked: RequestHead) -> bool:
        jar = _cookies(asked.headers.get(b"cookie", b"").decode("latin-1"))
        return hmac.compare_digest(jar.get(self._cookie, "").encode(), self._value.encode())

    def _let_in(self, asked: RequestHead) -> Refusal:
        cookie = f"{self._cookie}={self._value}; Path=/; HttpOnly; SameSite=Strict"
        headers = ((b"location", _same_place(asked).encode()), (b"set-cookie", cookie.encode()))
        return Refusal(status=303, kind="", message="Token accepted.", headers=headers)

    @staticmethod
    def _is_bearer(asked: RequestHead) -> bool:
        return asked.headers.get(b"authorization", b"").lower().startswith(b"bearer ")


def _cookies(text: str) -> dict[str, str]:
    """Those of others are read over: http.cookies gives up at the first it does not like."""
    return dict(part.strip().partition("=")[::2] for part in text.split(";"))


def _same_place(asked: RequestHead) -> str:
    """The address once more, without the token: it would stay in the history."""
    pairs = parse_qsl(asked.query.decode("latin-1"), keep_blank_values=True)
    query = urlencode([pair for pair in pairs if pair[0] != "token"])
    # One slash in front: two would name another host.
    return "/" + quote(asked.path.lstrip("/")) + (f"?{query}" if query else "")


def _no_token(asked: RequestHead, what: str) -> Refusal:
    if asked.is_call:
        message = (
            f"{what}: send Authorization: Bearer TOKEN with the token that edgekit web printed"
        )
        bearer = ((b"www-authenticate", b"Bearer"),)
        return Refusal(status=401, kind="TokenError", message=message, headers=bearer)
    message = f"{what.capitalize()}. {_WHERE_IT_IS}"
    return Refusal(status=401, kind="TokenError", message=message)


BODY_TIMEOUT_S = 10.0
# A client that is still sending does not see an answer: what it sends is thrown away, up to here.
DRAINED_BYTES = 16 * 1024 * 1024
DRAINED_S = 2.0


class TooLargeError(Exception):
    """413."""


class TooSlowError(Exception):
    """408."""


class GoneError(Exception):
    """The client went away before it had said everything."""


async def bounded(receive: Receive, headers: Mapping[bytes, bytes]) -> Receive:
    """`receive` once more, with the body already here. Raises what stands above."""
    stated = headers.get(b"content-length", b"0").lstrip(b"0")
    if len(stated) > 9 or int(stated or b"0") > MAX_BODY_BYTES:
        raise TooLargeError
    if not stated and b"transfer-encoding" not in headers:
        return receive
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await _read(receive)
    except TimeoutError as error:
        raise TooSlowError from error
    return _again(body, receive)


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise TooLargeError
        if not message.get("more_body", False):
            return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again


async def drain(receive: Receive) -> None:
    """Until the client has said everything, has gone, or has said too much."""
    drained = 0
    try:
        async with asyncio.timeout(DRAINED_S):
            while drained < DRAINED_BYTES:
                message = await receive()
                drained += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return
