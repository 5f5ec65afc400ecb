"""One HTTP request and its answer, on a thread of its own: nothing can hold it past its time.

Time-outs in an HTTP client are per read: they do not stop a server that sends one header byte a
second, nor a name server that never answers. Whoever waits for a thread can stop waiting.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from edgekit import __version__
from edgekit.errors import CancelledError, RemoteInspectError
from edgekit.sources.endpoint import hub_client, token_for
from edgekit.sources.failures import (
    ResponseHead,
    Trouble,
    bad_certificate,
    encoded,
    lost,
    offline,
    unreachable,
)
from edgekit.sources.public import Guard

if TYPE_CHECKING:
    import httpx2

# How many bytes of the body to take; raises to refuse it unread. Asked for the statuses below only.
Want = Callable[[ResponseHead], int]
WANTED_STATUSES = frozenset({*range(200, 300), 304, 416})

# Other bodies are read to their end so that the connection can be used again, up to this size.
MAX_DRAINED_BYTES = 16 * 1024

CALLED_OFF = "cancelled"
_LOOK_EVERY_S = 0.05  # for somebody who gave up


class Exchange:
    """Run it once; then look at what it holds."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        name: str,
        want: Want,
        connect_timeout_s: float,
        read_timeout_s: float,
        public_only: bool = False,
        cancelled: threading.Event | None = None,
    ) -> None:
        self._url = url
        self._headers = headers
        self._name = name
        self._want = want
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._public_only = public_only
        self._guard: Guard | None = None
        self._cancelled = cancelled
        self._done = threading.Event()
        self._abandoned = False
        self._error: BaseException | None = None
        self.connection: Any = None  # as far as known; a cut ends it
        self.answer: ResponseHead | None = None
        self.body = bytearray()
        self.received_bytes = 0
        self.overrun = False
        self.trouble: Trouble | None = None

    def run(self, limit_s: float) -> bool:
        """False when it was not done in time; raises what the exchange raised, and CancelledError."""
        client, token = hub_client(), token_for(self._url)
        threading.Thread(target=self._work, args=(client, token), daemon=True).start()
        try:
            finished = self._wait(min(limit_s, threading.TIMEOUT_MAX))
        finally:
            if not self._done.is_set():
                self._abandon()
        if finished and self._error is not None:
            raise self._error
        return finished

    def _wait(self, limit_s: float) -> bool:
        if self._cancelled is None:
            return self._done.wait(limit_s)
        end = time.monotonic() + limit_s
        while not self._done.wait(max(0.0, min(_LOOK_EVERY_S, end - time.monotonic()))):
            if self._cancelled.is_set():
                raise CancelledError(CALLED_OFF)
            if time.monotonic() >= end:
                return False
        return True

    def _abandon(self) -> None:
        """Cut the connection, so that the thread ends instead of waiting for the next byte."""
        self._abandoned = True
        with contextlib.suppress(AttributeError, OSError):  # none yet, or none any more
            self.connection.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def _work(self, client: httpx2.Client, token: str | None) -> None:
        try:
            self._talk(client, token)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._error = error
        finally:
            self._done.set()

    def _talk(self, client: httpx2.Client, token: str | None) -> None:
        import httpx2
        from huggingface_hub.errors import OfflineModeIsEnabled

        try:
            if self._public_only:
                self._guard = Guard(self._url, name=self._name)
                self._guard.check_host()
            if self._abandoned:  # while the name was looked up
                return
            with contextlib.closing(self._send(client, token)) as response:
                self.connection = response.extensions.get("network_stream")
                self._receive(response, token_sent=token is not None)
        except httpx2.TimeoutException:
            self.trouble = lost(self._url, self.received_bytes, timed_out=True)
        except httpx2.TransportError as error:
            self.trouble = self._explain(error)
        except OfflineModeIsEnabled as error:
            raise offline(name=self._name) from error
        except (httpx2.InvalidURL, UnicodeError) as error:  # UnicodeError: no host has such a name
            # Without the client's own words: they quote the parts, and one may be a password.
            raise RemoteInspectError(
                f"{self._name}: invalid address; check its spelling"
            ) from error

    def _send(self, client: httpx2.Client, token: str | None) -> httpx2.Response:
        from httpx2 import USE_CLIENT_DEFAULT, Timeout

        timeout = Timeout(self._read_timeout_s, connect=self._connect_timeout_s)
        request = client.build_request(
            "GET",
            self._url,
            headers={
                "user-agent": f"edgekit/{__version__}",
                "accept-encoding": "identity",  # offsets are into the file, not into a gzip of it
                **self._headers,
            },
            timeout=timeout,
            extensions={"trace": self._watch},
        )
        # A client that was set up with a login for the hub must not show it to other hosts.
        request.headers.pop("authorization", None)
        if token is not None:
            request.headers["authorization"] = f"Bearer {token}"
        auth = USE_CLIENT_DEFAULT if token is not None else None
        return client.send(request, stream=True, follow_redirects=False, auth=auth)

    def _watch(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self.connection = info["return_value"]
            if self._abandoned:  # while it was being made
                self._abandon()
        if self._guard is not None:
            self._guard.watch(event, info)

    def _receive(self, response: httpx2.Response, *, token_sent: bool) -> None:
        headers = {name.lower(): value for name, value in response.headers.items()}
        answer = ResponseHead(
            status=response.status_code, headers=headers, url=self._url, token_sent=token_sent
        )
        self.answer = answer
        if answer.status not in WANTED_STATUSES:
            self._drain(response)
            return
        if headers.get("content-encoding", "identity") != "identity":
            raise encoded(answer, name=self._name)
        wanted_bytes = self._want(answer)
        for chunk in response.iter_raw():
            self.received_bytes += len(chunk)
            self.body += chunk[: wanted_bytes - len(self.body)]
            self.overrun = self.received_bytes > wanted_bytes
            if self.overrun or self._abandoned:
                break

    def _drain(self, response: httpx2.Response) -> None:
        import httpx2

        with contextlib.suppress(httpx2.TransportError):  # the head was all that mattered
            for chunk in response.iter_raw():
                self.received_bytes += len(chunk)
                if self.received_bytes > MAX_DRAINED_BYTES or self._abandoned:
                    break

    def _explain(self, error: httpx2.TransportError) -> Trouble:
        import ssl

        import httpx2

        if self.answer is not None:
            return lost(self._url, self.received_bytes)
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise bad_certificate(self._url, name=self._name) from error
            cause = cause.__cause__ or cause.__context__
        if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
            return unreachable(self._url, str(error))
        return lost(self._url, 0)
