"""Security headers, hosts, tokens and limits, over sockets to the real server."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import ASGIApp
from tests.patience import PATIENCE_S, wait_until
from tests.web.serving import Reply, ask, start

from edgekit.server import bodies, connections
from edgekit.server.clients import MAX_CLIENTS, Rates, network_of
from edgekit.server.requests import MAX_HEAD_BYTES
from edgekit.web import security, serving
from edgekit.web.app import PAGES
from edgekit.web.security import (
    BYE,
    CALLS_EACH,
    CONTENT_POLICY,
    MAX_QUERY_BYTES,
    STREAMS_EACH,
    TOKEN_PAGE_POLICY,
    WRONG_TOKENS_PER_S,
    Security,
    Shutdown,
    ShutdownMiddleware,
)
from edgekit.web.small_pages import STYLE
from edgekit.web.types import MAX_BODY_BYTES, WebSettings

TOKEN = "correct-horse-battery"
CALL = "/api/v1/hardware"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with start() as address:
        yield address


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with start(WebSettings(port=0, network=False, token=TOKEN)) as address:
        yield address


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock for the rate limits of servers that start after this. It stands still until the test changes it."""
    now = [100.0]
    monkeypatch.setattr(Rates.__init__, "__kwdefaults__", {"clock": lambda: now[0]})
    return now


def send_raw(address: str, raw: bytes) -> bytes:
    """Everything that the server sends in response to these bytes, until it closes the connection."""
    host, _, port = address.removeprefix("http://").partition(":")
    with closing(socket.create_connection((host, int(port)), PATIENCE_S)) as connection:
        connection.sendall(raw)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def send_form(address: str, path: str, token: str) -> Reply:
    """Sends the form of the page that asks for the token."""
    place = address.removeprefix("http://")
    with closing(http.client.HTTPConnection(place, timeout=PATIENCE_S)) as client:
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "null"}
        client.request("POST", path, urlencode({"token": token}), headers)
        reply = client.getresponse()
        names = {name.lower(): value for name, value in reply.getheaders()}
        return Reply(reply.status, names, reply.read())


