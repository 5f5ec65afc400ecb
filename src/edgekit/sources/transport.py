"""The way over HTTP for one reference: requests bounded in time and size, counted, tried again."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgekit.errors import CancelledError, RemoteInspectError, RemoteTimeoutError
from edgekit.sources.address import host_of, redirect_target
from edgekit.sources.endpoint import is_offline
from edgekit.sources.exchange import CALLED_OFF, WANTED_STATUSES, Exchange, Want
from edgekit.sources.failures import ResponseHead, Trouble, offline, status_error, status_trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgekit.sources.types import Reach

MAX_REDIRECTS = 5  # the hub needs 1, a renamed repository 2
MAX_RETRIES = 3
MAX_TIMEOUT_RETRIES = 1  # a silent server has cost a whole time-out already
FIRST_PAUSE_S = 0.2  # doubled each time
MAX_RETRY_AFTER_S = 8.0  # a person waits; longer than this, they are told when to come back

_METER = threading.Lock()  # a meter may be shared by several references
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer with as much of its body as was wanted, or the trouble on the way."""

    answer: ResponseHead | None
    body: bytes | bytearray = b""
    overrun: bool = False  # the server had more to send than was wanted
    trouble: Trouble | None = None
    linked_etag: str | None = None  # X-Linked-ETag of the hub's redirect: the content's own hash


