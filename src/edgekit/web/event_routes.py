"""/api/v1/jobs and /api/v1/cards: jobs (start, state, cancel), and server-sent events for both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Annotated, cast

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response, StreamingResponse

from edgekit.app.recommend import complete
from edgekit.errors import NotFoundError
from edgekit.web import requests
from edgekit.web.calls import CALLS, Call, machine_now
from edgekit.web.card_worker import CardOrder
from edgekit.web.cards import Deck
from edgekit.web.failures import Problem, Responses
from edgekit.web.jobs import JobEvent, JobState
from edgekit.web.state import client_of, state_of
from edgekit.web.types import CallWatch, Json

JOBS = "/api/v1/jobs"
_CALLS = ("inspect", "estimate", "check", "plan", "recommend")
_STREAM_HEADERS = {"X-Accel-Buffering": "no"}  # an nginx in front forwards each event at once

jobs_router = APIRouter(prefix=JOBS, tags=["jobs"])
cards_router = APIRouter(tags=["cards"])


class Started(BaseModel):
    """Where to ask for it is its id."""

    id: str
    call: str
    state: JobState


class JobTold(Started):
    """The state of a job. `progress` is its latest progress message."""

    progress: str | None
    result: Json | None
    error: Problem | None


def _stream(description: str) -> Responses:
    """OpenAPI of a stream of events."""
    content = {"text/event-stream": {"schema": {"type": "string"}}}
    return {200: {"content": content, "description": description}}


def _events_answer(events: AsyncIterator[JobEvent]) -> StreamingResponse:
    """https://html.spec.whatwg.org/multipage/server-sent-events.html"""

    async def encoded() -> AsyncIterator[bytes]:
        async for event in events:
            if event.name:
                yield f"id: {event.number}\nevent: {event.name}\ndata: {event.data}\n\n".encode()
            else:
                yield b": still working\n\n"

    return StreamingResponse(encoded(), media_type="text/event-stream", headers=_STREAM_HEADERS)


def _starter(name: str, call: Call) -> Callable[..., JSONResponse]:
    def start(request: Request, fields: requests.CallFields) -> JSONResponse:
        state = state_of(request)

        def work(watch: CallWatch) -> Json:
            return call.answer(state, fields, watch)

        job = state.jobs.start(name, work, client_of(request))
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
def refuse(call: str) -> Response:
    raise NotFoundError(f"unknown call {call[:60]!r}; available: {', '.join(_CALLS)}")


@jobs_router.get(
    "/{job_id}", response_model=JobTold, summary="State and result of a job", operation_id="job"
)
def look(request: Request, job_id: str) -> JSONResponse:
    return JSONResponse(state_of(request).jobs.named(job_id).as_json())


@jobs_router.delete(
    "/{job_id}", response_model=JobTold, summary="Cancel a job", operation_id="job_cancel"
)
def cancel(request: Request, job_id: str) -> JSONResponse:
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
    "/api/v1/cards/events",
    operation_id="events_api_v1_cards_events_get",
    response_class=StreamingResponse,
    summary="Check every model of the catalog on a machine",
    responses=_stream(
        "`machine`, a `card` for each model, best candidates first, then `done` or `failed`"
    ),
)
async def card_events(
    request: Request,
    fields: Annotated[requests.CARDS, Query()],  # type: ignore[valid-type]  # made from a table
) -> StreamingResponse:
    cards = state_of(request).cards

    def find_deck() -> Deck:
        requested = cast("requests.CallFields", fields).request()
        requested = complete(replace(requested, machine=machine_now(requested)))
        return cards.deck(
            CardOrder(
                machine=requested.find_machine(),
                engine=requested.engines[0],
                max_use=requested.max_use,
                reserve_bytes=requested.reserve_bytes,
            )
        )

    return _events_answer(cards.follow(await to_thread.run_sync(find_deck)))
