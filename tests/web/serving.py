"""The real web server for tests, in a thread or as a process, and a client for it."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.hub.hub_files import gguf_header
from tests.hub.raw_server import RawServer, Request, Send, range_response, response, serve
from tests.patience import PATIENCE_S

from edgekit.web.serving import listen, make_server
from edgekit.web.types import WebSettings

LOCAL = WebSettings(port=0, network=False, cache=False)
# May open models on a loopback address.
OPEN = WebSettings(port=0, allow_private=True, cache=False, timeout_s=20.0)


@contextmanager
def start(settings: WebSettings = LOCAL) -> Iterator[str]:
    """Runs the server in a thread of this process. Yields its address: http://127.0.0.1:PORT, without a slash.

    Port 0 means any free port. The environment (HF_ENDPOINT, EDGEKIT_CACHE, ...) is that of the test.
    """
    ready, ports = threading.Event(), list[int]()

    def on_ready(resolved: WebSettings) -> None:
        ports.append(resolved.port)
        ready.set()

    with listen(settings.host, settings.port) as listening:
        server = make_server(settings, listening, on_ready=on_ready)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        assert ready.wait(PATIENCE_S)
        try:
            yield f"http://127.0.0.1:{ports[0]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@dataclass(frozen=True, slots=True)
class WebProcess:
    process: subprocess.Popen[str]
    ready: dict[str, Any]  # the first line that `edgekit web --json` prints

    @property
    def address(self) -> str:
        """http://HOST:PORT, without path and token."""
        return f"http://{urlsplit(self.ready['url']).netloc}"


@contextmanager
def start_process(
    *words: str, env: Mapping[str, str] | None = None, setup: str = ""
) -> Iterator[WebProcess]:
    """Runs `edgekit web --json --no-browser --port 0 WORDS` in its own process, which SIGTERM ends.

    `setup` is Python code that the process runs first.
    """
    code = f"{setup}\nimport sys\nfrom edgekit.cli import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "web", "--json", "--no-browser", "--port", "0"]
    with subprocess.Popen(
        [*command, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=None if env is None else dict(env),
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate(timeout=PATIENCE_S)
            yield WebProcess(process, json.loads(line))
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]  # names in lower case; the last of a repeated header
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, str]:
        error: dict[str, str] = self.json()["error"]
        return error


def ask(
    address: str,
    path: str,
    fields: Mapping[str, Any] | None = None,
    *,
    method: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = PATIENCE_S,
) -> Reply:
    """Sends one request: GET, or POST of the fields as JSON."""
    body = None if fields is None else json.dumps(fields)
    content_type = {"Content-Type": "application/json"} if body is not None else {}
    host = address.removeprefix("http://")
    with closing(http.client.HTTPConnection(host, timeout=timeout_s)) as client:
        method = method or ("GET" if body is None else "POST")
        client.request(method, path, body, {**content_type, **(headers or {})})
        reply = client.getresponse()
        reply_headers = {name.lower(): value for name, value in reply.getheaders()}
        return Reply(reply.status, reply_headers, reply.read())


def events(
    address: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = PATIENCE_S,
) -> Generator[dict[str, Any]]:
    """The server-sent events of a path until the stream ends, as {"event", "id", "data"} with parsed data."""
    host = address.removeprefix("http://")
    with closing(http.client.HTTPConnection(host, timeout=timeout_s)) as client:
        client.request("GET", path, None, {"Accept": "text/event-stream", **(headers or {})})
        reply = client.getresponse()
        assert reply.status == 200, (reply.status, reply.read())
        assert reply.getheader("content-type", "").startswith("text/event-stream")
        event: dict[str, Any] = {}
        for raw in reply:
            line = raw.decode().rstrip("\r\n")
            name, colon, value = line.partition(": ")
            if not line and "data" in event:
                yield {"event": "message", "id": None, **event, "data": json.loads(event["data"])}
            if not line:
                event = {}
            elif colon and name:
                event[name] = value


@contextmanager
def stuck_hub() -> Iterator[tuple[RawServer, threading.Event]]:
    """A file server that has a GGUF file under every path, and sends nothing until the event is set."""
    may_answer, file = threading.Event(), gguf_header() + b"\0" * 4096

    def script(request: Request, send: Send) -> None:
        may_answer.wait()
        is_range = "range" in request.headers
        send(range_response(file, request) if is_range else response("200 OK", {}, file))

    with serve(script) as hub:
        try:
            yield hub, may_answer
        finally:
            may_answer.set()
