"""Requests through the gateway: what the engine gets, what the client gets, and faults on both sides."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import httpcore2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.gateways import (
    CHAT,
    COMPLETION,
    RULES,
    Reply,
    ask,
    gateway,
    one_model,
    serve,
    upstream_at,
)
from tests.patience import PATIENCE_S, wait_until
from tests.unit.gateway.test_images import file_of, url_of

from edgekit.engines.request_rules import ImageLimit, RequestLimits
from edgekit.errors import UsageError
from edgekit.gateway import engine_http
from edgekit.gateway.engine_http import make_client
from edgekit.gateway.forward import LARGE_BYTES, MOST_BODIES, Forward
from edgekit.gateway.metrics import Metrics
from edgekit.gateway.server import GatewayServer
from edgekit.gateway.types import GatewaySettings
from edgekit.units import MIB

USAGE = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
EVENTS = [b'data: {"n": 1}\n\n', b": a comment\n\n", b'data: {"usage": ' + json.dumps(USAGE).encode() + b"}\n\n", b"data: [DONE]\n\n"]  # fmt: skip


class Engine:
    """An upstream that a request tells what to do, by its field "do"."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.begun, self.left, self.go_on = threading.Event(), threading.Event(), threading.Event()
        self.app = Starlette(routes=[Route("/{path:path}", self.answer, methods=["POST"])])

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        match body.get("do"):
            case "stream":
                return StreamingResponse(self.events(), media_type="text/event-stream")
            case "endless":
                return StreamingResponse(self.endless(), media_type="text/event-stream")
            case "wait":
                self.begun.set()
                while (await request.receive())["type"] != "http.disconnect":
                    pass
                self.left.set()
                return JSONResponse({})
            case "hold":
                await asyncio.to_thread(self.go_on.wait, PATIENCE_S)
            case "fail":
                return JSONResponse({"error": {"message": "too long"}}, 400)
            case "trace":
                return PlainTextResponse("Traceback (most recent call last): secret", 500)
            case "headers":
                headers = {"Set-Cookie": "a=b", "Access-Control-Allow-Origin": "*", "X-Powered-By": "x"}  # fmt: skip
                return JSONResponse({}, headers=headers)
        return JSONResponse({"path": request.url.path, "usage": USAGE, "got": body})

    async def events(self) -> AsyncIterator[bytes]:
        for event in EVENTS:
            yield event

    async def endless(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"data: {}\n\n"
                await asyncio.sleep(0.001)
        finally:
            self.left.set()


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def address(engine: Engine) -> Iterator[str]:
    with serve(engine.app) as upstream, gateway(upstream_at(upstream, api_key="inner")) as address:
        yield address


def test_request_reaches_the_engine_with_its_own_name_of_the_model(
    engine: Engine, address: str
) -> None:
    reply = ask(address, COMPLETION, {"model": "tiny", "prompt": "a", "temperature": 0.5})
    assert (reply.status, reply.json["path"]) == (200, COMPLETION)
    assert engine.bodies == [{"model": "engine's name", "prompt": "a", "temperature": 0.5}]


def test_engine_gets_its_own_key_and_no_header_of_the_client(engine: Engine, address: str) -> None:
    ask(address, COMPLETION, {"prompt": "a"}, Cookie="c=1", X_Forwarded_For="1.2.3.4")
    (headers,) = engine.headers
    assert headers["authorization"] == "Bearer inner"
    assert not {"cookie", "x-forwarded-for"} & set(headers)


def test_headers_of_the_engine_that_are_not_about_the_content_are_dropped(address: str) -> None:
    headers = ask(address, CHAT, {"do": "headers"}).headers
    assert headers["content-type"] == "application/json"
    assert not {"set-cookie", "access-control-allow-origin", "x-powered-by"} & set(headers)


def test_key_that_occurs_twice_is_the_one_that_was_checked(engine: Engine, address: str) -> None:
    assert ask(address, CHAT, b'{"history": 5, "history": 101}').status == 400
    assert ask(address, CHAT, b'{"history": 101, "history": 5}').status == 200
    assert engine.bodies[0]["history"] == 5


def test_events_pass_unchanged(address: str) -> None:
    reply = ask(address, CHAT, {"do": "stream"})
    assert reply.body == b"".join(EVENTS)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["x-accel-buffering"] == "no"


def test_first_event_arrives_while_the_engine_still_writes(engine: Engine, address: str) -> None:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE_S)
    with closing(connection):
        connection.request("POST", CHAT, json.dumps({"do": "endless"}))
        assert connection.getresponse().read(8) == b"data: {}"
        assert not engine.left.is_set()
    assert engine.left.wait(PATIENCE_S)  # the client has left, so the engine stops


