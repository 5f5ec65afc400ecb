"""How many users there is room for: so many fit, and one more does not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.tasks import LLAMA, billed, from_config, one_file

from edgekit.bill.types import Load, Task
from edgekit.bill.verdict import Lever
from edgekit.machine.types import Machine
from edgekit.plan.choice import with_weights
from edgekit.plan.placement import placements_of
from edgekit.plan.plan import MOST_USERS, make_plan, users_that_fit
from edgekit.units import GIB


def most_users(task: Task) -> tuple[int, str]:
    decision = make_plan(task).decision(Lever.SEQUENCES)
    assert decision is not None
    found = re.fullmatch(r"(?:up to )?([0-9]+)", decision.value)
    assert found is not None, decision.value
    return int(found[1]), decision.because


def holds(gib: int, users: int, tokens: int) -> bool:
    """By the bill alone: caches of their own, at f16."""
    load = Load(context_tokens=users * tokens, sequences=users, unified=False)
    return billed(LLAMA, load) <= (gib - 1) * GIB


@pytest.mark.parametrize(
    ("gib", "tokens", "count"),
    [
        # 4.58 of weights and about 0.3 of buffers; 2 GiB for 16,384 tokens, 4 for 32,768
        (16, 16_384, 5),  # 15: 5 x 2 + 4.9
        (16, 32_768, 2),
        (32, 16_384, 12),  # 31
        (64, 131_072, 3),  # 63: 16 each
    ],
)
def test_so_many_fit_and_one_more_does_not(gib: int, tokens: int, count: int) -> None:
    found, _ = most_users(one_file(LLAMA, cpu(gib), tokens))
    assert holds(gib, found, tokens)
    assert not holds(gib, found + 1, tokens)
    assert found in {count, count + 1}  # on paper to the GiB


@settings(max_examples=15, deadline=None)
@given(st.integers(12, 80), st.integers(2, 64))
def test_the_edge_is_where_the_bill_has_it(gib: int, blocks: int) -> None:
    tokens = blocks * 512
    task = one_file(LLAMA, cpu(gib), tokens)
    count = users_that_fit(task, tokens, placements_of(task))
    assert count == 1 or holds(gib, count, tokens)
    assert count == MOST_USERS or not holds(gib, count + 1, tokens)


def test_no_more_than_an_engine_ever_takes() -> None:
    task = one_file("qwen3-0.6b", cpu(4096), 512)
    assert users_that_fit(task, 512, placements_of(task)) == MOST_USERS == 256


def test_what_was_asked_for() -> None:
    plan = make_plan(one_file(LLAMA, cpu(64), 16_384, users=4))
    decision = plan.decision(Lever.SEQUENCES)
    assert decision is not None
    assert decision.value == "4"
    assert "16,384 tokens" in decision.because
    assert plan.fits


def test_no_second_one() -> None:
    count, because = most_users(one_file(LLAMA, cpu(8)))
    assert count == 1
    assert "a second full context does not fit" in because


@pytest.mark.parametrize("machine", [cpu(32), cards(24)])
def test_what_is_promised_is_kept(machine: Machine) -> None:
    task = one_file(LLAMA, machine, 16_384)
    count, because = most_users(task)
    assert count > 1
    assert f"--users {count}" in because
    assert make_plan(one_file(LLAMA, machine, 16_384, users=count)).fits


@pytest.mark.parametrize(("engine", "machine"), [("vllm", cards(48)), ("mlx", mac(64, 48))])
def test_other_engines_are_asked_as_well(engine: str, machine: Machine) -> None:
    task = from_config("qwen3-8b", machine, engine, 8192)
    count, _ = most_users(task)
    assert count > 1
    question = with_weights(task, make_plan(task).variant)
    assert users_that_fit(question, 8192, placements_of(question)) == count
