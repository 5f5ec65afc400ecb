"""A server of OpenAI's API that answers every request with the same events."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REFUSAL = {
    "error": {
        "code": 400,
        "message": "Failed to load image or audio file",
        "type": "invalid_request_error",
    }
}


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


@contextmanager
def openai_server(
    events: Sequence[dict[str, Any]],
    received: list[dict[str, Any]],
    *,
    prefix: str = "data: ",
    refused: str = "",
) -> Iterator[str]:
    """Serves the events; yields the address. `received` gets the bodies of the requests.

    `prefix`: before each event; "" for lines of JSON, as Ollama's own API has them. A request that contains `refused`
    is answered with status 400, as llama.cpp answers one with an image that it cannot read.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append(json.loads(body))
            if refused and refused.encode() in body:
                self.send_response(400)
                self.end_headers()
                self.wfile.write(json.dumps(REFUSAL).encode())
                return
            self.send_response(200)
            self.end_headers()
            for event in events:
                self.wfile.write(f"{prefix}{json.dumps(event)}\n".encode())

        def log_message(self, *_: object) -> None: ...

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()
