"""Windows: the longest that fits, the default, the one for a known job; the seeds' own numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.recorded import engine_models

from edgekit.bill.types import Job
from edgekit.errors import UsageError
from edgekit.model.types import ModelGeometry
from edgekit.plan.fit import (
    LOOK_AHEAD,
    budget_window,
    job_window,
    longest,
    recommended_context,
)
from edgekit.units import GIB, MIB


def geometry(name: str) -> ModelGeometry:
    return engine_models()[name, "Q4_K_M"].geometry


@given(
    edge=st.integers(0, 300_000),
    step=st.sampled_from([1, 16, 256, 1024]),
    most=st.integers(0, 262_144),
)
def test_the_longest_is_the_last_that_fits(edge: int, step: int, most: int) -> None:
    found = longest(lambda tokens: tokens <= edge, step=step, most=most)
    assert found <= max(edge, 0)
    assert found in {0, most} or found % step == 0
    next_one = min(found - found % step + step, most)
    assert found == most or next_one > edge


@given(st.integers(1, 500), st.sets(st.integers(1, LOOK_AHEAD)))
def test_a_dip_just_past_the_edge_is_not_missed(edge: int, dips: set[int]) -> None:
    fitting = {*range(1, edge + 1), *(edge + 1 + dip for dip in dips)} - {edge + 1}
    found = longest(lambda tokens: tokens in fitting, step=1, most=1000)
    assert found >= edge
    assert found in fitting


@pytest.mark.parametrize(("longest_tokens", "recommended"), [(0, 0), (16_384, 13_107), (100, 80)])
def test_four_fifths_are_recommended(longest_tokens: int, recommended: int) -> None:
    assert recommended_context(longest_tokens) == recommended


def test_job_window_of_6_prompt_and_20_new_tokens() -> None:
    native = geometry("gemma-3-1b").native_context or 0
    assert job_window(Job(prompt_tokens=6, new_tokens=20), native)[0] == 6 + 20 + 64 == 90


def test_budget_window_of_a_24b_model() -> None:
    per_token = 2 * 40 * 8 * 128 * 2  # keys and values x layers x heads x width x f16
    tokens = budget_window(lambda tokens: tokens * per_token, 4 * GIB, step=1, most=131_072)
    assert tokens == 4 * GIB // per_token == 26_214


def test_a_cheap_cache_keeps_its_whole_window() -> None:
    assert budget_window(lambda tokens: tokens * 1024, 4 * GIB, step=256, most=262_144) == 262_144


def test_a_job_longer_than_the_window_is_cut_and_says_so() -> None:
    tokens, because = job_window(Job(prompt_tokens=2000, new_tokens=500), 2048)
    assert tokens == 2048
    assert "cut to the model's context length" in because


def test_a_smaller_budget_gives_a_shorter_window() -> None:
    sizes = [
        budget_window(lambda tokens: tokens * 4096, budget, step=256, most=131_072)
        for budget in (0, 1 * MIB, 100 * MIB, 4 * GIB)
    ]
    assert sizes == [0, 256, 25_600, 131_072]


@pytest.mark.parametrize("job", [Job(prompt_tokens=-1, new_tokens=5), Job(prompt_tokens=1, new_tokens=-5)])  # fmt: skip
def test_a_job_of_less_than_nothing_is_refused(job: Job) -> None:
    with pytest.raises(UsageError):
        job_window(job, 2048)
