"""Settings -> the application: the page, the calls, jobs and cards, and what is said when something is wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

from edgekit import __version__
from edgekit.errors import EdgekitError
from edgekit.sources.address import is_offline
from edgekit.web import api, card_routes, cards, job_routes
from edgekit.web.assets import INDEX, Assets
from edgekit.web.failures import Failure, error_answer, error_json, failure_json, unreadable_answer
from edgekit.web.farewell import Farewell, Farewells
from edgekit.web.hiding import without_folders
from edgekit.web.jobs import Jobs
from edgekit.web.models import OpenedModels
from edgekit.web.security import DOCS, HEALTH, Security
from edgekit.web.small_pages import small_page
from edgekit.web.state import WebState, state_of
from edgekit.web.turns import ClientTurns
from edgekit.web.types import WebSettings

if TYPE_CHECKING:  # older versions have none
    from fastapi.telemetry import TelemetryConfig

PAGES = ("/", "/model", "/compare", "/hardware", DOCS)
OPENAPI = "/api/v1/openapi.json"

_DESCRIPTION = """\
Will this model run on my machine, and how? Each call answers what the command of the same name prints with `--json`.
Its fields are the command's flags, sent as a query or as a JSON object.
Errors are `{"error": {"type", "message"}}`.
"""
_FAILURES: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "model": Failure,
        "description": "The request is invalid, not allowed, or names something that does not exist",
    },
    "5XX": {"model": Failure, "description": "A remote server failed or timed out"},
}
# Whatever the environment says: nobody else is told what was asked for, and an address may have the token in it.
_NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}

plain = APIRouter()


class Health(BaseModel):
    """Sent by a server that answers."""

    status: str
    version: str


def open_state(settings: WebSettings) -> WebState:
    return WebState(
        settings=settings,
        models=OpenedModels(settings),
        jobs=Jobs(timeout_s=settings.timeout_s, told=partial(without_folders, settings=settings)),
        cards=cards.Cards(settings),
        turns=ClientTurns(),
    )


def create_app(settings: WebSettings) -> FastAPI:
    farewells = Farewells()
    app = FastAPI(
        title="EdgeKit",
        version=__version__,
        summary="Check whether a model fits before you load it.",
        description=_DESCRIPTION,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        openapi_url=None,  # as below: theirs takes half a second, and everybody waits meanwhile
        docs_url=None,  # /api/docs is a page of ours: theirs loads scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        responses=_FAILURES,
        lifespan=_lifespan,
        telemetry=_NO_TELEMETRY,
    )
    app.state.edgekit = open_state(settings)
    app.state.farewells = farewells
    app.state.assets = Assets()
    for router in (plain, api.router, job_routes.router, card_routes.router):
        app.include_router(router)
    app.exception_handler(EdgekitError)(_refused)
    app.exception_handler(RequestValidationError)(_unreadable)
    app.exception_handler(HTTPException)(_not_here)
    app.add_middleware(Farewell, farewells=farewells)
    app.add_middleware(Security, settings=settings)  # the last one added is the outermost
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state: WebState = app.state.edgekit
    try:
        yield
    finally:
        state.close()


@plain.get(HEALTH, summary="Health check")
async def health() -> Health:
    return Health(status="ok", version=__version__)


@plain.get(OPENAPI, include_in_schema=False)
def openapi(request: Request) -> Response:
    return JSONResponse(request.app.openapi())


@plain.api_route("/static/{name}", methods=["GET", "HEAD"], include_in_schema=False)
async def static(request: Request, name: str) -> Response:
    return _asset(request, name)


async def page(request: Request) -> Response:
    return _asset(request, INDEX)


for _path in PAGES:
    plain.add_api_route(_path, page, methods=["GET", "HEAD"], include_in_schema=False)


def _asset(request: Request, name: str) -> Response:
    assets: Assets = request.app.state.assets
    answer = assets.answer(request, name)
    if answer is None:
        raise HTTPException(404)
    return answer


async def _refused(request: Request, error: EdgekitError) -> Response:
    settings = state_of(request).settings
    told = without_folders(error_json(error), settings)
    return error_answer(error, told, network=settings.network and not is_offline())


async def _unreadable(_: Request, error: RequestValidationError) -> Response:
    return unreadable_answer(error.errors())


_WORDS = {
    400: ("UsageError", "the body is not valid JSON"),
    404: ("NotFoundError", "address not found"),
    405: ("MethodError", "method not allowed for this address"),
}


async def _not_here(request: Request, error: HTTPException) -> Response:
    kind, message = _WORDS.get(error.status_code, ("UsageError", str(error.detail)))
    if request.scope["path"].startswith("/api/"):
        return JSONResponse(failure_json(kind, message), error.status_code, error.headers)
    text = f"{message[:1].upper()}{message[1:]}."
    title = HTTPStatus(error.status_code).phrase
    return HTMLResponse(small_page(title, text), error.status_code, error.headers)
