"""plan/recommend.py: the rule of thumb that ranks models by total and active parameters and by age."""

from __future__ import annotations

import math
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.index.types import Entry
from edgekit.plan.recommend import DOUBLING_MONTHS, FIRST, rank_of, version_of


def entry(parameters: int | None, active: int | None = None, released: str | None = None) -> Entry:
    return Entry(id="x", family="x", architecture="x", parameters=parameters, active_parameters=active, released=released)  # fmt: skip


@pytest.mark.parametrize(
    ("parameters", "active", "released", "rank"),
    [
        (8 * 10**9, None, "2023-01-01", 8.0),
        (8 * 10**9, 8 * 10**9, "2023-01-01", 8.0),
        (32 * 10**9, 2 * 10**9, "2023-01-01", 8.0),  # the square root of 32 x 2
        (8 * 10**9, None, "2020-01-01", 8.0),  # no penalty for dates before 2023
        (None, None, "2023-01-01", 0.0),
    ],
)
def test_rank_of_parameters(
    parameters: int | None, active: int | None, released: str, rank: float
) -> None:
    assert rank_of(entry(parameters, active, released)) == pytest.approx(rank)


def test_rank_doubles_with_time() -> None:
    once, twice = (
        FIRST + timedelta(days=round(times * DOUBLING_MONTHS * 30.44)) for times in (1, 2)
    )
    assert rank_of(entry(10**9, None, f"{once}")) == pytest.approx(2.0, rel=0.01)
    assert rank_of(entry(10**9, None, f"{twice}")) == pytest.approx(4.0, rel=0.01)


@pytest.mark.parametrize("released", [None, "", "soon", "2025-13-40", "\u0662\u0660"])
def test_rank_without_a_valid_date_is_that_of_2024(released: str | None) -> None:
    assert rank_of(entry(10**9, None, released)) == rank_of(entry(10**9, None, "2024-01-01"))


DAYS = st.dates(date(2000, 1, 1), date(2100, 1, 1)).map(str)


@given(st.integers(1, 10**13), st.integers(1, 10**13), DAYS, DAYS)
def test_rank_never_falls_with_parameters_or_date(
    few: int, many: int, early: str, late: str
) -> None:
    (few, many), (early, late) = sorted((few, many)), sorted((early, late))
    assert rank_of(entry(few, None, early)) <= rank_of(entry(many, None, early))
    assert rank_of(entry(few, None, early)) <= rank_of(entry(few, None, late))
    assert math.isfinite(rank_of(entry(many, None, late)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3.6-27b", ("qwen-27b", (3, 6))),
        ("gemma-4-26b-a4b", ("gemma-26b-a4b", (4,))),
        ("mistral-7b-v0.1", ("mistral-7b-v", (0, 1))),
        ("mistral-small-3.2-24b", ("mistral-small-24b", (3, 2))),
        ("qwen-7b", ("qwen-7b", ())),
        ("", ("", ())),
    ],
)
def test_version_of(name: str, expected: tuple[str, tuple[int, ...]]) -> None:
    assert version_of(name) == expected
