"""The HTTP client of a crawl against servers that are slow, busy, broken or hostile."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from typing import Any

import pytest
from tests.hub.raw_server import RawServer, Request, Script, Send, response

from edgekit.errors import (
    HeaderError,
    PrivateAddressError,
    RemoteAccessError,
    RemoteBusyError,
    RemoteInspectError,
    RemoteNotFoundError,
)
from edgekit.sources import async_http
from edgekit.sources.async_http import (
    API,
    MAX_FAILURES,
    MAX_MALFORMED,
    MAX_RETRY_AFTER_S,
    AsyncTransport,
    RateLimiter,
    open_transport,
)
from edgekit.sources.http import Reply

Serve = Callable[[Script], RawServer]
OK = response("200 OK", body=b'{"answer": 1}')


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_http, "FIRST_PAUSE_S", 0.001)


@pytest.fixture
def hub(raw_server: Serve, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Starts a server and makes it the hub."""

    def start(script: Script) -> RawServer:
        server = raw_server(script)
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        return server

    return start


def answers(*replies: bytes) -> Script:
    """These replies in turn, the last one for all further requests."""

    def script(request: Request, send: Send) -> None:
        send(replies[min(request.number, len(replies)) - 1])

    return script


def run(
    work: Callable[[AsyncTransport], Coroutine[Any, Any, Any]], *, request_s: float = 600.0
) -> tuple[Any, AsyncTransport]:
    async def main() -> tuple[Any, AsyncTransport]:
        async with open_transport(request_s=request_s) as transport:
            return await work(transport), transport

    return asyncio.run(main())


async def get_json(transport: AsyncTransport, server: RawServer, limit: int = 10_000) -> Any:
    url = f"{server.address}/api/models"
    answer = await transport.get_json(url, name="test", limit_bytes=limit, limit_values=limit)
    return answer.value


def body(url: str) -> Callable[[AsyncTransport], Coroutine[Any, Any, Reply]]:
    return lambda transport: transport.get(url, name="test", body_limit=lambda _: 100)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (response("429 Too Many Requests", {"Retry-After": "0"}), "429"),
        (response("429 Too Many Requests", {"Retry-After": formatdate(0, usegmt=True)}), "429"),
        (response("429 Too Many Requests", {"RateLimit": '"api";r=0;t=0'}), "429"),
        (response("503 Service Unavailable", {"Retry-After": "soon"}), "503"),
        (response("500 Internal Server Error"), "500"),
        (response("200 OK", {"Content-Length": "500"}, b'{"answer"'), "connection"),
        (b"", "connection"),
        (b"nonsense\r\n\r\n", "connection"),
        (response("200 OK", body=b'{"answer": '), "malformed"),
        (response("200 OK", {"Content-Encoding": "gzip"}, b"no gzip"), "connection"),
        (
            response("200 OK", {"Content-Encoding": "gzip"}, gzip.compress(b"[1]" * 99)[:40]),
            "malformed",
        ),
    ],
)
def test_request_is_repeated_after_a_fault(hub: Serve, fault: bytes, kind: str) -> None:
    server = hub(answers(fault, fault, OK))
    value, transport = run(lambda transport: get_json(transport, server))
    assert value == {"answer": 1}
    assert transport.tally.faults == {kind: 2}
    assert transport.tally.requests == len(server.requests) == 3


def test_server_that_keeps_failing_is_given_up(hub: Serve) -> None:
    server = hub(answers(response("502 Bad Gateway")))
    with pytest.raises(RemoteBusyError, match="502"):
        run(lambda transport: get_json(transport, server))
    assert len(server.requests) == MAX_FAILURES


def test_server_that_is_always_busy_is_given_up(
    hub: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_http, "MAX_BUSY_ANSWERS", 3)
    monkeypatch.setattr(async_http, "MAX_RETRY_AFTER_S", 0.001)  # a year is not waited for
    server = hub(answers(response("429 Too Many Requests", {"Retry-After": "31536000"})))
    with pytest.raises(RemoteBusyError, match="too many requests"):
        run(lambda transport: get_json(transport, server))
    assert len(server.requests) == 3


def test_wait_for_a_busy_server_is_said_once_for_all_requests(hub: Serve) -> None:
    busy = response("429 Too Many Requests", {"Retry-After": "2"})
    started = time.monotonic()
    server = hub(lambda _request, send: send(busy if time.monotonic() < started + 1 else OK))
    lines: list[str] = []

    async def work() -> None:
        async with open_transport(notify=lines.append) as transport:
            await asyncio.gather(*(get_json(transport, server) for _ in range(8)))

    asyncio.run(work())
    host = server.address.removeprefix("http://")
    assert lines == [f"{host} answered 429 (too many requests): waiting 2 s"]


def test_server_that_was_busy_for_too_long_is_given_up_for_all_requests(
    hub: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_http, "MAX_BUSY_S", 2.5)
    server = hub(answers(response("429 Too Many Requests", {"Retry-After": "1"})))

    async def several(transport: AsyncTransport) -> list[Any]:
        first = (get_json(transport, server) for _ in range(3))
        errors = await asyncio.gather(*first, return_exceptions=True)
        asked = len(server.requests)
        with pytest.raises(RemoteBusyError):  # at once: it has not answered since
            await get_json(transport, server)
        assert len(server.requests) <= asked + 1
        return errors

    errors, _ = run(several)
    assert all(isinstance(error, RemoteBusyError) for error in errors)
    assert "run the command again later, with a lower --rate" in str(errors[0])


