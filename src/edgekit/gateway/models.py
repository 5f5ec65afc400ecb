"""One model behind the gateway."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from edgekit.engines.request_rules import RequestLimits
from edgekit.gateway.errors import unavailable
from edgekit.gateway.types import ServedModel, Upstream


@dataclass(slots=True, kw_only=True)
class OneModel:
    """A single engine, which answers whatever model a request names. Another one may take its place."""

    name: str
    request_limits: RequestLimits
    upstream: Upstream | None = None  # None: it has not been ready yet
    problem: Callable[[], str] = field(default=str)  # why the engine cannot answer now; "": it can
    created_s: int = field(default_factory=lambda: int(time.time()))

    async def begin(self) -> None:
        pass

    def listed(self) -> tuple[ServedModel, ...]:
        return (
            ServedModel(
                name=self.name,
                created_s=self.created_s,
                window_tokens=self.request_limits.window_tokens,
                problem=self._why_not(),
                is_loading=self.upstream is None and not self.problem(),
            ),
        )

    def answers(self, path: str) -> bool:
        return self.request_limits.rules.endpoint(path) is not None

    def limits(self, name: str) -> RequestLimits:  # noqa: ARG002 - any name is this model
        return self.request_limits

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[Upstream]:  # noqa: ARG002 - any name is this model
        problem = self._why_not()
        if problem or self.upstream is None:
            raise unavailable(problem)
        yield self.upstream

    def _why_not(self) -> str:
        return self.problem() or ("" if self.upstream else f"{self.name} is loading")
