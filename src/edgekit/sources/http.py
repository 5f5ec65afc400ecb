"""The HTTP client: requests bounded in time and size, counted and retried, with errors in plain words."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from edgekit import __version__
from edgekit.errors import (
    CancelledError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    RemoteTimeoutError,
)
from edgekit.sources.address import (
    Guard,
    host_of,
    hub_client,
    is_hub,
    is_offline,
    redirect_target,
    token_for,
)

if TYPE_CHECKING:
    import httpx2

    from edgekit.sources.types import Reach

MAX_REDIRECTS = 5  # the hub needs 1, a renamed repository 2
MAX_RETRIES = 3
MAX_TIMEOUT_RETRIES = 1  # each retry costs another whole time-out
FIRST_PAUSE_S = 0.2  # before the first retry; doubled before each further one
MAX_RETRY_AFTER_S = 8.0  # a person is waiting; for a longer wait the error says when to retry
MAX_DRAINED_BYTES = 16 * 1024  # of an unwanted body, read so that the connection can be reused

READ_STATUSES = frozenset({*range(200, 300), 304, 416})
TRANSIENT_STATUSES = frozenset({429, 500, 502, 503, 504})  # worth another try
REDIRECTS = frozenset({301, 302, 303, 307, 308})
_POLL_S = 0.05  # how often a waiting thread checks for cancellation
_TRAFFIC_LOCK = threading.Lock()  # several references may share one Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseHead:
    """The status line and headers of an HTTP response."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    url: str  # may carry a signature: use it, never show or store it
    token_sent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TransientFailure:
    """A transient failure, after which a request may be retried."""

    what: str
    advice: str = "try again later"
    timed_out: bool = False
    retry_after_s: float | None = None  # the server's Retry-After


# Returns how many bytes of a response's body to read, or raises to reject it unread. Only called for READ_STATUSES.
BodyLimit = Callable[[ResponseHead], int]


@dataclass(slots=True)
class Reply:
    """A response with its body up to a limit; or the failure, perhaps after part of the body."""

    head: ResponseHead | None = None
    body: bytearray = field(default_factory=bytearray)  # up to the limit
    received_bytes: int = 0  # including bytes beyond the limit
    overrun: bool = False  # the server sent more than the limit
    failure: TransientFailure | None = None
    linked_etag: str | None = None  # X-Linked-ETag of the hub's redirect: the hash of the content


