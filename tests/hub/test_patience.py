"""Retries, waits and timeouts of requests."""

from __future__ import annotations

import contextlib
import email.utils
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.hub.name_server import never_answers
from tests.hub.nginx_hub import Hub
from tests.hub.raw_server import RawServer, Request, Script, Send, range_response, response
from tests.patience import PATIENCE_S, wait_until
from tests.threads import running, started_since

from edgekit.errors import RemoteInspectError
from edgekit.sources import http as transport
from edgekit.sources.http import Transport
from edgekit.sources.remote import GGUF, JSON, HttpFile, Stride
from edgekit.sources.types import Reach, Traffic

Server = Callable[[Script], RawServer]
CONTENT = bytes(range(256)) * 4096  # 1 MiB


def open_file(url: str, reach: Reach, stride: Stride = GGUF) -> HttpFile:
    return HttpFile(Transport(reach), url, name="the file", stride=stride)


def failing(times: int, reply: bytes) -> Script:
    """Sends `reply` to the first `times` requests, and then the file."""
    return lambda request, send: send(
        reply if request.number <= times else range_response(CONTENT, request)
    )


@pytest.mark.parametrize(
    "reply",
    [
        response("429 Too Many Requests"),
        response("500 Internal Server Error", {}, b"x" * 100_000),
        response("502 Bad Gateway"),
        response("503 Service Unavailable", {"Retry-After": "soon"}),
        response("504 Gateway Timeout", {"Retry-After": "9" * 5000}),
        b"",  # the connection is closed without a response
    ],
)
def test_temporary_errors_are_retried(raw_server: Server, reach: Reach, reply: bytes) -> None:
    server = raw_server(failing(2, reply))
    file = open_file(server.address + "/a.gguf", reach)
    assert file.read(0, 100) == CONTENT[:100]
    assert len(server.requests) == reach.traffic.requests == 3
    file.close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits in seconds, recorded instead of slept."""
    result: list[float] = []
    monkeypatch.setattr(Transport, "pause", lambda _, seconds, *, name: result.append(seconds))
    return result


def test_each_wait_is_twice_the_previous_one(
    raw_server: Server, reach: Reach, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "FIRST_PAUSE_S", 0.2)
    server = raw_server(failing(2, response("503 Service Unavailable")))
    open_file(server.address + "/a.gguf", reach).close()
    assert pauses == [0.2, 0.4]


def test_retry_comes_after_the_wait(
    raw_server: Server, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "FIRST_PAUSE_S", 0.2)
    server = raw_server(failing(1, response("503 Service Unavailable")))
    started = time.monotonic()
    open_file(server.address + "/a.gguf", reach).close()
    assert time.monotonic() - started >= 0.2


def test_request_is_tried_at_most_four_times(hub: Hub, reach: Reach) -> None:
    with pytest.raises(RemoteInspectError, match=r"answered 500 .4 attempts.; try again later"):
        open_file(f"{hub.cdn}/broken.gguf", reach)
    assert reach.traffic.requests == len(hub.log("cdn")) == 4


def test_retry_after_in_seconds_is_respected(
    raw_server: Server, reach: Reach, pauses: list[float]
) -> None:
    reply = response("429 Too Many Requests", {"Retry-After": "1"})
    open_file(raw_server(failing(1, reply)).address + "/a.gguf", reach).close()
    assert pauses == [1.0]


def test_retry_after_as_a_date_is_respected(
    raw_server: Server, reach: Reach, pauses: list[float]
) -> None:
    start_s = time.time()
    until = email.utils.formatdate(start_s + 7, usegmt=True)  # whole seconds: 6 to 7 from now
    reply = response("503 Service Unavailable", {"Retry-After": until})
    open_file(raw_server(failing(1, reply)).address + "/a.gguf", reach).close()
    assert 6 - (time.time() - start_s) <= pauses[0] <= 7


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "300"},
        {"Retry-After": "1000000000"},
        {"Retry-After": email.utils.formatdate(time.time() + 3001, usegmt=True)},
        {"RateLimit": '"api";r=0;t=300'},  # the form that the hub uses
    ],
)
def test_long_retry_after_is_reported_instead_of_waited_for(
    raw_server: Server, reach: Reach, headers: dict[str, str]
) -> None:
    server = raw_server(lambda _, send: send(response("429 Too Many Requests", headers)))
    with pytest.raises(RemoteInspectError, match=r"too many requests.*try again in [0-9]{2,} s"):
        open_file(server.address + "/a.gguf", reach)
    assert len(server.requests) == 1


def test_dropped_range_continues_where_it_broke(raw_server: Server, reach: Reach) -> None:
    def script(request: Request, send: Send) -> None:
        complete = range_response(CONTENT, request, {"ETag": '"a"'})
        send(
            complete
            if request.number == 3
            else complete[: len(complete) - 400_000 // request.number]
        )

    server = raw_server(script)
    file = open_file(server.address + "/a.gguf", reach)
    assert file.read(0, 524_288) == CONTENT[:524_288]
    assert [request.first_byte for request in server.requests] == [0, 124_288, 324_288]
    assert [request.headers.get("if-range") for request in server.requests] == [None, '"a"', '"a"']
    assert reach.traffic.received_bytes == 524_288
    file.close()


def test_drops_after_progress_are_not_counted(raw_server: Server, reach: Reach) -> None:
    def script(request: Request, send: Send) -> None:
        head, blank, body = range_response(CONTENT, request, {"ETag": '"a"'}).partition(b"\r\n\r\n")
        send(head + blank + body[:100_000])

    server = raw_server(script)
    file = open_file(server.address + "/a.gguf", reach)
    assert file.read(0, 524_288) == CONTENT[:524_288]
    assert [request.first_byte for request in server.requests] == [n * 100_000 for n in range(6)]
    file.close()


def test_connection_that_always_drops_is_given_up(raw_server: Server, reach: Reach) -> None:
    def script(request: Request, send: Send) -> None:
        head, blank, _ = range_response(CONTENT, request).partition(b"\r\n\r\n")
        send(head + blank)

    server = raw_server(script)
    with pytest.raises(RemoteInspectError, match=r"closed the connection after .* .4 attempts"):
        open_file(server.address + "/a.gguf", reach)
    assert len(server.requests) == 4
    assert reach.traffic.received_bytes < 4 * 2000


def test_dropped_whole_file_is_requested_again_from_its_start(
    raw_server: Server, reach: Reach
) -> None:
    reply = response("200 OK", {"Content-Type": "application/json"}, b'{"a": 1}' * 100)
    server = raw_server(lambda request, send: send(reply[:-300] if request.number == 1 else reply))
    file = open_file(server.address + "/config.json", reach, JSON)
    assert file.read(0, 5000) == b'{"a": 1}' * 100
    file.close()


def drip(head: bytes, rest: bytes) -> Script:
    def script(_: Request, send: Send) -> None:
        send(head)
        for byte in rest:
            time.sleep(0.1)
            send(bytes([byte]))

    return script


WHOLE = response(
    "206 Partial Content", {"Content-Range": "bytes 0-524287/1048576"}, CONTENT[:524288]
)


@pytest.mark.parametrize(
    "script",
    [
        drip(WHOLE[:200], WHOLE[200:]),  # the body comes byte by byte
        drip(b"", WHOLE),  # even the headers do
    ],
    ids=["slow body", "slow headers"],
)
def test_slow_response_ends_with_the_total_timeout(
    raw_server: Server, reach: Reach, script: Script
) -> None:
    reach = replace(reach, total_timeout_s=1.0)
    server = raw_server(script)
    with pytest.raises(RemoteInspectError, match=r"timed out after 1 s .*too slow"):
        open_file(server.address + "/a.gguf", reach)
    assert reach.traffic.requests == 1
    assert reach.traffic.received_bytes < 1000


def test_thread_of_a_slow_response_ends(raw_server: Server, reach: Reach) -> None:
    server = raw_server(drip(b"", WHOLE))
    before = running()
    with pytest.raises(RemoteInspectError):
        open_file(server.address + "/a.gguf", replace(reach, total_timeout_s=0.5))
    wait_until(lambda: started_since(before) == 0)


def test_silent_server_is_tried_twice(raw_server: Server, reach: Reach) -> None:
    server = raw_server(lambda request, _: request.hang())
    with pytest.raises(RemoteInspectError, match=r"stopped sending after 0 bytes .2 attempts"):
        open_file(server.address + "/a.gguf", replace(reach, read_timeout_s=0.3))
    wait_until(lambda: len(server.requests) == 2)


def test_bytes_received_before_silence_are_kept(raw_server: Server, reach: Reach) -> None:
    def script(request: Request, send: Send) -> None:
        complete = range_response(CONTENT, request)
        if request.number == 1:
            send(complete[:-24_288])
            request.hang()
        else:
            send(complete)

    server = raw_server(script)
    file = open_file(server.address + "/a.gguf", replace(reach, read_timeout_s=2.0))
    assert file.read(0, 524_288) == CONTENT[:524_288]
    assert [request.first_byte for request in server.requests] == [0, 500_000]
    file.close()


def test_total_timeout_covers_all_files_of_a_reference(raw_server: Server, reach: Reach) -> None:
    def script(request: Request, send: Send) -> None:
        time.sleep(0.3)
        send(range_response(CONTENT, request))

    server = raw_server(script)
    transport = Transport(replace(reach, total_timeout_s=1.0))

    def open_shards() -> None:
        for number in range(100):
            HttpFile(transport, f"{server.address}/{number}.gguf", name="a shard").close()

    with pytest.raises(RemoteInspectError, match="timed out after 1 s"):
        open_shards()
    assert len(server.requests) <= 4  # each takes 0.3 s


def test_network_time_of_parallel_threads_is_counted_once(
    now_s: list[float],
) -> None:
    """Two threads of 3 s each that overlap by 1 s count 5 s. The time between requests is not counted."""
    watch = transport.Stopwatch()
    with watch:
        now_s[0] += 2
        with watch:  # the second thread
            now_s[0] += 1
            assert watch.seconds == 3
        now_s[0] += 2
    now_s[0] += 100
    assert watch.seconds == 5


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock of the transport that a test can move forward: adds its only element, in seconds."""
    more = [0.0]
    start_s = time.monotonic()
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: start_s + more[0]))
    return more


