"""/api/v1/cards: the catalog on a machine, card by card, as server-sent events."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, cast

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from starlette.responses import StreamingResponse

from edgekit.app.recommend import complete
from edgekit.request import Request as ModelRequest
from edgekit.web import requests
from edgekit.web.card_making import CardOrder
from edgekit.web.cards import Cards, Deck
from edgekit.web.job_routes import events_answer
from edgekit.web.machines import machine_now
from edgekit.web.state import state_of

router = APIRouter(tags=["cards"])


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


@router.get(
    "/api/v1/cards/events",
    response_class=StreamingResponse,
    summary="Check every model of the catalog on a machine",
    responses={
        200: {
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
            "description": "`machine`, a `card` for each model, best candidates first, then `done` or `failed`",
        }
    },
)
async def events(
    request: Request,
    fields: Annotated[requests.CARDS, Query()],  # type: ignore[valid-type]  # made from a table
) -> StreamingResponse:
    cards = state_of(request).cards
    deck = await to_thread.run_sync(_asked, cards, cast("requests.CallFields", fields).request())
    return events_answer(cards.follow(deck))
