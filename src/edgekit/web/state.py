"""What all requests share: settings, opened models, jobs and cards."""

from __future__ import annotations

from functools import partial
from typing import cast

from starlette.requests import Request

from edgekit.web import cards
from edgekit.web.jobs import Jobs
from edgekit.web.limits import ClientTurns
from edgekit.web.models import OpenedModels
from edgekit.web.references import without_folders
from edgekit.web.shutdown import Shutdown
from edgekit.web.types import WebSettings


class WebState:
    """`app.state.edgekit`."""

    def __init__(self, settings: WebSettings) -> None:
        redact = partial(without_folders, settings=settings)
        self.settings = settings
        self.models = OpenedModels(settings)
        self.jobs = Jobs(timeout_s=settings.timeout_s, redact=redact)
        self.cards = cards.Cards(settings)
        self.turns = ClientTurns()
        self.shutdown = Shutdown()

    def close(self) -> None:
        """Cancel everything that runs. Idempotent."""
        self.jobs.close()
        self.cards.close()


def state_of(request: Request) -> WebState:
    return cast("WebState", request.app.state.edgekit)


def client_of(request: Request) -> str:
    return request.client.host if request.client is not None else ""
