"""/api/v1/jobs: a call is started, followed by server-sent events, asked about and called off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Annotated, Any, cast

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response, StreamingResponse

from edgekit.app.recommend import complete
from edgekit.errors import NotFoundError
from edgekit.request import Request as ModelRequest
from edgekit.web import requests
from edgekit.web.calls import CALLS, Call, machine_now
from edgekit.web.card_worker import CardOrder
from edgekit.web.cards import Cards, Deck
from edgekit.web.failures import Problem
from edgekit.web.jobs import JobEvent, JobState
from edgekit.web.state import client_of, state_of
from edgekit.web.types import CallWatch

JOBS = "/api/v1/jobs"
jobs_router = APIRouter(prefix=JOBS, tags=["jobs"])

_CALLS = ("inspect", "estimate", "check", "plan", "recommend")
_STREAM_HEADERS = {"X-Accel-Buffering": "no"}  # nginx in front hands on each event as it comes


class Started(BaseModel):
    """Where to ask for it is its id."""

    id: str
    call: str
    state: JobState


class JobTold(Started):
    """What became of it. `progress` is the last line it said."""

    progress: str | None
    result: dict[str, Any] | None
    error: Problem | None


def event_bytes(event: JobEvent) -> bytes:
    """As https://html.spec.whatwg.org/multipage/server-sent-events.html has it."""
    if not event.name:
        return b": still working\n\n"
    return f"id: {event.number}\nevent: {event.name}\ndata: {event.data}\n\n".encode()


def _starter(name: str, call: Call) -> Callable[..., JSONResponse]:
    def start(request: Request, fields: BaseModel) -> JSONResponse:
        state = state_of(request)

        def work(watch: CallWatch) -> dict[str, Any]:
            return call.answer(state, fields, watch)

        job = state.jobs.start(name, work, client_of(request))
        told = {"id": job.id, "call": job.call, "state": JobState.RUNNING.value}
        return JSONResponse(told, 202, {"Location": f"{JOBS}/{job.id}"})

    start.__annotations__["fields"] = call.request  # each call has fields of its own
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
    responses={
        200: {
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
            "description": "`progress` events, then one of `done`, `failed`, `cancelled`",
        }
    },
)
async def job_events(
    request: Request, job_id: str, last_event_id: Annotated[str, Header()] = ""
) -> StreamingResponse:
    jobs = state_of(request).jobs
    job = jobs.named(job_id)
    after = int(last_event_id) if last_event_id.isdecimal() and len(last_event_id) < 10 else 0
    return events_answer(jobs.follow(job, after))


def events_answer(following: AsyncIterator[JobEvent]) -> StreamingResponse:
    stream = _bytes(following)
    return StreamingResponse(stream, media_type="text/event-stream", headers=_STREAM_HEADERS)


async def _bytes(following: AsyncIterator[JobEvent]) -> AsyncIterator[bytes]:
    async for event in following:
        yield event_bytes(event)


cards_router = APIRouter(tags=["cards"])


def _asked(cards: Cards, request: ModelRequest) -> Deck:
    request = complete(replace(request, machine=machine_now(request)))
    return cards.deck(
        CardOrder(
            machine=request.find_machine(),
            engine=request.engines[0],
            max_use=request.max_use,
            reserve_bytes=request.reserve_bytes,
        )
    )


@cards_router.get(
    "/api/v1/cards/events",
    operation_id="events_api_v1_cards_events_get",
    response_class=StreamingResponse,
    summary="Check every model of the catalog on a machine",
    responses={
        200: {
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
            "description": "`machine`, a `card` for each model, best candidates first, then `done` or `failed`",
        }
    },
)
async def card_events(
    request: Request,
    fields: Annotated[requests.CARDS, Query()],  # type: ignore[valid-type]  # made from a table
) -> StreamingResponse:
    cards = state_of(request).cards
    deck = await to_thread.run_sync(_asked, cards, cast("requests.CallFields", fields).request())
    return events_answer(cards.follow(deck))
