"""The FastAPI application: the page and its assets, the routers, the error handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

from edgekit import __version__
from edgekit.errors import EdgekitError
from edgekit.sources.address import is_offline
from edgekit.web import api, pictures
from edgekit.web.assets import Asset, page_files
from edgekit.web.calls import WebState
from edgekit.web.compression import VARY, Compression, accepts_gzip
from edgekit.web.failures import (
    Failure,
    Responses,
    error_json,
    failure_json,
    fault_words,
    status_of,
    unreadable_answer,
)
from edgekit.web.references import without_folders
from edgekit.web.security import DOCS, HEALTH, IMAGES, Security, ShutdownMiddleware
from edgekit.web.small_pages import small_page
from edgekit.web.specification import Specification
from edgekit.web.types import WebSettings

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig

PAGES = ("/", "/model", "/compare", "/hardware", DOCS)
OPENAPI = "/api/v1/openapi.json"
FOREVER = "public, max-age=31536000, immutable"  # a year; for addresses with the hash of the page
REVALIDATE = "no-cache"

_DESCRIPTION = """\
Will this model run on my machine, and how? Each call answers what the command of the same name prints with `--json`.
Its fields are the command's flags, sent as a query or as a JSON object.
Errors are `{"error": {"type", "message"}}`.
"""
_FAILURES: Responses = {
    "4XX": {
        "model": Failure,
        "description": "The request is invalid, not allowed, or names something that does not exist",
    },
    "5XX": {"model": Failure, "description": "A remote server failed or timed out"},
}
# Off whatever the environment says: a request's address may contain the token.
_NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
_MESSAGES = {  # by status, for errors that Starlette raises
    400: ("UsageError", "the body is not valid JSON"),
    404: ("NotFoundError", "address not found"),
    405: ("MethodError", "method not allowed for this address"),
}

page_router = APIRouter()


def create_app(settings: WebSettings) -> FastAPI:
    app = FastAPI(
        title="EdgeKit",
        version=__version__,
        summary="Check whether a model fits before you load it.",
        description=_DESCRIPTION,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        openapi_url=None,  # ours is below: FastAPI's blocks the loop for half a second
        docs_url=None,  # /api/docs is our own page: FastAPI's loads scripts from a CDN
        redoc_url=None,
        redirect_slashes=False,
        responses=_FAILURES,
        lifespan=_lifespan,
        telemetry=_NO_TELEMETRY,
    )
    app.state.edgekit = state = WebState(settings)
    app.state.specification = Specification(app.openapi)
    page_files()  # read now, so that an update on disk does not mix two versions
    for router in (page_router, pictures.router, api.router, api.jobs_router, api.cards_router):
        app.include_router(router)
    app.exception_handler(EdgekitError)(_edgekit_error)
    app.exception_handler(RequestValidationError)(_invalid_request)
    app.exception_handler(HTTPException)(_http_error)
    app.add_middleware(ShutdownMiddleware, shutdown=state.shutdown)
    app.add_middleware(Compression)
    app.add_middleware(Security, settings=settings)  # the last one added is the outermost
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state: WebState = app.state.edgekit
    try:
        yield
    finally:
        state.close()


class Health(BaseModel):
    """Sent by a server that answers."""

    status: str
    version: str


@page_router.get(HEALTH, summary="Health check")
async def health() -> Health:
    return Health(status="ok", version=__version__)


@page_router.get(OPENAPI, include_in_schema=False)
def openapi(request: Request) -> Response:
    specification: Specification = request.app.state.specification
    return asset_answer(request, specification.document(), REVALIDATE)


@page_router.api_route("/static/{name}", methods=["GET", "HEAD"], include_in_schema=False)
async def static(request: Request, name: str) -> Response:
    """A file by its plain name, for links from elsewhere. The page itself uses the addresses with the hash."""
    return asset_answer(request, _asset(name), REVALIDATE)


@page_router.api_route("/static/{version}/{name}", methods=["GET", "HEAD"], include_in_schema=False)
async def versioned_static(request: Request, version: str, name: str) -> Response:
    """A file of this version of the page. Another version is 404: the scripts of two would not fit together.

    An open page that meets this after an update loads itself again (main.js).
    """
    if version != page_files().hash:
        raise HTTPException(404)
    return asset_answer(request, _asset(name), FOREVER)


def _asset(name: str) -> Asset:
    try:
        return page_files().files[name]
    except KeyError:
        raise HTTPException(404) from None


async def page(request: Request) -> Response:
    return asset_answer(request, page_files().document(request.scope["path"]), REVALIDATE)


for _path in PAGES:
    page_router.add_api_route(_path, page, methods=["GET", "HEAD"], include_in_schema=False)


async def _edgekit_error(request: Request, error: EdgekitError) -> Response:
    settings = api.state_of(request).settings
    body = without_folders(error_json(error), settings)
    status = status_of(error, network=settings.network and not is_offline())
    headers = {"Retry-After": "2"} if status == 429 else None
    if request.scope["path"] in IMAGES:
        return pictures.failed_image(body["error"]["message"], status, headers)
    return JSONResponse(body, status, headers)


async def _invalid_request(request: Request, error: RequestValidationError) -> Response:
    if request.scope["path"] in IMAGES:
        return pictures.failed_image(fault_words(error.errors()), 400)
    return unreadable_answer(error.errors())


async def _http_error(request: Request, error: HTTPException) -> Response:
    kind, message = _MESSAGES.get(error.status_code, ("UsageError", str(error.detail)))
    if request.scope["path"] in IMAGES:
        return pictures.failed_image(message, error.status_code, error.headers)
    if request.scope["path"].startswith("/api/"):
        return JSONResponse(failure_json(kind, message), error.status_code, error.headers)
    text = f"{message[:1].upper()}{message[1:]}."
    title = HTTPStatus(error.status_code).phrase
    return HTMLResponse(small_page(title, text), error.status_code, error.headers)


def asset_answer(request: Request, asset: Asset, cache_control: str) -> Response:
    """The response with an asset, compressed for a client that accepts it."""
    is_zipped = asset.zipped is not None and accepts_gzip(
        request.headers.get("accept-encoding", "")
    )
    tag = f'"{asset.tag}-gzip"' if is_zipped else f'"{asset.tag}"'
    headers = {"ETag": tag, "Cache-Control": cache_control, "Vary": VARY[1].decode()}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if is_zipped:
        headers["Content-Encoding"] = "gzip"
    content = asset.zipped if is_zipped else asset.content
    return Response(content, media_type=asset.content_type, headers=headers)
