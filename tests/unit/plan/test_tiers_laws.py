"""Laws of the tiers' plans: more memory is never worse, no plan exceeds its memory, the same gives the same."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.thoroughness import LONG

from edgekit.bill.decisions import Lever
from edgekit.catalog.tiers import find_tier, layouts, tiers
from edgekit.engines.memo import TierPlan, TierWish, plan_tier, recommend_tier
from edgekit.engines.memo.types import MemoryKind, TierMemory
from edgekit.engines.spill import Purpose, Store
from edgekit.errors import KvSpillUnsupportedError
from edgekit.machine.types import HOST
from edgekit.units import GIB, MIB

SIZES = st.integers(0, 64 * GIB)
TOKENS = (
    st.none() | st.integers(1, 131_072) | st.sampled_from([8192, 8193, 65_536, 65_537, 131_072])
)
NAMES = st.sampled_from([tier.name for tier in tiers()])
WORST: tuple[float, ...] = (-1,)


@st.composite
def memories(draw: st.DrawFn) -> TierMemory:
    total = draw(SIZES)
    kind = draw(st.sampled_from(MemoryKind))
    has_room = kind is MemoryKind.CARD and draw(st.booleans())
    return TierMemory(
        name="m",
        kind=kind,
        total_bytes=total,
        free_bytes=total - draw(st.integers(0, total)) // 2,
        limit_bytes=draw(st.none() | SIZES),
        store=Store.HOST_RAM if has_room else Store.NVME,
        store_room_bytes=draw(SIZES) if has_room else None,
    )


@st.composite
def wishes(draw: st.DrawFn) -> TierWish:
    return TierWish(
        memory=draw(memories()),
        context_tokens=draw(TOKENS),
        users=draw(st.none() | st.integers(1, 12)),
        layout=draw(st.none() | st.sampled_from(layouts())),
        prefer_accurate_kv=draw(st.booleans()),
        with_drafter=draw(st.booleans()),
        purpose=draw(st.sampled_from(Purpose)),
        min_context=draw(st.sampled_from([1, 1000, 16_384, 131_072])),
    )


def rank(plan: TierPlan | None) -> tuple[float, ...]:
    """What does not hold is as bad as what may not be spilled: there is nothing to run."""
    return plan.rank if plan is not None and plan.holds else WORST


def planned(wish: TierWish, name: str | None = None) -> TierPlan | None:
    """None where the cache may not be spilled."""
    try:
        return recommend_tier(wish) if name is None else plan_tier(find_tier(name), wish)
    except KvSpillUnsupportedError:
        return None


def is_sensible(wish: TierWish) -> bool:
    return wish.layout is None or wish.layout.holds(wish.context_tokens or 1)


@given(wish=wishes(), name=st.none() | NAMES, more=st.integers(1, 32 * GIB) | st.integers(1, MIB))
@settings(max_examples=400 if LONG else 60)
def test_more_memory_is_never_worse(wish: TierWish, name: str | None, more: int) -> None:
    assume(is_sensible(wish))
    memory = wish.memory
    limit = None if memory.limit_bytes is None else memory.limit_bytes + more
    larger = replace(
        memory,
        total_bytes=memory.total_bytes + more,
        free_bytes=memory.free_bytes + more,
        limit_bytes=limit,
    )
    assert rank(planned(replace(wish, memory=larger), name)) >= rank(planned(wish, name))


@given(wish=wishes(), name=st.none() | NAMES)
@settings(max_examples=400 if LONG else 60)
def test_no_plan_exceeds_its_memory(wish: TierWish, name: str | None) -> None:
    assume(is_sensible(wish))
    plan = planned(wish, name)
    if plan is None or not plan.holds:
        return
    memory = wish.memory
    assert plan.required_bytes <= memory.usable_bytes <= memory.free_bytes
    beside = plan.estimate.total(lambda line: line.pool == HOST and line.part == "spilled")
    assert memory.store_room_bytes is None or beside <= memory.store_room_bytes
    assert plan.context_tokens <= plan.tier.window
    assert plan.layout.holds(plan.context_tokens)
    assert wish.context_tokens in {None, plan.context_tokens}
    assert wish.users in {None, plan.parallel}


@given(wish=wishes())
@settings(max_examples=100 if LONG else 30)
def test_the_same_gives_the_same(wish: TierWish) -> None:
    assume(is_sensible(wish))
    assert planned(wish) == planned(wish)


@given(wish=wishes(), name=st.none() | NAMES)
@settings(max_examples=300 if LONG else 60)
@example(wish=TierWish(memory=TierMemory(name="m", kind=MemoryKind.RAM, total_bytes=0, free_bytes=0)), name=None)  # fmt: skip
def test_what_is_said_to_be_missing_is_enough(wish: TierWish, name: str | None) -> None:
    wish = replace(wish, memory=replace(wish.memory, limit_bytes=None))
    assume(is_sensible(wish))
    plan = planned(wish, name)
    if plan is None or plan.holds:
        return
    memory, add = wish.memory, plan.to_add_bytes
    assert add > 0
    larger = replace(
        memory, total_bytes=memory.total_bytes + add, free_bytes=memory.free_bytes + add
    )
    assert plan_tier(plan.tier, replace(wish, memory=larger)).holds


@given(wish=wishes())
@settings(max_examples=100 if LONG else 30)
def test_every_step_has_its_words(wish: TierWish) -> None:
    assume(is_sensible(wish))
    plan = planned(wish)
    if plan is None:
        return
    assert all(step.value and step.because for step in plan.steps)
    levers = [step.lever for step in plan.steps]
    assert levers.index(Lever.WEIGHTS) < levers.index(Lever.CONTEXT) < levers.index(Lever.CACHE)
    assert levers.index(Lever.CACHE) < levers.index(Lever.DRAFTER) < levers.index(Lever.SEQUENCES)