def test_shards_are_read_in_parallel(raw_server: Server, reach: Reach) -> None:
    """The server answers only when eight requests are waiting."""
    all_here = threading.Barrier(8)

    def script(request: Request, send: Send) -> None:
        all_here.wait(PATIENCE_S)
        send(range_response(CONTENT, request))

    server = raw_server(script)
    shared = Transport(reach)

    def open_shard(number: int) -> bytes:
        file = HttpFile(shared, f"{server.address}/{number}.gguf", name="a shard")
        with contextlib.closing(file):
            return file.read(0, 10)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(open_shard, range(16))) == [CONTENT[:10]] * 16
    assert reach.traffic == Traffic(requests=16, received_bytes=16 * 524_288, ranges=16)


def test_time_between_reads_is_not_counted(
    raw_server: Server, reach: Reach, now_s: list[float]
) -> None:
    server = raw_server(lambda request, send: send(range_response(CONTENT, request)))
    file = open_file(server.address + "/a.gguf", reach)
    now_s[0] += 2 * reach.total_timeout_s
    assert file.read(600_000, 5) == CONTENT[600_000:600_005]
    file.close()


def test_wait_beyond_the_total_timeout_is_not_started(raw_server: Server, reach: Reach) -> None:
    reply = response("503 Service Unavailable", {"Retry-After": "8"})
    server = raw_server(lambda _, send: send(reply))
    with pytest.raises(RemoteInspectError, match="timed out after 7 s"):
        open_file(server.address + "/a.gguf", replace(reach, total_timeout_s=7.0))
    assert len(server.requests) == 1


def test_refused_connection_is_an_error(reach: Reach) -> None:
    with pytest.raises(
        RemoteInspectError, match=r"cannot reach 127\.0\.0\.1:9 .*.4 attempts.; check the netw"
    ):
        open_file("http://127.0.0.1:9/a.gguf", reach)


def test_unknown_host_is_an_error(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name server is faked: a test machine may have none."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(RemoteInspectError, match=r"cannot reach models\.invalid .* the host name"):
        open_file("https://models.invalid/a.gguf", reach)


def test_silent_name_server_is_an_error(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeouts of HTTP clients do not cover the resolver of the system."""
    with (
        never_answers(monkeypatch),
        pytest.raises(RemoteInspectError, match=r"timed out after 0\.5"),
    ):
        open_file("https://models.invalid/a.gguf", replace(reach, total_timeout_s=0.5))
