"""One model behind the gateway."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from edgekit.gateway.errors import unavailable
from edgekit.gateway.types import ServedModel, Upstream


@dataclass(frozen=True, slots=True, kw_only=True)
class OneModel:
    """A single engine, which answers whatever model a request names."""

    name: str
    upstream: Upstream
    problem: Callable[[], str] = field(default=str)  # why the engine cannot answer now; "": it can
    created_s: int = field(default_factory=lambda: int(time.time()))

    def listed(self) -> tuple[ServedModel, ...]:
        problem = self.problem()
        return (
            ServedModel(
                name=self.name,
                created_s=self.created_s,
                window_tokens=self.upstream.window_tokens,
                is_loaded=not problem,
                problem=problem,
            ),
        )

    def answers(self, path: str) -> bool:
        return self.upstream.rules.endpoint(path) is not None

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[Upstream]:  # noqa: ARG002 - any name is this model
        problem = self.problem()
        if problem:
            raise unavailable(problem)
        yield self.upstream
