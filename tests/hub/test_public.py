"""Fetching from public servers only: private addresses get no connection. And cancelling a request."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session
from tests.hub.hub_files import gguf_header
from tests.hub.name_server import never_answers
from tests.hub.nginx_hub import Hub
from tests.hub.raw_server import (
    RawServer,
    Request,
    Script,
    Send,
    hub_script,
    range_response,
    response,
)
from tests.patience import wait_until

from edgekit.app.open import open_named
from edgekit.errors import CancelledError, PrivateAddressError, RemoteInspectError
from edgekit.model import open_model
from edgekit.models import inspect_model_remote
from edgekit.request import Session
from edgekit.sources import cache
from edgekit.sources.http import Transport
from edgekit.sources.locator import locate
from edgekit.sources.ollama import locate_ollama
from edgekit.sources.reference import OllamaModel
from edgekit.sources.remote import GGUF, HttpFile
from edgekit.sources.types import Reach

Server = Callable[[Script], RawServer]
CONTENT = bytes(range(256)) * 4096  # 1 MiB
PUBLIC = "93.184.215.14"
REFUSED = "is, or resolves to, an address of this machine or a private network"


def honest(request: Request, send: Send) -> None:
    send(range_response(CONTENT, request))


def open_file(url: str, reach: Reach) -> HttpFile:
    return HttpFile(Transport(reach), url, name="the file", stride=GGUF)


@pytest.fixture
def public(reach: Reach) -> Reach:
    return replace(reach, public_only=True)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[str]], list[str]]:
    """Sets the addresses of models.example, one answer per lookup (the last one repeats); returns the lookups."""
    original = socket.getaddrinfo

    def set_answers(answers: Sequence[str]) -> list[str]:
        lookups: list[str] = []

        def getaddrinfo(host: Any, port: Any, *args: Any, **kinds: Any) -> list[Any]:
            if host != "models.example":
                return original(host, port, *args, **kinds)
            lookups.append(host)
            resolves_to = answers[min(len(lookups), len(answers)) - 1].split()
            return [
                result
                for address in resolves_to
                for result in original(address, port, *args, **kinds)
            ]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        return lookups

    return set_answers


# --- addresses

HERE = [
    "127.0.0.1",
    "127.1",
    "127.000.1",
    "2130706433",
    "0x7f.1",
    "0x7f000001",
    "017700000001",
    "0",
    "0.0.0.0",
    "localhost",
    "LocalHost",
    "[::ffff:127.0.0.1]",
    "[0:0:0:0:0:FFFF:7F00:1]",
    "public.example@127.0.0.1",
    "public.example:80@127.0.0.1",
    "8.8.8.8\\@127.0.0.1",
    "127\u30020\u30020\u30021",
]


@pytest.mark.parametrize("host", HERE)
def test_loopback_server_is_not_contacted(host: str, raw_server: Server, public: Reach) -> None:
    server = raw_server(honest)
    url = f"http://{host}:{server.port}/a.gguf"
    with pytest.raises(PrivateAddressError, match=f"^the file: .* {REFUSED}, .*--allow-private"):
        open_file(url, public)
    assert (server.connections, public.traffic.received_bytes) == (0, 0)
    open_file(
        url, replace(public, public_only=False)
    ).close()  # this spelling does reach the server
    assert server.connections == 1


@pytest.mark.parametrize(
    "host",
    [
        "localhost.",
        "127.0.0.1.",
        "a.localhost",
        "[::1]",
        "[::]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b:1::808:808]",
        "[2002:7f00:1::]",
        "[2001:0:4136:e378:8000:63bf:80ff:fffe]",
        "[fe80::1%25lo]",
        "[fd00:ec2::254]",
        "[ff02::1]",
        "169.254.169.254",
        "0xa9fea9fe",
        "[::ffff:169.254.169.254]",
        "metadata.google.internal",
        "10.0.0.1",
        "100.64.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "nas",
        "printer.local",
        "user@10.0.0.1",
    ],
)
def test_private_addresses_are_refused(host: str, public: Reach) -> None:
    with pytest.raises(PrivateAddressError, match=REFUSED):
        open_file(f"http://{host}/a.gguf", public)
    with pytest.raises(PrivateAddressError, match=REFUSED):
        open_file(f"https://{host}:8443/a.gguf", public)


@pytest.mark.parametrize("host", ["a..example", "a" * 64 + ".example", "\u2460\u2461.example"])
def test_invalid_host_is_an_error(host: str, reach: Reach, public: Reach) -> None:
    for item in (reach, public):
        with pytest.raises(RemoteInspectError, match="invalid address"):
            open_file(f"http://{host}/a.gguf", item)


@pytest.mark.parametrize(
    "resolves_to",
    ["127.0.0.1", "10.0.0.1", f"{PUBLIC} 127.0.0.1", f"127.0.0.1 {PUBLIC}", f"{PUBLIC} ::1"],
)
def test_name_with_any_private_address_is_refused(
    resolves_to: str,
    raw_server: Server,
    public: Reach,
    resolver: Callable[[Sequence[str]], list[str]],
) -> None:
    server, lookups = raw_server(honest), resolver([resolves_to])
    with pytest.raises(PrivateAddressError, match=f"models.example {REFUSED}"):
        open_file(f"http://models.example:{server.port}/a.gguf", public)
    assert (server.connections, len(lookups)) == (0, 1)  # and there is no retry


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_name_that_resolves_differently_the_second_time_is_refused(
    scheme: str,
    raw_server: Server,
    public: Reach,
    resolver: Callable[[Sequence[str]], list[str]],
) -> None:
    server, lookups = raw_server(honest), resolver([PUBLIC, "127.0.0.1"])
    with pytest.raises(PrivateAddressError, match=f"models.example {REFUSED}"):
        open_file(f"{scheme}://models.example:{server.port}/a.gguf", public)
    wait_until(lambda: server.connections == 1)
    assert (server.requests, len(lookups)) == ([], 2)  # no byte was sent, not even of TLS


def test_unknown_name_has_the_usual_message(public: Reach) -> None:
    with pytest.raises(RemoteInspectError, match=r"cannot reach models\.invalid") as caught:
        open_file("http://models.invalid/a.gguf", public)
    assert not isinstance(caught.value, PrivateAddressError)


def test_silent_name_server_ends_with_the_total_timeout(
    public: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        never_answers(monkeypatch),
        pytest.raises(RemoteInspectError, match=r"timed out after 0\.4 s"),
    ):
        open_file("https://models.example/a.gguf", replace(public, total_timeout_s=0.4))


# --- configured sites


def test_configured_sites_may_be_private(hub: Hub, public: Reach) -> None:
    transport = Transport(public)
    tree = f"{hub.endpoint}/api/models/acme/tiny-GGUF/tree/main"
    assert b"tiny-Q4_K_M.gguf" in transport.get(tree, name="tree", limit_bytes=10_000).body
    manifest = f"{hub.endpoint}/v2/library/tiny/manifests/latest"
    assert transport.get(manifest, name="manifest", limit_bytes=10_000).body
    assert len(hub.log("hub")) == 2


@pytest.mark.parametrize("variable", ["HF_ENDPOINT", "EDGEKIT_OLLAMA_REGISTRY"])
def test_site_is_scheme_host_and_port(
    variable: str, raw_server: Server, public: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, other = raw_server(honest), raw_server(honest)
    monkeypatch.setenv(variable, f"http://LOCALHOST:{chosen.port}/mirror/")
    open_file(f"http://localhost:{chosen.port}/a.gguf", public).close()
    for url in (
        f"http://127.0.0.1:{chosen.port}/a.gguf",
        f"https://localhost:{chosen.port}/a.gguf",
        f"http://localhost:{other.port}/a.gguf",
        f"http://localhost:{chosen.port}@127.0.0.1:{other.port}/a.gguf",
    ):
        with pytest.raises(PrivateAddressError):
            open_file(url, public)
    assert (chosen.connections, other.connections) == (1, 0)


def test_open_connection_is_not_reused_for_a_private_address(
    hub: Hub, public: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nginx keeps the connection of the first request open."""
    url = f"{hub.endpoint}/api/models/acme/tiny-GGUF/tree/main"
    Transport(public).get(url, name="tree", limit_bytes=10_000)
    monkeypatch.setenv("HF_ENDPOINT", "https://huggingface.co")
    monkeypatch.delenv("EDGEKIT_OLLAMA_REGISTRY")
    with pytest.raises(PrivateAddressError):
        Transport(public).get(url, name="tree", limit_bytes=10_000)
    assert len(hub.log("hub")) == 1


