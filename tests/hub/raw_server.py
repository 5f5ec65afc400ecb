"""An HTTP server on loopback that sends exactly the bytes of a script, and records the requests it gets."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Request:
    line: str
    headers: dict[str, str]
    number: int  # 1 for the first request to this server
    stopped: threading.Event = field(default_factory=threading.Event)  # of the server

    @property
    def first_byte(self) -> int:
        """First byte of the requested range."""
        return int(self.headers["range"].removeprefix("bytes=").partition("-")[0])

    def hang(self) -> None:
        """Sends nothing more until the server shuts down."""
        self.stopped.wait()


Send = Callable[[bytes], None]
Script = Callable[[Request, Send], None]


@dataclass(slots=True)
class RawServer:
    port: int
    requests: list[Request] = field(default_factory=list)
    sent_bytes: int = 0
    connections: int = 0  # also those that sent no request

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def response(status: str, headers: dict[str, str] | None = None, body: bytes = b"") -> bytes:
    """A complete HTTP response; Content-Length is right unless `headers` has its own."""
    all_headers = {"Content-Length": str(len(body)), "Connection": "close", **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items() if value)
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


def range_response(
    content: bytes, request: Request, headers: dict[str, str] | None = None
) -> bytes:
    """The correct response to a range request."""
    first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
    body = content[int(first) : int(last) + 1]
    content_range = f"bytes {first}-{int(first) + len(body) - 1}/{len(content)}"
    return response(
        "206 Partial Content", {"Content-Range": content_range, **(headers or {})}, body
    )


@contextlib.contextmanager
def serve(script: Script) -> Iterator[RawServer]:
    stopped = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            lines: list[str] = []
            while line := self.rfile.readline(65536).decode("latin-1").strip():
                lines.append(line)
            server.connections += 1
            if not lines:
                return
            pairs = (line.partition(":") for line in lines[1:])
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            request = Request(lines[0], headers, len(server.requests) + 1, stopped)
            server.requests.append(request)
            with contextlib.suppress(OSError):  # some tests close the connection early
                script(request, self._send)

        def _send(self, raw: bytes) -> None:
            self.wfile.write(raw)
            server.sent_bytes += len(raw)

    class Listener(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True
        block_on_close = False

    with Listener(("127.0.0.1", 0), Handler) as listener:
        server = RawServer(listener.server_address[1])
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            stopped.set()
            listener.shutdown()
            thread.join()


COMMIT = "5eed" * 10


def hub_script(
    files: dict[str, bytes], on_get: Script, *, listed: dict[str, int] | None = None
) -> Script:
    """A hub with one repository, acme/raw: lists `files` and answers HEAD; `on_get` answers GET.

    `listed`: sizes in the listing that differ from those of the files.
    """
    sizes = {name: len(content) for name, content in files.items()} | (listed or {})
    items = [{"type": "file", "path": name, "size": size} for name, size in sizes.items()]

    def script(request: Request, send: Send) -> None:
        verb, path, _ = request.line.split()
        name = path.rpartition("/")[2]
        if path.startswith("/api/models/"):
            send(
                response("200 OK", {"Content-Type": "application/json"}, json.dumps(items).encode())
            )
        elif verb == "HEAD":
            all_headers = {"ETag": f'"{name}-1"', "X-Repo-Commit": COMMIT}
            send(response("200 OK", {**all_headers, "Content-Length": str(len(files[name]))}))
        else:
            on_get(request, send)

    return script
