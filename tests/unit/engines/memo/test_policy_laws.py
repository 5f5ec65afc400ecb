"""Laws of the policy: more memory is never worse, no plan exceeds its memory, plans are deterministic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.thoroughness import LONG
from tests.unit.engines.memo.tier_tasks import planned_in, ram, task_for

from edgekit.bill.spill import Purpose
from edgekit.bill.types import Lever, Placement, Task
from edgekit.engines.memo import ENGINE
from edgekit.engines.memo.policy import TierPlan
from edgekit.engines.memo.rules import OS_RESERVE_BYTES, MemoSetup, layout_of, store_of, tier_model
from edgekit.errors import KvSpillUnsupportedError
from edgekit.index.tiers import layouts, tiers
from edgekit.machine.types import DEVICE, HOST, Budget, Pool
from edgekit.units import GIB, MIB, Basis

SIZES = st.integers(0, 64 * GIB)
TOKENS = (
    st.none() | st.integers(1, 131_072) | st.sampled_from([8192, 8193, 65_536, 65_537, 131_072])
)
NAMES = st.sampled_from([tier.name for tier in tiers()])
WORST: tuple[float, ...] = (-1,)


def budget(pool: Pool, total_bytes: int, free_bytes: int, limit_bytes: int | None = None) -> Budget:
    return Budget(
        name="m",
        pools=frozenset({pool}),
        total_bytes=total_bytes,
        free_bytes=free_bytes,
        reserve_bytes=OS_RESERVE_BYTES if pool == HOST else 0,
        because="",
        limit_bytes=limit_bytes,
    )


def placement_in(*budgets: Budget) -> Placement:
    (pool,) = budgets[0].pools
    return Placement(setup=MemoSetup(pool=pool), budgets=budgets, because="")


@st.composite
def memories(draw: st.DrawFn) -> Placement:
    total = draw(SIZES)
    pool = draw(st.sampled_from([DEVICE, HOST]))
    free = total - draw(st.integers(0, total)) // 2
    budgets = [budget(pool, total, free, draw(st.none() | SIZES))]
    if pool == DEVICE and draw(st.booleans()):
        ram_bytes = draw(SIZES)
        budgets.append(budget(HOST, ram_bytes, ram_bytes))
    return placement_in(*budgets)


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    """Loads and settings; `plan_or_none` replaces the tier."""
    return task_for(
        ram(0),
        "2B",
        context=draw(TOKENS),
        users=draw(st.none() | st.integers(1, 12)),
        layout=draw(st.none() | st.sampled_from(layouts())),
        prefer_accurate_kv=draw(st.booleans()),
        may_draft=draw(st.booleans()),
        purpose=draw(st.sampled_from(Purpose)),
        min_context=draw(st.sampled_from([1, 1000, 16_384, 131_072])),
    )


def rank(plan: TierPlan | None) -> tuple[float, ...]:
    """The plan's rank. No plan, because the cache must not be spilled, is as bad as one that does not fit."""
    return plan.rank if plan is not None and plan.verdict.can_load else WORST


def plan_or_none(memory: Placement, task: Task, name: str | None = None) -> TierPlan | None:
    """The plan of one tier, or of the best one; None if the cache would have to be spilled and must not be."""
    try:
        return planned_in(memory, name, task)
    except KvSpillUnsupportedError:
        return None


def layout_holds_context(task: Task) -> bool:
    layout = layout_of(task.load)
    return layout is None or layout.holds(task.load.context_tokens or 1)


def enlarged(memory: Placement, more_bytes: int) -> Placement:
    first, *others = memory.budgets
    limit = None if first.limit_bytes is None else first.limit_bytes + more_bytes
    larger: dict[str, Any] = {
        "total_bytes": first.total_bytes + more_bytes,
        "free_bytes": first.free_bytes + more_bytes,
        "limit_bytes": limit,
    }
    return placement_in(replace(first, **larger), *others)