def test_client_that_leaves_before_the_first_byte_ends_the_request(
    engine: Engine, address: str
) -> None:
    host, _, port = address.removeprefix("http://").partition(":")
    with closing(socket.create_connection((host, int(port)))) as client:
        body = b'{"do": "wait"}'
        client.sendall(
            b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
            % (CHAT.encode(), len(body), body)
        )
        assert engine.begun.wait(PATIENCE_S)
    assert engine.left.wait(PATIENCE_S)


def test_error_of_the_engine_passes(address: str) -> None:
    reply = ask(address, CHAT, {"do": "fail"})
    assert (reply.status, reply.json) == (400, {"error": {"message": "too long"}})


def test_stack_trace_of_the_engine_does_not_pass(address: str) -> None:
    reply = ask(address, CHAT, {"do": "trace"})
    assert reply.status == 502
    assert reply.error["message"] == "the engine failed (HTTP 500); its log says why"


@pytest.mark.parametrize("path", ["/slots", "/props", "/v1/audio/speech", "/", "/v1/chat", "/models/load", "/cors-proxy"])  # fmt: skip
def test_paths_outside_the_list_are_404(engine: Engine, address: str, path: str) -> None:
    assert ask(address, path).status == 404
    assert ask(address, path, {"do": "stream"}).error["code"] == "unknown_url"
    assert engine.bodies == []


def test_methods(address: str) -> None:
    assert ask(address, CHAT).status == 405
    for method in ("PUT", "DELETE", "TRACE"):
        assert ask(address, CHAT, {}, method=method).status == 405


def test_models_are_listed(address: str) -> None:
    row = {"id": "tiny", "object": "model", "created": 7, "owned_by": "edgekit", "max_model_len": 1000}  # fmt: skip
    assert ask(address, "/v1/models").json == {"object": "list", "data": [row]}
    assert ask(address, "/v1/models/tiny").json == row
    assert ask(address, "/v1/models/other").error["code"] == "model_not_found"


@pytest.fixture
def patient(engine: Engine) -> Iterator[str]:
    """A gateway that waits for the first byte of every answer, and reads images."""
    limits = RequestLimits(rules=replace(RULES, images=ImageLimit()), window_tokens=1000)
    with (
        serve(engine.app) as upstream,
        gateway(upstream, limits=limits, read_timeout_s=PATIENCE_S) as address,
    ):
        yield address


def test_image_does_not_hold_up_text(engine: Engine, patient: str) -> None:
    image = url_of(file_of("PNG")) + "A" * 4 * MIB
    parts = [{"type": "image_url", "image_url": {"url": image}}]
    body = {"do": "hold", "messages": [{"role": "user", "content": parts}]}
    with ThreadPoolExecutor(1) as pool:
        picture = pool.submit(ask, patient, CHAT, body)
        wait_until(lambda: len(engine.bodies) == 1)
        assert ask(patient, COMPLETION, {"prompt": "a"}).status == 200
        assert not picture.done()
        engine.go_on.set()
        assert picture.result().status == 200


def test_engine_decodes_so_many_pixels_at_once(engine: Engine, patient: str) -> None:
    """Two images of 32 million pixels; the third waits for their answers, and text does not."""
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 8192, 4096) + bytes(5)
    parts = [{"type": "image_url", "image_url": {"url": url_of(head)}}]
    body = {"do": "hold", "messages": [{"role": "user", "content": parts}]}
    with ThreadPoolExecutor(3) as pool:
        pictures = [pool.submit(ask, patient, CHAT, body) for _ in range(3)]
        wait_until(lambda: len(engine.bodies) == 2)
        assert ask(patient, COMPLETION, {"prompt": "a"}).status == 200
        assert len(engine.bodies) == 3
        engine.go_on.set()
        assert {picture.result().status for picture in pictures} == {200}
    assert len(engine.bodies) == 4


def test_engine_gets_a_mebibyte_of_text_at_once(engine: Engine, patient: str) -> None:
    """The other requests wait until the first ones have been answered."""
    body = {"do": "hold", "prompt": "a" * 30_000}
    sent_bytes = len(json.dumps({**body, "model": "engine's name"}))
    at_once = MIB // sent_bytes
    with ThreadPoolExecutor(at_once + 8) as pool:
        replies = [pool.submit(ask, patient, COMPLETION, body) for _ in range(at_once + 8)]
        wait_until(lambda: len(engine.bodies) == at_once)
        assert ask(patient, "/health").status == 200
        assert len(engine.bodies) == at_once
        engine.go_on.set()
        assert {reply.result().status for reply in replies} == {200}
    assert len(engine.bodies) == at_once + 8


