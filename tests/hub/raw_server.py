"""A server that says exactly the bytes a test wants said, and remembers what it was asked."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Asked:
    line: str
    headers: dict[str, str]
    number: int  # 1 for the first request to this server
    over: threading.Event = field(default_factory=threading.Event)  # the server ends

    @property
    def first_byte(self) -> int:
        """Where the range that was asked for starts."""
        return int(self.headers["range"].removeprefix("bytes=").partition("-")[0])

    def hang(self) -> None:
        """Says nothing more before the test is over."""
        self.over.wait()


Say = Callable[[bytes], None]
Script = Callable[[Asked, Say], None]


@dataclass(slots=True)
class RawServer:
    port: int
    asked: list[Asked] = field(default_factory=list)
    said_bytes: int = 0
    connections: int = 0  # those that ended without a word too

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def answer(status: str, headers: dict[str, str] | None = None, body: bytes = b"") -> bytes:
    """A whole HTTP answer; Content-Length is right unless `headers` has its own."""
    stated = {"Content-Length": str(len(body)), "Connection": "close", **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in stated.items() if value)
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


def ranged(content: bytes, asked: Asked, headers: dict[str, str] | None = None) -> bytes:
    """The honest answer to a range request."""
    first, _, last = asked.headers["range"].removeprefix("bytes=").partition("-")
    body = content[int(first) : int(last) + 1]
    place = f"bytes {first}-{int(first) + len(body) - 1}/{len(content)}"
    return answer("206 Partial Content", {"Content-Range": place, **(headers or {})}, body)


@contextlib.contextmanager
def serve(script: Script) -> Iterator[RawServer]:
    over = threading.Event()

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
            request = Asked(lines[0], headers, len(server.asked) + 1, over)
            server.asked.append(request)
            with contextlib.suppress(OSError):  # the client went away: some tests want just that
                script(request, self._say)

        def _say(self, raw: bytes) -> None:
            self.wfile.write(raw)
            server.said_bytes += len(raw)

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
            over.set()
            listener.shutdown()
            thread.join()


COMMIT = "5eed" * 10


def hub_of(
    files: dict[str, bytes], on_get: Script, *, listed: dict[str, int] | None = None
) -> Script:
    """A hub with one repository, acme/raw: it lists and describes `files`, `on_get` sends them (or not)."""
    sizes = {name: len(content) for name, content in files.items()} | (listed or {})
    items = [{"type": "file", "path": name, "size": size} for name, size in sizes.items()]

    def script(asked: Asked, say: Say) -> None:
        verb, path, _ = asked.line.split()
        name = path.rpartition("/")[2]
        if path.startswith("/api/models/"):
            say(answer("200 OK", {"Content-Type": "application/json"}, json.dumps(items).encode()))
        elif verb == "HEAD":
            stated = {"ETag": f'"{name}-1"', "X-Repo-Commit": COMMIT}
            say(answer("200 OK", {**stated, "Content-Length": str(len(files[name]))}))
        else:
            on_get(asked, say)

    return script