class TestResponseHeaders:
    @pytest.mark.parametrize(
        "path", ["/", "/healthz", CALL, "/static/main.js", "/nowhere", "/api/v1/nowhere"]
    )
    def test_every_response_has_the_security_headers(self, server: str, path: str) -> None:
        headers = ask(server, path).headers
        assert headers["content-security-policy"] == CONTENT_POLICY
        assert "unsafe" not in CONTENT_POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "camera=()" in headers["permissions-policy"]
        assert "server" not in headers
        assert not [name for name in headers if name.startswith("access-control")]

    def test_call_response_is_not_cached(self, server: str) -> None:
        assert ask(server, CALL).headers["cache-control"] == "no-store"

    def test_static_file_is_revalidated_with_its_etag(self, server: str) -> None:
        first = ask(server, "/static/main.js")
        assert (first.status, first.headers["cache-control"]) == (200, "no-cache")
        assert first.headers["content-type"] == "text/javascript; charset=utf-8"
        again = ask(server, "/static/main.js", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status, again.body) == (304, b"")

    def test_internal_error_hides_the_cause(
        self, server: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def break_down(*_: object, **__: object) -> None:
            raise ZeroDivisionError("/home/somebody/secret")

        monkeypatch.setattr("edgekit.web.app.asset_answer", break_down)
        with caplog.at_level(logging.ERROR):
            answer = ask(server, "/")
        assert answer.status == 500
        assert b"secret" not in answer.body
        assert b"ZeroDivision" not in answer.body
        assert answer.headers["content-security-policy"] == CONTENT_POLICY
        assert "/home/somebody/secret" in caplog.text


class TestRoutes:
    @pytest.mark.parametrize("path", PAGES)
    def test_every_page_is_the_same_document(self, server: str, path: str) -> None:
        """Except for the scripts that the browser fetches in advance."""
        answer = ask(server, path)
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        bodies = [
            [line for line in body.splitlines() if b"modulepreload" not in line]
            for body in (answer.body, ask(server, "/").body)
        ]
        assert bodies[0] == bodies[1]
        assert ask(server, path, method="HEAD").body == b""

    @pytest.mark.parametrize("path", ["/healthz", CALL, "/api/v1/estimate?model=qwen3-8b"])
    def test_head_is_answered_as_get_without_body(self, server: str, path: str) -> None:
        head, get = ask(server, path, method="HEAD"), ask(server, path)
        assert (head.status, head.body) == (200, b"")
        for name in ("content-type", "content-length"):
            assert head.headers[name] == get.headers[name]

    @pytest.mark.parametrize(
        ("path", "status"), [("/api/v1/cards/events", 405), ("/api/v1/jobs/nothing", 404)]
    )
    def test_head_of_a_stream_or_missing_job_is_refused(
        self, server: str, path: str, status: int
    ) -> None:
        assert ask(server, path, method="HEAD").status == status

    def test_missing_page_is_answered_with_html(self, server: str) -> None:
        answer = ask(server, "/nowhere?ref=<script>")
        assert answer.status == 404
        assert b"Address not found." in answer.body
        assert b"<script" not in answer.body

    def test_missing_call_is_answered_with_json(self, server: str) -> None:
        answer = ask(server, "/api/v1/nowhere")
        assert (answer.status, answer.error["type"]) == (404, "NotFoundError")
        answer = ask(server, "/healthz", {})
        assert answer.status == 405

    @pytest.mark.parametrize(
        "name",
        [
            "../app.py",
            "..%2fapp.py",
            "%2e%2e/app.py",
            "..%5capp.py",
            ".",
            "",
            "main.js/",
            "app.py",
            "MAIN.JS",
            "a" * 3000,
        ],
    )
    def test_static_path_outside_the_folder_is_not_found(self, server: str, name: str) -> None:
        assert ask(server, f"/static/{name}").status == 404


class TestHost:
    @pytest.mark.parametrize(
        "host",
        [
            "evil.example",
            "evil.example:{port}",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "localhost.",
            "[::2]",
            "",
        ],
    )
    def test_foreign_host_is_refused(self, server: str, host: str) -> None:
        port = server.rpartition(":")[2]
        for path in ("/", CALL, "/healthz", "/static/main.js"):
            answer = ask(server, path, headers={"Host": host.format(port=port)})
            assert answer.status == 421
        assert b"localhost" in answer.body

    @pytest.mark.parametrize(
        "host", ["localhost", "LOCALHOST:{port}", "127.0.0.1:1", "[::1]:{port}"]
    )
    def test_own_host_is_answered(self, server: str, host: str) -> None:
        port = server.rpartition(":")[2]
        assert ask(server, "/healthz", headers={"Host": host.format(port=port)}).status == 200

    def test_missing_host_is_refused(self, server: str) -> None:
        assert send_raw(server, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 421 ")

    def test_any_host_is_answered_when_not_on_loopback(self) -> None:
        with start(WebSettings(host="0.0.0.0", port=0, network=False, token=TOKEN)) as address:
            answer = ask(address, "/healthz", headers={"Host": "workstation.example"})
            assert answer.status == 200
            assert ask(address, CALL).status == 401


class TestOtherSites:
    @pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
    def test_cross_site_call_is_refused(self, server: str, site: str) -> None:
        for fields in (None, {"model": "sample:gemma-3-27b"}):
            path = CALL if fields is None else "/api/v1/inspect"
            answer = ask(server, path, fields, headers={"Sec-Fetch-Site": site})
            assert (answer.status, answer.error["type"]) == (403, "CrossSiteError")

    @pytest.mark.parametrize(
        "origin", ["null", "http://evil.example", "http://localhost:1", "https://", ""]
    )
    def test_call_with_a_foreign_origin_is_refused(self, server: str, origin: str) -> None:
        assert ask(server, CALL, headers={"Origin": origin}).status == 403

    def test_call_from_own_page_is_answered(self, server: str) -> None:
        own = {"Origin": server, "Sec-Fetch-Site": "same-origin"}
        assert ask(server, CALL, headers=own).status == 200
        assert ask(server, CALL, headers={"Sec-Fetch-Site": "none"}).status == 200

    def test_link_from_another_site_opens_a_page(self, server: str) -> None:
        assert ask(server, "/model", headers={"Sec-Fetch-Site": "cross-site"}).status == 200
        assert ask(server, "/api/docs", headers={"Sec-Fetch-Site": "cross-site"}).status == 200

    @pytest.mark.parametrize("path", ["/", CALL, "/nowhere"])
    def test_options_is_refused(self, server: str, path: str) -> None:
        headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
        answer = ask(server, path, method="OPTIONS", headers=headers)
        assert answer.status == 405
        assert not [name for name in answer.headers if name.startswith("access-control")]


class TestToken:
    def test_every_path_needs_the_token(self, guarded: str) -> None:
        for path in (*PAGES, "/static/main.js", CALL, "/api/v1/openapi.json", "/nowhere"):
            assert ask(guarded, path).status == 401, path

    def test_health_check_needs_no_token(self, guarded: str) -> None:
        assert ask(guarded, "/healthz").json()["status"] == "ok"

    def test_bearer_header_is_accepted(self, guarded: str) -> None:
        assert ask(guarded, CALL, headers={"Authorization": f"Bearer {TOKEN}"}).status == 200
        assert ask(guarded, CALL, headers={"authorization": f"bearer {TOKEN}"}).status == 200

    def test_missing_token_is_answered_with_json_or_html(self, guarded: str) -> None:
        call, page = ask(guarded, CALL), ask(guarded, "/model?ref=a%22b")
        assert call.error["type"] == "TokenError"
        assert "Bearer" in call.error["message"]
        assert call.headers["www-authenticate"] == "Bearer"
        assert b"Open the address that edgekit web printed" in page.body
        assert b'href="/model?ref=a%22b"' in page.body

    def test_page_without_token_has_a_form_that_is_sent_to_the_same_address(
        self, guarded: str
    ) -> None:
        answer = ask(guarded, "/model?ref=a%22b&token=wrong")
        text = answer.body.decode()
        assert answer.status == 401
        assert '<form method="post" action="/model?ref=a%22b">' in text
        assert 'name="token" type="password" required' in text
        assert 'autocomplete="off"' in text
        assert answer.headers["content-security-policy"] == TOKEN_PAGE_POLICY
        assert "script" not in text
        assert f"<style>{STYLE}</style>" in text
        assert "form-action 'none'" in CONTENT_POLICY

    @pytest.mark.parametrize(
        "typed",
        [
            TOKEN,
            f"  {TOKEN}\n",
            f"http://127.0.0.1:8421/model?ref=x&token={TOKEN}&c=",
            f"http://127.0.0.1:8421/?token={TOKEN}#models",
        ],
    )
    def test_form_exchanges_the_token_for_the_cookie(self, guarded: str, typed: str) -> None:
        answer = send_form(guarded, "/model?ref=a%2Fb", typed)
        assert (answer.status, answer.headers["location"]) == (303, "/model?ref=a%2Fb")
        cookie = answer.headers["set-cookie"].partition("; ")[0]
        assert TOKEN not in str(answer)
        assert ask(guarded, CALL, headers={"Cookie": cookie}).status == 200

    @pytest.mark.parametrize("typed", ["", "wrong", f"{TOKEN}x", "ä" * 8])
    def test_form_with_a_wrong_token_is_shown_again(self, typed: str) -> None:
        with start(WebSettings(port=0, network=False, token=TOKEN)) as address:
            answer = send_form(address, "/", typed)
        assert answer.status == 401
        assert "set-cookie" not in answer.headers
        assert b"The token is wrong" in answer.body
        assert b"<form" in answer.body

    def test_wrong_tokens_in_the_form_are_limited_per_second(self, now_s: list[float]) -> None:
        with start(WebSettings(port=0, network=False, token=TOKEN)) as address:
            statuses = [send_form(address, "/", str(n)).status for n in range(7)]
        guesses = int(WRONG_TOKENS_PER_S)
        assert statuses == [401] * guesses + [429] * (7 - guesses)

    @pytest.mark.usefixtures("now_s")
    def test_page_after_too_many_wrong_tokens_still_has_the_form(self) -> None:
        with start(WebSettings(port=0, network=False, token=TOKEN)) as address:
            *_, answer = [send_form(address, "/", str(n)) for n in range(7)]
            assert answer.status == 429
            assert b"Too many wrong tokens: wait a second, then try again." in answer.body
            assert b"<form" in answer.body
            assert answer.headers["content-security-policy"] == TOKEN_PAGE_POLICY

    def test_form_is_only_read_by_pages(self, guarded: str) -> None:
        assert send_form(guarded, CALL, TOKEN).status == 403  # a browser sends Origin: null
        assert send_form(guarded, "/healthz", TOKEN).status == 405
        assert send_form(guarded, "/", "a" * MAX_BODY_BYTES).status == 413

    def test_server_without_a_token_has_no_form(self, server: str) -> None:
        assert send_form(server, "/", TOKEN).status == 405

    def test_token_in_a_page_url_becomes_a_cookie(self, guarded: str) -> None:
        answer = ask(guarded, f"/model?ref=a%2Fb&token={TOKEN}&c=")
        assert (answer.status, answer.headers["location"]) == (303, "/model?ref=a%2Fb&c=")
        cookie, _, rules = answer.headers["set-cookie"].partition("; ")
        assert rules == "Path=/; HttpOnly; SameSite=Strict"
        assert TOKEN not in cookie
        among_others = f"theme=%7B{{}}; broken; {cookie}; other=1"
        for path in ("/model?ref=a%2Fb", CALL, "/static/main.js"):
            assert ask(guarded, path, headers={"Cookie": among_others}).status == 200

    def test_redirect_after_the_token_stays_on_this_host(self, guarded: str) -> None:
        answer = ask(guarded, f"//evil.example/%0d%0aX:y?token={TOKEN}")
        assert answer.headers["location"].startswith("/evil.example/")
        assert "x" not in answer.headers

    def test_token_in_the_url_of_a_call_is_ignored(self, guarded: str) -> None:
        assert ask(guarded, f"{CALL}?token={TOKEN}").status == 401

    @pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "\xe4" * 8])
    def test_wrong_token_is_refused(self, wrong: str) -> None:
        with start(WebSettings(port=0, network=False, token=TOKEN)) as address:
            port = address.rpartition(":")[2]
            cookie = {"Cookie": f"edgekit_{port}={wrong}"}
            assert ask(address, CALL, headers=cookie).status == 401
            assert ask(address, CALL, headers={"Authorization": f"Bearer {wrong}"}).status == 401
            if wrong.isascii():
                assert ask(address, f"/?token={wrong}").status == 401

    def test_wrong_tokens_are_limited_per_second(self, now_s: list[float]) -> None:
        with start(WebSettings(port=0, network=False, token=TOKEN)) as address:
            statuses = [
                ask(address, CALL, headers={"Authorization": f"Bearer {n}"}).status
                for n in range(10)
            ]
            guesses = int(WRONG_TOKENS_PER_S)
            assert statuses == [401] * guesses + [429] * (10 - guesses)
            right = {"Authorization": f"Bearer {TOKEN}"}
            assert ask(address, "/healthz").status == 200
            now_s[0] += 1 / WRONG_TOKENS_PER_S
            assert ask(address, CALL, headers=right).status == 200

    @pytest.mark.parametrize(("token", "passes"), [(TOKEN, True), (TOKEN[:12], False)])
    def test_wrong_tokens_do_not_lock_out_the_cookie(
        self, token: str, monkeypatch: pytest.MonkeyPatch, *, passes: bool
    ) -> None:
        """After wrong guesses, only a token that is too long to guess is still compared; a short one gets 429."""
        monkeypatch.setattr(security, "WRONG_TOKENS_PER_S", 0.01)
        with start(WebSettings(port=0, network=False, token=token)) as address:
            cookie = ask(address, f"/?token={token}").headers["set-cookie"].partition(";")[0]
            wrong = {"Authorization": "Bearer wrong"}
            while ask(address, CALL, headers=wrong).status != 429:
                pass
            assert ask(address, CALL, headers={"Cookie": cookie}).status == 200
            assert ask(address, "/", headers={"Cookie": cookie}).status == 200
            status = ask(address, CALL, headers={"Authorization": f"Bearer {token}"}).status
            assert status == (200 if passes else 429)

    def test_token_is_removed_from_the_url_even_with_the_cookie(self, guarded: str) -> None:
        cookie = ask(guarded, f"/?token={TOKEN}").headers["set-cookie"].partition(";")[0]
        answer = ask(guarded, f"/model?ref=a&token={TOKEN}", headers={"Cookie": cookie})
        assert (answer.status, answer.headers["location"]) == (303, "/model?ref=a")

    def test_cookie_of_another_server_is_refused(self, guarded: str) -> None:
        port = guarded.rpartition(":")[2]
        with start(WebSettings(port=0, network=False, token=TOKEN)) as address:
            cookie = ask(address, f"/?token={TOKEN}").headers["set-cookie"]
        other = cookie.partition(";")[0].partition("=")[2]
        assert len(other) == 64
        assert other != hashlib.sha256(b"edgekit web\0" + TOKEN.encode()).hexdigest()
        assert ask(guarded, CALL, headers={"Cookie": f"edgekit_{port}={other}"}).status == 401
        assert ask(guarded, CALL, headers={"Cookie": "edgekit_1=0"}).status == 401


