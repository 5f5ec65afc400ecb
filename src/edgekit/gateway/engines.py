"""Engines as the gateway uses them: started behind it, each with a key of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

from edgekit.app import run
from edgekit.app.run import Judged
from edgekit.engines.program import (
    Address,
    EngineProgram,
    LocalWeights,
    MemoryGuard,
    RunningEngine,
    Server,
    why_ended,
)
from edgekit.errors import NotFoundError
from edgekit.formats import open_header
from edgekit.gateway.swap import Begun, LoadedModel
from edgekit.gateway.types import Upstream
from edgekit.sources.types import Reach

_LOOPBACK = "127.0.0.1"


def engine_address(program: EngineProgram, name: str) -> Address:
    """Where an engine listens that only the gateway may use."""
    return Address(host=_LOOPBACK, api_key=run.random_key(program), alias=name)


def upstream_of(running: RunningEngine, server: Server, at: Address) -> Upstream:
    """A running engine as an upstream of the gateway."""
    return Upstream(address=server.address, api_key=at.api_key, model=running.model)


def starter(judged: Judged, weights: LocalWeights, name: str) -> Callable[[Begun], LoadedModel]:
    """A function that starts the engine of a model, and returns when it can answer."""
    program = judged.chosen.program

    def start(begun: Begun) -> LoadedModel:
        at = engine_address(program, name)
        with ExitStack() as stack:
            running = stack.enter_context(run.serve(judged, weights, at, begun))
            server, guard = running.server, running.guard
            if server is None or guard is None:
                raise TypeError("this engine does not serve")
            upstream = upstream_of(running, server, at)
            return LoadedModel(
                upstream=upstream, handle=EngineHandle(server, guard, stack.pop_all())
            )

    return start


def checker(weights: LocalWeights) -> Callable[[], None]:
    """A function that raises EdgekitError if the files of a model can no longer be read."""

    def check() -> None:
        if weights.name:  # of a model that the program itself has
            return
        for path in (weights.model, weights.drafter, weights.projector, *weights.adapters):
            if path is not None and not path.exists():  # names no other files, as clients see it
                raise NotFoundError(f"{path} does not exist any more")
        open_header(weights.model, reach=Reach(network=False))

    return check


class EngineHandle:
    """A running engine with everything that belongs to it."""

    def __init__(self, server: Server, guard: MemoryGuard, held: ExitStack) -> None:
        self._server, self._guard, self._held = server, guard, held
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        return self._server.pid

    def on_end(self, tell: Callable[[str, str], None]) -> None:
        def wait() -> None:
            ended, guard = self._server.wait(), self._guard
            if ended is None:
                tell("", "")
            else:
                tell(guard.reason or ended.why, why_ended(ended, guard))

        threading.Thread(target=wait, name="edgekit engine", daemon=True).start()

    def stop(self) -> None:
        with self._lock:
            self._held.close()
