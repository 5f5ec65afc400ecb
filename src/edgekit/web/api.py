"""/api/v1: every call as GET with a query or POST with a JSON body. The answers are the command line's JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from typing import Annotated, cast

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response, StreamingResponse

from edgekit.errors import NotFoundError
from edgekit.index.names import find_entry
from edgekit.report.index import entry_json
from edgekit.report.json import json_line
from edgekit.web.calls import CALLS, LISTS, Call, WebState, home_request
from edgekit.web.cards import Deck
from edgekit.web.failures import Failure, Problem, Responses
from edgekit.web.jobs import JobEvent, JobState
from edgekit.web.references import shown_entry, without_folders
from edgekit.web.requests import CARDS, CallFields
from edgekit.web.types import CallWatch, Json

ROOT = "/api/v1"
JOBS = f"{ROOT}/jobs"
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
    """The OpenAPI description of an answer: one field that it always has, and where the others are documented."""
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


def state_of(request: Request) -> WebState:
    return cast("WebState", request.app.state.edgekit)


def _client_of(request: Request) -> str:
    return request.client.host if request.client is not None else ""


async def answer_call(call: Call, request: Request, fields: CallFields) -> Response:
    """The answer of a call as JSON."""

    def work(state: WebState, watch: CallWatch) -> Response:
        answer = call.answer(state, fields, watch)
        return _json_response(without_folders(answer, state.settings))

    return await answer_in_thread(request, work, is_long=call.is_long)


async def answer_in_thread(
    request: Request, work: Callable[[WebState, CallWatch], Response], *, is_long: bool
) -> Response:
    """The response of `work`, computed in a thread. It is cancelled when the client disconnects."""
    state, watch = state_of(request), CallWatch(client=_client_of(request))

    def watched_work() -> Response:
        watch.check()
        response = work(state, watch)
        watch.check()  # the answer of a cancelled call may be incomplete
        return response

    async def cancel_on_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        watch.cancelled.set()

    disconnect = asyncio.create_task(cancel_on_disconnect())
    try:
        async with state.turns.of(watch.client) if is_long else nullcontext():
            return await to_thread.run_sync(watched_work)
    finally:
        disconnect.cancel()


def _json_response(answer: Json) -> Response:
    return Response(json_line(answer), media_type=JSON)


def _add(name: str, call: Call, method: str, tag: str) -> None:
    """Adds the route of a call: its fields are the query of a GET, or the body of a POST."""

    async def endpoint(request: Request, fields: CallFields) -> Response:
        return await answer_call(call, request, fields)

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
    summary="One model of the index, in full (the same as /index/ID)",
    operation_id="catalog_entry",
    response_class=Response,
    responses=_responses("docs/index.md", "id", {"type": "string"}),
)
@router.get(
    "/index/{id:path}",
    summary="One model of the index, in full",
    operation_id="index_entry",
    response_class=Response,
    responses=_responses("docs/index.md", "id", {"type": "string"}),
)
def index_entry(request: Request, id: str) -> Response:  # noqa: A002 - its name in every answer
    settings = state_of(request).settings
    entry = shown_entry(find_entry(id), settings)
    return _json_response(without_folders(entry_json(entry, whole=True), settings))


# --- jobs, and server-sent events

_CALLS = ("inspect", "estimate", "check", "plan", "recommend", "search")
_STREAM_HEADERS = {"X-Accel-Buffering": "no"}  # an nginx in front forwards each event at once

jobs_router = APIRouter(prefix=JOBS, tags=["jobs"])
cards_router = APIRouter(tags=["cards"])


class Started(BaseModel):
    """A job that was started; ask for it by its id."""

    id: str
    call: str
    state: JobState


class JobTold(Started):
    """The state of a job. `progress` is its latest progress message."""

    progress: str | None
    result: Json | None
    error: Problem | None


def _stream(description: str) -> Responses:
    """The OpenAPI description of a stream of events."""
    content = {"text/event-stream": {"schema": {"type": "string"}}}
    return {200: {"content": content, "description": description}}


def _events_answer(events: AsyncIterator[JobEvent]) -> StreamingResponse:
    """Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html"""

    async def encoded() -> AsyncIterator[bytes]:
        async for event in events:
            if event.name:
                yield f"id: {event.number}\nevent: {event.name}\ndata: {event.data}\n\n".encode()
            else:
                yield b": still working\n\n"

    return StreamingResponse(encoded(), media_type="text/event-stream", headers=_STREAM_HEADERS)


def _starter(name: str, call: Call) -> Callable[..., JSONResponse]:
    """The endpoint that starts a call as a job."""

    def start(request: Request, fields: CallFields) -> JSONResponse:
        state = state_of(request)

        def work(watch: CallWatch) -> Json:
            return call.answer(state, fields, watch)

        job = state.jobs.start(name, work, _client_of(request))
        started = {"id": job.id, "call": job.call, "state": JobState.RUNNING.value}
        return JSONResponse(started, 202, {"Location": f"{JOBS}/{job.id}"})

    start.__annotations__["fields"] = call.request
    return start


for _name in _CALLS:
    jobs_router.add_api_route(
        f"/{_name}",
        _starter(_name, CALLS[_name]),
        methods=["POST"],
        status_code=202,
        response_model=Started,
        summary=f"Start {_name} as a job",
        operation_id=f"job_{_name}",
    )


@jobs_router.post("/{call}", include_in_schema=False)
def unknown_call(call: str) -> Response:
    raise NotFoundError(f"unknown call {call[:60]!r}; available: {', '.join(_CALLS)}")


@jobs_router.get(
    "/{job_id}", response_model=JobTold, summary="State and result of a job", operation_id="job"
)
def job_state(request: Request, job_id: str) -> JSONResponse:
    return JSONResponse(state_of(request).jobs.named(job_id).as_json())


@jobs_router.delete(
    "/{job_id}", response_model=JobTold, summary="Cancel a job", operation_id="job_cancel"
)
def cancel_job(request: Request, job_id: str) -> JSONResponse:
    jobs = state_of(request).jobs
    job = jobs.named(job_id)
    jobs.cancel(job)
    return JSONResponse(job.as_json())


@jobs_router.get(
    "/{job_id}/events",
    response_class=StreamingResponse,
    summary="Follow a job",
    operation_id="job_events",
    responses=_stream("`progress` events, then one of `done`, `failed`, `cancelled`"),
)
async def job_events(
    request: Request, job_id: str, last_event_id: Annotated[str, Header()] = ""
) -> StreamingResponse:
    jobs = state_of(request).jobs
    job = jobs.named(job_id)
    after = int(last_event_id) if last_event_id.isdecimal() and len(last_event_id) < 10 else 0
    return _events_answer(jobs.follow(job, after))


@cards_router.get(
    f"{ROOT}/cards/events",
    operation_id="events_api_v1_cards_events_get",
    response_class=StreamingResponse,
    summary="Check the most used models on a machine, the best ones for a task first",
    responses=_stream(
        "`machine`, a `card` for each model, best candidates first, and `picks`, the best ones for the task, as soon "
        "as they are known; then `done` or `failed`"
    ),
)
async def card_events(
    request: Request,
    fields: Annotated[CARDS, Query()],  # type: ignore[valid-type]  # made from a table
) -> StreamingResponse:
    cards = state_of(request).cards

    def find_deck() -> Deck:
        return cards.deck(home_request(fields))

    return _events_answer(cards.follow(await to_thread.run_sync(find_deck)))