def test_small_chunked_bodies_do_not_count_as_large(engine: Engine, address: str) -> None:
    """Their size is known once they have arrived."""

    def post_chunked() -> int:
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE_S)
        with closing(connection):
            connection.request("POST", CHAT, iter([b'{"do": ', b'"hold"}']))
            return connection.getresponse().status

    with ThreadPoolExecutor(MOST_BODIES + 2) as pool:
        replies = []
        for _ in range(MOST_BODIES + 2):
            replies.append(pool.submit(post_chunked))
            wait_until(lambda: len(engine.bodies) == len(replies) or replies[-1].done())
        engine.go_on.set()
        assert {reply.result() for reply in replies} == {200}


class TestLargeBodies:
    """Those that are parsed in a thread."""

    def forward(self) -> Forward:
        models = one_model(upstream_at("http://127.0.0.1:9"))
        return Forward(GatewaySettings(), models, Metrics(), make_client)

    def test_thread_is_waited_for_when_the_client_has_left(self) -> None:
        """Until it ends it holds the body, which must count as long."""
        begun, go_on = threading.Event(), threading.Event()

        def parse() -> None:
            begun.set()
            assert go_on.wait(PATIENCE_S)

        async def leave() -> None:
            parsing = asyncio.create_task(self.forward()._in_turn(LARGE_BYTES, parse))
            await asyncio.to_thread(begun.wait, PATIENCE_S)
            parsing.cancel()
            for _ in range(20):
                await asyncio.sleep(0)
            assert not parsing.done()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await parsing

        asyncio.run(leave())

    def test_one_is_parsed_at_a_time(self) -> None:
        running, most = 0, 0

        def parse() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            sum(range(1_000_000))
            running -= 1

        async def parse_all() -> None:
            forward = self.forward()
            await asyncio.gather(*(forward._in_turn(LARGE_BYTES, parse) for _ in range(8)))

        asyncio.run(parse_all())
        assert (running, most) == (0, 1)


