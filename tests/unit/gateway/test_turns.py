"""How much text an engine gets at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PATIENCE_S

from edgekit.gateway.turns import ReadTurn, ReadTurns


async def taken(turns: ReadTurns, sizes: Sequence[int]) -> list[asyncio.Task[ReadTurn]]:
    """A task for each request, once each has taken its turn or waits."""
    tasks = [asyncio.create_task(turns.take(size)) for size in sizes]
    await settle()
    return tasks


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def states(tasks: Sequence[asyncio.Task[ReadTurn]]) -> str:
    """ "r": the engine reads it, ".": it waits."""
    return "".join("r" if task.done() else "." for task in tasks)


def run(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def runner() -> None:
        asyncio.run(test())  # type: ignore[arg-type] # a coroutine

    runner.__name__ = test.__name__
    return runner


@run
async def test_requests_wait_in_order_until_others_were_read() -> None:
    tasks = await taken(ReadTurns(10, PATIENCE_S), [6, 3, 5, 1])
    assert states(tasks) == "rr.."  # the last one would fit, but is not served before the third
    tasks[0].result().end()
    await settle()
    assert states(tasks) == "rrrr"


@run
async def test_request_that_is_too_large_reads_alone() -> None:
    tasks = await taken(ReadTurns(10, PATIENCE_S), [2, 50, 2])
    assert states(tasks) == "r.."
    tasks[0].result().end()
    await settle()
    assert states(tasks) == "rr."
    tasks[1].result().end()
    await settle()
    assert states(tasks) == "rrr"


@run
async def test_turn_ends_after_a_time() -> None:
    tasks = await taken(ReadTurns(10, 0.001), [6, 6])
    await tasks[1]  # although nobody has ended the first


@run
async def test_turn_ends_once() -> None:
    turns = ReadTurns(10, PATIENCE_S)
    tasks = await taken(turns, [6, 6, 6])
    tasks[0].result().end()
    tasks[0].result().end()
    await settle()
    assert (states(tasks), turns.reading) == ("rr.", 6)
    tasks[2].cancel()


@pytest.mark.parametrize("leaves", [1, 2])
def test_client_that_leaves_the_line_holds_up_nobody(leaves: int) -> None:
    async def test() -> None:
        turns = ReadTurns(10, PATIENCE_S)
        tasks = await taken(turns, [6, 6, 3])
        tasks[leaves].cancel()
        await settle()
        tasks[0].result().end()
        await settle()
        (left,) = {1, 2} - {leaves}
        assert tasks[left].done()
        tasks[left].result().end()
        assert turns.reading == 0

    asyncio.run(test())


@given(st.integers(1, 20), st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=20))
def test_limit_is_kept_and_all_are_served(most: int, requests: list[tuple[int, bool]]) -> None:
    """The second of each pair: the client leaves."""

    async def test() -> None:
        turns = ReadTurns(most, PATIENCE_S)
        tasks = await taken(turns, [size for size, _ in requests])
        for task, (_, leaves) in zip(tasks, requests, strict=True):
            if leaves:
                task.cancel()
        await settle()
        open_tasks = [task for task in tasks if not task.cancelled()]
        while open_tasks:
            reading = [task.result() for task in open_tasks if task.done()]
            assert reading, "requests wait for ever"
            total = sum(turn.size for turn in reading)
            assert total == turns.reading
            assert total <= most or len(reading) == 1
            reading[0].end()
            open_tasks = [
                task for task in open_tasks if not (task.done() and task.result().is_over)
            ]
            await settle()
        assert turns.reading == 0

    asyncio.run(test())
