"""A hub on loopback with the two calls that a header reader makes, which counts requests and bytes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_PATH = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/main/(?P<file>[^?]+)")


@dataclass
class Hub:
    address: str = ""
    requests: int = 0
    ranges: int = 0
    sent_bytes: int = 0
    repositories: dict[str, Path] = field(default_factory=dict)

    def reset(self) -> None:
        self.requests = self.ranges = self.sent_bytes = 0


@contextmanager
def serve(repositories: dict[str, Path]) -> Iterator[Hub]:
    hub = Hub(repositories=repositories)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: ClassVar[Hub]

    def do_HEAD(self) -> None:
        self._respond(send_body=False)

    def do_GET(self) -> None:
        self._respond(send_body=True)

    def _respond(self, *, send_body: bool) -> None:
        self.hub.requests += 1
        if self.path.startswith("/api/models/"):
            repo = "/".join(self.path.split("/")[3:5])
            self._send(200, _listing(self.hub.repositories[repo]), send_body=send_body)
            return
        match = _PATH.fullmatch(self.path.split("?")[0])
        path = self.hub.repositories[match["repo"]] / match["file"] if match else None
        if path is None or not path.is_file():
            self._send(404, b"{}", send_body=send_body)
            return
        self._send_file(path, send_body=send_body)

    def _send_file(self, path: Path, *, send_body: bool) -> None:
        size = path.stat().st_size
        requested_range = _RANGE.fullmatch(self.headers.get("Range", ""))
        first, last = (
            (int(requested_range[1]), min(int(requested_range[2]), size - 1))
            if requested_range
            else (0, size - 1)
        )
        self.hub.ranges += requested_range is not None
        with path.open("rb") as file:
            file.seek(first)
            body = file.read(last - first + 1) if send_body else b""
        extra = {"Content-Range": f"bytes {first}-{last}/{size}"} if requested_range else {}
        self._send(206 if requested_range else 200, body, send_body=send_body, **extra)

    def _send(self, status: int, body: bytes, *, send_body: bool, **extra: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"fixed"')
        for name, value in extra.items():
            self.send_header(name, value)
        self.end_headers()
        if send_body:
            self.wfile.write(body)
            self.hub.sent_bytes += len(body)

    def log_message(self, *_: object) -> None:
        pass


def _listing(folder: Path) -> bytes:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return json.dumps(
        [
            {"type": "file", "path": str(path.relative_to(folder)), "size": path.stat().st_size}
            for path in files
        ]
    ).encode()
