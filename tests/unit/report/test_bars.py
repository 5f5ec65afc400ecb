"""Memory as a bar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.report.verdicts import recorded

from edgekit.bill.types import Component, MemoryEstimate, MemoryLine
from edgekit.bill.verdict import Status, Usage
from edgekit.machine.types import DEVICE, HOST, Budget
from edgekit.report.bars import MOST_CELLS, PARTS, Memory, bar, memories, parts_in
from edgekit.report.text import ASCII, BLOCKS, glyphs_for
from edgekit.units import GIB


def use(required: int, available: int, reserve: int = 0) -> Usage:
    budget = Budget(
        name="a card",
        pools=frozenset({DEVICE}),
        total_bytes=available + reserve,
        free_bytes=available + reserve,
        reserve_bytes=reserve,
        because="",
    )
    return Usage(budget=budget, required_bytes=required)


def memory(sizes: tuple[int, ...], available: int, reserve: int = 0) -> Memory:
    held = use(sum(sizes), available, reserve)
    return Memory(name="a card", use=held, whole_bytes=available + reserve, parts=parts(*sizes))


def parts(*sizes: int) -> dict[str, int]:
    return dict(zip(PARTS, sizes, strict=True))


@pytest.mark.parametrize(
    ("sizes", "available", "reserve", "drawn"),
    [
        ((8, 4, 2, 1), 17, 3, "[########====++~..|...]"),  # one cell a byte: 17 of 20 are usable
        ((8, 4, 2, 3), 17, 3, "[########====++~~~|...]"),  # all that is usable
        ((8, 4, 2, 4), 17, 3, "[########====++~~~|~..]"),  # into the reserve: it does not fit
        ((20, 0, 0, 0), 17, 3, "[#################|###]"),
        ((30, 10, 0, 0), 17, 3, "[########|##]#####====="),  # twice what is free: half is outside
        ((10, 0, 0, 0), 20, 0, "[##########..........|]"),  # without a reserve the mark is the end
        ((0, 0, 0, 0), 17, 3, "[.................|...]"),
        ((0, 0, 0, 1), 17 * 10**9, 3 * 10**9, "[~................|...]"),  # a little is not nothing
        ((1, 0, 0, 0), 0, 0, "[|]####################"),
    ],
)
def test_bar(sizes: tuple[int, ...], available: int, reserve: int, drawn: str) -> None:
    assert bar(memory(sizes, available, reserve), 23, ASCII, in_parts=True) == drawn


def test_bar_without_parts_has_one_kind_of_cell() -> None:
    assert bar(memory((8, 4, 2, 1), 17, 3), 23, ASCII) == "[###############..|...]"


def test_bar_is_no_longer_than_one_can_read() -> None:
    assert len(bar(memory((5, 0, 0, 0), 10), 500)) == MOST_CELLS + 3


sizes = st.integers(0, 2**45)


@given(st.tuples(sizes, sizes, sizes, sizes), sizes, sizes, st.integers(18, 100))
def test_bar_laws(taken: tuple[int, ...], available: int, reserve: int, width: int) -> None:
    held = memory(taken, available, reserve)
    drawn = bar(held, width, ASCII, in_parts=True)
    assert len(drawn) == min(width, MOST_CELLS + 3)
    inside, outside = drawn[1:].split("]")
    beyond = inside.split("|")[1] + outside
    assert any(c in ASCII.parts for c in beyond) is (held.status is Status.FAILED)
    if outside.strip("."):
        assert held.required_bytes > held.whole_bytes
    used = drawn.replace("[", "").replace("|", "").replace("]", "")
    assert used.rstrip(".") == "".join(sorted(used.rstrip("."), key=ASCII.parts.index))
    assert not used.rstrip(".") or held.required_bytes


def test_memories_of_a_mac_are_one_with_the_limit_of_its_gpu() -> None:
    # 36 GiB of unified memory, of which macOS lets the GPU use 27: the limit decides, the bar is the memory
    (found,) = memories(recorded("mac").result)
    assert (found.name, found.whole_bytes) == ("unified memory", 36 * GIB)
    assert (
        27 * GIB <= found.usable_bytes < 27.5 * GIB
    )  # what the CPU holds does not count against it


def test_memories_of_alike_cards_are_numbered() -> None:
    assert [one.name for one in memories(recorded("fits").result)] == [
        "RTX 3090 #0",
        "RTX 3090 #1",
        "RAM",
    ]


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
    assert parts_in(use(63, 100).budget.pools, estimate) == parts(1, 2 + 4, 8, 16 + 32)


@pytest.mark.parametrize(
    ("encoding", "found"),
    [("utf-8", BLOCKS), ("cp437", BLOCKS), ("ascii", ASCII), ("latin-1", ASCII), (None, ASCII), ("no such", ASCII)],
)  # fmt: skip
def test_blocks_where_they_can_be_shown(encoding: str | None, found: object) -> None:
    assert glyphs_for(encoding) is found
