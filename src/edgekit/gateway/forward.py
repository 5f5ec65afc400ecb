"""A request on its way to an engine and the response on its way back, chunk by chunk."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import httpx2
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from edgekit.engines.request_rules import Endpoint
from edgekit.gateway.checks import check_request
from edgekit.gateway.errors import GatewayError, unavailable
from edgekit.gateway.json_body import read_object
from edgekit.gateway.metrics import Answered, Metrics
from edgekit.gateway.types import GatewaySettings, Models, Upstream
from edgekit.server.bodies import BodyProblem, read_body
from edgekit.server.requests import CLOSE, Header

CONNECT_TIMEOUT_S = 5.0
# An engine may be silent for minutes while it reads a long prompt. If it dies, its connection ends.
TIMEOUT = httpx2.Timeout(CONNECT_TIMEOUT_S, read=None, pool=None)
# No connection is used twice: an engine closes an idle one at any time, and llama.cpp keeps a thread for each.
LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
LARGE_BYTES = 256 * 1024  # a body that takes milliseconds to parse is parsed in a thread
_PASSED_HEADERS = frozenset(
    {b"content-type", b"content-length", b"cache-control", b"retry-after", b"x-request-id"}
)
_EVENTS = b"text/event-stream"
_UNBUFFERED: Header = (b"x-accel-buffering", b"no")  # nginx would collect events

_log = logging.getLogger("edgekit.gateway")


def make_client() -> httpx2.AsyncClient:
    """The client of all engines. It ignores proxies of the environment: engines are on this machine."""
    return httpx2.AsyncClient(
        timeout=TIMEOUT, limits=LIMITS, trust_env=False, follow_redirects=False
    )


class Forward:
    """The ASGI application for the endpoints of engines."""

    def __init__(
        self,
        settings: GatewaySettings,
        models: Models,
        metrics: Metrics,
        client: Callable[[], httpx2.AsyncClient],
    ) -> None:
        self._settings, self._models = settings, models
        self._metrics, self._client = metrics, client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises GatewayError before the response has begun."""
        path = scope["path"]
        if not self._models.answers(path):
            raise GatewayError(
                f"no endpoint {path[:80]!r} here; see /v1/models for the models and docs/run.md for the endpoints",
                status=404,
                code="unknown_url",
            )
        if scope["method"] != "POST":
            raise GatewayError("send a POST request", status=405, headers=((b"allow", b"POST"),))
        answered = Answered(self._metrics)
        body = await self._body(scope, receive)
        answering = asyncio.create_task(self._answer(path, body, send, answered))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise ClientDisconnect
            answering.result()
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
            answered.end()

    async def _body(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        raw = await read_body(
            receive,
            dict(scope["headers"]),
            max_bytes=self._settings.max_body_bytes,
            timeout_s=self._settings.body_timeout_s,
        )
        if raw is BodyProblem.TOO_LARGE:
            limit = self._settings.max_body_bytes
            raise GatewayError(
                f"the body is larger than {limit:,} bytes", status=413, headers=(CLOSE,)
            )
        if raw is BodyProblem.TOO_SLOW:
            raise GatewayError("the body took too long to arrive", status=408, headers=(CLOSE,))
        assert isinstance(raw, bytes)  # noqa: S101 - both problems are handled above
        return (
            read_object(raw)
            if len(raw) < LARGE_BYTES
            else await asyncio.to_thread(read_object, raw)
        )

    async def _answer(
        self, path: str, body: dict[str, Any], send: Send, answered: Answered
    ) -> None:
        name = body.get("model")
        if not isinstance(name, str | None):
            raise GatewayError("model: must be the name of a model", status=400, param="model")
        async with self._models.using(name or "") as upstream:
            endpoint = upstream.rules.endpoint(path)
            if endpoint is None:
                raise GatewayError(
                    f"{upstream.model} has no {path}", status=404, code="unknown_url"
                )
            check_request(body, endpoint, upstream.rules, upstream.window_tokens)
            await self._pass_on(upstream, endpoint, body, send, answered)

    async def _pass_on(
        self,
        upstream: Upstream,
        endpoint: Endpoint,
        body: dict[str, Any],
        send: Send,
        answered: Answered,
    ) -> None:
        headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "Connection": "close",
        }
        if upstream.api_key:
            headers["Authorization"] = f"Bearer {upstream.api_key}"
        # Written anew: what was checked is what the engine reads, even if a key occurs twice.
        content = json.dumps({**body, "model": upstream.model}).encode()
        has_begun, is_stream = False, False
        try:
            async with self._client().stream(
                "POST", upstream.address + endpoint.target, content=content, headers=headers
            ) as response:
                raw = [(key.lower(), value) for key, value in response.headers.raw]
                kind = dict(raw).get(b"content-type", b"")
                is_stream = kind.startswith(_EVENTS)
                if response.status_code >= 500 and b"json" not in kind:
                    raise GatewayError(
                        f"the engine failed (HTTP {response.status_code}); its log says why",
                        status=502,
                        kind="server_error",
                    )
                passed = [header for header in raw if header[0] in _PASSED_HEADERS]
                passed += [_UNBUFFERED] if is_stream else []
                start = {"status": response.status_code, "headers": passed}
                await send({"type": "http.response.start", **start})
                has_begun = True
                async for chunk in response.aiter_raw():
                    answered.add(chunk)
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except (httpx2.TransportError, OSError) as error:
            gone = unavailable("the engine is not running or stopped; try again in a moment")
            if not has_begun:
                raise gone from error
            if not is_stream:
                raise  # the connection is cut: the client sees that the response is incomplete
            _log.warning("an engine stopped in the middle of a response: %s", error)
            await send(
                {
                    "type": "http.response.body",
                    "body": b"\n\ndata: " + gone.body + b"\n\n",
                    "more_body": True,
                }
            )
        await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
