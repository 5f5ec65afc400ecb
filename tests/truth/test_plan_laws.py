"""Every catalog model on fifteen series of machines with growing memory (ladders): no plan exceeds its budget, and
none is worse than the previous one.

The normal run takes a few models, each on every fourth ladder; `make test-all` the whole catalog on all ladders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.thoroughness import LONG, sampled
from tests.unit.plan.machines import cards, cpu, mac

from edgekit.bill.types import Load, Task, Variant
from edgekit.engines import engine_named
from edgekit.engines.entries import open_entry
from edgekit.errors import EdgekitError
from edgekit.index import read_index
from edgekit.index.names import find_entry
from edgekit.index.types import Entry
from edgekit.machine.types import Machine
from edgekit.plan.choice import for_users
from edgekit.plan.plan import Plan, find_plan

CHOSEN = ("deepseek-v2-lite", "llama-3.1-8b", "nomic-embed-text-v1.5", "qwen3-30b-a3b")

# In each ladder one thing grows: RAM, a card, a second card, RAM with a card, a Mac.
LADDERS: dict[str, tuple[Machine, ...]] = {
    "small processor": tuple(cpu(gib) for gib in (2, 3, 4, 6)),
    "processor": tuple(cpu(gib) for gib in (8, 12, 16, 24)),
    "large processor": tuple(cpu(gib) for gib in (32, 64, 128, 512)),
    "small card": tuple(cards(gib) for gib in (4, 6, 8, 10)),
    "card": tuple(cards(gib) for gib in (12, 16, 20, 24)),
    "large card": tuple(cards(gib) for gib in (32, 48, 80, 141)),
    "card without RAM": tuple(cards(gib, ram=None) for gib in (8, 12, 24, 48)),
    "RAM with a card": tuple(cards(12, ram=gib) for gib in (8, 16, 32, 128)),
    "second card": tuple(cards(16, gib) for gib in (6, 8, 12, 16)),
    "the larger of two": tuple(cards(gib, 5) for gib in (18, 20, 21, 24)),
    "one of three": tuple(cards(24, gib, 8) for gib in (6, 10, 16, 24)),
    "a large second": tuple(cards(gib, 80, ram=6) for gib in (24, 25, 32, 48)),
    "four cards": tuple(cards(*[24] * count) for count in (1, 2, 3, 4)),
    "Mac": tuple(mac(gib, limit_gib=gib * 3 // 4) for gib in (8, 16, 24, 36)),
    "large Mac": tuple(mac(gib, limit_gib=gib * 3 // 4) for gib in (48, 64, 96, 128)),
}


def with_rates(machine: Machine) -> Machine:
    """The machine with bandwidths, from which EdgeKit knows whether more bits would be too slow."""
    host = machine.host and replace(machine.host, bandwidth_bytes_per_s=60 * 10**9)
    devices = tuple(
        replace(device, bandwidth_bytes_per_s=500 * 10**9) for device in machine.devices
    )
    return replace(machine, host=host, devices=devices)


@cache
def variants(name: str) -> tuple[Variant, ...]:
    """Opened once, because the engine caches what depends on the model alone."""
    model = open_entry(find_entry(name), "llama.cpp").model
    return engine_named("llama.cpp").variants(model)


def task(entry: Entry, machine: Machine) -> Task:
    return Task(
        label=entry.id,
        model=variants(entry.id)[0].model,
        variants=variants(entry.id),
        engine="llama.cpp",
        machine=with_rates(machine),
    )


def rank(plan: Plan | None) -> tuple[float, ...]:
    """Compares plans: by the step of SPEC A4, then the accuracy of the weights, then the context."""
    if plan is None:
        return (0,)
    return 1, -plan.result.step, plan.variant.accuracy, plan.context_tokens


def entries() -> Iterator[Entry]:
    for entry in read_index().entries:
        if LONG or entry.id in CHOSEN:
            yield entry


def sampled_ladders() -> Iterator[Any]:
    """Every fourth ladder for each model, from another start for the next."""
    for turn, entry in enumerate(entries()):
        for ladder in sampled(tuple(LADDERS), each=4, turn=turn):
            yield pytest.param(entry, ladder, id=f"{entry.id}-{ladder}")


OTHER_ENGINES = {
    "vllm": ("card without RAM", "large card", "four cards"),
    "mlx": ("Mac", "large Mac"),
}


@pytest.mark.parametrize(
    ("engine", "ladder"), [(e, item) for e, names in OTHER_ENGINES.items() for item in names]
)
@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-8b", "gemma-3-27b"])
@pytest.mark.parametrize("users", [None, 3])
def test_plans_of_other_engines_and_several_users_stay_within_budget(
    engine: str, ladder: str, name: str, users: int | None
) -> None:
    """More memory is never worse for them."""
    model = open_entry(find_entry(name), engine).model
    previous: tuple[float, ...] = (0,)
    for machine in LADDERS[ladder]:
        choices = engine_named(engine).variants(model)
        request = Task(
            label=name,
            model=choices[0].model,
            variants=choices,
            engine=engine,
            machine=with_rates(machine),
            load=for_users(Load(), users, engine, choices[0].model),
            users=users,
        )
        plan = find_plan(request)
        current = rank(plan)
        assert current >= previous, f"{machine.name}: {previous} -> {current}"
        previous = current
        if plan is not None:
            assert plan.result.can_load


@pytest.mark.parametrize(("entry", "ladder"), list(sampled_ladders()))
def test_more_memory_is_never_worse(entry: Entry, ladder: str) -> None:
    previous: tuple[float, ...] = (0,)
    for machine in LADDERS[ladder]:
        try:
            plan = find_plan(task(entry, machine))
        except EdgekitError:
            return
        current = rank(plan)
        assert current >= previous, f"{machine.name}: {previous} -> {current}"
        previous = current
        if plan is not None:
            for use in plan.result.uses:
                assert use.required_bytes <= use.budget.available_bytes
