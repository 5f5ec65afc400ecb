"""Several models behind the gateway in one memory: loaded at their first request, stopped when another needs the space.

Requests are served in order. If the model of a request is not loaded and does not fit next to the loaded ones, some of
these are stopped: idle ones first, then those whose last request began the longest ago. They get ten minutes to finish
what they do, but later requests for them wait in line. So a waiting model is not overtaken for ever by requests for
loaded ones. Once a model is loaded, all requests that have waited for it run.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeVar

from edgekit.engines.backoff import STEADY_S, Backoff
from edgekit.engines.request_rules import RequestLimits
from edgekit.errors import EngineError, UsageError, one_line
from edgekit.gateway.errors import GatewayError, unavailable, unknown_model
from edgekit.gateway.types import ServedModel, Upstream

# Requests of a model that is to be stopped may take this long: 5,000 tokens at reading speed. An engine that hangs
# would never end them.
FINISH_S = 600.0
_STOP_PAUSE_S = 1.0
_REASON_CHARS = 400

Result = TypeVar("Result")

_log = logging.getLogger("edgekit.gateway")


class EngineHandle(Protocol):
    """The process of an engine."""

    @property
    def pid(self) -> int: ...

    def on_end(self, tell: Callable[[str, str], None], /) -> None:
        """Calls the function when it has ended, from any thread: with the reason, and with that and its log's end."""

    def stop(self) -> None:
        """Returns when the process is gone, and its memory free. Idempotent."""


class Stoppable(Protocol):
    """The process of an engine that is being started."""

    def stop(self) -> object:
        """Ends it from any thread. Idempotent."""


