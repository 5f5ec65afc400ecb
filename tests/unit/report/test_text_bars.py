"""report/text.py: memories as bars and in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.report.verdicts import recorded

from edgekit.bill.types import Component, MemoryEstimate, MemoryLine, Status, Usage
from edgekit.machine.types import DEVICE, HOST, Budget
from edgekit.report.text import (
    ASCII,
    MOST_CELLS,
    PARTS,
    Memory,
    bar,
    bytes_by_part,
    memories,
    share_words,
    sizes_words,
)
from edgekit.units import GIB, KIB, MIB


def usage_of(required: int, available: int, reserve: int = 0) -> Usage:
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
    usage = usage_of(sum(sizes), available, reserve)
    return Memory(name="a card", use=usage, whole_bytes=available + reserve, parts=parts(*sizes))


def parts(*sizes: int) -> dict[str, int]:
    return dict(zip(PARTS, sizes, strict=True))


@pytest.mark.parametrize(
    ("sizes", "available", "reserve", "drawn"),
    [
        ((8, 4, 2, 1), 17, 3, "[########====++~..|...]"),  # one cell per byte: 17 of 20 are usable
        ((8, 4, 2, 3), 17, 3, "[########====++~~~|...]"),  # exactly what is usable
        ((8, 4, 2, 4), 17, 3, "[########====++~~~|~..]"),  # into the reserve: it does not fit
        ((20, 0, 0, 0), 17, 3, "[#################|###]"),
        ((30, 10, 0, 0), 17, 3, "[########|##]#####====="),  # twice what is free: half is outside
        ((10, 0, 0, 0), 20, 0, "[##########..........|]"),  # without a reserve the mark is the end
        ((0, 0, 0, 0), 17, 3, "[.................|...]"),
        ((0, 0, 0, 1), 17 * 10**9, 3 * 10**9, "[~................|...]"),  # at least one cell
        ((1, 0, 0, 0), 0, 0, "[|]####################"),
    ],
)
def test_bar_of_parts(sizes: tuple[int, ...], available: int, reserve: int, drawn: str) -> None:
    assert bar(memory(sizes, available, reserve), 23, ASCII, in_parts=True) == drawn


def test_bar_without_parts_has_one_kind_of_cell() -> None:
    assert bar(memory((8, 4, 2, 1), 17, 3), 23, ASCII) == "[###############..|...]"


def test_bar_has_at_most_64_cells() -> None:
    assert len(bar(memory((5, 0, 0, 0), 10), 500)) == MOST_CELLS + 3


sizes = st.integers(0, 2**45)


@given(st.tuples(sizes, sizes, sizes, sizes), sizes, sizes, st.integers(18, 100))
def test_bar_cells_are_sorted_and_beyond_the_mark_only_if_it_fails(
    taken: tuple[int, ...], available: int, reserve: int, width: int
) -> None:
    held = memory(taken, available, reserve)
    drawn = bar(held, width, ASCII, in_parts=True)
    assert len(drawn) == min(width, MOST_CELLS + 3)
    inside, outside = drawn[1:].split("]")
    beyond = inside.split("|")[1] + outside
    assert any(c in ASCII.parts for c in beyond) is (held.use.status is Status.FAILED)
    if outside.strip("."):
        assert held.required_bytes > held.whole_bytes
    used = drawn.replace("[", "").replace("|", "").replace("]", "")
    assert used.rstrip(".") == "".join(sorted(used.rstrip("."), key=ASCII.parts.index))
    assert not used.rstrip(".") or held.required_bytes


def test_memories_of_a_mac_are_one_with_the_gpu_limit() -> None:
    # 36 GiB of unified memory, of which macOS lets the GPU use 27: the limit decides, the bar is the memory
    (result,) = memories(recorded("mac").result)
    assert (result.name, result.whole_bytes) == ("unified memory", 36 * GIB)
    assert (
        27 * GIB <= result.usable_bytes < 27.5 * GIB
    )  # what the CPU holds does not count against it


def test_memories_of_equal_cards_are_numbered() -> None:
    assert [item.name for item in memories(recorded("fits").result)] == [
        "RTX 3090 #0",
        "RTX 3090 #1",
        "RAM",
    ]


def test_bytes_by_part_counts_only_reserved_lines() -> None:
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
    pools = usage_of(63, 100).budget.pools
    in_pools = (line for line in estimate.lines if line.pool in pools)
    assert bytes_by_part(in_pools) == parts(1, 2 + 4, 8, 16 + 32)


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (6 * GIB + 100 * MIB, 11 * GIB + 512 * MIB, "6.1 of 11.5 GiB"),
        (1500 * GIB, 63 * GIB, "1,500.0 of 63.0 GiB"),
        (0, 63 * GIB, "0.0 of 63.0 GiB"),
        (50 * MIB, 7 * GIB, "50 MiB of 7.0 GiB"),
        (KIB, 7 * GIB, "0.1 MiB of 7.0 GiB"),
        (300 * MIB, 600 * MIB, "300.0 of 600.0 MiB"),
        (GIB, 0, "1.0 of 0.0 GiB"),
        (0, 0, "0.0 of 0.0 MiB"),
    ],
)
def test_sizes_words_share_a_unit(part: int, whole: int, shown: str) -> None:
    assert sizes_words(part, whole) == shown


@pytest.mark.parametrize(
    ("required", "available", "shown"),
    [
        (53, 100, "53 %"),
        (699, 1000, "70 %"),
        (845, 1000, "84 %"),
        (849, 1000, "85 %"),
        (85, 100, "85 %"),
        (85_001, 100_000, "just over 85 %"),
        (853, 1000, "85.3 %"),
        (86, 100, "86 %"),
        (1, 1, "100 %"),
        (100_001, 100_000, "just over 100 %"),
        (1003, 1000, "100.3 %"),
        (34_400, 1000, "3,440 %"),
        (1, 1000, "<1 %"),
        (0, 1000, "0 %"),
        (0, 0, "0 %"),
        (1, 0, ""),
    ],
)
def test_share_words(required: int, available: int, shown: str) -> None:
    assert share_words(usage_of(required, available)) == shown


@given(st.integers(1, 2**45), st.integers(1, 2**45))
def test_share_words_agree_with_the_status(required: int, available: int) -> None:
    usage = usage_of(required, available)
    shown = share_words(usage)
    bare = shown.removeprefix("<").removesuffix(" %").replace(",", "")
    number = float(bare.split()[-1])
    if bare.startswith("just"):
        number += 0.001
    status = Status.PASSED if number <= 85 else Status.WARNING if number <= 100 else Status.FAILED
    assert status is usage.status
