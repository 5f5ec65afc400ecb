"""Laws of the tiers' plans: more memory is never worse, no plan exceeds its memory, the same gives the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.thoroughness import LONG
from tests.unit.engines.tier_tasks import planned_in, ram, task_for

from edgekit.bill.spill import Purpose
from edgekit.bill.types import Lever, Placement, Task
from edgekit.catalog.tiers import layouts, tiers
from edgekit.engines.memo import ENGINE
from edgekit.engines.memo.policy import TierPlan
from edgekit.engines.memo.rules import OS_RESERVE_BYTES, MemoSetup, layout_of, store_of, tier_model
from edgekit.errors import KvSpillUnsupportedError
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


def placed(*budgets: Budget) -> Placement:
    (pool,) = budgets[0].pools
    return Placement(setup=MemoSetup(pool=pool), budgets=budgets, because="")


@st.composite
def memories(draw: st.DrawFn) -> Placement:
    total = draw(SIZES)
    pool = draw(st.sampled_from([DEVICE, HOST]))
    free = total - draw(st.integers(0, total)) // 2
    results = [budget(pool, total, free, draw(st.none() | SIZES))]
    if pool == DEVICE and draw(st.booleans()):
        room = draw(SIZES)
        results.append(budget(HOST, room, room))
    return placed(*results)


@st.composite
def wishes(draw: st.DrawFn) -> Task:
    """For any tier."""
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
    """What does not fit is as bad as what may not be spilled: there is nothing to run."""
    return plan.rank if plan is not None and plan.verdict.can_load else WORST


def planned(memory: Placement, wish: Task, name: str | None = None) -> TierPlan | None:
    """None where the cache may not be spilled."""
    try:
        return planned_in(memory, name, wish)
    except KvSpillUnsupportedError:
        return None


def is_sensible(wish: Task) -> bool:
    layout = layout_of(wish.load)
    return layout is None or layout.holds(wish.load.context_tokens or 1)


def enlarged(memory: Placement, more: int) -> Placement:
    first, *others = memory.budgets
    limit = None if first.limit_bytes is None else first.limit_bytes + more
    larger: dict[str, Any] = {
        "total_bytes": first.total_bytes + more,
        "free_bytes": first.free_bytes + more,
        "limit_bytes": limit,
    }
    return placed(replace(first, **larger), *others)


@given(
    memory=memories(),
    wish=wishes(),
    name=st.none() | NAMES,
    more=st.integers(1, 32 * GIB) | st.integers(1, MIB),
)
@settings(max_examples=400 if LONG else 60)
def test_more_memory_is_never_worse(
    memory: Placement, wish: Task, name: str | None, more: int
) -> None:
    assume(is_sensible(wish))
    larger = enlarged(memory, more)
    assert rank(planned(larger, wish, name)) >= rank(planned(memory, wish, name))


@given(memory=memories(), wish=wishes(), name=st.none() | NAMES)
@settings(max_examples=400 if LONG else 60)
def test_no_plan_exceeds_its_memory(memory: Placement, wish: Task, name: str | None) -> None:
    assume(is_sensible(wish))
    plan = planned(memory, wish, name)
    if plan is None or not plan.verdict.can_load:
        return
    first = memory.budgets[0]
    assert plan.required_bytes <= first.available_bytes <= first.free_bytes
    bill = plan.verdict.estimate
    spilled = bill.total(lambda line: line.pool == HOST and line.part == "spilled")
    _, room = store_of(memory)
    assert room is None or spilled <= room
    tokens = plan.verdict.context_tokens
    assert tokens <= plan.tier.window
    assert plan.layout.holds(tokens)
    assert wish.load.context_tokens in {None, tokens}
    assert wish.load.sequences in {None, plan.parallel}


@given(memory=memories(), wish=wishes(), name=st.none() | NAMES)
@settings(max_examples=400 if LONG else 60)
def test_verdict_has_the_bill_of_its_load_and_setup(
    memory: Placement, wish: Task, name: str | None
) -> None:
    assume(is_sensible(wish))
    plan = planned(memory, wish, name)
    if plan is None:
        return
    result = plan.verdict
    model = tier_model(plan.tier)
    assert ENGINE.estimate(model, result.load, result.way.setup) == result.estimate
    assert {line.basis for line in result.estimate.lines} == {Basis.ASSUMED}
    assert ENGINE.cache_name(result.load, result.way.setup) == result.cache == plan.layout.name
    if result.can_load:
        assert result.context_tokens <= result.max_context or plan.setup.spill is not None


@given(memory=memories(), wish=wishes())
@settings(max_examples=100 if LONG else 30)
def test_plan_is_deterministic(memory: Placement, wish: Task) -> None:
    assume(is_sensible(wish))
    assert planned(memory, wish) == planned(memory, wish)


@given(memory=memories(), wish=wishes(), name=st.none() | NAMES)
@settings(max_examples=300 if LONG else 60)
@example(memory=placed(budget(HOST, 0, 0)), wish=task_for(ram(0), "2B"), name=None)
def test_to_add_bytes_is_enough(memory: Placement, wish: Task, name: str | None) -> None:
    first, *others = memory.budgets
    memory = placed(replace(first, limit_bytes=None), *others)
    assume(is_sensible(wish))
    plan = planned(memory, wish, name)
    if plan is None or plan.verdict.can_load:
        return
    assert plan.to_add_bytes > 0
    larger = enlarged(memory, plan.to_add_bytes)
    assert planned_in(larger, plan.tier.name, wish).verdict.can_load


@given(memory=memories(), wish=wishes())
@settings(max_examples=100 if LONG else 30)
def test_every_step_has_a_value_and_a_reason(memory: Placement, wish: Task) -> None:
    assume(is_sensible(wish))
    plan = planned(memory, wish)
    if plan is None:
        return
    assert all(step.value and step.because for step in plan.steps)
    levers = [step.lever for step in plan.steps]
    assert levers.index(Lever.WEIGHTS) < levers.index(Lever.CONTEXT) < levers.index(Lever.CACHE)
    assert levers.index(Lever.CACHE) < levers.index(Lever.DRAFTER) < levers.index(Lever.SEQUENCES)