# -- one request ---------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request and its response, on its own thread so that the time limit always holds.

    An HTTP client's time-outs are per read: they do not stop a server that sends one header byte per second, nor a DNS
    server that never answers. Call `run` once, then read `reply`.
    """

    url: str
    headers: Mapping[str, str]
    name: str
    body_limit: BodyLimit
    reach: Reach
    limit_s: float
    sink: BinaryIO | None = None  # gets the body instead of `reply`
    reply: Reply = field(default_factory=Reply)
    _guard: Guard | None = None
    _abandoned: bool = False
    _connection: Any = None  # the network stream, once there is one

    def run(self) -> bool:
        """Send the request and wait for the response; False if that took longer than the limit.

        Raises the error of the exchange, or CancelledError.
        """
        client, token = hub_client(), token_for(self.url)
        deadline = time.monotonic() + self.limit_s
        finished: Future[None] = Future()

        def work() -> None:
            try:
                self._request(client, token)
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                finished.set_exception(error)
            else:
                finished.set_result(None)

        threading.Thread(target=work, daemon=True).start()
        try:
            while not wait([finished], max(0.0, min(_POLL_S, deadline - time.monotonic()))).done:
                check_cancelled(self.reach)
                if time.monotonic() >= deadline:
                    return False
        finally:
            if not finished.done():
                self._abandon()
        finished.result()
        return True

    def _abandon(self) -> None:
        """Close the connection, so that the thread ends instead of waiting for the next byte."""
        self._abandoned = True
        with contextlib.suppress(AttributeError, OSError):  # not connected yet, or no longer
            self._connection.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def _request(self, client: httpx2.Client, token: str | None) -> None:
        """Fill in `reply`, also if the request fails for a transient reason. Other failures are raised."""
        import httpx2
        from huggingface_hub.errors import OfflineModeIsEnabled

        try:
            if self.reach.public_only:
                self._guard = Guard(self.url, name=self.name)
                self._guard.check_host()
            if self._abandoned:  # abandoned while the host name was being resolved
                return
            with contextlib.closing(self._send(client, token)) as response:
                self._connection = response.extensions.get("network_stream")
                self._receive(response, token_sent=token is not None)
        except httpx2.TransportError as error:
            if is_certificate_error(error):
                raise certificate_error(self.url, name=self.name) from error
            received_bytes = self.reply.received_bytes
            self.reply.failure = connection_failure(error, self.url, received_bytes=received_bytes)
        except OfflineModeIsEnabled as error:
            raise offline_error(name=self.name) from error
        except (httpx2.InvalidURL, UnicodeError) as error:  # UnicodeError: not a host name
            # Omit the client's message: it quotes the address, which may contain a password.
            raise RemoteInspectError(f"{self.name}: invalid address; check its spelling") from error

    def _send(self, client: httpx2.Client, token: str | None) -> httpx2.Response:
        """Send the request and return the response, with its body not read yet."""
        from httpx2 import USE_CLIENT_DEFAULT, Timeout

        read_s, connect_s = self.reach.read_timeout_s, self.reach.connect_timeout_s
        request = client.build_request(
            "GET",
            self.url,
            headers={
                "user-agent": f"edgekit/{__version__}",
                "accept-encoding": "identity",  # offsets are into the file, not into a gzip of it
                **self.headers,
            },
            timeout=Timeout(min(read_s, self.limit_s), connect=min(connect_s, self.limit_s)),
            extensions={"trace": self._trace},
        )
        # A client configured with credentials for the hub must not send them to other hosts.
        request.headers.pop("authorization", None)
        if token is not None:
            request.headers["authorization"] = f"Bearer {token}"
        auth = USE_CLIENT_DEFAULT if token is not None else None
        return client.send(request, stream=True, follow_redirects=False, auth=auth)

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        """The client's trace callback: stores the connection, and lets the guard check its peer."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._connection = info["return_value"]
            if self._abandoned:  # abandoned while the connection was being opened
                self._abandon()
        if self._guard is not None:
            self._guard.watch(event, info)

    def _receive(self, response: httpx2.Response, *, token_sent: bool) -> None:
        """Read the head of the response and the wanted part of its body into `reply`."""
        import httpx2

        reply = self.reply
        headers = {key.lower(): text for key, text in response.headers.items()}
        reply.head = head = ResponseHead(
            status=response.status_code, headers=headers, url=self.url, token_sent=token_sent
        )
        if head.status not in READ_STATUSES:
            with contextlib.suppress(httpx2.TransportError):  # only the head matters
                for chunk in response.iter_raw():
                    reply.received_bytes += len(chunk)
                    if reply.received_bytes > MAX_DRAINED_BYTES or self._abandoned:
                        break
            return
        if headers.get("content-encoding", "identity") != "identity":
            raise RemoteInspectError(
                f"{self.name}: {host_of(head.url)} sends the file compressed although we asked for "
                "it uncompressed, so byte offsets in it cannot be used; download the file and "
                "give its path"
            )
        limit_bytes = self.body_limit(head)
        for chunk in response.iter_raw():
            wanted = chunk[: limit_bytes - reply.received_bytes]
            reply.received_bytes += len(chunk)
            if self.sink is None:
                reply.body += wanted
            else:
                self.sink.write(wanted)
            reply.overrun = reply.received_bytes > limit_bytes
            if reply.overrun or self._abandoned:
                break


def check_cancelled(reach: Reach) -> None:
    """Raises CancelledError if the caller has cancelled the work."""
    if reach.cancelled is not None and reach.cancelled.is_set():
        raise CancelledError("cancelled")


