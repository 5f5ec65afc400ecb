"""The gateway as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgekit.gateway.access import Access
from edgekit.gateway.engine_http import make_client
from edgekit.gateway.errors import GatewayError, too_many, unavailable, unknown_model
from edgekit.gateway.forward import Forward
from edgekit.gateway.metrics import CONTENT_TYPE, Metrics
from edgekit.gateway.types import GatewaySettings, Models, ServedModel
from edgekit.server.bodies import respond
from edgekit.server.requests import CLOSE, Header, RequestHead

if TYPE_CHECKING:
    import httpcore2

HEADERS: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_OWN_PATHS = frozenset({"/health", "/v1/health", "/metrics", "/v1/models", "/models"})
_NOT_READ = frozenset({408, 413})  # refused while the client still sends

_log = logging.getLogger("edgekit.gateway")


def create_gateway(
    settings: GatewaySettings,
    models: Models,
    *,
    memory_bytes: Callable[[], int | None] = lambda: None,
) -> Starlette:
    """The application. `memory_bytes`: resident memory of the engines, for /metrics.

    UsageError for settings that would open the server to any web page.
    """
    access = Access(settings)
    metrics, clients = Metrics(), list["httpcore2.AsyncConnectionPool"]()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with make_client() as client:
            clients.append(client)
            await models.begin()
            yield

    async def health(request: Request) -> Response:
        rows = models.listed()
        if not all(model.problem for model in rows):
            return JSONResponse({"status": "ok"})
        if not rows:
            raise unavailable("no model is served")
        # The reason may have paths and lines of a log, and a page of any site may ask without the key.
        if access.has_key(RequestHead.from_scope(request.scope)):
            raise unavailable(rows[0].problem)
        is_loading = any(model.is_loading for model in rows)
        raise unavailable("the engine is starting" if is_loading else "the engine has stopped")

    async def listed(_: Request) -> Response:
        rows = [_row(model) for model in models.listed()]
        return JSONResponse({"object": "list", "data": rows})

    async def one(request: Request) -> Response:
        name, rows = request.path_params["name"], models.listed()
        row = next((model for model in rows if model.name == name), None)
        if row is None:
            raise unknown_model(name, tuple(model.name for model in rows))
        return JSONResponse(_row(row))

    async def measured(_: Request) -> Response:
        text = metrics.text(models.listed(), await asyncio.to_thread(memory_bytes))
        return PlainTextResponse(text, media_type=CONTENT_TYPE)

    forward = Forward(settings, models, metrics, lambda: clients[-1])
    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/health", health),
            Route("/metrics", measured),
            Route("/v1/models", listed),
            Route("/models", listed),
            Route("/v1/models/{name:path}", one),
            Route("/{path:path}", forward, methods=["GET", "POST"]),
        ],
        middleware=[
            Middleware(
                Gate,
                access=access,
                models=models,
                metrics=metrics,
                max_requests=settings.max_requests,
            )
        ],
        lifespan=lifespan,
    )


def _row(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "edgekit",
        "max_model_len": model.window_tokens,
    }


class Gate:
    """The middleware that lets requests in, counts them, and turns errors into responses."""

    def __init__(
        self, app: ASGIApp, *, access: Access, models: Models, metrics: Metrics, max_requests: int
    ) -> None:
        self._app, self._models, self._metrics = app, models, metrics
        self._access, self._most = access, max_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head, status = RequestHead.from_scope(scope), 0
        cors = self._access.cors_headers(head)

        async def counted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *HEADERS, *cors]}
            await send(message)

        self._metrics.in_flight += 1
        try:
            refusal = self._access.refusal(head)
            is_own = head.path in _OWN_PATHS
            if refusal is None and self._metrics.in_flight > self._most and not is_own:
                refusal = too_many(f"more than {self._most} requests are running or waiting")
            if refusal is not None:
                await _send_error(refusal, counted_send, receive)
            elif head.method == "OPTIONS":
                await Response(status_code=204)(scope, receive, counted_send)
            else:
                await self._app(scope, receive, counted_send)
        except GatewayError as error:
            await _send_error(error, counted_send, receive)
        except ClientDisconnect:
            status = status or 499  # nginx's number for a client that left
        except Exception:
            if status:
                raise  # the connection is cut: the response is incomplete
            _log.exception("a request failed: %s", head.path)
            await _send_error(_internal(), counted_send, receive)
        finally:
            self._metrics.in_flight -= 1
            self._metrics.count(self._path(head.path), status)

    def _path(self, path: str) -> str:
        """The path for the metrics."""
        return path if path in _OWN_PATHS or self._models.answers(path) else "other"


def _internal() -> GatewayError:
    return GatewayError(
        "internal error in EdgeKit; see the terminal that runs it",
        status=500,
        kind="server_error",
    )


async def _send_error(error: GatewayError, send: Send, receive: Receive) -> None:
    headers, body = error.response()
    unread = receive if error.status in _NOT_READ else None
    await respond(send, error.status, headers, body, unread=unread)


def malformed_answer() -> tuple[tuple[Header, ...], bytes]:
    """The response to a request whose head could not be read."""
    headers, body = GatewayError("not an HTTP request", status=400, headers=(CLOSE,)).response()
    return (*headers, *HEADERS), body


async def busy(_: Scope, receive: Receive, send: Send) -> None:
    """The application for a connection above the limit."""
    problem = "too many connections to this server; try again in a moment"
    error = unavailable(problem, headers=(CLOSE,))
    await _send_error(error, send, receive)
