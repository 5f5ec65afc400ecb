"""/api/v1: every call as GET with a query or POST with a body, and what it answers; each is the command line's JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from edgekit.catalog.names import find_entry
from edgekit.report.catalog import entry_json
from edgekit.report.json import json_line
from edgekit.web import requests
from edgekit.web.calls import CALLS, LISTS, Call
from edgekit.web.failures import Failure
from edgekit.web.references import shown_entry, without_folders
from edgekit.web.state import client_of, state_of
from edgekit.web.types import CallWatch

ROOT = "/api/v1"
JSON = "application/json"
_SAID = {
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
FAILURES: dict[int | str, dict[str, Any]] = {
    code: {"model": Failure, "description": told} for code, told in _SAID.items()
}


def _answers(where: str, name: str, kind: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """The description of an answer by the field that each such answer has, and where the others stand."""
    shape = {"type": "object", "properties": {name: kind}, "required": [name]}
    told = f"The same JSON as the command line ({where})"
    return {200: {"description": told, "content": {JSON: {"schema": shape}}}}


ANSWER = _answers("docs/json.md", "schema", {"const": 1})
ENTRY = _answers("docs/catalog.md", "id", {"type": "string"})  # as a list of them has it

router = APIRouter(prefix=ROOT, responses={**FAILURES, **ANSWER})
Endpoint = Callable[..., Coroutine[Any, Any, Response]]


def json_answer(answer: dict[str, Any]) -> Response:
    return Response(json_line(answer), media_type=JSON)


async def answered(call: Call, request: Request, fields: requests.CallFields) -> Response:
    """In a thread; called off when whoever asked is gone, and not begun where that is before its turn."""
    state, watch = state_of(request), CallWatch(client=client_of(request))

    def work() -> Response:
        watch.check()
        answer = call.answer(state, fields, watch)
        watch.check()  # what was broken off somewhere is no answer
        return json_answer(without_folders(answer, state.settings))

    leaving = asyncio.create_task(_call_off(request, watch))
    try:
        async with state.turns.of(watch.client) if call.is_long else nullcontext():
            return await to_thread.run_sync(work)
    finally:
        leaving.cancel()


async def _call_off(request: Request, watch: CallWatch) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    watch.cancelled.set()


def _endpoint(call: Call, fields_type: object) -> Endpoint:
    async def ask(request: Request, fields: Any) -> Response:
        return await answered(call, request, fields)

    ask.__annotations__["fields"] = fields_type
    return ask


def _add(name: str, call: Call, method: str, tag: str) -> None:
    fields = Annotated[call.request, Query()] if method == "GET" else call.request
    router.add_api_route(
        f"/{name}",
        _endpoint(call, fields),
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
    responses=ENTRY,
)
def catalog_entry(request: Request, id: str) -> Response:  # noqa: A002 - what it is called in every answer
    settings = state_of(request).settings
    entry = shown_entry(find_entry(id), settings)
    return json_answer(without_folders(entry_json(entry, whole=True), settings))
