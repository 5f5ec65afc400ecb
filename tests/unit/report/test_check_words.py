"""The one line that answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.report.verdicts import LINES, TOO_LARGE, card, line, machine, made, recorded

from edgekit.hardware.budgets import Budget
from edgekit.memory.types import DEVICE, HOST, Component
from edgekit.plan.types import Status, Use
from edgekit.report.check_words import answer, share_words, sizes_words
from edgekit.units import GIB, KIB, MIB


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


ALONE = machine(card("RTX 4090", 24), ram_gib=None)


@pytest.mark.parametrize(
    ("check", "told"),
    [
        (made(on=ALONE), "Fits: 11.5 of 23.0 GiB (50 %), up to 74,240 tokens"),
        (made(), "Fits: 11.5 of 23.0 GiB (50 %) in RTX 4090, up to 74,240 tokens"),
        # 1.5 of 16 - 1: the card has more, the host is nearer to its end
        (made((*LINES, line(Component.WEIGHTS, 10 * GIB, HOST))), "Tight: 11.5 of 15.0 GiB (77 %) in RAM, up to 74,240 tokens"),
        (TOO_LARGE, "Does not fit: 24.0 of 15.0 GiB (160 %), no context fits"),
        (made((line(Component.WEIGHTS, 41 * GIB),), ALONE, max_context=4096), "Does not fit: 41.0 of 23.0 GiB (178 %), at most 4,096 tokens"),
        (made(on=ALONE, status=Status.FAILED, max_context=4096), "Does not fit: 11.5 of 23.0 GiB (50 %), but at most 4,096 tokens, too few to be of use"),
        (made((line(Component.WEIGHTS, GIB, HOST),), machine(ram_gib=1), max_context=0), "Does not fit: 1.0 of 0.0 GiB, no context fits"),
        (made(on=ALONE, context_tokens=262_144, max_context=131_072), "Fits: 11.5 of 23.0 GiB (50 %), 262,144 tokens, more than the model was made for"),
        (recorded("vllm blocked"), "Does not fit: vllm would not start, too little of RTX 4090 is free"),
    ],
)  # fmt: skip
def test_the_answer_in_one_line(check: object, told: str) -> None:
    assert answer(check) == told  # type: ignore[arg-type]


def test_the_numbers_are_those_of_the_tightest_of_alike_cards() -> None:
    second = replace(DEVICE, index=1)
    lines = (line(Component.WEIGHTS, 4 * GIB), line(Component.WEIGHTS, 9 * GIB, second))
    check = made(lines, machine(card("T4", 16), card("T4", 16), ram_gib=None))
    assert answer(check).startswith("Fits: 9.0 of 15.0 GiB (60 %) in T4 #1, ")


@pytest.mark.parametrize(
    ("part", "whole", "told"),
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
def test_sizes_share_a_unit(part: int, whole: int, told: str) -> None:
    assert sizes_words(part, whole) == told


@pytest.mark.parametrize(
    ("required", "available", "told"),
    [
        (53, 100, "53 %"),
        (699, 1000, "69.9 %"),
        (69_999, 100_000, "just under 70 %"),
        (70, 100, "70 %"),
        (704, 1000, "70 %"),
        (845, 1000, "84 %"),
        (849, 1000, "85 %"),
        (85, 100, "85 %"),
        (85_001, 100_000, "just over 85 %"),
        (853, 1000, "85.3 %"),
        (86, 100, "86 %"),
        (34_400, 1000, "3,440 %"),
        (1, 1000, "<1 %"),
        (0, 1000, "0 %"),
        (0, 0, "0 %"),
        (1, 0, ""),
    ],
)
def test_shares(required: int, available: int, told: str) -> None:
    assert share_words(use(required, available)) == told


@given(st.integers(1, 2**45), st.integers(1, 2**45))
def test_a_share_is_never_told_on_the_wrong_side(required: int, available: int) -> None:
    held = use(required, available)
    told = share_words(held)
    bare = told.removeprefix("<").removesuffix(" %").replace(",", "")
    number = float(bare.split()[-1])
    if bare.startswith("just"):
        number += 0.001 if "over" in bare else -0.001
    status = Status.PASSED if number < 70 else Status.WARNING if number <= 85 else Status.FAILED
    assert status is held.status