class Stopwatch:
    """Wall time during which at least one thread was inside; what happens between is not counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._since = 0.0
        self._before_s = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._since = time.monotonic()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._before_s += time.monotonic() - self._since

    @property
    def seconds(self) -> float:
        with self._lock:
            running_s = time.monotonic() - self._since if self._inside else 0.0
            return self._before_s + running_s


class Transport:
    """Shared by all files of one reference, read by several threads at once perhaps.

    The time limit is for them together, and counts only while the network is being used.
    """

    def __init__(self, reach: Reach, *, cut_off: RemoteInspectError | None = None) -> None:
        """With `cut_off` nothing is asked for: what is kept is served, whoever needs more hears it."""
        self.reach = reach
        self._cut_off = cut_off
        self._watch = Stopwatch()

    def ask(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        name: str,
        want: Want,
        settled: Callable[[ResponseHead], bool] | None = None,
    ) -> Reply:
        """One GET, redirects followed. `want` sees the head and says how much body to take.

        `settled` may end it at a redirect that already says enough.
        Raises for a status that will not change; what may pass comes back as trouble.
        """
        self._check_wanted()
        if self._cut_off is not None:
            raise type(self._cut_off)(str(self._cut_off))  # several threads may hear it at once
        if not self.is_online:
            raise offline(name=name)
        linked_etag, seen = None, {url}
        for _ in range(MAX_REDIRECTS + 1):
            reply = self._exchange(url, headers, name=name, want=want)
            answer = reply.answer
            if answer is None or answer.status not in _REDIRECTS:
                return replace(reply, linked_etag=linked_etag)
            linked_etag = linked_etag or answer.headers.get("x-linked-etag")
            if settled is not None and settled(answer):
                return replace(reply, linked_etag=linked_etag)
            url = redirect_target(url, answer.headers.get("location", ""), name=name)
            if url in seen:
                raise RemoteInspectError(
                    f"{name}: {host_of(url)} redirects in a loop; check the address"
                )
            seen.add(url)
        raise RemoteInspectError(
            f"{name}: more than {MAX_REDIRECTS} redirects, the last to {host_of(url)}; "
            "check the address"
        )

    def get(self, url: str, *, name: str, limit_bytes: int, accept: str = "*/*") -> Reply:
        """A whole small document, tried again where that helps; too large is an error."""
        patience = Patience(self, name=name)
        while True:
            reply = self.ask(url, {"accept": accept}, name=name, want=lambda _: limit_bytes)
            if reply.trouble is not None:
                patience.wait(reply.trouble)
                continue
            if reply.overrun:
                raise RemoteInspectError(
                    f"{name}: {host_of(url)} sent more than {limit_bytes:,} bytes where a "
                    "small document was expected; check the address"
                )
            return reply

    def pause(self, seconds: float, *, name: str) -> None:
        if seconds >= self.left_s:
            raise self._too_slow(name)
        cancelled = self.reach.cancelled or threading.Event()
        with self._watch:
            cancelled.wait(seconds)
        self._check_wanted()

    def _check_wanted(self) -> None:
        """Whether anybody still waits for it."""
        if self.reach.cancelled is not None and self.reach.cancelled.is_set():
            raise CancelledError(CALLED_OFF)

    @property
    def left_s(self) -> float:
        return self.reach.total_timeout_s - self._watch.seconds

    def count(
        self, *, requests: int = 0, received_bytes: int = 0, ranges: int = 0, cached_bytes: int = 0
    ) -> None:
        traffic = self.reach.traffic
        with _METER:
            traffic.requests += requests
            traffic.received_bytes += received_bytes
            traffic.ranges += ranges
            traffic.cached_bytes += cached_bytes

    @property
    def is_online(self) -> bool:
        return self.reach.network and self._cut_off is None and not is_offline()

    def _exchange(self, url: str, headers: Mapping[str, str], *, name: str, want: Want) -> Reply:
        left_s = self.left_s
        if left_s <= 0:
            raise self._too_slow(name)
        exchange = Exchange(
            url,
            headers,
            name=name,
            want=want,
            connect_timeout_s=min(self.reach.connect_timeout_s, left_s),
            read_timeout_s=min(self.reach.read_timeout_s, left_s),
            public_only=self.reach.public_only,
            cancelled=self.reach.cancelled,
        )
        try:
            with self._watch:
                finished = exchange.run(left_s)
        finally:
            self.count(requests=1, received_bytes=exchange.received_bytes)
        if not finished:
            raise self._too_slow(name)
        return self._reply(exchange, name=name)

    def _reply(self, exchange: Exchange, *, name: str) -> Reply:
        answer = exchange.answer
        trouble = exchange.trouble
        if trouble is None and answer is not None:
            trouble = status_trouble(answer)
            if trouble is None and answer.status not in WANTED_STATUSES | _REDIRECTS:
                raise status_error(answer, name=name)
        return Reply(
            answer=answer,
            body=exchange.body,
            overrun=exchange.overrun,
            trouble=trouble,
        )

    def _too_slow(self, name: str) -> RemoteTimeoutError:
        return RemoteTimeoutError(
            f"{name}: timed out after {self.reach.total_timeout_s:g} s "
            f"({self.reach.traffic.requests} requests), because the server or the "
            "connection is too slow: allow more time (--timeout), or download the file "
            "and give its path"
        )


class Patience:
    """How often one thing is tried again, and how long to wait before each time."""

    def __init__(self, transport: Transport, *, name: str) -> None:
        self._transport = transport
        self._name = name
        self._retries = 0
        self._timeouts = 0

    def start_over(self) -> None:
        """Something was received: only troubles without progress count."""
        self._retries = self._timeouts = 0

    def wait(self, trouble: Trouble) -> None:
        """Returns when it is time for another try; raises when it is not worth one."""
        asked_s = trouble.retry_after_s or 0.0
        self._timeouts += trouble.timed_out
        if asked_s > MAX_RETRY_AFTER_S:
            raise RemoteInspectError(
                f"{self._name}: {trouble.what} and asked us to wait; try again in {asked_s:.0f} s"
            )
        if self._retries >= MAX_RETRIES or self._timeouts > MAX_TIMEOUT_RETRIES:
            raise RemoteInspectError(
                f"{self._name}: {trouble.what} ({self._retries + 1} attempts); {trouble.advice}"
            )
        pause_s = max(FIRST_PAUSE_S * 2**self._retries, asked_s)
        self._retries += 1
        self._transport.pause(pause_s, name=self._name)
