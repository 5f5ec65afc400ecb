"""plan/curve.py: memory against context, and the longest context of each cache type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from tests.unit.plan.tasks import linear_bill
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


CPU_CACHES = ["f16", "q8_0", "q8_0 + q5_1", "q8_0 + q4_0", "q4_0"]


@cache
def plan_of(name: str) -> Plan:
    return PLANS[name]()


@cache
def curves_of(name: str) -> tuple[Curve, ...]:
    """The curves of that plan, computed once for all tests."""
    return plan_curves(plan_of(name))


def test_curves_of_a_linear_bill_are_straight() -> None:
    # 15 GiB usable: 15,360 tokens at 1 MiB each, a multiple of 256
    model = gguf("llama-3.1-8b")
    task = Task(model=model, engine="llama.cpp", machine=cpu(16), bill=linear_bill(MIB))
    placement = judge(task).way
    result = curves(task, placement)
    assert [curve.cache for curve in result] == CPU_CACHES
    for curve in result:
        assert (curve.longest, curve.native, curve.budget_bytes) == (15_360, 131_072, 15 * GIB)
        assert all(point.required_bytes == point.tokens * MIB for point in curve.points)


def test_curves_of_every_cache_type_of_the_engine() -> None:
    names = {
        name: [curve.cache for curve in curves_of(name)] for name in ("q8_0", "cpu", "vllm", "mlx")
    }
    assert names["q8_0"] == ["f16", "q8_0", "q4_0"]  # not only the one that the plan chose
    assert names["cpu"] == CPU_CACHES
    assert names["vllm"] == ["auto", "fp8"]
    assert names["mlx"] == ["16 bit", "8 bit", "4 bit"]


def test_curves_include_a_requested_cache_type() -> None:
    model, kind = gguf("llama-3.1-8b"), cache_type("q5_1")
    task = Task(
        model=model, engine="llama.cpp", machine=cards(24), load=Load(cache_k=kind, cache_v=kind)
    )
    placement = judge(task).way
    result = curves(task, placement, points=2)
    assert [curve.cache for curve in result] == ["f16", "q8_0", "q4_0", "q5_1"]
    last = result[-1].points[-1]
    load = replace(task.load, context_tokens=last.tokens)
    bill = engine_named("llama.cpp").estimate(model, load, placement.setup)
    assert last.required_bytes == bill.in_pool(PoolKind.DEVICE)


@pytest.mark.parametrize(
    ("engine", "setup", "names"),
    [
        ("vllm", {"kv_cache_dtype": "bfloat16"}, ["auto", "fp8", "bfloat16"]),
        ("vllm", {"kv_cache_dtype": "fp8"}, ["auto", "fp8"]),
        ("mlx", {"kv_bits": 6}, ["16 bit", "8 bit", "4 bit", "6 bit"]),
    ],
)
def test_curves_include_the_cache_type_of_the_setup(
    engine: str, setup: dict[str, Any], names: list[str]
) -> None:
    plan = plan_of(engine)
    placement = replace(plan.result.way, setup=replace(plan.result.way.setup, **setup))
    task = Task(
        model=plan.variant.model,
        engine=engine,
        machine=plan.task.machine,
        start=Start(setup=placement.setup, fixed_flags=frozenset(setup)),
    )
    assert [curve.cache for curve in curves(task, placement, points=2)] == names


@pytest.mark.parametrize("name", PLANS)
def test_points_reach_from_256_tokens_to_the_native_context(name: str) -> None:
    for curve in curves_of(name):
        tokens = [point.tokens for point in curve.points]
        assert tokens == sorted(set(tokens))
        assert POINTS - 2 <= len(tokens) <= POINTS + 1
        assert tokens[0] <= 256
        assert tokens[-1] == curve.native
        assert curve.longest in {0, *tokens}


@pytest.mark.parametrize("name", PLANS)
def test_points_equal_the_bill_of_the_engine(name: str) -> None:
    """For the most accurate cache type, in the memory that limits the context."""
    plan, curve = plan_of(name), curves_of(name)[0]
    most_accurate: dict[str, dict[str, Any]] = {
        "vllm": {"kv_cache_dtype": "auto"},
        "mlx": {"kv_bits": None},
    }
    setup = replace(plan.result.way.setup, **most_accurate.get(plan.task.engine, {}))
    budget = next(
        budget
        for index, budget in enumerate(plan.result.way.budgets)
        if curve.memory in {budget.name, f"{budget.name} #{index}"}
    )
    for point in curve.points[:: POINTS // 4]:
        load = replace(plan.load, context_tokens=point.tokens, cache_k=None, cache_v=None)
        bill = engine_named(plan.task.engine).estimate(plan.variant.model, load, setup)
        assert point.required_bytes == bill.in_pools(budget.pools) - covered_bytes(budget, bill)
    assert curve.budget_bytes == budget.available_bytes


@pytest.mark.parametrize("name", PLANS)
def test_budget_is_exceeded_only_beyond_the_longest_context(name: str) -> None:
    """Checked with the first cache type whose longest context is below the native one."""
    limited = next((curve for curve in curves_of(name) if 0 < curve.longest < curve.native), None)
    if limited is None:
        assert all(curve.longest == curve.native for curve in curves_of(name))
        return
    limit = limited.budget_bytes
    sizes = {point.tokens: point.required_bytes for point in limited.points}
    assert sizes[limited.longest] <= limit
    assert sizes[limited.native] > limit


def test_longest_context_equals_that_of_the_verdict() -> None:
    f16, q8_0, _ = curves_of("card")
    assert f16.longest == plan_of("card").result.max_context
    assert q8_0.longest == plan_of("q8_0").result.max_context > f16.longest


def test_smaller_cache_types_never_need_more_memory_on_llama_cpp() -> None:
    for name in ("cpu", "card", "layers on the host", "two cards"):
        result = curves_of(name)
        for larger, smaller in pairwise(result):
            sizes = {point.tokens: point.required_bytes for point in larger.points}
            common = [point for point in smaller.points if point.tokens in sizes]
            assert len(common) >= POINTS - 2
            assert all(point.required_bytes <= sizes[point.tokens] for point in common)


def test_curves_leave_out_a_refused_cache_type() -> None:
    def bill(load: Load, setup: Any) -> MemoryEstimate:
        if load.cache_k is not None and load.cache_k.name == "q8_0":
            raise RefusedError("its heads are no multiple of 32")
        result: MemoryEstimate = linear_bill(MIB)(load, setup)
        return result

    task = Task(model=gguf("qwen3-0.6b"), engine="llama.cpp", machine=cpu(16), bill=bill)
    placement = judge(task).way
    assert [curve.cache for curve in curves(task, placement)] == ["f16", "q4_0"]


def test_curves_have_points_even_if_nothing_fits() -> None:
    plan = planned(gguf("llama-3.1-70b"), cards(12, ram=None), load=Load(context_tokens=16_384))
    result = plan_curves(plan)
    assert [curve.longest for curve in result] == [0, 0, 0]
    assert all(curve.points for curve in result)


def test_curves_reject_a_single_point() -> None:
    plan = plan_of("cpu")
    task = Task(model=plan.variant.model, engine="llama.cpp", machine=cpu(8))
    with pytest.raises(UsageError, match="a curve of 1 points"):
        curves(task, plan.result.way, points=1)
