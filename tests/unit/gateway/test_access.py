"""Who gets in: hosts, sites, keys, and clients that are slow, too many, or do not speak HTTP."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from starlette.responses import JSONResponse
from tests.gateways import CHAT, ask, gateway, send_raw, serve, upstream_at
from tests.patience import PATIENCE_S

from edgekit.errors import UsageError
from edgekit.gateway.access import Access
from edgekit.gateway.types import GatewaySettings
from edgekit.server import bodies, connections
from edgekit.server.requests import RequestHead

KEY = "sk-0123456789"
EVIL = {"Host": "evil.com", "Origin": "http://evil.com"}


async def echo(scope: Any, receive: Any, send: Any) -> None:
    await JSONResponse({})(scope, receive, send)


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with serve(echo) as address:
        yield address


@pytest.fixture(scope="module")
def address(upstream: str) -> Iterator[str]:
    with gateway(upstream) as address:
        yield address


@pytest.fixture(scope="module")
def guarded(upstream: str) -> Iterator[str]:
    with gateway(upstream, api_keys=("another key", KEY)) as address:
        yield address


def refusal(settings: GatewaySettings, method: str = "POST", **headers: str) -> str | None:
    """The code of the refusal of a request with these headers."""
    raw = {name.lower().replace("_", "-").encode(): text.encode() for name, text in headers.items()}
    head = RequestHead(method=method, path=CHAT, query=b"", headers=raw, head_bytes=99, client="c")
    error = Access(settings).refusal(head)
    return None if error is None else error.code


class TestHosts:
    def test_rebound_name_is_refused(self, address: str) -> None:
        """A page of evil.com whose name now points to 127.0.0.1: its requests are same-origin for the browser."""
        for path, body in ((CHAT, {}), ("/v1/models", None), ("/metrics", None), ("/health", None)):
            reply = ask(address, path, body, **EVIL)
            assert (reply.status, reply.error["code"]) == (421, "wrong_host")
            assert "access-control-allow-origin" not in reply.headers

    @pytest.mark.parametrize(
        ("host", "code"),
        [
            ("localhost:8080", None),
            ("127.0.0.1:8080", None),
            ("[::1]:8080", None),
            ("LOCALHOST", None),
            ("192.168.1.7:8080", None),
            (socket.gethostname(), None),
            ("", "wrong_host"),
            ("localhost.evil.com", "wrong_host"),
            ("evil.com:127", "wrong_host"),
            ("localhost@evil.com", "wrong_host"),
            ("127.0.0.1.evil.com", "wrong_host"),
        ],
    )
    @pytest.mark.parametrize("listens_on", ["127.0.0.1", "0.0.0.0"])
    def test_names_without_a_key(self, listens_on: str, host: str, code: str | None) -> None:
        """A name is rebound; an IP address cannot be."""
        assert refusal(GatewaySettings(host=listens_on), Host=host) == code

    def test_allowed_names(self) -> None:
        settings = GatewaySettings(allowed_hosts=("Models.example",), api_keys=(KEY,))
        key = f"Bearer {KEY}"
        assert refusal(settings, Host="models.example:80", Authorization=key) is None
        assert refusal(settings, Host="evil.com", Authorization=key) == "wrong_host"

    @pytest.mark.parametrize(
        "name", ["chat.local:8080", "http://chat.local", "chat.local/", "*", ""]
    )
    def test_allowed_name_that_matches_nothing_is_refused(self, name: str) -> None:
        with pytest.raises(UsageError, match="only the name, without a scheme, a port"):
            Access(GatewaySettings(allowed_hosts=(name,)))

    def test_any_name_with_a_key(self) -> None:
        settings = GatewaySettings(api_keys=(KEY,))
        assert refusal(settings, Host="evil.com", Authorization=f"Bearer {KEY}") is None
        assert refusal(settings, Host="evil.com") == "invalid_api_key"


class TestSites:
    @pytest.mark.parametrize(
        "headers",
        [
            {"Origin": "http://evil.com"},
            {"Origin": "null"},
            {"Origin": "http://localhost:3000"},
            {"Sec_Fetch_Site": "cross-site"},
            {"Sec_Fetch_Site": "same-site"},
        ],
        ids=lambda headers: " ".join(*headers.items()),
    )
    def test_pages_of_other_sites_are_refused(self, address: str, headers: dict[str, str]) -> None:
        reply = ask(address, CHAT, {}, **headers)
        assert (reply.status, reply.error["code"]) == (403, "wrong_origin")
        assert ask(address, CHAT, None, method="OPTIONS", **headers).status == 403

    def test_own_page_and_programs_are_let_in(self, address: str) -> None:
        origin = {"Origin": address, "Sec_Fetch_Site": "same-origin"}
        assert ask(address, CHAT, {}, **origin).status == 200
        assert ask(address, CHAT, {}).status == 200

    @pytest.mark.parametrize(
        ("origins", "keys", "origin", "status"),
        [
            (("https://chat.example",), (), "https://chat.example", 200),
            (("https://chat.example/",), (), "https://chat.example", 200),
            (("https://chat.example",), (), "https://chat.example.evil", 403),
            (("https://chat.example",), (KEY,), "https://other.example", 403),
            (("*",), (KEY,), "https://other.example", 200),
            ((), (KEY,), "https://other.example", 200),
            ((), (), "https://other.example", 403),
        ],
    )
    def test_allowed_origins(
        self,
        upstream: str,
        origins: tuple[str, ...],
        keys: tuple[str, ...],
        origin: str,
        status: int,
    ) -> None:
        with gateway(upstream, allowed_origins=origins, api_keys=keys) as address:
            wanted = {"Access_Control_Request_Headers": "authorization, x-stainless-lang"}
            before = ask(address, CHAT, None, method="OPTIONS", Origin=origin, **wanted)
            reply = ask(
                address,
                CHAT,
                {},
                Origin=origin,
                Sec_Fetch_Site="cross-site",
                Authorization=f"Bearer {KEY}",
            )
        assert reply.status == status
        if status == 403:
            assert before.status == 403
            assert "access-control-allow-origin" not in {*before.headers, *reply.headers}
            return
        assert before.status == 204
        for answer in (before, reply):
            assert answer.headers["access-control-allow-origin"] == origin
            assert answer.headers["vary"] == "Origin"
        assert before.headers["access-control-allow-headers"] == "authorization, x-stainless-lang"

    @pytest.mark.parametrize("origin", ["*", "null"])
    def test_all_sites_without_a_key_are_refused(self, origin: str) -> None:
        """Any page can make a frame whose origin is null."""
        with pytest.raises(UsageError, match="any web page"):
            Access(GatewaySettings(allowed_origins=(origin,)))

    @pytest.mark.parametrize(
        ("allowed", "origin"),
        [
            ("HTTPS://Chat.Example", "https://chat.example"),
            ("https://chat.example:443/", "https://chat.example"),
            ("http://chat.example:80", "http://chat.example"),
            ("http://chat.example:443", "http://chat.example:443"),
            ("http://[::1]:3000", "http://[::1]:3000"),
            ("http://[::1]", "http://[::1]"),
            ("chrome-extension://abcdefgh", "chrome-extension://abcdefgh"),
            ("file://", "file://"),
            ("file:///", "file://"),
            ("App://.", "app://."),
        ],
    )
    def test_origin_is_allowed_as_browsers_send_it(self, allowed: str, origin: str) -> None:
        settings = GatewaySettings(allowed_origins=(allowed,))
        assert refusal(settings, Host="localhost", Origin=origin) is None
        assert refusal(settings, Host="localhost", Origin=f"{origin}1") == "wrong_origin"

    @pytest.mark.parametrize(
        ("allowed", "message"),
        [
            ("chat.example", "write it as https://chat.example"),
            ("chat.example:8080", "write it as"),
            ("https://*.example", "write it as"),
            ("https://", "write it as"),
            ("http://.", "write it as"),
            ("app://..", "write it as"),
            ("https://chat.example:x", "write it as"),
            ("https://user@chat.example", "write it as"),
            ("https://[chat", "write it as"),
            ("", "write it as"),
            (
                "https://chat.example/app",
                "leave out what follows the host.*: https://chat.example$",
            ),
            ("https://chat.example?a", "leave out what follows the host"),
        ],
    )
    def test_origin_that_no_browser_sends_is_refused(self, allowed: str, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            Access(GatewaySettings(allowed_origins=(allowed,), api_keys=(KEY,)))

    def test_null_and_several_origins_with_a_key(self) -> None:
        key = f"Bearer {KEY}"
        one = GatewaySettings(allowed_origins=("null",), api_keys=(KEY,))
        assert refusal(one, Origin="null", Authorization=key) is None
        assert refusal(one, Origin="https://other.example", Authorization=key) == "wrong_origin"
        several = GatewaySettings(allowed_origins=("*", "https://chat.example"), api_keys=(KEY,))
        assert refusal(several, Origin="https://other.example", Authorization=key) is None


def test_ipv6_address_without_brackets_is_named_with_them() -> None:
    with pytest.raises(UsageError, match=r"--allow-host ::1: .* in brackets: \[::1\]$"):
        Access(GatewaySettings(allowed_hosts=("::1",)))
    Access(GatewaySettings(allowed_hosts=("[::1]",)))


class TestKeys:
    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer "},
            {"Authorization": KEY},
            {"Authorization": f"Basic {KEY}"},
            {"Authorization": f"Bearer {KEY}0"},
        ],
        ids=lambda headers: headers.get("Authorization", "none"),
    )
    def test_requests_without_the_key_are_refused(
        self, guarded: str, headers: dict[str, str]
    ) -> None:
        for path, body in ((CHAT, {}), ("/v1/models", None), ("/metrics", None)):
            reply = ask(guarded, path, body, **headers)
            assert (reply.status, reply.error["type"]) == (401, "authentication_error")
            assert KEY not in reply.body.decode()

    @pytest.mark.parametrize("key", ["another key", KEY])
    def test_every_key_opens(self, guarded: str, key: str) -> None:
        assert ask(guarded, CHAT, {}, Authorization=f"bearer {key}").status == 200

    def test_health_needs_no_key(self, guarded: str) -> None:
        assert ask(guarded, "/health").status == 200

    def test_keys_are_not_shown(self) -> None:
        settings = GatewaySettings(api_keys=(KEY,))
        assert KEY not in repr(settings)
        assert "inner" not in repr(upstream_at("http://127.0.0.1:9", api_key="inner"))


class TestBodies:
    def test_body_over_the_limit_is_refused(self, upstream: str) -> None:
        with gateway(upstream, max_body_bytes=1000) as address:
            assert ask(address, CHAT, b'{"a": "' + b"x" * 980 + b'"}').status == 200
            reply = ask(address, CHAT, b"x" * 100_000)
            assert (reply.status, reply.headers["connection"]) == (413, "close")
            chunked = b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            raw = send_raw(address, chunked % CHAT.encode() + b"800\r\n" + b"x" * 2048 + b"\r\n0\r\n\r\n")  # fmt: skip
            assert raw.startswith(b"HTTP/1.1 413 ")
            claim = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n"
            assert send_raw(address, claim % CHAT.encode()).startswith(b"HTTP/1.1 413 ")

    def test_body_that_does_not_arrive_times_out(
        self, upstream: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bodies, "DRAINED_S", 0.2)
        head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{" % CHAT.encode()
        with gateway(upstream, body_timeout_s=0.2) as address:
            assert send_raw(address, head).startswith(b"HTTP/1.1 408 ")

    def test_large_bodies_at_once_are_limited(self, upstream: str) -> None:
        """Eight of the largest size, which are not complete; a small one is let in."""
        limit = 300_000
        head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n{"
        with gateway(upstream, max_body_bytes=limit) as address, ExitStack() as stack:
            host, _, port = address.removeprefix("http://").partition(":")
            for _ in range(8):
                client = stack.enter_context(
                    closing(socket.create_connection((host, int(port)), timeout=PATIENCE_S))
                )
                client.sendall(head % (CHAT.encode(), limit))
                # answered only after the head before it was read
                assert ask(address, CHAT, {}).status == 200
            assert ask(address, CHAT, b"{" + b" " * (limit - 2) + b"}").status == 429


class TestConnections:
    def test_head_that_does_not_arrive_times_out(
        self, address: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.3)
        assert send_raw(address, b"POST / HTTP/1.1\r\nHost: loc") == b""

    @pytest.mark.parametrize(
        "raw",
        [
            b"\x16\x03\x01\x02\x00\x01\x00",
            b"hello\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        ],
        ids=["TLS", "no HTTP", "two hosts", "negative length", "long head"],
    )
    def test_malformed_requests_get_400(self, address: str, raw: bytes) -> None:
        answer = send_raw(address, raw)
        assert re.match(rb"HTTP/1.1 4(00|31) ", answer)
        assert b'{"error": {"message": ' in answer

    @pytest.mark.parametrize("path", ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd"])  # fmt: skip
    def test_no_path_leads_to_a_file(self, address: str, path: str) -> None:
        raw = b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = send_raw(address, raw % path.encode())
        assert answer.startswith(b"HTTP/1.1 404 ")

    def test_connections_are_limited(self, upstream: str) -> None:
        with gateway(upstream, max_connections=1) as address:
            host, _, port = address.removeprefix("http://").partition(":")
            with closing(socket.create_connection((host, int(port)))):
                reply = ask(address, CHAT, {})
        assert (reply.status, reply.headers["connection"]) == (503, "close")

    def test_requests_are_limited(self, upstream: str) -> None:
        with gateway(upstream, max_requests=0) as address:
            reply = ask(address, CHAT, {})
            assert (reply.status, reply.headers["retry-after"]) == (429, "5")
            assert ask(address, "/health").status == 200
