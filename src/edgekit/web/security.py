"""The ASGI middlewares: one accepts or refuses requests and adds headers, one ends requests at shutdown.

Pure ASGI, so that server-sent events pass through as they come.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import ClientDisconnect, cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgekit.report.picture import error_badge_svg
from edgekit.server.bodies import BodyProblem, read_body, replayed, respond
from edgekit.server.clients import Places, Rates
from edgekit.server.hosts import LOOPBACK_NAMES, is_named, is_same_site
from edgekit.server.requests import CLOSE, MAX_HEAD_BYTES, Header, RequestHead, content_headers
from edgekit.web.failures import UNEXPECTED, failure_json
from edgekit.web.small_pages import STYLE_SOURCE, small_page
from edgekit.web.types import EVENTS, MAX_BODY_BYTES, WebSettings

MAX_QUERY_BYTES = 16 * 1024  # a link that restores a page with every flag set has 2 KB
BODY_TIMEOUT_S = 10.0
WRONG_TOKENS_PER_S = 5.0
LONG_TOKEN_CHARS = 16  # too long to guess at any rate
# Open calls (running or waiting) and event streams: per client, and in all.
CALLS_EACH, MOST_CALLS = 32, 256
STREAMS_EACH, MOST_STREAMS = 16, 128
HEALTH = "/healthz"
DOCS = "/api/docs"  # a page, although its path looks like a call
IMAGES = ("/picture.svg", "/badge.svg")  # calls, although their paths look like pages
SVG = "image/svg+xml"
FORM = b"application/x-www-form-urlencoded"

CONTENT_POLICY = (
    f"default-src 'none'; script-src 'self'; style-src 'self' {STYLE_SOURCE}; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# The page with a field for the token: no scripts, and its form may only be sent to this server.
TOKEN_PAGE_POLICY = (
    f"default-src 'none'; style-src {STYLE_SOURCE}; img-src data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)

# An SVG that is opened by itself is a document: it may not load or run anything.
IMAGE_POLICY = b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"

_METHODS = ("GET", "HEAD", "POST", "DELETE")

_log = logging.getLogger("edgekit.web")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A response from the middleware itself."""

    status: int
    kind: str
    message: str
    headers: tuple[Header, ...] = ()
    asks_token: bool = False  # its page has a field for the token


TOO_MANY = Refusal(
    429,
    "TooManyError",
    "too many requests from this address; try again in a second",
    ((b"retry-after", b"1"),),
)
TOO_MANY_TOKENS = Refusal(
    429,
    "TooManyError",
    "Too many wrong tokens: wait a second, then try again.",
    ((b"retry-after", b"1"),),
    asks_token=True,
)
TOO_MANY_AT_ONCE = Refusal(
    429,
    "TooManyError",
    "too many requests in progress from this address; wait for some of them to finish",
    ((b"retry-after", b"2"),),
)
BUSY = Refusal(
    503,
    "BusyError",
    "too many connections to this server; try again in a moment",
    ((b"retry-after", b"5"), CLOSE),
)
MALFORMED = Refusal(400, "UsageError", "not an HTTP request", (CLOSE,))
LONG_QUERY = Refusal(
    414, "TooLongError", f"the query string is too long: at most {MAX_QUERY_BYTES:,} bytes"
)
LONG_HEAD = Refusal(
    400,
    "TooLongError",
    f"the request headers are too long: at most {MAX_HEAD_BYTES:,} bytes",
    (CLOSE,),
)
TOO_LARGE = Refusal(
    413, "TooLargeError", f"the request body is larger than {MAX_BODY_BYTES:,} bytes", (CLOSE,)
)
TOO_SLOW = Refusal(408, "TooSlowError", "the request body took too long to arrive", (CLOSE,))
WRONG_HOST = Refusal(
    421,
    "WrongHostError",
    "this server answers only this machine: open it as localhost or 127.0.0.1",
)
CROSS_SITE = Refusal(403, "CrossSiteError", "requests from other sites are not allowed")
INTERNAL = Refusal(500, "InternalError", UNEXPECTED)