def test_invalid_setting_is_not_a_site(
    raw_server: Server, public: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = raw_server(honest)
    monkeypatch.setenv("EDGEKIT_OLLAMA_REGISTRY", "localhost")
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    open_file(f"{server.address}/a.gguf", public).close()
    with pytest.raises(PrivateAddressError):
        open_file("http://localhost/a.gguf", public)


# --- redirects


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See", "307 Moved", "308 Moved"])
def test_redirect_to_another_private_server_is_refused(
    status: str, raw_server: Server, public: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = raw_server(honest)
    target = {"Location": f"http://127.0.0.1:{other.port}/a.gguf"}
    chosen = raw_server(lambda _, send: send(response(status, target)))
    monkeypatch.setenv("HF_ENDPOINT", chosen.address)
    url = f"{chosen.address}/a.gguf"
    with pytest.raises(PrivateAddressError, match=REFUSED):
        open_file(url, public)
    assert (len(chosen.requests), other.connections) == (1, 0)
    open_file(url, replace(public, public_only=False)).close()
    assert other.connections == 1


def test_last_of_several_redirects_is_checked(
    raw_server: Server, public: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = raw_server(honest)

    def script(request: Request, send: Send) -> None:
        last = f"http://0x7f.1:{other.port}/a.gguf"
        send(
            response(
                "302 Found", {"Location": f"/{request.number}" if request.number < 4 else last}
            )
        )

    chosen = raw_server(script)
    monkeypatch.setenv("HF_ENDPOINT", chosen.address)
    with pytest.raises(PrivateAddressError, match=rf"0x7f\.1 {REFUSED}"):
        open_file(f"{chosen.address}/a.gguf", public)
    assert (len(chosen.requests), other.connections) == (4, 0)


def test_redirected_listings_and_manifests_are_refused(
    raw_server: Server, public: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = raw_server(honest)
    target = {"Location": f"{other.address}/secrets"}
    chosen = raw_server(lambda _, send: send(response("302 Found", target)))
    monkeypatch.setenv("HF_ENDPOINT", chosen.address)
    monkeypatch.setenv("EDGEKIT_OLLAMA_REGISTRY", chosen.address)
    for reference in (
        "acme/raw",
        "acme/raw/a.gguf",
        "tiny:latest",
        "tiny",
        other.address + "/a.gguf",
    ):
        with pytest.raises(PrivateAddressError, match=REFUSED):
            inspect_model_remote(reference, reach=public)
    with pytest.raises(PrivateAddressError, match=REFUSED):
        locate_ollama(OllamaModel(name="tiny", host=f"127.0.0.1:{other.port}"), public)
    assert (len(chosen.requests), other.connections) == (4, 0)


# --- no fallback for a refused address


def test_hub_cache_does_not_answer_for_a_refused_address(
    raw_server: Server, public: Reach, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    header = gguf_header()
    snapshot = tmp_path / "hub/models--acme--raw/snapshots" / ("5eed" * 10)
    snapshot.mkdir(parents=True)
    (snapshot / "raw-Q4_K_M.gguf").write_bytes(header)
    refs = tmp_path / "hub/models--acme--raw/refs"
    refs.mkdir()
    (refs / "main").write_text("5eed" * 10)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    reach = replace(public, read_timeout_s=0.5)
    assert "could not read it from Hugging Face" in locate("acme/raw", reach=reach).notes[-1]
    chosen = raw_server(
        lambda _, send: send(response("302 Found", {"Location": "http://10.0.0.1/"}))
    )
    monkeypatch.setenv("HF_ENDPOINT", chosen.address)
    for function in (locate, inspect_model_remote):
        with pytest.raises(PrivateAddressError, match=REFUSED):
            function("acme/raw", reach=public)


def test_refused_redirect_uses_neither_catalog_nor_download(
    raw_server: Server, public: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub lists the file and redirects its content to a private server."""
    target = {"Location": "http://169.254.169.254/latest"}
    script = hub_script({"raw.gguf": b"x"}, lambda _, send: send(response("302 Found", target)))
    chosen = raw_server(script)
    monkeypatch.setenv("HF_ENDPOINT", chosen.address)
    with pytest.raises(PrivateAddressError, match=rf"169\.254\.169\.254 {REFUSED}"):
        open_named("Qwen/Qwen3-8B", Session(reach=public))  # which is in the catalog
    with pytest.raises(PrivateAddressError, match=r"allows it\)$"):  # no offer of a download
        open_model("acme/raw", reach=public, confirm=lambda _: True)


def test_huggingface_hub_makes_no_requests_of_its_own(
    raw_server: Server, public: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It follows every redirect, so there is no full download while only public servers are allowed."""
    reply = response("200 OK", {"Content-Type": "application/octet-stream"}, b"x" * 1_000_000)
    chosen = raw_server(hub_script({"raw.gguf": b"x" * 1_000_000}, lambda _, send: send(reply)))
    monkeypatch.setenv("HF_ENDPOINT", chosen.address)
    with pytest.raises(RemoteInspectError, match="A full download may be enough, but was not all"):
        open_model("acme/raw", reach=public, confirm=lambda _: True)
    assert not [lookups.line for lookups in chosen.requests if lookups.line.startswith("HEAD")]


# --- proxies


@pytest.mark.parametrize(
    "resolves_to", [PUBLIC, "models.invalid"]
)  # resolved here, or by the proxy only
def test_proxy_may_be_private(
    resolves_to: str,
    raw_server: Server,
    public: Reach,
    monkeypatch: pytest.MonkeyPatch,
    resolver: Callable[[Sequence[str]], list[str]],
) -> None:
    proxy = raw_server(honest)
    resolver([resolves_to])
    monkeypatch.setenv("HTTP_PROXY", proxy.address)
    close_session()  # the next one reads it
    open_file("http://models.example/a.gguf", public).close()
    assert proxy.requests[0].line == "GET http://models.example/a.gguf HTTP/1.1"


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "127.1", "localhost", "metadata.google.internal"]
)
def test_proxy_is_not_used_for_private_addresses(
    host: str, raw_server: Server, public: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = raw_server(honest)
    monkeypatch.setenv("HTTP_PROXY", proxy.address)
    close_session()  # the next one reads it
    with pytest.raises(PrivateAddressError):
        open_file(f"http://{host}/a.gguf", public)
    assert proxy.connections == 0


# --- cancelling


@contextlib.contextmanager
def cancelled_when(condition: Callable[[], bool]) -> Iterator[threading.Event]:
    """Sets the event once `condition` holds; the block must then end with CancelledError."""
    event = threading.Event()

    def cancel() -> None:
        wait_until(condition)
        event.set()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(CancelledError, match=r"^cancelled$"):
        yield event
    thread.join()


def waiting_exchanges() -> int:
    """The number of threads that wait for a server."""
    return sum(thread.name.endswith("(_work)") for thread in threading.enumerate())


def drip(_: Request, send: Send) -> None:
    for byte in range_response(CONTENT, Request("", {"range": "bytes=0-99"}, 1)):
        send(bytes([byte]))
        time.sleep(0.05)


def stalled(request: Request, send: Send) -> None:
    send(range_response(CONTENT, request)[:1000])
    request.hang()


SLOW: dict[str, Script] = {
    "silent": lambda request, _: request.hang(),
    "headers byte by byte": drip,
    "body stalls": stalled,
    "503 with Retry-After": lambda _, send: send(response("503 Busy", {"Retry-After": "8"})),
}


@pytest.mark.parametrize("script", SLOW.values(), ids=SLOW)
def test_request_to_a_slow_server_is_cancelled(
    script: Script, raw_server: Server, reach: Reach
) -> None:
    server = raw_server(script)
    with cancelled_when(lambda: bool(server.requests)) as event:
        open_file(f"{server.address}/a.gguf", replace(reach, cancelled=event))
    assert len(server.requests) == 1
    wait_until(lambda: waiting_exchanges() == 0)  # the connection is cut


def test_name_lookup_is_cancelled(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    for public_only in (True, False):
        with never_answers(monkeypatch) as lookups, cancelled_when(lookups.is_set) as event:
            patient = replace(reach, cancelled=event, public_only=public_only)
            open_file("http://models.example/a.gguf", patient)


def test_request_cancelled_during_the_name_lookup_is_not_sent(
    raw_server: Server, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, original = raw_server(honest), socket.getaddrinfo
    lookups, answered = threading.Event(), threading.Event()

    def slow(*args: Any, **kinds: Any) -> Any:
        lookups.set()
        answered.wait()
        return original("127.0.0.1", *args[1:], **kinds)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with cancelled_when(lookups.is_set) as event:
        open_file(f"http://models.example:{server.port}/a.gguf", replace(reach, cancelled=event))
    answered.set()
    wait_until(lambda: waiting_exchanges() == 0)
    assert server.requests == []


def test_no_request_after_cancelling(raw_server: Server, reach: Reach) -> None:
    server, event = raw_server(honest), threading.Event()
    file = open_file(f"{server.address}/a.gguf", replace(reach, cancelled=event))
    event.set()
    with pytest.raises(CancelledError):
        file.read(600_000, 10)
    assert file.read(0, 10) == CONTENT[:10]  # received before, so it needs no request
    file.close()
    with pytest.raises(CancelledError):
        open_file(f"{server.address}/a.gguf", replace(reach, cancelled=event))
    assert server.connections == 1


def test_partial_header_is_not_cached(raw_server: Server, reach: Reach) -> None:
    """The keys of this file need three ranges; the first inspection is cancelled during the second."""
    content = gguf_header(vocabulary=60_000) + bytes(1 << 20)

    def script(request: Request, send: Send) -> None:
        if request.number == 2:
            request.hang()
        else:
            send(range_response(content, request, {"ETag": '"a"'}))

    server = raw_server(script)
    url = f"{server.address}/a.gguf"
    reach = replace(reach, cache=True)
    with cancelled_when(lambda: len(server.requests) == 2) as event:
        inspect_model_remote(url, reach=replace(reach, cancelled=event))
    assert cache.load(url) is None
    inspect_model_remote(url, reach=replace(reach, cancelled=threading.Event()))
    assert cache.holds(url)


def test_parallel_shard_reads_are_cancelled_together(raw_server: Server, reach: Reach) -> None:
    server = raw_server(SLOW["silent"])
    with cancelled_when(lambda: bool(server.requests)) as event:
        patient = replace(reach, cancelled=event)
        inspect_model_remote(f"{server.address}/a-00001-of-00006.gguf", reach=patient)
    wait_until(lambda: waiting_exchanges() == 0)


def test_unset_cancel_event_changes_nothing(raw_server: Server, reach: Reach) -> None:
    reach = replace(reach, cancelled=threading.Event())
    open_file(f"{raw_server(honest).address}/a.gguf", reach).close()
    with pytest.raises(RemoteInspectError, match=r"timed out after 0\.5 s"):
        open_file(f"{raw_server(drip).address}/a.gguf", replace(reach, total_timeout_s=0.5))
