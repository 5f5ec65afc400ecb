"""/api/v1/jobs: a call is started, followed by server-sent events, asked about and called off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response, StreamingResponse

from edgekit.errors import NotFoundError
from edgekit.web.calls import CALLS, Call
from edgekit.web.failures import Problem
from edgekit.web.jobs import JobEvent, JobState
from edgekit.web.state import client_of, state_of
from edgekit.web.types import CallWatch

ROOT = "/api/v1/jobs"
router = APIRouter(prefix=ROOT, tags=["jobs"])

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
        return JSONResponse(told, 202, {"Location": f"{ROOT}/{job.id}"})

    start.__annotations__["fields"] = call.request  # each call has fields of its own
    return start


for _name in _CALLS:
    router.add_api_route(
        f"/{_name}",
        _starter(_name, CALLS[_name]),
        methods=["POST"],
        status_code=202,
        response_model=Started,
        summary=f"Start {_name} as a job",
        operation_id=f"job_{_name}",
    )


@router.post("/{call}", include_in_schema=False)
def refuse(call: str) -> Response:
    raise NotFoundError(f"unknown call {call[:60]!r}; available: {', '.join(_CALLS)}")


@router.get(
    "/{job_id}", response_model=JobTold, summary="State and result of a job", operation_id="job"
)
def look(request: Request, job_id: str) -> JSONResponse:
    return JSONResponse(state_of(request).jobs.named(job_id).as_json())


@router.delete(
    "/{job_id}", response_model=JobTold, summary="Cancel a job", operation_id="job_cancel"
)
def cancel(request: Request, job_id: str) -> JSONResponse:
    jobs = state_of(request).jobs
    job = jobs.named(job_id)
    jobs.cancel(job)
    return JSONResponse(job.as_json())


@router.get(
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
async def events(
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
