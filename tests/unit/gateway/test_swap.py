"""Several models in one memory: which are loaded, which requests wait, and that all are answered.

Engines are objects, and what a thread would do ends when the test says so.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateways import CHAT, RULES, ask, gateway, upstream_at
from tests.patience import PATIENCE_S

from edgekit.engines.backoff import LONGEST_PAUSE_S, STEADY_S
from edgekit.engines.request_rules import RequestLimits
from edgekit.errors import EngineError, UsageError
from edgekit.gateway import swap
from edgekit.gateway.errors import GatewayError
from edgekit.gateway.swap import (
    Begun,
    LoadedModel,
    ModelEntry,
    SwappingModels,
    in_thread,
)

Result = TypeVar("Result")
LIMITS = RequestLimits(rules=RULES, window_tokens=1000)


@dataclass(eq=False)
class Engine:
    """A process that takes memory from its start until it is gone."""

    name: str
    pid: int
    runs: bool = True
    is_ready: bool = False
    is_asked_to_end: bool = False
    tell: Callable[[str, str], None] | None = None

    def on_end(self, tell: Callable[[str, str], None]) -> None:
        self.tell = tell
        if not self.runs:
            self.end()

    def end(self) -> None:
        self.runs = False
        if self.tell is not None:
            self.tell("died of SIGKILL", "died of SIGKILL: out\x1b[2J\nof memory")

    def stop(self) -> None:
        self.is_asked_to_end = True


@dataclass(eq=False)
class Request:
    """A request that runs until it is told to end."""

    name: str
    begun: bool = False
    refusal: GatewayError | None = None
    task: asyncio.Task[None] | None = None
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_over(self) -> bool:
        assert self.task is not None
        return self.task.done()


class World:
    """Models with sizes, a budget, and the engines that run."""

    def __init__(
        self, budget: tuple[int, ...], sizes: Mapping[str, tuple[int, ...]], *, preload: str = ""
    ) -> None:
        """Both with a number for each memory."""
        self.budget, self.sizes, self.now_s = budget, sizes, 1000.0
        self.engines: list[Engine] = []
        self.broken: set[str] = set()  # models that do not start
        self.gone: set[str] = set()  # models without their files
        self.jobs: list[asyncio.Future[None]] = []
        self.log: list[str] = []
        self.most_bytes = [0 for _ in budget]
        entries = [
            ModelEntry(
                name=name,
                start=self._starter(name),
                check=partial(self._check, name),
                limits=LIMITS,
                preload=name in preload,
            )
            for name in sizes
        ]
        self.models = SwappingModels(
            entries, self.fits, clock=lambda: self.now_s, in_thread=self.in_thread
        )

    def fits(self, names: frozenset[str]) -> bool:
        taken = [
            sum(self.sizes[name][place] for name in names) for place in range(len(self.budget))
        ]
        return all(size <= limit for size, limit in zip(taken, self.budget, strict=True))

    @property
    def loaded(self) -> list[str]:
        return [engine.name for engine in self.engines if engine.runs]

    def _check(self, name: str) -> None:
        if name in self.gone:
            raise EngineError(f"{name} is gone")

    def _starter(self, name: str) -> Callable[[Begun], LoadedModel]:
        def start(_begun: Begun) -> LoadedModel:
            engine = Engine(name, pid=len(self.engines))
            self.engines.append(engine)
            self.log.append(f"start {name}")
            for memory, most in enumerate(self.most_bytes):
                taken = sum(self.sizes[name][memory] for name in self.loaded)
                self.most_bytes[memory] = max(most, taken)
            if name in self.broken:
                raise EngineError(f"{name} has no file")
            return LoadedModel(
                upstream=upstream_at("http://127.0.0.1:9", model=name), handle=engine
            )

        return start

    async def in_thread(self, work: Callable[[], Result], /) -> Result:
        """Memory is taken when a start begins, and free when a stop has ended."""
        before = {engine for engine in self.engines if engine.is_asked_to_end}
        number, error, result = len(self.engines), None, None
        try:
            result = work()
        except EngineError as caught:
            error = caught
        asked = {engine for engine in self.engines if engine.is_asked_to_end} - before
        if number == len(self.engines) and not asked:  # a check
            if error is not None:
                raise error
            return cast("Result", result)
        job = asyncio.get_running_loop().create_future()
        self.jobs.append(job)
        await job
        failed = self.engines[number:] if error is not None else []
        for engine in (*failed, *(asked if result is None else ())):
            engine.end()
            self.log.append(f"gone {engine.name}")
        if error is not None:
            raise error
        for engine in self.engines[number:]:
            engine.is_ready = True
        return cast("Result", result)  # None is what `stop` returns

    def request(self, name: str) -> Request:
        request = Request(name)

        async def run() -> None:
            try:
                async with self.models.using(name) as upstream:
                    assert upstream.model == name
                    request.begun = True
                    await request.may_end.wait()
            except GatewayError as error:
                request.refusal = error

        request.task = asyncio.create_task(run())
        return request

    async def settle(self) -> None:
        """Lets everything happen that waits for nothing."""
        for _ in range(30):
            await asyncio.sleep(0)

    async def finish_jobs(self) -> None:
        """All starts and stops end, and those that follow from them."""
        await self.settle()
        while self.jobs:
            for job in self.jobs[:]:
                self.jobs.remove(job)
                if not job.done():
                    job.set_result(None)
            await self.settle()

    async def end(self, *requests: Request) -> None:
        for request in requests:
            request.may_end.set()
        await self.settle()


def scenario(budget: int = 10, **sizes: int) -> Callable[..., Callable[[], None]]:
    """Runs a test as a coroutine, in a world with these models."""

    def decorate(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        def run() -> None:
            asyncio.run(test(World((budget,), {name: (size,) for name, size in sizes.items()})))

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate


@scenario(a=6, b=4)
async def test_model_is_loaded_at_its_first_request_and_stays(world: World) -> None:
    assert world.loaded == []
    first = world.request("a")
    await world.settle()
    assert not first.begun
    await world.finish_jobs()
    assert first.begun
    await world.end(first)
    second = world.request("a")
    await world.settle()
    assert second.begun
    assert world.log == ["start a"]


@scenario(a=6, b=4)
async def test_models_that_fit_together_stay_loaded(world: World) -> None:
    for name in "abab":
        request = world.request(name)
        await world.finish_jobs()
        await world.end(request)
        assert request.begun
    assert world.log == ["start a", "start b"]


@scenario(a=3, b=3, c=3, d=4)
async def test_least_recently_used_model_is_stopped(world: World) -> None:
    for name in ("a", "b", "c", "a", "d"):
        request = world.request(name)
        await world.finish_jobs()
        await world.end(request)
    assert world.log == ["start a", "start b", "start c", "gone b", "start d"]


@scenario(a=2, b=7, c=1, d=7)
async def test_no_more_models_are_stopped_than_needed(world: World) -> None:
    """d needs 7 of 10: a has waited longest, but stopping it is not enough, and stopping b is."""
    for name in ("a", "b", "c", "d"):
        request = world.request(name)
        await world.finish_jobs()
        await world.end(request)
    assert sorted(world.loaded) == ["a", "c", "d"]


@scenario(a=6, b=6)
async def test_new_model_starts_only_when_the_old_process_is_gone(world: World) -> None:
    first = world.request("a")
    await world.finish_jobs()
    second = world.request("b")
    await world.settle()
    assert world.log == ["start a"]  # a is in use
    await world.end(first)
    assert world.engines[0].is_asked_to_end
    assert world.log == ["start a"]
    await world.finish_jobs()
    assert world.log == ["start a", "gone a", "start b"]
    assert second.begun


@scenario(a=6, b=6)
async def test_waiting_model_is_not_overtaken_by_requests_to_the_loaded_one(world: World) -> None:
    running = world.request("a")
    await world.finish_jobs()
    waiting = world.request("b")
    await world.settle()
    later = [world.request("a") for _ in range(5)]
    await world.finish_jobs()
    assert not any(request.begun for request in later)
    await world.end(running)
    await world.finish_jobs()
    assert waiting.begun
    assert not any(request.begun for request in later)
    await world.end(waiting)
    await world.finish_jobs()
    assert all(request.begun for request in later)  # all at once: one more start, not five
    assert world.log == ["start a", "gone a", "start b", "gone b", "start a"]


@scenario(a=5, b=5, c=5)
async def test_requests_to_a_model_that_may_stay_are_served_meanwhile(world: World) -> None:
    old, other = world.request("a"), world.request("b")
    await world.finish_jobs()
    waiting = world.request("c")  # waits for a, which was used before b
    await world.settle()
    stays, waits = world.request("b"), world.request("a")
    await world.settle()
    assert (stays.begun, waits.begun, waiting.begun) == (True, False, False)
    await world.end(old, other, stays)
    await world.finish_jobs()
    assert waiting.begun


@scenario(a=5, b=5, c=5)
async def test_idle_model_is_stopped_before_a_busy_one(world: World) -> None:
    busy = world.request("a")
    await world.finish_jobs()
    idle = world.request("b")
    await world.finish_jobs()
    await world.end(idle)
    waiting = world.request("c")
    await world.finish_jobs()
    assert waiting.begun
    assert sorted(world.loaded) == ["a", "c"]
    assert not busy.is_over


@scenario(a=6, b=8, c=2, d=4)
async def test_small_model_that_fits_next_to_the_waiting_one_starts_at_once(world: World) -> None:
    """c fits next to b, for which a must go; d would take the space that b waits for."""
    running = world.request("a")
    await world.finish_jobs()
    waiting, small, larger = world.request("b"), world.request("c"), world.request("d")
    await world.finish_jobs()
    assert (waiting.begun, small.begun, larger.begun) == (False, True, False)
    await world.end(running)
    await world.finish_jobs()
    assert waiting.begun
    await world.end(waiting)
    await world.finish_jobs()
    assert larger.begun
    assert sorted(world.loaded) == ["c", "d"]


@scenario(a=6, b=8, c=4)
async def test_space_is_kept_for_the_first_model_in_line(world: World) -> None:
    """c would fit next to a, which is being started; but b waits for that space."""
    first, waiting, later = world.request("a"), world.request("b"), world.request("c")
    await world.settle()
    assert world.log == ["start a"]
    await world.finish_jobs()
    await world.end(first)
    await world.finish_jobs()
    assert (waiting.begun, later.begun) == (True, False)


@scenario(a=3, b=6, c=5)
async def test_no_model_is_stopped_in_vain(world: World) -> None:
    """c does not fit before b can be stopped, which is being started; then a may stay."""
    idle = world.request("a")
    await world.finish_jobs()
    await world.end(idle)
    starting, waiting = world.request("b"), world.request("c")
    await world.finish_jobs()
    assert world.loaded == ["a", "b"]
    await world.end(starting)
    await world.finish_jobs()
    assert waiting.begun
    assert world.loaded == ["a", "c"]


@scenario(a=6, b=6)
async def test_start_that_fails_answers_those_who_waited_and_nobody_else(world: World) -> None:
    world.broken.add("a")
    first, second, other = world.request("a"), world.request("a"), world.request("b")
    await world.finish_jobs()
    for request in (first, second):
        assert request.refusal is not None
        assert request.refusal.status == 503
        assert str(request.refusal) == "a: a has no file"
        assert (b"retry-after", b"1") in request.refusal.headers
    assert other.begun


@scenario(a=6, b=6)
async def test_no_model_is_stopped_for_one_whose_files_are_gone(world: World) -> None:
    idle = world.request("a")
    await world.finish_jobs()
    await world.end(idle)
    world.gone.add("b")
    for pause_s in (1, 2, 4):  # also not when it is tried again
        failed = world.request("b")
        await world.finish_jobs()
        assert str(failed.refusal) == "b: b is gone"
        world.now_s += pause_s
    assert world.loaded == ["a"]
    world.gone.clear()
    request = world.request("b")
    await world.finish_jobs()
    assert request.begun
    assert world.log == ["start a", "gone a", "start b"]


@scenario(a=6, b=6)
async def test_model_is_checked_again_after_its_client_has_left(world: World) -> None:
    running = world.request("a")
    await world.finish_jobs()
    leaving = world.request("b")
    await world.settle()
    assert leaving.task is not None
    leaving.task.cancel()
    await world.settle()
    world.gone.add("b")
    failed = world.request("b")
    await world.settle()
    assert str(failed.refusal) == "b: b is gone"
    await world.end(running)
    await world.finish_jobs()
    assert world.loaded == ["a"]


def test_model_whose_requests_do_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap, "FINISH_S", 0.01)

    async def run() -> None:
        world = World((10,), {"a": (6,), "b": (6,)})
        hangs = world.request("a")
        await world.finish_jobs()
        waiting = world.request("b")
        async with asyncio.timeout(PATIENCE_S):
            while not waiting.begun:
                await world.finish_jobs()
        assert not hangs.is_over  # its connection is gone
        assert world.log == ["start a", "gone a", "start b"]
        await world.end(hangs, waiting)

    asyncio.run(run())


@scenario(a=6, b=6)
async def test_time_to_finish_begins_anew_when_nobody_waits_any_more(world: World) -> None:
    running = world.request("a")
    await world.finish_jobs()
    waiting = world.request("b")
    await world.settle()
    (model,) = (model for model in world.models._models.values() if model.users)
    assert model.limit is not None
    assert waiting.task is not None
    waiting.task.cancel()
    await world.settle()
    assert model.limit is None
    await world.end(running)
    assert world.loaded == ["a"]


@scenario(a=6)
async def test_model_that_failed_is_tried_again_after_a_growing_pause(world: World) -> None:
    world.broken.add("a")
    pauses = [1, 2, 4, 8, 16, 32, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    for starts, pause_s in enumerate(pauses, start=1):
        failed = world.request("a")
        await world.finish_jobs()
        assert failed.refusal is not None
        assert len(world.engines) == starts
        assert world.models.listed()[0].problem == "a has no file"
        world.now_s += pause_s - 0.5
        early = world.request("a")
        await world.settle()
        assert early.refusal is not None
        assert len(world.engines) == starts
        world.now_s += 0.5
    world.broken.clear()
    request = world.request("a")
    await world.finish_jobs()
    assert request.begun
    assert world.models.listed()[0].problem == ""


@scenario(a=6, b=6)
async def test_engine_that_died_is_started_again_at_the_next_request(world: World) -> None:
    first = world.request("a")
    await world.finish_jobs()
    world.now_s += STEADY_S + 1
    world.engines[0].end()
    second = world.request("a")
    await world.finish_jobs()
    assert second.begun
    await world.end(first)  # it was a user of the engine that died
    other = world.request("b")
    await world.finish_jobs()
    assert world.loaded == ["a"]  # in use by the second
    await world.end(second)
    await world.finish_jobs()
    assert other.begun
    assert world.log == ["start a", "start a", "gone a", "start b"]


@scenario(a=6, b=6)
async def test_engine_that_dies_makes_space_without_another_request(world: World) -> None:
    """Its requests are still open: they get an error from their connections."""
    running = world.request("a")
    await world.finish_jobs()
    waiting = world.request("b")
    await world.settle()
    world.engines[0].end()
    await world.finish_jobs()
    assert waiting.begun
    assert not running.is_over


@scenario(a=6)
async def test_engine_that_dies_soon_after_its_start_is_paused(world: World) -> None:
    request = world.request("a")
    await world.finish_jobs()
    await world.end(request)
    world.engines[0].end()
    await world.settle()
    request = world.request("a")
    await world.settle()
    assert str(request.refusal) == "a: died of SIGKILL"
    world.now_s += 1
    request = world.request("a")
    await world.finish_jobs()
    assert request.begun


@scenario(a=6, b=6)
async def test_client_that_leaves_the_line_holds_up_nobody(world: World) -> None:
    running = world.request("a")
    await world.finish_jobs()
    leaving = world.request("b")
    await world.settle()
    behind = world.request("a")
    await world.settle()
    assert not behind.begun
    assert leaving.task is not None
    leaving.task.cancel()
    await world.settle()
    assert behind.begun
    await world.end(running, behind)
    await world.finish_jobs()
    assert world.log == ["start a"]


@scenario(a=6, b=6)
async def test_client_that_leaves_as_its_turn_comes_does_not_count_as_a_user(world: World) -> None:
    leaving = world.request("a")
    await world.settle()
    for job in world.jobs:
        job.set_result(None)
    world.jobs.clear()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert leaving.task is not None
    leaving.task.cancel()
    await world.settle()
    other = world.request("b")
    await world.finish_jobs()
    assert other.begun  # nothing uses a, so it was stopped


@scenario(a=6, b=4)
async def test_names(world: World) -> None:
    unknown, missing = world.request("c"), world.request("")
    await world.settle()
    assert unknown.refusal is not None
    assert missing.refusal is not None
    assert (unknown.refusal.status, unknown.refusal.code) == (404, "model_not_found")
    assert str(missing.refusal) == "model: name one of a, b"


def test_models_that_are_to_be_loaded_at_once_are_loaded_one_after_another() -> None:
    async def run() -> None:
        world = World((10,), dict.fromkeys("abcd", (3,)), preload="bcd")
        world.broken.add("c")
        await world.models.begin()
        await world.settle()
        assert world.log == ["start b"]
        await world.finish_jobs()
        assert world.log == ["start b", "start c", "gone c", "start d"]
        assert world.loaded == ["b", "d"]

    asyncio.run(run())


def test_impossible_sets_of_models_are_refused() -> None:
    with pytest.raises(UsageError, match="a does not fit into the memory"):
        World((10, 10), {"a": (5, 11)})
    entry = World((10,), {"a": (5,)}).models
    assert entry.answers(CHAT)
    assert not entry.answers("/slots")


@dataclass(frozen=True, slots=True)
class Step:
    kind: str
    number: int


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(
            ["request", "request", "end", "finish", "leave", "die", "break", "lose", "mend", "wait"]
        ),
        st.integers(0, 99),
    ),
    max_size=60,
)  # fmt: skip


@given(
    st.tuples(st.integers(4, 12), st.integers(4, 12)),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=5),
    STEPS,
)
def test_budget_is_kept_and_every_request_is_answered(
    budget: tuple[int, int], sizes: list[tuple[int, int]], steps: list[Step]
) -> None:
    """With two memories, such as that of a card and RAM."""
    names = {f"m{number}": tuple(map(min, size, budget)) for number, size in enumerate(sizes)}

    def check(world: World) -> None:
        assert all(most <= limit for most, limit in zip(world.most_bytes, budget, strict=True))

    async def run() -> None:
        world, requests = World(budget, names), list[Request]()
        for step in steps:
            name = f"m{step.number % len(names)}"
            open_requests = [request for request in requests if not request.is_over]
            chosen = open_requests[step.number % len(open_requests)] if open_requests else None
            match step.kind:
                case "request":
                    requests.append(world.request(name))
                case "end" if chosen:
                    chosen.may_end.set()
                case "leave" if chosen and chosen.task:
                    chosen.task.cancel()
                case "finish" if world.jobs:
                    job = world.jobs.pop(step.number % len(world.jobs))
                    if not job.done():
                        job.set_result(None)
                case "die":
                    for engine in world.engines:
                        if engine.name == name and engine.is_ready:
                            engine.end()
                case "break":
                    world.broken.add(name)
                case "lose":
                    world.gone.add(name)
                case "mend":
                    world.broken.discard(name)
                    world.gone.discard(name)
                case "wait":
                    world.now_s += step.number
            await world.settle()
            check(world)
        while not all(request.is_over for request in requests):
            before = sum(request.is_over for request in requests), len(world.log)
            for request in requests:
                request.may_end.set()
            await world.finish_jobs()
            after = sum(request.is_over for request in requests), len(world.log)
            assert after > before, "requests wait for ever"
        check(world)
        for request in requests:
            assert request.task is not None
            assert request.task.cancelled() or request.begun or request.refusal is not None

    asyncio.run(run())


# --- threads, and the gateway in front


def test_in_thread_returns_and_raises_what_the_function_does() -> None:
    async def run() -> None:
        assert await in_thread(threading.current_thread) is not threading.current_thread()
        with pytest.raises(EngineError, match="no"):
            await in_thread(_fail)

    asyncio.run(run())


def _fail() -> None:
    raise EngineError("no")


@contextmanager
def swapping(start: Callable[[str, Begun], LoadedModel]) -> Iterator[SwappingModels]:
    entries = [
        ModelEntry(name=name, start=partial(start, name), check=lambda: None, limits=LIMITS)
        for name in "ab"
    ]
    models = SwappingModels(entries, lambda names: len(names) == 1)
    try:
        yield models
    finally:
        models.close()


def test_gateway_swaps_models_in_threads() -> None:
    engines: list[Engine] = []

    class Process(Engine):
        def stop(self) -> None:
            self.end()

    def start(name: str, _begun: Begun) -> LoadedModel:
        assert not [engine for engine in engines if engine.runs]
        engines.append(Process(name, pid=len(engines)))
        # nothing listens there: the answer of a model that is loaded is 503 too
        upstream = upstream_at("http://127.0.0.1:9", model=name)
        return LoadedModel(upstream=upstream, handle=engines[-1])

    with swapping(start) as models, gateway(models) as address:
        for name in "aab":
            assert "has stopped" in ask(address, CHAT, {"model": name}).error["message"]
        assert ask(address, CHAT, {"model": "c"}).status == 404
        assert (
            ask(address, CHAT, {"model": "a", "history": 1000}).status == 400
        )  # not loaded for it
        rows = ask(address, "/v1/models").json["data"]
        assert [(row["id"], row["max_model_len"]) for row in rows] == [("a", 1000), ("b", 1000)]
        assert ask(address, "/health").status == 200
        assert models.pids() == (1,)
    assert [(engine.name, engine.runs) for engine in engines] == [("a", False), ("b", False)]


def test_close_stops_an_engine_that_is_loading() -> None:
    loading, stopped = threading.Event(), threading.Event()

    class Process(Engine):
        def stop(self) -> None:
            stopped.set()

    def start(name: str, begun: Begun) -> LoadedModel:
        begun(Process(name, pid=1))
        loading.set()
        assert stopped.wait(PATIENCE_S)
        raise EngineError("it was stopped")

    async def run(models: SwappingModels) -> None:
        request = asyncio.ensure_future(models.using("a").__aenter__())
        await asyncio.to_thread(loading.wait, PATIENCE_S)
        request.cancel()

    with swapping(start) as models:
        asyncio.run(run(models))
    assert stopped.is_set()


def test_last_words_of_an_engine_are_logged_without_control_characters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def start(name: str, _begun: Begun) -> LoadedModel:
        raise EngineError(f"{name}\x1b[2J\nis broken")

    with swapping(start) as models, gateway(models) as address:
        assert ask(address, CHAT, {"model": "a"}).status == 503
    assert "a did not start: a [2J is broken" in caplog.text
    assert "\x1b" not in caplog.text


def test_log_of_an_engine_that_does_not_start_is_not_for_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def start(_name: str, _begun: Begun) -> LoadedModel:
        raise EngineError("exited (code 1)", log="12:00 secret")

    with swapping(start) as models, gateway(models) as address:
        reply = ask(address, CHAT, {"model": "a"})
    assert reply.error["message"] == "a: exited (code 1)"
    assert "a did not start: exited (code 1): 12:00 secret" in caplog.text


def test_no_engine_begins_after_close() -> None:
    refused = threading.Event()

    def start(name: str, begun: Begun) -> LoadedModel:
        models.close()
        try:
            begun(Engine(name, pid=1))
        except EngineError:
            refused.set()
            raise
        raise AssertionError

    with swapping(start) as models, gateway(models) as address:
        assert "is stopping" in ask(address, CHAT, {"model": "a"}).error["message"]
    assert refused.is_set()


def test_close_stops_an_engine_whose_start_ends_later() -> None:
    begun, go_on, stopped = threading.Event(), threading.Event(), threading.Event()

    class Process(Engine):
        def stop(self) -> None:
            stopped.set()

    def start(name: str, _begun: Begun) -> LoadedModel:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        upstream = upstream_at("http://127.0.0.1:9")
        return LoadedModel(upstream=upstream, handle=Process(name, pid=1))

    async def run(models: SwappingModels) -> None:
        request = asyncio.ensure_future(models.using("a").__aenter__())
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        request.cancel()

    with swapping(start) as models:
        asyncio.run(run(models))
    go_on.set()
    assert stopped.wait(PATIENCE_S)