Begun = Callable[[Stoppable], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that can answer."""

    upstream: Upstream
    handle: EngineHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model that can be loaded."""

    name: str
    # Blocks until it can answer. Calls its argument, which may raise, as soon as the process has begun.
    start: Callable[[Begun], LoadedModel] = field(repr=False)
    # Blocks. Raises EdgekitError if the model cannot be started: no other model is stopped for it.
    check: Callable[[], None] = field(repr=False)
    limits: RequestLimits
    created_s: int = 0
    preload: bool = False  # load it at once, not with its first request


class _State(Enum):
    UNLOADED = "unloaded"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


@dataclass(slots=True, eq=False)
class _Model:
    """An entry, and what is known of its process."""

    entry: ModelEntry
    state: _State = _State.UNLOADED
    loaded: LoadedModel | None = None
    users: int = 0  # requests that run on `loaded`
    last_used: int = 0  # the number of the last request that began
    ready_s: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)
    problem: str = ""  # of the last start, or how the engine died
    retry_s: float = 0.0  # not started before
    is_checking: bool = False
    is_checked: bool = False  # other models may be stopped for it
    limit: asyncio.TimerHandle | None = None  # for its requests to end, when others need its memory


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request in line."""

    model: _Model
    turn: asyncio.Future[LoadedModel]


class InThread(Protocol):
    """Calls a function that blocks, without blocking the event loop."""

    def __call__(self, work: Callable[[], Result], /) -> Awaitable[Result]: ...


async def in_thread(work: Callable[[], Result], /) -> Result:
    """What the function returns, computed in a thread that does not keep the program from ending."""
    loop = asyncio.get_running_loop()
    result: concurrent.futures.Future[Result] = concurrent.futures.Future()

    def run() -> None:
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            result.set_exception(error)

    threading.Thread(target=run, name="edgekit model", daemon=True).start()
    return await asyncio.wrap_future(result, loop=loop)


class SwappingModels:
    """Models that share a memory. Used from the gateway's event loop, except for `close`."""

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        fits: Callable[[frozenset[str]], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        in_thread: InThread = in_thread,
    ) -> None:
        """`fits`: whether models with these names may be loaded at the same time. UsageError if one never may be."""
        self._models = {entry.name: _Model(entry) for entry in entries}
        for name in self._models:
            if not fits(frozenset({name})):
                raise UsageError(
                    f"{name} does not fit into the memory for all models: leave it out, or give it a shorter context"
                )
        self._may_share, self._clock, self._in_thread = fits, clock, in_thread
        self._line: list[_Waiting] = []
        self._requests = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._handles: set[EngineHandle] = set()
        self._starting: set[Stoppable] = set()
        self._is_closed = False
        self._lock = threading.Lock()  # guards the three above

    # --- what the gateway asks

    async def begin(self) -> None:
        """Loads what is to be loaded at once, one after another."""
        self._spawn(self._preload())

    async def _preload(self) -> None:
        for model in self._models.values():
            if model.entry.preload:
                with suppress(GatewayError):  # the reason is in `listed`
                    async with self.using(model.entry.name):
                        pass

    def listed(self) -> tuple[ServedModel, ...]:
        return tuple(
            ServedModel(
                name=model.entry.name,
                created_s=model.entry.created_s,
                window_tokens=model.entry.limits.window_tokens,
                problem=model.problem if model.retry_s > self._clock() else "",
            )
            for model in self._models.values()
        )

    def answers(self, path: str) -> bool:
        return any(
            model.entry.limits.rules.endpoint(path) is not None for model in self._models.values()
        )

    def limits(self, name: str) -> RequestLimits:
        return self._named(name).entry.limits

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[Upstream]:
        model = self._named(name)
        waiting = _Waiting(model, asyncio.get_running_loop().create_future())
        self._line.append(waiting)
        self._advance()
        try:
            loaded = await waiting.turn
        except BaseException:
            if waiting in self._line:
                self._line.remove(waiting)
            elif (
                waiting.turn.done()
                and not waiting.turn.cancelled()
                and waiting.turn.exception() is None
            ):
                self._release(model, waiting.turn.result())  # the client left as its turn came
            self._advance()
            raise
        try:
            yield loaded.upstream
        finally:
            self._release(model, loaded)
            self._advance()

    def pids(self) -> tuple[int, ...]:
        """The processes of the loaded engines. From any thread."""
        with self._lock:
            return tuple(handle.pid for handle in self._handles)

    def close(self) -> None:
        """Stops all engines, also those that are being started. Called when no request uses a model any more."""
        with self._lock:
            self._is_closed = True
            running = (*self._handles, *self._starting)
        for process in running:
            process.stop()

    # --- the line

    def _named(self, name: str) -> _Model:
        names = tuple(self._models)
        if not name and len(names) == 1:
            return self._models[names[0]]
        if not name:
            raise GatewayError(f"model: name one of {', '.join(names)}", status=400, param="model")
        if name not in self._models:
            raise unknown_model(name, names)
        return self._models[name]

    def _advance(self) -> None:
        """Serves, starts and stops what can be now. Called after everything that happens."""
        wanted = {waiting.model for waiting in self._line}
        for model in self._models.values():
            model.is_checked = model.is_checked and model in wanted  # its files may be gone later
        victims: set[_Model] = set()
        planned: list[
            _Model
        ] = []  # to be loaded as soon as there is space; the first may stop others
        for waiting in tuple(self._line):
            model = waiting.model
            if model.state is _State.READY:
                if model not in victims:
                    self._serve(waiting)
            elif model.state is _State.STARTING or model in planned:
                pass
            elif model.retry_s > self._clock():
                self._refuse(waiting)
            else:
                is_first = not planned
                if is_first:
                    victims = self._victims_for(model)
                    if victims and not model.is_checked:
                        victims = set()
                        self._begin_check(model)
                fits = self._fits(victims, *planned, model)
                if fits and model.state is _State.UNLOADED and self._is_free_for(model):
                    model.state, model.is_checked = _State.STARTING, False
                    self._spawn(self._start(model))
                elif fits or is_first:  # others must not take what becomes free for the first
                    planned.append(model)
        for model in self._models.values():
            if model in victims and model.users:
                model.limit = model.limit or asyncio.get_running_loop().call_later(
                    FINISH_S, self._stop_busy, model
                )
                continue
            if model.limit is not None:
                model.limit.cancel()
                model.limit = None
            if model in victims:
                self._begin_stop(model)

    def _victims_for(self, model: _Model) -> set[_Model]:
        """The loaded models to stop, so that the model fits; none while it depends on models that are being started."""
        ready = [other for other in self._models.values() if other.state is _State.READY]
        ready.sort(key=lambda other: (other.users > 0, other.last_used))
        victims: set[_Model] = set()
        for other in ready:
            if self._fits(victims, model):
                break
            victims.add(other)
        if not self._fits(victims, model):
            return set()
        for other in reversed(ready):  # a larger one may have made the others unnecessary
            if other in victims and self._fits(victims - {other}, model):
                victims.remove(other)
        return victims

    def _fits(self, victims: set[_Model], *models: _Model) -> bool:
        """Whether the models fit next to those that stay, also those that are being started."""
        states = (_State.STARTING, _State.READY)
        kept = (model for model in self._models.values() if model.state in states)
        return self._share((*(model for model in kept if model not in victims), *models))

    def _is_free_for(self, model: _Model) -> bool:
        """Whether it fits next to everything that has memory now, or will soon."""
        held = [other for other in self._models.values() if other.state is not _State.UNLOADED]
        return self._share((*held, model))

    def _share(self, models: Iterable[_Model]) -> bool:
        return self._may_share(frozenset(model.entry.name for model in models))

    def _serve(self, waiting: _Waiting) -> None:
        model = waiting.model
        self._line.remove(waiting)
        if waiting.turn.done() or model.loaded is None:  # the client has left
            return
        self._requests += 1
        model.last_used = self._requests
        model.users += 1
        waiting.turn.set_result(model.loaded)

    def _refuse(self, waiting: _Waiting) -> None:
        """Answers that the model failed, and when it may be tried again."""
        self._line.remove(waiting)
        model = waiting.model
        wait_s = max(round(model.retry_s - self._clock()), 1)
        if not waiting.turn.done():
            reason = f"{model.entry.name}: {model.problem}"
            waiting.turn.set_exception(unavailable(reason, retry_after_s=wait_s))

    @staticmethod
    def _release(model: _Model, loaded: LoadedModel) -> None:
        if model.loaded is loaded:  # otherwise it has died meanwhile
            model.users -= 1

    # --- processes

    def _begin_check(self, model: _Model) -> None:
        if not model.is_checking:
            model.is_checking = True
            self._spawn(self._check(model))

    async def _check(self, model: _Model) -> None:
        try:
            await self._in_thread(model.entry.check)
        except Exception as error:  # noqa: BLE001 - the requests that wait for it get the reason
            self._did_not_start(model, error)
        else:
            model.is_checked = True
        model.is_checking = False
        self._advance()

    async def _start(self, model: _Model) -> None:
        try:
            loaded = await self._in_thread(lambda: self._started(model.entry))
        except Exception as error:  # noqa: BLE001 - the requests that wait for it get the reason
            model.state = _State.UNLOADED
            self._did_not_start(model, error)
        else:
            model.state, model.loaded = _State.READY, loaded
            model.users, model.ready_s, model.problem = 0, self._clock(), ""
            loaded.handle.on_end(self._teller(model, loaded))
            for waiting in [waiting for waiting in self._line if waiting.model is model]:
                self._serve(waiting)
        self._advance()

    def _started(self, entry: ModelEntry) -> LoadedModel:
        """Starts the engine, in a thread."""
        processes: list[Stoppable] = []

        def begun(process: Stoppable) -> None:
            with self._lock:
                if self._is_closed:
                    raise EngineError("the server is stopping")
                processes.append(process)
                self._starting.add(process)

        try:
            loaded = entry.start(begun)
        finally:
            with self._lock:
                self._starting.difference_update(processes)
        with self._lock:
            if not self._is_closed:
                self._handles.add(loaded.handle)
                return loaded
        loaded.handle.stop()
        raise EngineError("the server is stopping")

    def _stop_busy(self, model: _Model) -> None:
        if model.state is _State.READY:
            text = "%s is stopped for another model: its requests did not end within %g s"
            _log.warning(text, model.entry.name, FINISH_S)
            self._begin_stop(model)

    def _begin_stop(self, model: _Model) -> None:
        model.state = _State.STOPPING
        self._spawn(self._stop(model))

    async def _stop(self, model: _Model) -> None:
        """Stops the engine. Its memory counts until it has ended."""
        loaded = model.loaded
        while loaded is not None and model.loaded is loaded:
            try:
                await self._in_thread(loaded.handle.stop)
            except Exception:  # noqa: BLE001 - a process that still has its memory must not be forgotten
                _log.exception("%s could not be stopped", model.entry.name)
                await asyncio.sleep(_STOP_PAUSE_S)
            else:
                return

    def _teller(self, model: _Model, loaded: LoadedModel) -> Callable[[str, str], None]:
        """Tells the event loop how the engine has ended, from any thread."""
        loop = asyncio.get_running_loop()

        def tell(reason: str, text: str) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._ended, model, loaded, reason, text)

        return tell

    def _ended(self, model: _Model, loaded: LoadedModel, reason: str, text: str) -> None:
        """The engine has ended, by itself or because it was stopped."""
        if model.loaded is not loaded:
            return
        is_steady = self._clock() - model.ready_s > STEADY_S
        if model.state is _State.READY and not self._is_closed:
            _log.warning("%s: %s", model.entry.name, one_line(text, _REASON_CHARS))
        if model.state is _State.STOPPING or is_steady:
            model.backoff = Backoff()  # it is started again at once
        else:
            self._failed(model, reason)
        with self._lock:
            self._handles.discard(loaded.handle)
        model.state, model.loaded, model.users = _State.UNLOADED, None, 0
        self._advance()

    def _did_not_start(self, model: _Model, error: Exception) -> None:
        """`_advance` then refuses the requests that wait for it."""
        text = str(error) or type(error).__name__
        self._failed(model, error.reason if isinstance(error, EngineError) else text)
        _log.warning("%s did not start: %s", model.entry.name, one_line(text, _REASON_CHARS))

    def _failed(self, model: _Model, problem: str) -> None:
        model.problem = one_line(problem, _REASON_CHARS)
        model.retry_s = self._clock() + model.backoff.next_pause_s()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
