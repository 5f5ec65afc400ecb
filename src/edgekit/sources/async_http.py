"""HTTP for a crawl: many requests at once in one event loop, each bounded in time and size, rate-limited and retried.

The rules are those of http.py: where redirects may lead, who gets the token, which statuses are worth another try.
Unlike http.py it may wait minutes for a rate limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import re
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from edgekit import __version__
from edgekit.errors import (
    HeaderError,
    PrivateAddressError,
    RemoteBusyError,
    RemoteInspectError,
)
from edgekit.sources.address import (
    Guard,
    connection_target,
    host_of,
    hub_endpoint,
    hub_library,
    is_elsewhere,
    is_offline,
    is_public_host,
    redirect_target,
    site_of,
    token_for,
)
from edgekit.sources.http import (
    MAX_DRAINED_BYTES,
    MAX_REDIRECTS,
    READ_STATUSES,
    REDIRECTS,
    BodyLimit,
    Reply,
    ResponseHead,
    TransientFailure,
    certificate_error,
    connection_failure,
    is_certificate_error,
    offline_error,
    status_error,
    transient_status,
)

if TYPE_CHECKING:
    import httpx2

MAX_FAILURES = 6  # of one request in a row; 0.5 + 1 + 2 + 4 + 8 s are spent waiting
MAX_BUSY_ANSWERS = 20  # 429 to one request: each waits for the server's next window
# Without one other answer: six of the hub's windows, or three of the longest waits. Such a server is closed, not busy.
MAX_BUSY_S = 1800.0
MIN_NOTIFIED_S = 1.0  # shorter waits are not worth a line
MAX_MALFORMED = 3  # equal answers: then it is the document, not the transfer
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
# The hub's windows are 5 minutes; a server that asks for a longer wait is asked again after this.
MAX_RETRY_AFTER_S = 600.0
CONNECT_S = 15.0
REQUEST_S = 120.0  # one request with its body, at most
API, FILES = "api", "files"  # the hub limits them separately

_SPENT = re.compile(r";\s*r=0\s*;\s*t=([0-9]{1,9})\b")  # RateLimit: "api";r=0;t=55
_COPY_BYTES = 64 * 1024


@dataclass(slots=True)
class Tally:
    """Counts the traffic of a crawl, and the failures that it survived."""

    requests: int = 0
    received_bytes: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.requests += other.requests
        self.received_bytes += other.received_bytes
        self.faults.update(other.faults)


class RateLimiter:
    """Delays requests: at most `rate` per second, and not before the server allows it.

    `notify` is called with a line for each wait that the server asks for, once for all requests that wait.
    """

    def __init__(
        self, rate: float | None = None, notify: Callable[[str], None] | None = None
    ) -> None:
        self._interval_s = 1 / rate if rate else 0.0
        self._next = 0.0
        self._blocked_until = {API: 0.0, FILES: 0.0}
        self._notify = notify
        self._busy_since: float | None = None  # the first refusal after the last answer

    async def wait_turn(self, bucket: str) -> None:
        """Wait until the next request of this bucket may start."""
        while True:
            now = time.monotonic()
            if (blocked_s := self._blocked_until[bucket] - now) > 0:
                await asyncio.sleep(blocked_s)
                continue
            start = max(now, self._next)
            self._next = start + self._interval_s
            if start > now:
                await asyncio.sleep(start - now)
            if self._blocked_until[bucket] <= time.monotonic():
                return

    def block(self, bucket: str, seconds: float, why: str) -> None:
        """Block this bucket for `seconds`, at most MAX_RETRY_AFTER_S."""
        now, seconds = time.monotonic(), min(seconds, MAX_RETRY_AFTER_S)
        is_new = self._blocked_until[bucket] <= now
        self._blocked_until[bucket] = max(self._blocked_until[bucket], now + seconds)
        if is_new and seconds >= MIN_NOTIFIED_S and self._notify is not None:
            self._notify(f"{why}: waiting {seconds:.0f} s")

    def answered(self) -> None:
        """The server has answered a request."""
        self._busy_since = None

    def refused(self, wait_s: float) -> bool:
        """The server is busy, and asks for a wait. Returns whether it has been busy for too long to wait again."""
        now = time.monotonic()
        self._busy_since = now if self._busy_since is None else self._busy_since
        return now + min(wait_s, MAX_RETRY_AFTER_S) - self._busy_since > MAX_BUSY_S


class AsyncTransport:
    """The connections of a crawl to one hub and to where it redirects. Made by `open_transport`."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        *,
        limiter: RateLimiter,
        request_s: float,
        is_hub_public: bool,
    ) -> None:
        self._client = client
        self._limiter = limiter
        self._request_s = request_s
        self._hub_site = site_of(hub_endpoint())
        self._token = token_for(hub_endpoint())
        # A hub on the internet must not send us to this network. One in this network was chosen by the user.
        self._is_guarded = is_hub_public
        self._known_public: set[str] = set()  # hosts that were checked
        self.tally = Tally()

    async def get_json(self, url: str, *, name: str, limit_bytes: int, limit_values: int) -> Json:
        """A JSON document. HeaderError if it is malformed or too large; otherwise raises like `get`."""
        seen: Counter[bytes] = Counter()
        while True:
            reply = await self.get(
                url, name=name, body_limit=lambda _: limit_bytes, compressed=True
            )
            if reply.overrun:
                raise HeaderError(f"longer than {limit_bytes:,} bytes", file=name)
            body = bytes(reply.body)
            # Counted before anything is built: four million empty lists would take 300 MB.
            if body.count(b"[") + body.count(b"{") + body.count(b",") > limit_values:
                raise HeaderError(f"more than {limit_values:,} values", file=name)
            try:
                value = json.loads(body)
            except (ValueError, RecursionError) as error:
                self.tally.faults["malformed"] += 1
                digest = hashlib.sha256(body).digest()
                seen[digest] += 1
                if seen[digest] >= MAX_MALFORMED or seen.total() >= MAX_FAILURES:
                    raise HeaderError("not JSON", file=name) from error
                await asyncio.sleep(pause_s(seen.total() - 1))
                continue
            head = reply.head
            return Json(value=value, headers=head.headers if head else {}, length=len(body))

    async def get(
        self,
        url: str,
        *,
        name: str,
        body_limit: BodyLimit,
        headers: Mapping[str, str] | None = None,
        compressed: bool = False,
    ) -> Reply:
        """One GET with its redirects and retries. `compressed`: the server may send gzip.

        Raises RemoteBusyError if the server keeps failing, another RemoteInspectError for an error status.
        """
        bucket = API if urlsplit(url).path.startswith("/api/") else FILES
        failures = busy = 0
        while True:
            await self._limiter.wait_turn(bucket)
            reply = await self._follow(url, headers or {}, name, body_limit, compressed=compressed)
            failure, head = reply.failure, reply.head
            if failure is None:
                self._limiter.answered()
                return reply
            is_busy = head is not None and head.status == 429
            busy, failures = busy + is_busy, failures + (not is_busy)
            self.tally.faults[_kind(failure, head)] += 1
            wait_s = max(pause_s(failures + busy - 1), failure.retry_after_s or 0.0)
            is_too_busy = is_busy and self._limiter.refused(wait_s)
            if is_too_busy or failures >= MAX_FAILURES or busy >= MAX_BUSY_ANSWERS:
                slower = ", with a lower --rate" if is_busy else ""
                raise RemoteBusyError(
                    f"{name}: {failure.what} ({failures + busy} attempts); run the command again later{slower}"
                )
            if is_busy or failure.retry_after_s:  # for the other requests too
                self._limiter.block(bucket, wait_s, failure.what)
            else:
                await asyncio.sleep(wait_s)

    async def _follow(
        self,
        url: str,
        headers: Mapping[str, str],
        name: str,
        body_limit: BodyLimit,
        *,
        compressed: bool,
    ) -> Reply:
        """One GET with its redirects, without retries."""
        visited = {url}
        for _ in range(MAX_REDIRECTS + 1):
            reply = await self._exchange(url, headers, name, body_limit, compressed=compressed)
            head = reply.head
            if head is None or head.status not in REDIRECTS:
                return reply
            url = redirect_target(url, head.headers.get("location", ""), name=name)
            if url in visited:
                break
            visited.add(url)
        raise RemoteInspectError(f"{name}: {host_of(url)} redirects without end; check the address")

    async def _exchange(
        self,
        url: str,
        headers: Mapping[str, str],
        name: str,
        body_limit: BodyLimit,
        *,
        compressed: bool,
    ) -> Reply:
        """One request and its response. A transient failure is in the reply; others are raised."""
        import httpx2
        from huggingface_hub.errors import OfflineModeIsEnabled

        reply = Reply()
        self.tally.requests += 1
        try:
            async with asyncio.timeout(self._request_s):
                await self._send(reply, url, headers, name, body_limit, compressed=compressed)
        except TimeoutError:
            limit_s, host = self._request_s, host_of(url)
            reply.failure = TransientFailure(
                what=f"{host} took longer than {limit_s:g} s", timed_out=True
            )
        except httpx2.TransportError as error:
            if is_certificate_error(error):
                raise certificate_error(url, name=name) from error
            if "location header" in str(error):  # the client parses it before it is asked to
                raise RemoteInspectError(
                    f"{name}: {host_of(url)} redirects to something that is not a web address"
                ) from error
            reply.failure = connection_failure(error, url, received_bytes=reply.received_bytes)
        except OfflineModeIsEnabled as error:
            raise offline_error(name=name) from error
        except (httpx2.InvalidURL, UnicodeError) as error:
            # Omit the client's message: it quotes the address, which may contain a signature.
            raise RemoteInspectError(f"{name}: invalid address; check its spelling") from error
        finally:
            self.tally.received_bytes += reply.received_bytes
        head = reply.head
        if head is None or reply.failure is not None:
            return reply
        reply.failure = transient_status(head)
        if reply.failure is None and head.status not in READ_STATUSES | REDIRECTS:
            raise status_error(head, name=name)
        bucket = API if urlsplit(url).path.startswith("/api/") else FILES
        if spent := _SPENT.search(head.headers.get("ratelimit", "")[:1000]):
            why = f"{host_of(url)} allows no more requests in this window"
            self._limiter.block(bucket, float(spent[1]), why)
        return reply

    async def _send(
        self,
        reply: Reply,
        url: str,
        headers: Mapping[str, str],
        name: str,
        body_limit: BodyLimit,
        *,
        compressed: bool,
    ) -> None:
        """Send the request and read the wanted part of the response into `reply`."""
        from httpx2 import USE_CLIENT_DEFAULT, Timeout

        is_hub = site_of(url) == self._hub_site
        extensions: dict[str, Any] = {}
        if self._is_guarded and not is_hub:
            await self._check_public(url, name)
            extensions["trace"] = _peer_check(url, name)
        token = self._token if is_hub else None
        request = self._client.build_request(
            "GET",
            url,
            headers={
                "user-agent": f"edgekit/{__version__}",
                "accept-encoding": "gzip" if compressed else "identity",
                **headers,
            },
            timeout=Timeout(self._request_s, connect=CONNECT_S),
            extensions=extensions,
        )
        # A client configured with credentials for the hub must not send them to other hosts.
        request.headers.pop("authorization", None)
        if token is not None:
            request.headers["authorization"] = f"Bearer {token}"
        auth = USE_CLIENT_DEFAULT if token is not None else None
        response = await self._client.send(request, stream=True, follow_redirects=False, auth=auth)
        try:
            head = ResponseHead(
                status=response.status_code,
                headers={key.lower(): text for key, text in response.headers.items()},
                url=url,
                token_sent=token is not None,
            )
            await _receive(response, reply, head, name, body_limit)
        finally:
            await response.aclose()

    async def _check_public(self, url: str, name: str) -> None:
        """Raises PrivateAddressError if the host is not public. The resolver may block, so another thread asks it."""
        host = host_of(url)
        if host not in self._known_public:
            try:
                await asyncio.to_thread(Guard(url, name=name).check_host)
            except PrivateAddressError as error:
                raise _private_error(url, name) from error
            self._known_public.add(host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Json:
    """A JSON document and the headers it came with."""

    value: Any
    headers: Mapping[str, str]
    length: int


@asynccontextmanager
async def open_transport(
    *,
    rate: float | None = None,
    request_s: float = REQUEST_S,
    notify: Callable[[str], None] | None = None,
) -> AsyncIterator[AsyncTransport]:
    """A transport with huggingface_hub's proxies and certificates, closed at the end."""
    endpoint = hub_endpoint()
    if is_offline():
        raise offline_error(name=host_of(endpoint))
    is_public = await asyncio.to_thread(is_public_host, endpoint)
    async with hub_library().get_async_session() as client:
        yield AsyncTransport(
            client,
            limiter=RateLimiter(rate, notify),
            request_s=request_s,
            is_hub_public=is_public,
        )


async def _receive(
    response: httpx2.Response, reply: Reply, head: ResponseHead, name: str, body_limit: BodyLimit
) -> None:
    """Read the head of the response and the wanted part of its body, unpacked, into `reply`."""
    import httpx2

    reply.head = head
    if head.status not in READ_STATUSES:
        if response.is_stream_consumed:  # huggingface_hub's hook reads short error messages
            return
        with contextlib.suppress(httpx2.TransportError):  # only the head matters
            async for chunk in response.aiter_raw():
                reply.received_bytes += len(chunk)
                if reply.received_bytes > MAX_DRAINED_BYTES:
                    break
        return
    encoding = head.headers.get("content-encoding", "identity")
    if encoding not in {"identity", "gzip"}:
        raise RemoteInspectError(
            f"{name}: {host_of(head.url)} sends {encoding[:40]!r}, which was not asked for"
        )
    gzip = zlib.decompressobj(16 + zlib.MAX_WBITS) if encoding == "gzip" else None
    limit_bytes = body_limit(head)
    async for chunk in response.aiter_raw(_COPY_BYTES):
        reply.received_bytes += len(chunk)
        left = limit_bytes - len(reply.body)
        if gzip is None:
            piece, rest = chunk[:left], chunk[left:]
        else:  # never unpacks more than is wanted
            try:
                piece = gzip.decompress(chunk, left + 1)
            except zlib.error:
                reply.failure = TransientFailure(what=f"{host_of(head.url)} sent damaged gzip")
                return
            piece, rest = piece[:left], piece[left:]
        reply.body += piece
        if rest:
            reply.overrun = True
            return


def _peer_check(url: str, name: str) -> Callable[[str, Mapping[str, Any]], Any]:
    """The client's trace callback: refuses a connection whose peer is on this machine or in a private network.

    The name may resolve differently than a moment ago. Behind a proxy the peer is the proxy.
    """
    import httpx2

    target = connection_target(httpx2.URL(url))
    connects_to: list[tuple[str, int]] = []

    async def watch(event: str, info: Mapping[str, Any]) -> None:
        if event.endswith("connect_tcp.started"):
            host = info["host"]
            connects_to[:] = [(host if isinstance(host, str) else host.decode(), info["port"])]
        if not event.endswith("connect_tcp.complete") or connects_to != [target]:
            return
        stream = info["return_value"]
        peer = stream.get_extra_info("server_addr")[0]
        local = stream.get_extra_info("client_addr")[0]
        if not is_elsewhere(peer, local):
            await stream.aclose()
            raise _private_error(url, name)

    return watch


def _private_error(url: str, name: str) -> PrivateAddressError:
    return PrivateAddressError(
        f"{name}: the hub redirects to {host_of(url)}, an address of this machine or of a private network, "
        "which is not followed"
    )


def pause_s(failures: int) -> float:
    """The pause before another try, a little different for each so that they do not come back together."""
    seconds = min(FIRST_PAUSE_S * 2.0**failures, MAX_PAUSE_S)
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311 - no secret


def _kind(failure: TransientFailure, head: ResponseHead | None) -> str:
    """What to count the failure as: a status, "timeout", or "connection" for a body that broke off or is damaged."""
    if head is not None and head.status not in READ_STATUSES:
        return str(head.status)
    return "timeout" if failure.timed_out else "connection"