class TestEngineThatIsGone:
    def test_engine_that_is_busy_is_not_called_stopped(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def connect(*_: object, **__: object) -> None:
            raise httpcore2.ConnectTimeout

        monkeypatch.setattr(engine_http._Backend, "connect_tcp", connect)
        with gateway("http://127.0.0.1:9") as address:
            reply = ask(address, CHAT, {})
        assert (reply.status, reply.error["code"]) == (503, "engine_unavailable")
        message = "the engine is too busy to take the request; try again in a moment"
        assert reply.error["message"] == message

    def test_request_gets_503_and_when_to_try_again(self) -> None:
        with gateway("http://127.0.0.1:9") as address:  # nothing listens on this port
            reply = ask(address, CHAT, {"messages": []})
        assert reply.error["message"] == "the engine has stopped; try again in a moment"
        assert (reply.status, reply.error["code"]) == (503, "engine_unavailable")
        assert reply.headers["retry-after"] == "5"

    def test_known_problem_is_the_reason_also_of_health(self) -> None:
        problem = ["the engine is being started again"]
        models = one_model(upstream_at("http://127.0.0.1:9"), problem=lambda: problem[0])
        with gateway(models) as address:
            for reply in (ask(address, CHAT, {}), ask(address, "/health")):
                assert (reply.status, reply.error["message"]) == (503, problem[0])
            problem[0] = ""
            assert (ask(address, "/health").status, ask(address, "/health").json) == (
                200,
                {"status": "ok"},
            )

    def test_health_tells_the_reason_only_with_the_key(self) -> None:
        """Service managers have no key. With one, pages of any site get the answer."""
        problem = ["llama-server ended: cannot open /home/ann/secret.gguf"]
        models = one_model(None, problem=lambda: problem[0])
        with gateway(models, api_keys=("sk-1",)) as address:
            for key in ("", "Bearer sk-2"):
                reply = ask(address, "/health", Authorization=key)
                assert (reply.status, reply.error["message"]) == (503, "the engine has stopped")
            reply = ask(address, "/health", Authorization="Bearer sk-1")
            assert (reply.status, reply.error["message"]) == (503, problem[0])
            problem[0] = ""
            assert ask(address, "/health").error["message"] == "the engine is starting"
            reply = ask(address, "/health", Authorization="Bearer sk-1")
            assert reply.error["message"] == "tiny is loading"

    @pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-"])
    def test_engine_that_dies_before_its_response(self, begun: bytes) -> None:
        with _dying(begun) as upstream, gateway(upstream) as address:
            assert ask(address, CHAT, {}).status == 503

    def test_engine_that_dies_in_the_middle_of_a_stream(self) -> None:
        """The client gets the events so far and an error, in a response that is complete as HTTP."""
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        event = b'data: {"n": 1}\n\n'
        begun = head + b"%x\r\n%s\r\n" % (len(event), event)
        with _dying(begun) as upstream, gateway(upstream) as address:
            reply = ask(address, CHAT, {})
        assert reply.body.startswith(event)
        last = reply.body.strip().rpartition(b"data: ")[2]
        assert json.loads(last)["error"]["code"] == "engine_unavailable"

    def test_engine_that_dies_in_the_middle_of_json(self) -> None:
        begun = (
            b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"a":'
        )
        with _dying(begun) as upstream, gateway(upstream) as address:
            with pytest.raises(http.client.IncompleteRead):
                ask(address, CHAT, {})
            assert ask(address, "/health").status == 200


class _dying:  # noqa: N801 - a context manager
    """A server that answers one request with these bytes, and then resets its connection."""

    def __init__(self, begun: bytes) -> None:
        self._begun, self._listening = begun, socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        self._thread.join(PATIENCE_S)

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        with connection:
            while b"}" not in connection.recv(65_536):
                pass
            connection.sendall(self._begun)
            if not self._begun:  # reset instead of an orderly end
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


class TestMetrics:
    def test_requests_tokens_and_first_bytes_are_counted(self, address: str) -> None:
        ask(address, COMPLETION, {"prompt": "a"})
        ask(address, CHAT, {"do": "stream"})
        ask(address, CHAT, {"history": 1000})
        ask(address, "/made/up/by/a/stranger")
        lines = self.metrics(address)
        assert lines['edgekit_requests_total{path="/v1/completions",status="200"}'] == "1"
        assert lines['edgekit_requests_total{path="/v1/chat/completions",status="200"}'] == "1"
        assert lines['edgekit_requests_total{path="/v1/chat/completions",status="400"}'] == "1"
        assert lines['edgekit_requests_total{path="other",status="404"}'] == "1"
        assert lines['edgekit_tokens_total{direction="in"}'] == "22"
        assert lines['edgekit_tokens_total{direction="out"}'] == "10"
        assert lines["edgekit_first_byte_seconds_count"] == "2"
        assert lines['edgekit_model_up{model="tiny"}'] == "1"
        assert lines["edgekit_requests_in_flight"] == "1"  # the request for the metrics

    @pytest.mark.parametrize("path", ['/x"}%201%0Aevil%205', "/made/up"])
    def test_made_up_paths_are_not_listed_while_the_model_loads(self, path: str) -> None:
        with gateway(one_model(None)) as address:
            assert ask(address, path).status == 404
            assert ask(address, CHAT, {}).status == 503
            lines = self.metrics(address)
        paths = [line for line in lines if line.startswith("edgekit_requests_total")]
        assert paths == [
            'edgekit_requests_total{path="/v1/chat/completions",status="503"}',
            'edgekit_requests_total{path="other",status="404"}',
        ]

    def test_labels_are_escaped(self) -> None:
        counted = Metrics()
        counted.count('/x"} 1\nevil 5', 200)
        text = counted.text((), None)
        assert r'edgekit_requests_total{path="/x\"} 1\nevil 5",status="200"} 1' in text

    def test_memory_of_the_engine_is_there_if_it_is_known(self, engine: Engine) -> None:
        models = one_model(upstream_at("http://127.0.0.1:9"))
        settings = GatewaySettings(port=0)
        with GatewayServer(settings, models, memory_bytes=lambda: 123_456_789_012) as server:
            assert self.metrics(server.address)["edgekit_engine_memory_bytes"] == "123456789012"

    def metrics(self, address: str) -> dict[str, str]:
        reply: Reply = ask(address, "/metrics")
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = [line for line in reply.body.decode().splitlines() if not line.startswith("#")]
        return dict(line.rsplit(" ", 1) for line in lines)


class TestServer:
    def test_port_in_use_is_refused(self, address: str) -> None:
        port = int(address.rpartition(":")[2])
        models = one_model(upstream_at("http://127.0.0.1:9"))
        with pytest.raises(UsageError, match="already in use"):
            GatewayServer(GatewaySettings(port=port), models).start()

    def test_stop_ends_open_streams_and_frees_the_port(self, engine: Engine) -> None:
        with serve(engine.app) as upstream, gateway(upstream) as address:
            connection = http.client.HTTPConnection(address.removeprefix("http://"))
            connection.request("POST", CHAT, json.dumps({"do": "endless"}))
            response = connection.getresponse()
            assert response.read(8) == b"data: {}"
        with closing(connection), pytest.raises((http.client.HTTPException, OSError)):
            response.read()
        wait_until(engine.left.is_set)
        port = int(address.rpartition(":")[2])
        socket.create_server(("127.0.0.1", port)).close()
