"""Memory against context: the exact bill at each point, and the longest context that the verdict knows too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from tests.unit.plan.test_verdict import per_token
from tests.unit.report.plans import cards, cpu, gguf, mac, planned, qwen

from edgekit.bill.types import Load, MemoryEstimate, Start, Task, cache_type, covered_bytes
from edgekit.engines import engine_named
from edgekit.errors import RefusedError, UsageError
from edgekit.machine.types import PoolKind
from edgekit.plan.choice import judge
from edgekit.plan.curve import POINTS, Curve, curves, plan_curves
from edgekit.plan.plan import Plan
from edgekit.units import GIB, MIB

PLANS: dict[str, Callable[[], Plan]] = {
    "cpu": lambda: planned(gguf("qwen3-0.6b"), cpu(8)),
    "card": lambda: planned(gguf("llama-3.1-8b"), cards(12), load=Load(context_tokens=16_384)),
    "q8_0": lambda: planned(
        gguf("llama-3.1-8b"),
        cards(12),
        load=Load(context_tokens=16_384, cache_k=cache_type("q8_0"), cache_v=cache_type("q8_0")),
    ),
    "layers on the host": lambda: planned(gguf("gemma-3-27b"), cards(24)),
    "two cards": lambda: planned(gguf("qwen3-30b-a3b"), cards(12, 12)),
    "vllm": lambda: planned(qwen(), cards(24), engine="vllm", load=Load(context_tokens=8192)),
    "mlx": lambda: planned(qwen(), mac(16), engine="mlx", load=Load(context_tokens=8192)),
}


ON_THE_CPU = ["f16", "q8_0", "q8_0 + q5_1", "q8_0 + q4_0", "q4_0"]


@cache
def plan_of(name: str) -> Plan:
    return PLANS[name]()


@cache
def curves_of(name: str) -> tuple[Curve, ...]:
    """Of that plan, once for all tests that look at them."""
    return plan_curves(plan_of(name))


def test_a_straight_bill_is_a_straight_curve() -> None:
    # 15 GiB may be used: 15,360 tokens at 1 MiB each, a multiple of 256
    model = gguf("llama-3.1-8b")
    question = Task(model=model, engine="llama.cpp", machine=cpu(16), bill=per_token(MIB))
    placement = judge(question).way
    result = curves(question, placement)
    assert [curve.cache for curve in result] == ON_THE_CPU
    for curve in result:
        assert (curve.longest, curve.native, curve.budget_bytes) == (15_360, 131_072, 15 * GIB)
        assert all(point.required_bytes == point.tokens * MIB for point in curve.points)


def test_every_cache_of_the_engine() -> None:
    names = {
        name: [curve.cache for curve in curves_of(name)] for name in ("q8_0", "cpu", "vllm", "mlx")
    }
    assert names["q8_0"] == ["f16", "q8_0", "q4_0"]  # whatever the plan chose
    assert names["cpu"] == ON_THE_CPU
    assert names["vllm"] == ["auto", "fp8"]
    assert names["mlx"] == ["16 bit", "8 bit", "4 bit"]


def test_a_cache_that_was_asked_for_is_drawn_beside_the_usual_ones() -> None:
    model, kind = gguf("llama-3.1-8b"), cache_type("q5_1")
    question = Task(
        model=model, engine="llama.cpp", machine=cards(24), load=Load(cache_k=kind, cache_v=kind)
    )
    placement = judge(question).way
    result = curves(question, placement, points=2)
    assert [curve.cache for curve in result] == ["f16", "q8_0", "q4_0", "q5_1"]
    last = result[-1].points[-1]
    load = replace(question.load, context_tokens=last.tokens)
    bill = engine_named("llama.cpp").estimate(model, load, placement.setup)
    assert last.required_bytes == bill.in_pool(PoolKind.DEVICE)


@pytest.mark.parametrize(
    ("make", "setup", "names"),
    [
        ("vllm", {"kv_cache_dtype": "bfloat16"}, ["auto", "fp8", "bfloat16"]),
        ("vllm", {"kv_cache_dtype": "fp8"}, ["auto", "fp8"]),
        ("mlx", {"kv_bits": 6}, ["16 bit", "8 bit", "4 bit", "6 bit"]),
    ],
)
def test_so_is_one_that_is_part_of_the_setup(
    make: str, setup: dict[str, Any], names: list[str]
) -> None:
    plan = plan_of(make)
    placement = replace(plan.result.way, setup=replace(plan.result.way.setup, **setup))
    question = Task(
        model=plan.variant.model,
        engine=make,
        machine=plan.task.machine,
        start=Start(setup=placement.setup, fixed_flags=frozenset(setup)),
    )
    assert [curve.cache for curve in curves(question, placement, points=2)] == names


@pytest.mark.parametrize("name", PLANS)
def test_points_go_from_nothing_to_the_native_window(name: str) -> None:
    for curve in curves_of(name):
        tokens = [point.tokens for point in curve.points]
        assert tokens == sorted(set(tokens))
        assert POINTS - 2 <= len(tokens) <= POINTS + 1
        assert tokens[0] <= 256
        assert tokens[-1] == curve.native
        assert curve.longest in {0, *tokens}


@pytest.mark.parametrize("name", PLANS)
def test_the_points_are_the_engines_own_bill(name: str) -> None:
    """Of the most accurate cache: what the plan's own engine takes of the memory that decides."""
    plan, curve = plan_of(name), curves_of(name)[0]
    every: dict[str, dict[str, Any]] = {
        "vllm": {"kv_cache_dtype": "auto"},
        "mlx": {"kv_bits": None},
    }
    own = every.get(plan.task.engine, {})
    setup = replace(plan.result.way.setup, **own)
    budget = next(
        one
        for place, one in enumerate(plan.result.way.budgets)
        if curve.memory in {one.name, f"{one.name} #{place}"}
    )
    for point in curve.points[:: POINTS // 4]:
        load = replace(plan.load, context_tokens=point.tokens, cache_k=None, cache_v=None)
        bill = engine_named(plan.task.engine).estimate(plan.variant.model, load, setup)
        assert point.required_bytes == bill.in_pools(budget.pools) - covered_bytes(budget, bill)
    assert curve.budget_bytes == budget.available_bytes


@pytest.mark.parametrize("name", PLANS)
def test_the_line_is_crossed_behind_the_longest(name: str) -> None:
    """Of the first cache that ends before the native window: usable up to there, beyond it after."""
    ending = next((curve for curve in curves_of(name) if 0 < curve.longest < curve.native), None)
    if ending is None:
        assert all(curve.longest == curve.native for curve in curves_of(name))
        return
    limit = ending.budget_bytes
    sizes = {point.tokens: point.required_bytes for point in ending.points}
    assert sizes[ending.longest] <= limit
    assert sizes[ending.native] > limit


def test_the_longest_is_that_of_the_verdict() -> None:
    f16, q8_0, _ = curves_of("card")
    assert f16.longest == plan_of("card").result.max_context
    assert q8_0.longest == plan_of("q8_0").result.max_context > f16.longest


def test_a_smaller_cache_never_costs_more_on_llama_cpp() -> None:
    for name in ("cpu", "card", "layers on the host", "two cards"):
        result = curves_of(name)
        for larger, smaller in pairwise(result):
            sizes = {point.tokens: point.required_bytes for point in larger.points}
            common = [point for point in smaller.points if point.tokens in sizes]
            assert len(common) >= POINTS - 2
            assert all(point.required_bytes <= sizes[point.tokens] for point in common)


def test_a_cache_that_the_engine_refuses_is_left_out() -> None:
    def bill(load: Load, setup: Any) -> MemoryEstimate:
        if load.cache_k is not None and load.cache_k.name == "q8_0":
            raise RefusedError("its heads are no multiple of 32")
        result: MemoryEstimate = per_token(MIB)(load, setup)
        return result

    question = Task(model=gguf("qwen3-0.6b"), engine="llama.cpp", machine=cpu(16), bill=bill)
    placement = judge(question).way
    assert [curve.cache for curve in curves(question, placement)] == ["f16", "q4_0"]


def test_nothing_fits_and_there_is_still_a_picture() -> None:
    plan = planned(gguf("llama-3.1-70b"), cards(12, ram=None), load=Load(context_tokens=16_384))
    result = plan_curves(plan)
    assert [curve.longest for curve in result] == [0, 0, 0]
    assert all(curve.points for curve in result)


def test_one_point_is_no_curve() -> None:
    plan = plan_of("cpu")
    question = Task(model=plan.variant.model, engine="llama.cpp", machine=cpu(8))
    with pytest.raises(UsageError, match="a curve of 1 points"):
        curves(question, plan.result.way, points=1)
