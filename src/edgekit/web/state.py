"""What all requests share: settings, opened models, jobs and cards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from starlette.requests import Request

from edgekit.web.cards import Cards
from edgekit.web.jobs import Jobs
from edgekit.web.limits import ClientTurns
from edgekit.web.models import OpenedModels
from edgekit.web.types import WebSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class WebState:
    """`app.state.edgekit`."""

    settings: WebSettings
    models: OpenedModels
    jobs: Jobs
    cards: Cards
    turns: ClientTurns

    def close(self) -> None:
        """Cancel everything that runs. Idempotent."""
        self.jobs.close()
        self.cards.close()


def state_of(request: Request) -> WebState:
    return cast("WebState", request.app.state.edgekit)


def client_of(request: Request) -> str:
    return request.client.host if request.client is not None else ""
