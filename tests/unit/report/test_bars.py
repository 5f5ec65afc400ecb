"""Memory as a bar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.hardware.budgets import Budget
from edgekit.memory.types import DEVICE, HOST, Component, MemoryEstimate, MemoryLine
from edgekit.plan.types import Status, Use
from edgekit.report.bars import ASCII, BLOCKS, MOST_CELLS, PARTS, bar, glyphs_for, parts_of


def use(required: int, available: int) -> Use:
    budget = Budget(
        name="a card",
        pools=frozenset({DEVICE}),
        total_bytes=available,
        free_bytes=available,
        reserve_bytes=0,
        because="",
    )
    return Use(budget=budget, required_bytes=required)


def parts(*sizes: int) -> dict[str, int]:
    return dict(zip(PARTS, sizes, strict=True))


@pytest.mark.parametrize(
    ("sizes", "available", "drawn"),
    [
        ((8, 4, 2, 1), 20, "[########====++~..|...]"),  # 15 of 20: 75 %, the mark at 17
        ((8, 4, 2, 3), 20, "[########====++~~~|...]"),  # 85 % is within
        ((8, 4, 2, 4), 20, "[########====++~~~|~..]"),
        ((20, 0, 0, 0), 20, "[#################|###]"),
        ((30, 10, 0, 0), 20, "[########|##]#####====="),  # twice: half of it is outside
        ((0, 0, 0, 0), 20, "[.................|...]"),
        ((0, 0, 0, 1), 10**9, "[~................|...]"),  # a little is not nothing
        ((1, 0, 0, 0), 0, "[|]####################"),
        ((0, 0, 0, 0), 0, "[.................|...]"),
    ],
)
def test_bars(sizes: tuple[int, ...], available: int, drawn: str) -> None:
    assert bar(use(sum(sizes), available), parts(*sizes), 23, ASCII) == drawn


def test_a_bar_is_no_longer_than_one_can_read() -> None:
    assert len(bar(use(5, 10), parts(5, 0, 0, 0), 500)) == MOST_CELLS + 3


sizes = st.integers(0, 2**45)


@given(st.tuples(sizes, sizes, sizes, sizes), sizes, st.integers(18, 100))
def test_laws(taken: tuple[int, ...], available: int, width: int) -> None:
    held = use(sum(taken), available)
    drawn = bar(held, parts(*taken), width, ASCII)
    assert len(drawn) == min(width, MOST_CELLS + 3)
    inside, outside = drawn[1:].split("]")
    beyond = inside.split("|")[1] + outside
    assert any(c in ASCII.parts for c in beyond) is (held.status is Status.FAILED)
    assert bool(outside.strip(".")) is (held.required_bytes > available)
    used = drawn.replace("[", "").replace("|", "").replace("]", "")
    assert used.rstrip(".") == "".join(sorted(used.rstrip("."), key=ASCII.parts.index))
    assert bool(used.rstrip(".")) is bool(held.required_bytes)


def test_parts_are_those_of_the_pool_and_of_the_start() -> None:
    def line(component: Component, size_bytes: int, *, reserved: bool = True) -> MemoryLine:
        return MemoryLine(
            component=component, size_bytes=size_bytes, pool=DEVICE, reserved=reserved
        )

    lines = (
        line(Component.WEIGHTS, 1),
        line(Component.KV_CACHE, 2),
        line(Component.STATE, 4),
        line(Component.COMPUTE, 8),
        line(Component.RUNTIME, 16),
        line(Component.OUTPUT, 32),
        line(Component.PROMPT_CACHE, 64, reserved=False),
        MemoryLine(component=Component.WEIGHTS, size_bytes=128, pool=HOST),
    )
    estimate = MemoryEstimate(engine="llama.cpp", backend="cuda", lines=lines)
    assert parts_of(use(63, 100), estimate) == parts(1, 2 + 4, 8, 16 + 32)


@pytest.mark.parametrize(
    ("encoding", "found"),
    [("utf-8", BLOCKS), ("cp437", BLOCKS), ("ascii", ASCII), ("latin-1", ASCII), (None, ASCII), ("no such", ASCII)],
)  # fmt: skip
def test_blocks_where_they_can_be_shown(encoding: str | None, found: object) -> None:
    assert glyphs_for(encoding) is found