class PageRequest(RequestHead):
    """A request to `edgekit web`."""

    __slots__ = ()

    @property
    def is_call(self) -> bool:
        return self.is_image or (self.path.startswith("/api/") and self.path != DOCS)

    @property
    def is_image(self) -> bool:
        return self.path in IMAGES

    @property
    def is_stream(self) -> bool:
        return self.is_call and self.path.endswith(EVENTS)

    @property
    def is_form(self) -> bool:
        """Whether it is the form of the page that asks for the token."""
        kind = self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        is_page = not self.is_call and self.path != HEALTH
        return self.method == "POST" and is_page and kind == FORM

    @property
    def address(self) -> str:
        """Path and query without the token, which would stay in the browser's history."""
        pairs = parse_qsl(self.query.decode("latin-1"), keep_blank_values=True)
        query = urlencode([pair for pair in pairs if pair[0] != "token"])
        # One slash in front: two would name another host.
        return "/" + quote(self.path.lstrip("/")) + (f"?{query}" if query else "")


class Security:
    """The middleware that checks every request and adds headers to every response."""

    def __init__(self, app: ASGIApp, *, settings: WebSettings) -> None:
        self._app = app
        self._rates = Rates(settings.requests_per_s)
        self._calls = Places(in_all=MOST_CALLS, per_client=CALLS_EACH)
        self._streams = Places(in_all=MOST_STREAMS, per_client=STREAMS_EACH)
        self._names = LOOPBACK_NAMES | {settings.host} if settings.is_loopback else None
        self._token = Token(settings.token, settings.port) if settings.token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head = PageRequest.from_scope(scope)
        answer = _Answer(head, send)
        refusal = self._refusal(head)
        token = self._token
        has_token_in_body = token is not None and head.is_form
        if refusal is None and token is not None and not has_token_in_body:
            refusal = token.refusal(head)
        if refusal is not None:
            await answer.refuse(refusal)
            return
        try:
            body = await read_body(
                receive, head.headers, max_bytes=MAX_BODY_BYTES, timeout_s=BODY_TIMEOUT_S
            )
        except ClientDisconnect:
            return
        if isinstance(body, BodyProblem):
            refusal = TOO_LARGE if body is BodyProblem.TOO_LARGE else TOO_SLOW
            await answer.refuse(refusal, unread=receive)
            return
        if token is not None and has_token_in_body:
            await answer.refuse(token.answer_to_form(head, body))
            return
        buffered = replayed(body, receive) if body else receive
        if not head.is_call:
            await self._forward(scope, buffered, answer)
            return
        places = self._streams if head.is_stream else self._calls
        if not places.enter(head.client):
            await answer.refuse(TOO_MANY_AT_ONCE)
            return
        try:
            await self._forward(scope, buffered, answer)
        finally:
            places.leave(head.client)

    def _refusal(self, head: PageRequest) -> Refusal | None:
        """The first rule that the request breaks. The token is checked later."""
        if not self._rates.take(head.client):
            return TOO_MANY
        if len(head.query) > MAX_QUERY_BYTES:
            return LONG_QUERY
        if head.head_bytes > MAX_HEAD_BYTES:  # h11 does not count a head that arrives in one piece
            return LONG_HEAD
        if head.method not in _METHODS:
            # OPTIONS too: other sites may not call, so CORS is not needed.
            allow = (b"allow", ", ".join(_METHODS).encode())
            return Refusal(405, "MethodError", f"method {head.method[:20]} not allowed", (allow,))
        if self._names is not None and not is_named(head, self._names):
            return WRONG_HOST  # an attempt at DNS rebinding
        if head.is_call and not is_same_site(head):
            return CROSS_SITE
        return None

    async def _forward(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Calls the application, and answers for it if it fails before its response has begun.

        HEAD becomes GET, of which the server drops the body; not for a stream, which would not end.
        """
        if answer.head.method == "HEAD" and not answer.head.is_stream:
            scope = {**scope, "method": "GET"}
        try:
            await self._app(scope, receive, answer.send)
        except Exception:
            _log.exception("a request failed: %s", scope["path"])
            if answer.has_begun:
                raise
            await answer.refuse(INTERNAL)


async def busy(scope: Scope, _: Receive, send: Send) -> None:
    """The application for a connection above the limit."""
    await _Answer(PageRequest.from_scope(scope), send).refuse(BUSY)


def malformed_answer() -> tuple[tuple[Header, ...], bytes]:
    """All headers and the body of the response to a request whose head could not be read."""
    headers, body = _content(MALFORMED, None)
    return (*headers, *HEADERS, (b"cache-control", b"no-store")), body


def _content(refusal: Refusal, head: PageRequest | None) -> tuple[tuple[Header, ...], bytes]:
    """The refusal's headers and body: JSON, an image, or a small HTML page for a request that is not a call."""
    if head is not None and head.is_image:
        kind, text = SVG.encode(), error_badge_svg(refusal.message)
    elif head is None or head.is_call:
        kind, text = b"application/json", json.dumps(failure_json(refusal.kind, refusal.message))
    else:
        kind = b"text/html; charset=utf-8"
        text = small_page(
            "Token required" if refusal.asks_token else HTTPStatus(refusal.status).phrase,
            refusal.message,
            link=head.address,
            link_text="Try again",
            form_action=head.address if refusal.asks_token else None,
        )
    body = text.encode()
    policy = ((b"content-security-policy", TOKEN_PAGE_POLICY.encode()),) * refusal.asks_token
    return (*content_headers(kind, body), *refusal.headers, *policy), body


def _headers(head: PageRequest) -> Iterator[Header]:
    """The headers that every response has; images have a policy of their own."""
    for name, value in HEADERS:
        is_policy = head.is_image and name == b"content-security-policy"
        yield name, IMAGE_POLICY if is_policy else value


class _Answer:
    """Sends a response with the headers that every response has."""

    def __init__(self, head: PageRequest, send: Send) -> None:
        self.head, self._send = head, send
        self.has_begun = False

    async def send(self, message: Message) -> None:
        """Passes on a message of the application, and adds headers to the first."""
        if message["type"] == "http.response.start":
            self.has_begun = True
            headers: list[Header] = list(message.get("headers", ()))
            names = {name for name, _ in headers}
            cached = (b"cache-control", b"no-store" if self.head.is_call else b"no-cache")
            more = (*_headers(self.head), cached)
            headers.extend(header for header in more if header[0] not in names)
            message = {**message, "headers": headers}
        await self._send(message)

    async def refuse(self, refusal: Refusal, *, unread: Receive | None = None) -> None:
        """Sends a refusal. `unread`: the rest of a request that its client still sends."""
        headers, body = _content(refusal, self.head)
        await respond(self.send, refusal.status, headers, body, unread=unread)


class Token:
    """Lets in requests with the token, or with the cookie that was set in exchange for it.

    A client may only try a few wrong tokens per second. Meanwhile it can still use the cookie, so that somebody who
    guesses from the same address does not lock out a browser; and the right token, if that is too long to guess.
    """

    def __init__(self, token: str, port: int) -> None:
        self._token = token.encode()
        self._cookie = f"edgekit_{port}"  # cookies ignore ports: keep two servers apart
        self._value = secrets.token_hex(32)  # random: reveals nothing about the token
        self._guesses = Rates(WRONG_TOKENS_PER_S)
        self._is_long = len(token) >= LONG_TOKEN_CHARS

    def refusal(self, head: PageRequest) -> Refusal | None:
        """Why the request is refused; None if it is let in.

        A page with the token in its address is redirected to the address without it, and gets the cookie. The form is
        not decided here, because its token is in the body.
        """
        if head.path == HEALTH:
            return None
        sent_token = head.bearer
        if sent_token is not None:
            return self._check(head, sent_token)
        if not head.is_call:
            text = dict(parse_qsl(head.query.decode("latin-1"))).get("token")
            if text is not None:
                return self._check(head, text.encode()) or self._exchange(head)
        return None if self._has_cookie(head) else _token_refusal(head, "a token is required")

    def answer_to_form(self, head: PageRequest, body: bytes) -> Refusal:
        """The answer to the form of the page that asks for the token: like that to a token in the address.

        What is pasted may also be the whole address that edgekit web printed.
        """
        text = dict(parse_qsl(body.decode("latin-1"))).get("token", "")
        pasted = text.rpartition("token=")[2]
        token = re.split("[&#]", pasted, maxsplit=1)[0].strip().encode()
        refusal = self._check(head, token)
        if refusal is TOO_MANY:
            refusal = TOO_MANY_TOKENS
        return refusal or self._exchange(head)

    def _has_cookie(self, head: PageRequest) -> bool:
        cookie = cookie_parser(head.headers.get(b"cookie", b"").decode("latin-1"))
        return hmac.compare_digest(cookie.get(self._cookie, "").encode(), self._value.encode())

    def _check(self, head: PageRequest, sent_token: bytes) -> Refusal | None:
        """Why this token is refused; None if it is right, or not needed because of the cookie."""
        if self._has_cookie(head):
            return None
        may_guess = self._guesses.has(head.client)
        is_right = hmac.compare_digest(sent_token, self._token)
        if is_right and (may_guess or self._is_long):
            return None
        self._guesses.take(head.client)
        return _token_refusal(head, "the token is wrong") if may_guess else TOO_MANY

    def _exchange(self, head: PageRequest) -> Refusal:
        """Sets the cookie, and redirects to the address without the token."""
        cookie = f"{self._cookie}={self._value}; Path=/; HttpOnly; SameSite=Strict"
        headers = ((b"location", head.address.encode()), (b"set-cookie", cookie.encode()))
        return Refusal(303, "", "Token accepted.", headers)


def _token_refusal(head: PageRequest, problem: str) -> Refusal:
    if not head.is_call:
        where = "Open the address that edgekit web printed in its terminal: it contains the token."
        text = f"{problem.capitalize()}. {where}"
        return Refusal(401, "TokenError", text, asks_token=True)
    message = f"{problem}: send Authorization: Bearer TOKEN with the token that edgekit web printed"
    return Refusal(401, "TokenError", message, ((b"www-authenticate", b"Bearer"),))


# --- shutdown

BYE = b"event: bye\ndata: {}\n\n"


class Shutdown:
    """The tasks to cancel when the server shuts down. `begin` is called from the server's loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._has_begun = False

    def begin(self) -> None:
        self._has_begun = True
        for task in self._tasks:
            task.cancel()

    @contextmanager
    def cancels(self) -> Iterator[None]:
        """`begin` cancels the block, and execution continues after it. Any other cancellation propagates."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a server's code runs in tasks
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._has_begun:
                raise
            task.uncancel()
        finally:
            self._tasks.discard(task)


class ShutdownMiddleware:
    """At shutdown, a call sees its client disconnect, which cancels it, and an event stream gets a last event."""

    def __init__(self, app: ASGIApp, *, shutdown: Shutdown) -> None:
        self._app, self._shutdown = app, shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_response_open = False

        async def receive_until_shutdown() -> Message:
            with self._shutdown.cancels():
                return await receive()
            return {"type": "http.disconnect"}

        async def watched_send(message: Message) -> None:
            nonlocal is_response_open
            is_start = message["type"] == "http.response.start"
            is_response_open = is_start or message.get("more_body", False)
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif not scope["path"].endswith(EVENTS):
            await self._app(scope, receive_until_shutdown, send)
        else:
            with self._shutdown.cancels():
                await self._app(scope, receive, watched_send)
                return
            if is_response_open:
                await send({"type": "http.response.body", "body": BYE})
