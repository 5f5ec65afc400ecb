"""/api/v1: every call as GET with a query or POST with a JSON body. The answers are the command line's JSON."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from edgekit.catalog.names import find_entry
from edgekit.report.catalog import entry_json
from edgekit.report.json import json_line
from edgekit.web.calls import CALLS, LISTS, Call
from edgekit.web.failures import Failure, Responses
from edgekit.web.references import shown_entry, without_folders
from edgekit.web.requests import CallFields
from edgekit.web.state import client_of, state_of
from edgekit.web.types import CallWatch, Json

ROOT = "/api/v1"
JSON = "application/json"
_FAILURES = {
    400: "Invalid request",
    403: "Not allowed to open this model",
    404: "Model not found",
    409: "Cancelled",
    413: "Request body too large",
    422: "The engine refuses the model, no hardware here can run it, or its file is unreadable",
    429: "Too many requests",
    502: "A remote server failed",
    504: "Timed out",
}


def _responses(where: str, name: str, kind: Json) -> Responses:
    """OpenAPI of an answer: the one field that every such answer has, and where the others are documented."""
    shape = {"type": "object", "properties": {name: kind}, "required": [name]}
    description = f"The same JSON as the command line ({where})"
    return {200: {"description": description, "content": {JSON: {"schema": shape}}}}


router = APIRouter(
    prefix=ROOT,
    responses={
        **{code: {"model": Failure, "description": text} for code, text in _FAILURES.items()},
        **_responses("docs/json.md", "schema", {"const": 1}),
    },
)


async def answered(call: Call, request: Request, fields: CallFields) -> Response:
    """Computed in a thread; cancelled when the client disconnects, and not started if it left while waiting."""
    state, watch = state_of(request), CallWatch(client=client_of(request))

    def work() -> Response:
        watch.check()
        answer = call.answer(state, fields, watch)
        watch.check()  # the answer of a cancelled call may be incomplete
        return _json_response(without_folders(answer, state.settings))

    async def cancel_on_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        watch.cancelled.set()

    disconnect = asyncio.create_task(cancel_on_disconnect())
    try:
        async with state.turns.of(watch.client) if call.is_long else nullcontext():
            return await to_thread.run_sync(work)
    finally:
        disconnect.cancel()


def _json_response(answer: Json) -> Response:
    return Response(json_line(answer), media_type=JSON)


def _add(name: str, call: Call, method: str, tag: str) -> None:
    async def endpoint(request: Request, fields: CallFields) -> Response:
        return await answered(call, request, fields)

    is_query = method == "GET"
    endpoint.__annotations__["fields"] = (
        Annotated[call.request, Query()] if is_query else call.request
    )
    router.add_api_route(
        f"/{name}",
        endpoint,
        methods=[method],
        summary=call.summary,
        operation_id=f"{name}_{method.lower()}",
        response_class=Response,
        tags=[tag],
    )


for _name, _call in CALLS.items():
    for _method in ("GET", "POST"):
        _add(_name, _call, _method, "calls")
for _name, _call in LISTS.items():
    _add(_name, _call, "GET", "lists")


@router.get(
    "/catalog/{id:path}",
    summary="One model of the catalog, in full",
    response_class=Response,
    responses=_responses("docs/catalog.md", "id", {"type": "string"}),
)
def catalog_entry(request: Request, id: str) -> Response:  # noqa: A002 - its name in every answer
    settings = state_of(request).settings
    entry = shown_entry(find_entry(id), settings)
    return _json_response(without_folders(entry_json(entry, whole=True), settings))