@given(
    memory=memories(),
    task=tasks(),
    name=st.none() | NAMES,
    more_bytes=st.integers(1, 32 * GIB) | st.integers(1, MIB),
)
@settings(max_examples=400 if LONG else 60)
def test_more_memory_is_never_worse(
    memory: Placement, task: Task, name: str | None, more_bytes: int
) -> None:
    assume(layout_holds_context(task))
    larger = enlarged(memory, more_bytes)
    assert rank(plan_or_none(larger, task, name)) >= rank(plan_or_none(memory, task, name))


@given(memory=memories(), task=tasks(), name=st.none() | NAMES)
@settings(max_examples=400 if LONG else 60)
def test_no_plan_exceeds_its_memory(memory: Placement, task: Task, name: str | None) -> None:
    assume(layout_holds_context(task))
    plan = plan_or_none(memory, task, name)
    if plan is None or not plan.verdict.can_load:
        return
    first = memory.budgets[0]
    assert plan.required_bytes <= first.available_bytes <= first.free_bytes
    bill = plan.verdict.estimate
    spilled = bill.total(lambda line: line.pool == HOST and line.part == "spilled")
    _, store_bytes = store_of(memory)
    assert store_bytes is None or spilled <= store_bytes
    tokens = plan.verdict.context_tokens
    assert tokens <= plan.tier.window
    assert plan.layout.holds(tokens)
    assert task.load.context_tokens in {None, tokens}
    assert task.load.sequences in {None, plan.parallel}


@given(memory=memories(), task=tasks(), name=st.none() | NAMES)
@settings(max_examples=400 if LONG else 60)
def test_verdict_has_the_bill_of_its_load_and_setup(
    memory: Placement, task: Task, name: str | None
) -> None:
    assume(layout_holds_context(task))
    plan = plan_or_none(memory, task, name)
    if plan is None:
        return
    verdict = plan.verdict
    model = tier_model(plan.tier)
    assert ENGINE.estimate(model, verdict.load, verdict.way.setup) == verdict.estimate
    assert {line.basis for line in verdict.estimate.lines} == {Basis.ASSUMED}
    assert ENGINE.cache_name(verdict.load, verdict.way.setup) == verdict.cache == plan.layout.name
    if verdict.can_load:
        assert verdict.context_tokens <= verdict.max_context or plan.setup.spill is not None


@given(memory=memories(), task=tasks())
@settings(max_examples=100 if LONG else 30)
def test_plan_is_deterministic(memory: Placement, task: Task) -> None:
    assume(layout_holds_context(task))
    assert plan_or_none(memory, task) == plan_or_none(memory, task)


@given(memory=memories(), task=tasks(), name=st.none() | NAMES)
@settings(max_examples=300 if LONG else 60)
@example(memory=placement_in(budget(HOST, 0, 0)), task=task_for(ram(0), "2B"), name=None)
def test_to_add_bytes_is_enough(memory: Placement, task: Task, name: str | None) -> None:
    first, *others = memory.budgets
    memory = placement_in(replace(first, limit_bytes=None), *others)
    assume(layout_holds_context(task))
    plan = plan_or_none(memory, task, name)
    if plan is None or plan.verdict.can_load:
        return
    assert plan.to_add_bytes > 0
    larger = enlarged(memory, plan.to_add_bytes)
    assert planned_in(larger, plan.tier.name, task).verdict.can_load


@given(memory=memories(), task=tasks())
@settings(max_examples=100 if LONG else 30)
def test_steps_have_a_value_a_reason_and_a_fixed_order(memory: Placement, task: Task) -> None:
    assume(layout_holds_context(task))
    plan = plan_or_none(memory, task)
    if plan is None:
        return
    assert all(step.value and step.because for step in plan.steps)
    levers = [step.lever for step in plan.steps]
    assert levers.index(Lever.WEIGHTS) < levers.index(Lever.CONTEXT) < levers.index(Lever.CACHE)
    assert levers.index(Lever.CACHE) < levers.index(Lever.DRAFTER) < levers.index(Lever.SEQUENCES)
