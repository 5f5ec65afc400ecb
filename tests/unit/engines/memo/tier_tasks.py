"""Machines with one card or only RAM, and the plans of tiers on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgekit.bill.types import Load, Placement, Start, Task
from edgekit.engines.memo.policy import TierPlan, plan_tier, recommend_tier
from edgekit.engines.memo.rules import (
    MemoSetup,
    load_for_users,
    placements,
    tier_model,
    with_layout,
)
from edgekit.index.tiers import Layout, Tier, find_tier, tiers
from edgekit.machine.types import Device, HostMemory, Machine, System, Vendor


def card(
    free_bytes: int,
    *,
    name: str = "card",
    total_bytes: int | None = None,
    host_bytes: int | None = None,
) -> Machine:
    device = Device(
        name=name,
        vendor=Vendor.NVIDIA,
        total_bytes=free_bytes if total_bytes is None else total_bytes,
        free_bytes=free_bytes,
    )
    host = None if host_bytes is None else _host(host_bytes)
    return Machine(name=name, system=System.LINUX, host=host, devices=(device,))


def ram(total_bytes: int, name: str = "RAM") -> Machine:
    return Machine(name=name, system=System.LINUX, host=_host(total_bytes))


def _host(total_bytes: int) -> HostMemory:
    return HostMemory(total_bytes=total_bytes, free_bytes=total_bytes)


def task_for(
    machine: Machine,
    tier: str | Tier,
    *,
    context: int | None = None,
    users: int | None = None,
    layout: Layout | None = None,
    min_context: int | None = None,
    **setup: Any,
) -> Task:
    load = Load(context_tokens=context)
    if users is not None:
        load = load_for_users(load, users, 0)
    if layout is not None:
        load = with_layout(load, layout)
    chosen = find_tier(tier) if isinstance(tier, str) else tier
    return tier_task(chosen, machine, load, MemoSetup(**setup), min_context)


def tier_task(
    tier: Tier, machine: Machine, load: Load, setup: MemoSetup, min_context: int | None = None
) -> Task:
    return Task(
        model=tier_model(tier),
        engine="memo",
        machine=machine,
        load=load,
        start=Start(setup=setup),
        min_context=min_context,
    )


def tasks_for(machine: Machine, candidates: tuple[Tier, ...] = (), **options: Any) -> list[Task]:
    return [task_for(machine, tier, **options) for tier in candidates or tiers()]


def first_placement(task: Task) -> Placement:
    """On the card, if there is one."""
    return next(placements(task))


def planned(machine: Machine, tier: str | Tier, **options: Any) -> TierPlan:
    task = task_for(machine, tier, **options)
    return plan_tier(task, first_placement(task))


def recommended(machine: Machine, candidates: tuple[Tier, ...] = (), **options: Any) -> TierPlan:
    tasks = tasks_for(machine, candidates, **options)
    return recommend_tier(tasks, first_placement(tasks[0]))


def planned_in(placement: Placement, tier: str | None, task: Task) -> TierPlan:
    """The plan of the task in this memory: of `tier`, or of the best tier if it is None."""
    setup = MemoSetup.of(task.start.setup)
    pool = MemoSetup.of(placement.setup).pool
    placed = replace(placement, setup=replace(setup, pool=pool))
    tasks = [
        tier_task(candidate, task.machine, task.load, setup, task.min_context)
        for candidate in (tiers() if tier is None else (find_tier(tier),))
    ]
    return recommend_tier(tasks, placed) if tier is None else plan_tier(tasks[0], placed)