# -- the requests of one reference ---------------------------------------------------------------


class Stopwatch:
    """The time during which at least one thread was inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._since = 0.0  # start of the current period
        self._earlier_s = 0.0  # of periods that have ended

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._since = time.monotonic()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._earlier_s += time.monotonic() - self._since

    @property
    def seconds(self) -> float:
        with self._lock:
            running_s = time.monotonic() - self._since if self._inside else 0.0
            return self._earlier_s + running_s


class Transport:
    """The connection of one reference, shared by its files and their threads.

    They share one time limit, which counts only while the network is being used.
    """

    def __init__(self, reach: Reach, *, cut_off: RemoteInspectError | None = None) -> None:
        """With `cut_off` nothing is requested: only cached bytes are served, and reading more raises that error."""
        self.reach = reach
        self._cut_off = cut_off
        self._watch = Stopwatch()

    @property
    def is_online(self) -> bool:
        return self.reach.network and self._cut_off is None and not is_offline()

    @property
    def left_s(self) -> float:
        return self.reach.total_timeout_s - self._watch.seconds

    def request(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        name: str,
        body_limit: BodyLimit,
        is_final_redirect: Callable[[ResponseHead], bool] | None = None,
        sink: BinaryIO | None = None,
    ) -> Reply:
        """One GET with its redirects. Redirects are followed up to one for which `is_final_redirect` is true.

        A transient failure is returned in the reply. Raises for a permanent error status, and when the time is used up.
        """
        check_cancelled(self.reach)
        if self._cut_off is not None:
            # A copy, because several threads may raise it.
            raise type(self._cut_off)(str(self._cut_off))
        if not self.is_online:
            raise offline_error(name=name)
        linked_etag = None
        visited = {url}
        for _ in range(MAX_REDIRECTS + 1):
            reply = self._exchange(url, headers, name=name, body_limit=body_limit, sink=sink)
            head = reply.head
            reply.linked_etag = linked_etag
            if head is None or head.status not in REDIRECTS:
                return reply
            if is_final_redirect is not None and is_final_redirect(head):
                return reply
            linked_etag = linked_etag or head.headers.get("x-linked-etag")
            url = redirect_target(url, head.headers.get("location", ""), name=name)
            if url in visited:
                raise RemoteInspectError(
                    f"{name}: {host_of(url)} redirects in a loop; check the address"
                )
            visited.add(url)
        raise RemoteInspectError(
            f"{name}: more than {MAX_REDIRECTS} redirects, the last to {host_of(url)}; "
            "check the address"
        )

    def get(
        self,
        url: str,
        *,
        name: str,
        limit_bytes: int,
        accept: str = "*/*",
        sink: BinaryIO | None = None,
    ) -> Reply:
        """A whole document, with retries; one that is too large is an error. A large one is written to `sink`."""
        retries = RetrySchedule(self, name=name)
        while True:
            if sink is not None:  # without the part that a failed attempt wrote
                sink.seek(0)
                sink.truncate()
            reply = self.request(
                url, {"accept": accept}, name=name, body_limit=lambda _: limit_bytes, sink=sink
            )
            if reply.failure is not None:
                retries.wait(reply.failure)
                continue
            if reply.overrun:
                raise RemoteInspectError(
                    f"{name}: {host_of(url)} sent more than {limit_bytes:,} bytes where a "
                    "small document was expected; check the address"
                )
            return reply

    def pause(self, seconds: float, *, name: str) -> None:
        """Wait before a retry. Raises RemoteTimeoutError if too little time is left, and CancelledError."""
        if seconds >= self.left_s:
            raise self._timeout_error(name)
        cancelled = self.reach.cancelled or threading.Event()
        with self._watch:
            cancelled.wait(seconds)
        check_cancelled(self.reach)

    def count(
        self, *, requests: int = 0, received_bytes: int = 0, ranges: int = 0, cached_bytes: int = 0
    ) -> None:
        """Add to the traffic counters."""
        traffic = self.reach.traffic
        with _TRAFFIC_LOCK:
            traffic.requests += requests
            traffic.received_bytes += received_bytes
            traffic.ranges += ranges
            traffic.cached_bytes += cached_bytes

    def _exchange(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        name: str,
        body_limit: BodyLimit,
        sink: BinaryIO | None,
    ) -> Reply:
        """One GET without its redirects. Raises for a permanent error status and when the time is used up."""
        left_s = self.left_s
        if left_s <= 0:
            raise self._timeout_error(name)
        exchange = Exchange(
            url=url,
            headers=headers,
            name=name,
            body_limit=body_limit,
            reach=self.reach,
            limit_s=left_s,
            sink=sink,
        )
        reply = exchange.reply
        try:
            with self._watch:
                is_finished = exchange.run()
        finally:
            self.count(requests=1, received_bytes=reply.received_bytes)
        if not is_finished:
            raise self._timeout_error(name)
        if reply.failure is None and reply.head is not None:
            reply.failure = transient_status(reply.head)
            is_permanent = reply.head.status not in READ_STATUSES | REDIRECTS
            if reply.failure is None and is_permanent:
                raise status_error(reply.head, name=name)
        return reply

    def _timeout_error(self, name: str) -> RemoteTimeoutError:
        return RemoteTimeoutError(
            f"{name}: timed out after {self.reach.total_timeout_s:g} s "
            f"({self.reach.traffic.requests} requests), because the server or the "
            "connection is too slow: allow more time (--timeout), or download the file "
            "and give its path"
        )


class RetrySchedule:
    """How often a request is retried, and how long to wait before each retry."""

    def __init__(self, transport: Transport, *, name: str) -> None:
        self._transport = transport
        self._name = name
        self._retries = 0
        self._timeouts = 0

    def reset(self) -> None:
        """Reset the count after progress: only consecutive failures count."""
        self._retries = self._timeouts = 0

    def wait(self, failure: TransientFailure) -> None:
        """Returns when it is time to retry; raises if the retries are used up or the wait is too long."""
        retry_after_s = failure.retry_after_s or 0.0
        self._timeouts += failure.timed_out
        if retry_after_s > MAX_RETRY_AFTER_S:
            raise RemoteInspectError(
                f"{self._name}: {failure.what} and asked us to wait; try again in {retry_after_s:.0f} s"
            )
        if self._retries >= MAX_RETRIES or self._timeouts > MAX_TIMEOUT_RETRIES:
            raise RemoteInspectError(
                f"{self._name}: {failure.what} ({self._retries + 1} attempts); {failure.advice}"
            )
        pause_s = max(FIRST_PAUSE_S * 2**self._retries, retry_after_s)
        self._retries += 1
        self._transport.pause(pause_s, name=self._name)


# -- error messages ------------------------------------------------------------------------------

_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
# The hub's X-Error-Code says more than its status: it answers 401 for a repository that does not
# exist. Names from huggingface_hub/utils/_http.py, hf_raise_for_status @ 2.4.0.
_MISSING = {
    "RepoNotFound": "model not found (no such repository, or a private one)",
    "RevisionNotFound": "no such revision in the repository",
    "EntryNotFound": "no such file in the repository",
}


def status_error(head: ResponseHead, *, name: str) -> RemoteInspectError:
    """The error for a permanent failure status."""
    code, host = head.headers.get("x-error-code", ""), host_of(head.url)
    if code not in _MISSING and (code == "GatedRepo" or head.status in {401, 403}):
        what = "the model is gated" if code == "GatedRepo" else "the model is private or gated"
        if head.token_sent:
            advice = "the token has no access to it: request access on the model's page, or use another token"
        elif is_hub(head.url):
            advice = f"accept its terms on the model's page, then {_LOG_IN}"
        else:
            advice = "no token was sent, because tokens only go to Hugging Face"
        return RemoteAccessError(f"{name}: {what} ({host} answered {head.status}); {advice}")
    if code in _MISSING or head.status in {404, 410}:
        advice = "check the spelling"
        if code == "RepoNotFound":
            log_in = "your token has no access to it" if head.token_sent else _LOG_IN
            advice += f"; if it is private, {log_in}"
        return RemoteNotFoundError(f"{name}: {_MISSING.get(code, 'not found')} on {host}; {advice}")
    return RemoteInspectError(
        f"{name}: {host} answered {head.status} instead of sending a "
        "model file; check the address, or download the file and give its path"
    )


def transient_status(head: ResponseHead) -> TransientFailure | None:
    """The failure for a transient status, with the server's requested wait; None for other statuses."""
    if head.status not in TRANSIENT_STATUSES:
        return None
    too_many = " (too many requests)" if head.status == 429 else ""
    return TransientFailure(
        what=f"{host_of(head.url)} answered {head.status}{too_many}",
        retry_after_s=_retry_after_s(head.headers),
    )


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Retry-After in seconds or as a date, else the time to the next window of the rate limit."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,20}", text):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError, OSError):
        pass
    # The hub's own form: RateLimit: "api";r=0;t=55
    window = re.search(r";\s*t\s*=\s*([0-9]{1,9})\b", headers.get("ratelimit", "")[:1000])
    return float(window[1]) if window else None