class TestBodies:
    SIZE = 10_000_000

    def post(self, server: str, body: bytes) -> Reply:
        place = server.removeprefix("http://")
        with closing(http.client.HTTPConnection(place, timeout=PATIENCE_S)) as client:
            client.request("POST", "/api/v1/estimate", body, {"Content-Type": "application/json"})
            reply = client.getresponse()
            return Reply(reply.status, dict(reply.getheaders()), reply.read())

    def test_body_with_too_large_content_length_is_413(self, server: str) -> None:
        answer = self.post(server, b'{"model": "' + b"a" * self.SIZE)
        assert (answer.status, answer.error["type"]) == (413, "TooLargeError")

    def test_chunked_body_that_is_too_large_is_413(self, server: str) -> None:
        pieces = (b" " * 10_000 for _ in range(self.SIZE // 10_000))
        place = server.removeprefix("http://")
        with closing(http.client.HTTPConnection(place, timeout=PATIENCE_S)) as client:
            headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
            client.request("POST", "/api/v1/estimate", pieces, headers, encode_chunked=True)
            reply = client.getresponse()
            assert reply.status == 413
            assert json.loads(reply.read())["error"]["type"] == "TooLargeError"

    def test_too_large_body_is_refused_before_it_arrives(
        self, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bodies, "DRAINED_S", 0.2)
        head = f"POST /api/v1/estimate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {10**15}\r\nExpect: 100-continue\r\n\r\n"
        assert send_raw(server, head.encode()).startswith(b"HTTP/1.1 413 ")

    def test_endless_chunked_body_is_cut_off(
        self, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bodies, "DRAINED_BYTES", 2_000_000)
        host, _, port = server.removeprefix("http://").partition(":")
        sent = 0
        with closing(socket.create_connection((host, int(port)), PATIENCE_S)) as connection:
            connection.sendall(
                b"POST /api/v1/estimate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
            with pytest.raises(OSError):  # noqa: PT012 - which of them fails does not matter
                while sent < 200_000_000:
                    connection.sendall(piece)
                    sent += len(piece)
        assert sent < 20_000_000

    @pytest.mark.parametrize("size", [0, 1, MAX_BODY_BYTES])
    def test_body_within_the_limit_is_read(self, server: str, size: int) -> None:
        answer = self.post(server, b" " * size)
        assert answer.status == 400

    def test_body_that_does_not_arrive_times_out(
        self, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(security, "BODY_TIMEOUT_S", 0.2)
        monkeypatch.setattr(bodies, "DRAINED_S", 0.2)
        head = b"POST /api/v1/estimate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{"
        answer = send_raw(server, head)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"TooSlowError" in answer

    def test_malformed_rest_of_a_refused_body_is_not_logged(
        self, server: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        host, _, port = server.removeprefix("http://").partition(":")
        head = b"POST /api/v1/estimate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        with closing(socket.create_connection((host, int(port)), PATIENCE_S)) as connection:
            connection.sendall(head + b"20000\r\n" + b" " * 0x20000 + b"\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
            connection.sendall(b"no number\r\n")
            while connection.recv(4096):
                pass
        assert not caplog.records

    def test_disconnect_during_the_body_leaves_nothing_behind(self, server: str) -> None:
        host, _, port = server.removeprefix("http://").partition(":")
        with closing(socket.create_connection((host, int(port)), PATIENCE_S)) as connection:
            connection.sendall(
                b"POST /api/v1/estimate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{"
            )
        assert ask(server, "/healthz").status == 200


class TestHeads:
    def test_query_over_the_limit_is_414(self, server: str) -> None:
        assert ask(server, f"{CALL}?device={'a' * MAX_QUERY_BYTES}").status == 414
        assert ask(server, f"/model?ref={'a' * (MAX_QUERY_BYTES - 4)}").status == 200

    @pytest.mark.parametrize(
        ("path", "name", "count"),
        [(CALL, "X-Long", 1), ("/", "X-{}", 400), (f"/{'a' * 33_000}", "X", 0)],
    )
    def test_head_over_the_limit_is_400(
        self, server: str, path: str, name: str, count: int
    ) -> None:
        long = {name.format(n): "a" * (MAX_HEAD_BYTES // count) for n in range(count)}
        answer = ask(server, path, headers=long)
        assert answer.status == 400
        assert b"at most 32,768 bytes" in answer.body
        assert answer.headers["connection"] == "close"

    def test_head_within_the_limit_is_read(self, server: str) -> None:
        query = f"ref={'a' * (MAX_QUERY_BYTES - 4)}"
        cookies = {"Cookie": "a" * (MAX_HEAD_BYTES - MAX_QUERY_BYTES - 200)}
        assert ask(server, f"/model?{query}", headers=cookies).status == 200

    def test_unfinished_head_over_the_limit_is_400(self, server: str) -> None:
        raw = b"GET / HTTP/1.1\r\nX: " + b"a" * 40_000
        assert send_raw(server, raw).startswith(b"HTTP/1.1 400 ")

    def test_head_that_does_not_arrive_times_out(
        self, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.3)
        for head in (b"", b"GET / HTT"):
            assert send_raw(server, head) == b""

    def test_unfinished_head_on_a_reused_connection_times_out(
        self, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.3)
        place = server.removeprefix("http://")
        with closing(http.client.HTTPConnection(place, timeout=PATIENCE_S)) as client:
            client.request("GET", "/healthz")
            assert client.getresponse().read()
            assert client.sock is not None
            client.sock.sendall(b"GET /")
            assert client.sock.recv(1000) == b""

    @pytest.mark.parametrize(
        "head", [b"\x16\x03\x01\x00", b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n"]
    )
    def test_malformed_head_is_refused(self, server: str, head: bytes) -> None:
        answer = send_raw(server, head + b"\r\n\r\n")
        assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 405 "))
        headers, _, body = answer.rpartition(b"\r\n\r\n")
        assert json.loads(body)["error"]["type"] == "UsageError"
        assert CONTENT_POLICY.encode() in headers

    def test_forwarded_headers_are_ignored(self, now_s: list[float]) -> None:
        with start(WebSettings(port=0, network=False, requests_per_s=2.0)) as address:
            forged = [{"X-Forwarded-For": f"10.0.0.{n}"} for n in range(3)]
            statuses = [ask(address, "/healthz", headers=item).status for item in forged]
            assert statuses == [200, 200, 429]


class TestRates:
    def test_requests_of_one_client_are_limited_per_second(self, now_s: list[float]) -> None:
        with start(WebSettings(port=0, network=False, requests_per_s=5.0)) as address:
            answers = [ask(address, CALL if n % 2 else "/") for n in range(8)]
            assert [answer.status for answer in answers] == [200] * 5 + [429] * 3
            assert {answer.headers["retry-after"] for answer in answers[5:]} == {"1"}
            now_s[0] += 0.2
            assert ask(address, "/healthz").status == 200

    def test_rates_refill_over_time(self) -> None:
        now_s = [100.0]
        rates = Rates(2.0, clock=lambda: now_s[0])
        assert [rates.take("a") for _ in range(3)] == [True, True, False]
        assert rates.take("b")
        now_s[0] += 0.5
        assert [rates.take("a") for _ in range(2)] == [True, False]
        now_s[0] += 3600
        assert [rates.take("a") for _ in range(3)] == [True, True, False]

    def test_rates_remember_a_limited_number_of_clients(self) -> None:
        rates = Rates(1.0)
        for number in range(MAX_CLIENTS * 3):
            rates.take(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        assert len(rates) == MAX_CLIENTS

    def test_network_of_treats_an_ipv6_network_as_one_client(self) -> None:
        assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1")
        assert network_of("2001:db8::1") != network_of("2001:db8:0:1::1")
        assert network_of("::ffff:192.0.2.7") == "192.0.2.7"
        assert network_of("fe80::1%eth0") == network_of("fe80::2")
        rates = Rates(1.0)
        assert [rates.take(f"2001:db8::{n:x}") for n in range(3)] == [True, False, False]


def test_many_requests_at_once_are_answered(server: str) -> None:
    statuses: list[int] = []

    def check_health() -> None:
        statuses.append(ask(server, "/healthz").status)

    threads = [threading.Thread(target=check_health) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 64


def connect(address: str) -> socket.socket:
    host, _, port = address.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


def accepted_connection(address: str) -> socket.socket:
    """A connection that the server has accepted. Retries while earlier connections still count."""
    while True:
        connection = connect(address)
        with suppress(ConnectionError):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            if connection.recv(65536).startswith(b"HTTP/1.1 200 "):
                return connection
        connection.close()


class TestConnections:
    def test_connections_per_client_are_limited(
        self, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(serving.PageProtocol, "connections_each", 3)
        held = [accepted_connection(server) for _ in range(3)]
        with closing(connect(server)) as refused, suppress(ConnectionError):
            assert refused.recv(100) == b""
        for item in held:
            item.close()
        accepted_connection(server).close()

    def test_connections_beyond_the_limit_get_503(
        self, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(serving.PageProtocol, "max_connections", 1)
        with closing(accepted_connection(server)):
            call, page = ask(server, CALL), ask(server, "/")
        assert (call.status, call.error["type"]) == (503, "BusyError")
        assert (page.status, page.headers["connection"]) == (503, "close")
        assert page.headers["content-security-policy"] == CONTENT_POLICY

    def test_connection_whose_client_does_not_read_is_closed(
        self, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "READ_TIMEOUT_S", 0.2)
        large = Response(b"x" * 50_000_000)
        monkeypatch.setattr("edgekit.web.app.asset_answer", lambda *_: large)
        lost: list[int] = []
        original = connections.PatientProtocol.connection_lost

        def connection_lost(protocol: Any, error: Exception | None) -> None:
            original(protocol, error)
            lost.append(protocol.client[1])

        monkeypatch.setattr(connections.PatientProtocol, "connection_lost", connection_lost)
        with closing(socket.socket()) as unread:
            unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            unread.settimeout(PATIENCE_S)
            host, _, port = server.removeprefix("http://").partition(":")
            unread.connect((host, int(port)))
            unread.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert unread.recv(15) == b"HTTP/1.1 200 OK"
            wait_until(lambda: unread.getsockname()[1] in lost)
            received_bytes = 0
            with suppress(ConnectionError):
                while piece := unread.recv(1 << 20):  # what was still buffered, then the end
                    received_bytes += len(piece)
        assert received_bytes < 50_000_000


class TestOpenCalls:
    @staticmethod
    async def statuses(path: str, clients: list[str]) -> list[int]:
        """The status of one request of each client, all open at once."""
        all_open, sent = asyncio.Event(), dict[int, int]()

        async def app(_: Any, __: Any, send: Any) -> None:
            await all_open.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body"})

        guard = Security(app, settings=WebSettings())

        async def send_request(number: int) -> None:
            async def send(message: Any) -> None:
                sent.setdefault(number, message.get("status", 0))

            headers = [(b"host", b"localhost")]
            scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
            await guard({**scope, "client": (clients[number], 1)}, None, send)  # type: ignore[arg-type]  # nothing is received

        tasks = [asyncio.create_task(send_request(number)) for number in range(len(clients))]
        for _ in range(10):  # lets each task run until it waits
            await asyncio.sleep(0)
        all_open.set()
        await asyncio.gather(*tasks)
        assert not guard._calls
        assert not guard._streams
        return [sent[number] for number in range(len(clients))]

    @pytest.mark.parametrize(
        ("path", "per_client"),
        [("/api/v1/fit", CALLS_EACH), ("/api/v1/cards/events", STREAMS_EACH), ("/healthz", 200)],
    )
    def test_open_calls_and_streams_per_client_are_limited(
        self, path: str, per_client: int
    ) -> None:
        clients = [*["10.0.0.1"] * (per_client + 2), "10.0.0.2"]
        refused = [] if path == "/healthz" else [429, 429]
        expected = [200] * (len(clients) - 1 - len(refused)) + refused + [200]
        assert asyncio.run(self.statuses(path, clients)) == expected


def test_openapi_document_contains_no_path_of_this_machine(server: str) -> None:
    checkout = str(Path(__file__).parents[2])
    assert checkout.encode() not in ask(server, "/api/v1/openapi.json").body


class TestShutdownMiddleware:
    @staticmethod
    async def messages(path: str, app: ASGIApp) -> list[dict[str, Any]]:
        """What is sent for a request that is open when the server shuts down."""
        shutdown, sent = Shutdown(), list[dict[str, Any]]()

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            await asyncio.Event().wait()

        scope = {"type": "http", "path": path, "asgi": {"spec_version": "2.3"}}
        task = asyncio.create_task(ShutdownMiddleware(app, shutdown=shutdown)(scope, receive, send))
        for _ in range(10):  # lets the app run until it waits
            await asyncio.sleep(0)
        shutdown.begin()
        await asyncio.wait_for(task, PATIENCE_S)
        return sent

    def test_stream_gets_a_last_event(self) -> None:
        async def forever() -> AsyncIterator[bytes]:
            while True:
                yield b": still here\n\n"
                await asyncio.sleep(0.01)

        sent = asyncio.run(self.messages("/api/v1/cards/events", StreamingResponse(forever())))
        assert sent[0]["status"] == 200
        assert (sent[-1]["body"], sent[-1].get("more_body", False)) == (BYE, False)
        assert all(message.get("more_body") is True for message in sent[1:-1])

    def test_ended_stream_gets_no_last_event(self) -> None:
        sent = asyncio.run(self.messages("/api/v1/cards/events", PlainTextResponse("all")))
        assert [message.get("body") for message in sent] == [None, b"all"]

    def test_call_sees_a_disconnect(self) -> None:
        seen: list[str] = []

        async def app(_: Any, receive: Any, __: Any) -> None:
            seen.append((await receive())["type"])

        asyncio.run(self.messages("/api/v1/inspect", app))
        assert seen == ["http.disconnect"]

    def test_other_cancellations_propagate(self) -> None:
        async def app(*_: Any) -> None:
            await asyncio.Event().wait()

        async def unused(*_: Any) -> Any:
            raise AssertionError

        async def cancel_request() -> None:
            call = ShutdownMiddleware(app, shutdown=Shutdown())
            scope = {"type": "http", "path": "/events"}
            task = asyncio.create_task(call(scope, unused, unused))
            await asyncio.sleep(0.01)
            task.cancel()
            await task

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancel_request())
