"""What is beyond all memory is not looked at, and the plan is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.plan.machines import cards
from tests.unit.plan.wishes import LLAMA, MOE, any_mix

from edgekit.engine.llamacpp.as_gguf import convert
from edgekit.hardware.budgets import together_bytes
from edgekit.plan.making import make_plan
from edgekit.plan.planned import Plan, Wish
from edgekit.plan.room import possible, room_bytes
from edgekit.units import GIB


def sizes_of(wish: Wish) -> dict[str, int]:
    model = wish.variants[0].model
    return {one.name: convert(model, one.name).mixed.tensor_bytes for one in wish.variants}


def told(plan: Plan) -> object:
    """All but what was tried on the way."""
    return plan.variant.name, plan.result, plan.load, plan.choice, plan.speed


@pytest.mark.parametrize("name", [LLAMA, MOE])
@pytest.mark.parametrize(("gib", "ram"), [(4, 4), (8, 8), (24, 16), (4, 20)])
def test_the_plan_is_the_same(name: str, gib: int, ram: int) -> None:
    wish = any_mix(name, cards(gib, ram=ram))
    less = possible(wish, sizes_of(wish))
    assert told(make_plan(less, helpful=False)) == told(make_plan(wish, helpful=False))


def test_only_what_no_memory_holds_is_left_out() -> None:
    wish = any_mix(MOE, cards(8, ram=16))
    room, sizes = room_bytes(wish.machine, wish.engine), sizes_of(wish)
    left = possible(wish, sizes).variants
    assert 0 < len(left) < len(wish.variants)
    assert sizes[left[0].name] <= room < sizes[wish.variants[-len(left) - 1].name]


def test_the_smallest_stays_and_so_does_what_has_no_size() -> None:
    wish = any_mix(MOE, cards(2, ram=2))
    assert possible(wish, sizes_of(wish)).variants == wish.variants[-1:]
    assert possible(wish, {}).variants == wish.variants


def test_blocks_that_are_not_loaded_do_not_count() -> None:
    wish = any_mix(MOE, cards(8, ram=8))
    model = wish.variants[0].model
    geometry = replace(model.geometry, mtp_layers=1)
    idle = tuple(replace(one, model=replace(model, geometry=geometry)) for one in wish.variants)
    sizes = sizes_of(wish)
    assert len(possible(wish, sizes).variants) < len(
        possible(replace(wish, variants=idle), sizes).variants
    )


def test_room_is_what_all_memories_let_be_filled() -> None:
    machine = cards(24, ram=64)
    assert room_bytes(machine, "llama.cpp") == (23 + 63) * GIB * 85 // 100
    assert room_bytes(machine, "vllm") == 24 * GIB
    assert together_bytes(()) == 0
