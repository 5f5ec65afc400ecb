"""The real server for tests: in a thread where that is enough, as `edgekit web` where the process matters."""

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

from tests.patience import PATIENCE_S

from edgekit.web.serving import listen, make_server
from edgekit.web.types import WebSettings

LOCAL = WebSettings(port=0, network=False, cache=False)


@contextmanager
def start(settings: WebSettings = LOCAL) -> Iterator[str]:
    """The address (http://127.0.0.1:PORT, no slash behind it) of the real server, in a thread of this process.

    Port 0 is any that is free. The environment (HF_ENDPOINT, EDGEKIT_CACHE, ...) is that of the test.
    """
    ready, became = threading.Event(), [settings]

    def on_ready(settled: WebSettings) -> None:
        became.append(settled)
        ready.set()

    with listen(settings.host, settings.port) as listening:
        server = make_server(settings, listening, on_ready=on_ready)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        assert ready.wait(PATIENCE_S)
        try:
            yield f"http://127.0.0.1:{became[-1].port}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@dataclass(frozen=True, slots=True)
class WebProcess:
    process: subprocess.Popen[str]
    ready: dict[str, Any]  # what `edgekit web --json` said first

    @property
    def address(self) -> str:
        """Of the server: no path, and no token."""
        return f"http://{urlsplit(self.ready['url']).netloc}"


@contextmanager
def start_process(
    *words: str, env: Mapping[str, str] | None = None, setup: str = ""
) -> Iterator[WebProcess]:
    """`edgekit web --json --no-browser --port 0 WORDS` as a process of its own, ended by SIGTERM.

    `setup` is Python that the process runs first.
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
class Answered:
    status: int
    headers: Mapping[str, str]  # names in lower case; of several of one name the last
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, str]:
        answer: dict[str, str] = self.json()["error"]
        return answer


def ask(
    address: str,
    path: str,
    fields: Mapping[str, Any] | None = None,
    *,
    method: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = PATIENCE_S,
) -> Answered:
    """One request: GET, or POST of the fields as JSON."""
    body = None if fields is None else json.dumps(fields)
    answers = {"Content-Type": "application/json"} if body is not None else {}
    place = address.removeprefix("http://")
    with closing(http.client.HTTPConnection(place, timeout=timeout_s)) as client:
        verb = method or ("GET" if body is None else "POST")
        client.request(verb, path, body, {**answers, **(headers or {})})
        reply = client.getresponse()
        named = {name.lower(): value for name, value in reply.getheaders()}
        return Answered(reply.status, named, reply.read())


def events(
    address: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = PATIENCE_S,
) -> Generator[dict[str, Any]]:
    """Server-sent events as {"event", "id", "data"}, until the server ends them; data out of its JSON."""
    place = address.removeprefix("http://")
    with closing(http.client.HTTPConnection(place, timeout=timeout_s)) as client:
        client.request("GET", path, None, {"Accept": "text/event-stream", **(headers or {})})
        reply = client.getresponse()
        assert reply.status == 200, (reply.status, reply.read())
        assert reply.getheader("content-type", "").startswith("text/event-stream")
        answer: dict[str, Any] = {}
        for raw in reply:
            line = raw.decode().rstrip("\r\n")
            name, colon, value = line.partition(": ")
            if not line and "data" in answer:
                yield {"event": "message", "id": None, **answer, "data": json.loads(answer["data"])}
            if not line:
                answer = {}
            elif colon and name:
                answer[name] = value
