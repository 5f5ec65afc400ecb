"""The gateway in front of a small upstream of the tests, and raw requests to it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from tests.patience import PATIENCE_S

from edgekit.engines.request_rules import (
    COMPLETIONS,
    EMBEDDINGS,
    Endpoint,
    ListLimit,
    NumberLimit,
    RequestLimits,
    RequestRules,
)
from edgekit.gateway.models import OneModel
from edgekit.gateway.server import GatewayServer
from edgekit.gateway.types import GatewaySettings, Models, Upstream
from edgekit.server.connections import listen

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
RULES = RequestRules(
    endpoints=(*COMPLETIONS, EMBEDDINGS, Endpoint(path="/tokenize")),
    numbers={"history": NumberLimit(least=-1, most=100, reason="it is stored")},
    lists={"stop": ListLimit(most=4, chars=8, reason="each is searched for")},
    refused={"chat_template": "the server uses the model's own"},
)
LIMITS = RequestLimits(rules=RULES, window_tokens=1000)


@contextmanager
def serve(app: ASGIApp) -> Iterator[str]:
    """Serves an application in a thread. Yields its address."""
    config = uvicorn.Config(
        app, log_config=None, log_level="critical", lifespan="off", timeout_graceful_shutdown=1
    )
    with listen("127.0.0.1", 0) as listening:
        server, ready = _Server(config), threading.Event()
        server.ready = ready
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        assert ready.wait(PATIENCE_S)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


class _Server(uvicorn.Server):
    ready: threading.Event

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


def upstream_at(address: str, *, model: str = "engine's name", api_key: str = "") -> Upstream:
    return Upstream(address=address, model=model, api_key=api_key or None)


def one_model(
    upstream: Upstream | None, limits: RequestLimits = LIMITS, **changes: Any
) -> OneModel:
    return OneModel(name="tiny", request_limits=limits, upstream=upstream, **changes)


@contextmanager
def gateway(
    upstream: str | Upstream | Models,
    settings: GatewaySettings | None = None,
    limits: RequestLimits = LIMITS,
    **changes: Any,
) -> Iterator[str]:
    """A gateway on a free port. Yields its address. `changes`: fields of the settings."""
    if isinstance(upstream, str):
        upstream = upstream_at(upstream)
    models = (
        one_model(upstream, limits, created_s=7) if isinstance(upstream, Upstream) else upstream
    )
    with GatewayServer(settings or GatewaySettings(port=0, **changes), models) as server:
        yield server.address


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error in OpenAI's format."""
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


def ask(
    address: str,
    path: str,
    body: Mapping[str, Any] | bytes | None = None,
    *,
    method: str | None = None,
    **headers: str,
) -> Reply:
    """POSTs `body`, or GETs if it is None. An underscore in the name of a header stands for a hyphen."""
    raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE_S)
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, raw, sent)
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, names, response.read())
    finally:
        connection.close()


def send_raw(address: str, data: bytes) -> bytes:
    """What the server answers to these bytes, until it closes the connection."""
    host, _, port = address.removeprefix("http://").partition(":")
    with closing(socket.create_connection((host, int(port)), timeout=PATIENCE_S)) as connection:
        connection.sendall(data)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
        return answer
