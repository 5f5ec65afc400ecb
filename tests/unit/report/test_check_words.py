"""Words of a verdict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.report.verdicts import card

from edgekit.bill.verdict import Status, Usage
from edgekit.machine.types import DEVICE, Budget
from edgekit.report.bars import share_words, sizes_words
from edgekit.report.headline import card_names, context_words, rounded_context_words
from edgekit.units import GIB, KIB, MIB


def use(required: int, available: int) -> Usage:
    budget = Budget(
        name="a card",
        pools=frozenset({DEVICE}),
        total_bytes=available,
        free_bytes=available,
        reserve_bytes=0,
        because="",
    )
    return Usage(budget=budget, required_bytes=required)


@pytest.mark.parametrize(
    ("tokens", "exact", "rounded"),
    [
        (512, "512 tokens", "512 tokens"),
        (8192, "8K", "8K"),
        (12_345, "12,345 tokens", "12K"),
        (40_960, "40K", "40K"),
        (131_072, "128K", "128K"),
        (1_048_576, "1M", "1M"),
        (1_536 * 1024, "1,536K", "1,536K"),
    ],
)
def test_context_words(tokens: int, exact: str, rounded: str) -> None:
    assert context_words(tokens) == exact
    assert rounded_context_words(tokens) == rounded


def test_card_names_counts_alike_cards() -> None:
    cards = (card("RTX 3090", 24), card("RTX 3060", 12), card("RTX 3090", 24))
    assert card_names(cards) == "2x RTX 3090 + RTX 3060"


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
def test_shares(required: int, available: int, told: str) -> None:
    assert share_words(use(required, available)) == told


@given(st.integers(1, 2**45), st.integers(1, 2**45))
def test_a_share_is_never_told_on_the_wrong_side(required: int, available: int) -> None:
    held = use(required, available)
    told = share_words(held)
    bare = told.removeprefix("<").removesuffix(" %").replace(",", "")
    number = float(bare.split()[-1])
    if bare.startswith("just"):
        number += 0.001
    status = Status.PASSED if number <= 85 else Status.WARNING if number <= 100 else Status.FAILED
    assert status is held.status