def test_answer_that_never_ends_is_given_up(hub: Serve) -> None:
    def drip(request: Request, send: Send) -> None:
        send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        request.hang()

    server = hub(drip)
    with pytest.raises(RemoteBusyError, match="longer than"):
        run(lambda transport: get_json(transport, server), request_s=0.05)


def test_document_that_is_always_malformed_is_an_error_of_the_document(hub: Serve) -> None:
    server = hub(answers(response("200 OK", body=b"<html>")))
    with pytest.raises(HeaderError, match="not JSON"):
        run(lambda transport: get_json(transport, server))
    assert len(server.requests) == MAX_MALFORMED


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps("x" * 200).encode(), "longer than 100 bytes"),
        (b"[" * 90, "not JSON"),
        (b"[],[],[],[]" * 9, "more than 50 values"),
    ],
)
def test_large_document_is_refused(hub: Serve, content: bytes, message: str) -> None:
    server = hub(answers(response("200 OK", body=content)))

    async def work(transport: AsyncTransport) -> None:
        values = 50 if b"," in content else 1000
        await transport.get_json(
            f"{server.address}/api/x", name="test", limit_bytes=100, limit_values=values
        )

    with pytest.raises(HeaderError, match=message):
        run(work)


def test_gzip_is_unpacked_up_to_the_limit(hub: Serve) -> None:
    headers = {"Content-Encoding": "gzip"}
    small = response("200 OK", headers, gzip.compress(b'{"answer": 1}'))
    bomb = response("200 OK", headers, gzip.compress(bytes(50_000_000)))
    server = hub(answers(small, bomb))
    value, _ = run(lambda transport: get_json(transport, server))
    assert value == {"answer": 1}
    with pytest.raises(HeaderError, match="longer than 10,000 bytes"):
        run(lambda transport: get_json(transport, server))


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (response("401 Unauthorized", {"X-Error-Code": "GatedRepo"}), RemoteAccessError),
        (response("403 Forbidden"), RemoteAccessError),
        (response("404 Not Found", {"X-Error-Code": "EntryNotFound"}), RemoteNotFoundError),
        (response("418 I'm a teapot"), RemoteInspectError),
        (response("200 OK", {"Content-Encoding": "br"}, b"x"), RemoteInspectError),
    ],
)
def test_permanent_answer_is_not_repeated(
    hub: Serve, reply: bytes, error: type[RemoteInspectError]
) -> None:
    server = hub(answers(reply))
    with pytest.raises(error):
        run(lambda transport: get_json(transport, server))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "location", ["/api/models", "http://127.0.0.1:1/x\x00", "file:///etc/passwd"]
)
def test_redirect_that_cannot_be_followed_is_an_error(hub: Serve, location: str) -> None:
    server = hub(answers(response("302 Found", {"Location": location})))
    with pytest.raises(RemoteInspectError):
        run(lambda transport: get_json(transport, server))


def test_token_goes_to_the_hub_and_not_where_it_redirects(
    hub: Serve, raw_server: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    cdn = raw_server(answers(OK))
    server = hub(answers(response("302 Found", {"Location": f"{cdn.address}/file"})))
    run(body(f"{server.address}/a/b/resolve/main/c"))
    assert server.requests[0].headers["authorization"] == "Bearer hf_secret"
    assert "authorization" not in cdn.requests[0].headers


def test_public_hub_does_not_redirect_into_this_network(
    hub: Serve, raw_server: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = raw_server(answers(OK))
    server = hub(answers(response("302 Found", {"Location": f"{inside.address}/secret"})))
    monkeypatch.setattr(async_http, "is_public_host", lambda _: True)
    with pytest.raises(PrivateAddressError, match="not followed"):
        run(body(f"{server.address}/a/b/resolve/main/c"))
    assert inside.requests == []


def test_public_hub_does_not_redirect_to_a_name_that_turns_private(
    hub: Serve, raw_server: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer of the connection is checked too: a name may resolve differently the second time."""
    inside = raw_server(answers(OK))
    server = hub(answers(response("302 Found", {"Location": f"{inside.address}/secret"})))
    monkeypatch.setattr(async_http, "is_public_host", lambda _: True)
    monkeypatch.setattr("edgekit.sources.address.Guard.check_host", lambda _: None)
    with pytest.raises(PrivateAddressError, match="not followed"):
        run(body(f"{server.address}/a/b/resolve/main/c"))
    assert inside.requests == []


def test_offline_mode_sends_nothing(hub: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = hub(answers(OK))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(RemoteInspectError, match="network is off"):
        run(body(server.address))
    assert server.requests == []


def test_rate_limiter_spreads_requests_and_waits_for_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a clock that only moves when somebody sleeps."""
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("edgekit.sources.async_http.time.monotonic", lambda: now)
    monkeypatch.setattr("edgekit.sources.async_http.asyncio.sleep", sleep)

    async def turns() -> list[float]:
        limiter = RateLimiter(rate=4.0)
        starts = []
        for number in range(4):
            if number == 2:
                limiter.block(API, 10.0, "busy")
            await limiter.wait_turn(API)
            starts.append(now)
        limiter.block(API, 1e9, "busy")
        await limiter.wait_turn(API)
        return [*starts, now]

    starts = asyncio.run(turns())
    assert starts[:4] == [0.0, 0.25, 10.25, 10.5]
    assert starts[4] == pytest.approx(10.5 + MAX_RETRY_AFTER_S)
