"""plan/fit.py: the longest context that fits, the recommended one, and the one of a job."""

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
    job_window,
    longest_fitting,
    recommended_context,
)
from edgekit.units import GIB, MIB


def geometry(name: str) -> ModelGeometry:
    return engine_models()[name, "Q4_K_M"].geometry


@given(
    edge=st.integers(0, 300_000),
    step=st.sampled_from([1, 16, 256, 1024]),
    max_tokens=st.integers(0, 262_144),
)
def test_longest_fitting_is_the_last_that_fits(edge: int, step: int, max_tokens: int) -> None:
    result = longest_fitting(lambda tokens: tokens <= edge, step=step, max_tokens=max_tokens)
    assert result <= max(edge, 0)
    assert result in {0, max_tokens} or result % step == 0
    next_tokens = min(result - result % step + step, max_tokens)
    assert result == max_tokens or next_tokens > edge


@given(st.integers(1, 500), st.sets(st.integers(1, LOOK_AHEAD)))
def test_longest_fitting_looks_past_a_gap(last: int, later: set[int]) -> None:
    fitting = {*range(1, last + 1), *(last + 1 + distance for distance in later)}
    result = longest_fitting(lambda tokens: tokens in fitting, step=1, max_tokens=1000)
    assert result >= last
    assert result in fitting


@pytest.mark.parametrize(("longest_tokens", "recommended"), [(0, 0), (16_384, 13_107), (100, 80)])
def test_recommended_context_is_four_fifths(longest_tokens: int, recommended: int) -> None:
    assert recommended_context(longest_tokens) == recommended


def test_job_window_of_6_prompt_and_20_new_tokens() -> None:
    native = geometry("gemma-3-1b").native_context or 0
    assert job_window(Job(prompt_tokens=6, new_tokens=20), native)[0] == 6 + 20 + 64 == 90


def test_longest_fitting_of_the_cache_of_a_24b_model() -> None:
    per_token = 2 * 40 * 8 * 128 * 2  # keys and values x layers x heads x width x f16
    tokens = longest_fitting(
        lambda tokens: tokens * per_token <= 4 * GIB, step=1, max_tokens=131_072
    )
    assert tokens == 4 * GIB // per_token == 26_214


def test_job_window_is_cut_to_the_context_of_the_model() -> None:
    tokens, because = job_window(Job(prompt_tokens=2000, new_tokens=500), 2048)
    assert tokens == 2048
    assert "cut to the model's context length" in because


@pytest.mark.parametrize(
    ("budget", "tokens"), [(0, 0), (MIB, 256), (100 * MIB, 25_600), (4 * GIB, 131_072)]
)
def test_longest_fitting_of_a_budget(budget: int, tokens: int) -> None:
    assert (
        longest_fitting(lambda count: count * 4096 <= budget, step=256, max_tokens=131_072)
        == tokens
    )


@pytest.mark.parametrize("job", [Job(prompt_tokens=-1, new_tokens=5), Job(prompt_tokens=1, new_tokens=-5)])  # fmt: skip
def test_job_window_rejects_negative_numbers(job: Job) -> None:
    with pytest.raises(UsageError):
        job_window(job, 2048)
