"""Proxies, certificates, offline mode and the configured client, as huggingface_hub has them; lazy imports."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx2
import pytest
from huggingface_hub import close_session, set_client_factory
from huggingface_hub.utils._http import default_client_factory
from tests.hub.nginx_hub import Hub
from tests.hub.raw_server import RawServer, Script, range_response

from edgekit.errors import RemoteInspectError
from edgekit.sources.http import Transport
from edgekit.sources.hub import locate_hub
from edgekit.sources.reference import HubModel
from edgekit.sources.remote import GGUF, HttpFile
from edgekit.sources.types import Reach

Server = Callable[[Script], RawServer]
CONTENT = bytes(range(256)) * 4096


def open_file(url: str, reach: Reach) -> HttpFile:
    return HttpFile(Transport(reach), url, name="the file", stride=GGUF)


@pytest.fixture(autouse=True)
def fresh_session(surroundings: None) -> None:
    """A new session for each test: it reads proxies and certificates when it opens."""
    close_session()


def test_proxy_is_used(raw_server: Server, reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = raw_server(lambda request, send: send(range_response(CONTENT, request)))
    monkeypatch.setenv("HTTP_PROXY", proxy.address)
    file = open_file("http://models.invalid/a.gguf", reach)
    assert file.read(0, 10) == CONTENT[:10]
    assert proxy.requests[0].line == "GET http://models.invalid/a.gguf HTTP/1.1"
    file.close()


def test_no_proxy_is_respected(
    raw_server: Server, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = raw_server(lambda _, send: send(b""))
    server = raw_server(lambda request, send: send(range_response(CONTENT, request)))
    monkeypatch.setenv("HTTP_PROXY", proxy.address)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    open_file(server.address + "/a.gguf", reach).close()
    assert (len(proxy.requests), len(server.requests)) == (0, 1)


def test_configured_client_is_used_and_its_login_only_goes_to_the_hub(
    raw_server: Server, reach: Reach
) -> None:
    server = raw_server(lambda request, send: send(range_response(CONTENT, request)))
    secrets = {"authorization": "Bearer corporate", "x-from": "factory"}
    set_client_factory(lambda: httpx2.Client(headers=secrets))
    try:
        open_file(server.address + "/a.gguf", reach).close()
    finally:
        set_client_factory(default_client_factory)
    assert server.requests[0].headers["x-from"] == "factory"
    assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize("by", ["reach", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_mode_makes_no_request(
    hub: Hub, reach: Reach, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by != "reach":
        monkeypatch.setenv(by, "1")
    with pytest.raises(RemoteInspectError, match=r"network is off \(HF_HUB_OFFLINE\)"):
        locate_hub(HubModel(repo="acme/tiny-GGUF"), replace(reach, network=by != "reach"))
    assert hub.log("hub") == []
    assert reach.traffic.requests == 0


class _Quiet(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(206)
        self.send_header("Content-Range", "bytes 0-3/4")
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"GGUF")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_certificates_are_checked_and_ssl_cert_file_is_trusted(
    tmp_path: Path, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += [
        "-addext",
        "subjectAltName=DNS:localhost",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Quiet) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        url = f"https://localhost:{server.server_address[1]}/a.gguf"
        try:
            with pytest.raises(
                RemoteInspectError, match="not trusted; if you trust it, set SSL_CERT_FILE"
            ):
                open_file(url, reach)
            assert reach.traffic.requests == 1  # no retry
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            close_session()
            file = open_file(url, reach)
            assert file.read(0, 4) == b"GGUF"
            file.close()
        finally:
            server.shutdown()
            thread.join()


def test_http_clients_are_imported_on_first_use() -> None:
    script = (
        "import sys, edgekit.sources.hub, edgekit.sources.ollama, edgekit.sources.remote;"
        "assert not {'httpx2', 'huggingface_hub', 'ssl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