def connection_failure(
    error: httpx2.TransportError, url: str, *, received_bytes: int | None = None
) -> TransientFailure:
    """Why no connection could be made to the host of `url`, or why it broke off after `received_bytes`."""
    import httpx2

    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
        reason = "".join(letter for letter in str(error) if letter.isprintable())[:120]
        return TransientFailure(
            what=f"cannot reach {host_of(url)} ({reason or 'no reason given'})",
            advice="check the network, the host name and whether a proxy is needed (HTTPS_PROXY); "
            "models already on this machine still work",
        )
    timed_out = isinstance(error, httpx2.TimeoutException)
    how = "stopped sending" if timed_out else "closed the connection"
    after = "" if received_bytes is None else f" after {received_bytes:,} bytes"
    return TransientFailure(what=f"{host_of(url)} {how}{after}", timed_out=timed_out)


def is_certificate_error(error: BaseException) -> bool:
    """Whether a server's certificate is not trusted."""
    import ssl

    return any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes(error))


def certificate_error(url: str, *, name: str) -> RemoteInspectError:
    return RemoteInspectError(
        f"{name}: the certificate of {host_of(url)} is not trusted; if you trust it, set "
        "SSL_CERT_FILE to the file of its certificate authority"
    )


def offline_error(*, name: str) -> RemoteInspectError:
    return RemoteInspectError(
        f"{name}: not on this machine, and the network is off (HF_HUB_OFFLINE); turn it "
        "on, or give a path"
    )


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes; the chain may be circular."""
    visited: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in visited:
        visited.append(cause)
        yield cause
        cause = cause.__cause__ or cause.__context__


# -- several requests at once --------------------------------------------------------------------

AT_ONCE = 8  # threads, each with a connection: enough to hide round trips, few enough to be polite
Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Results in order, from threads that start immediately. After an error no more work is started.

    Unlike the standard library's executors, which wait up to the longest time-out, the threads do not delay the
    program's exit.
    """
    futures: list[Future[Result]] = [Future() for _ in items]
    todo = deque(zip(items, futures, strict=True))

    def run() -> None:
        while True:
            try:
                item, future = todo.popleft()
            except IndexError:
                return
            try:
                future.set_result(work(item))
            except BaseException as error:  # noqa: BLE001 - raised where the result is read
                future.set_exception(error)

    for _ in range(min(AT_ONCE, len(items))):
        threading.Thread(target=run, daemon=True).start()

    def results() -> Iterator[Result]:
        try:
            for future in futures:
                yield future.result()
        finally:
            todo.clear()

    return results()
