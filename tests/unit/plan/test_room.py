"""What weights may take at most."""

from __future__ import annotations

from tests.unit.plan.machines import cards

from edgekit.engines import engine_named
from edgekit.machine.types import together_bytes
from edgekit.units import GIB


def test_room_is_what_all_memories_let_be_filled() -> None:
    machine = cards(24, ram=64)
    assert engine_named("llama.cpp").capacity_bytes(machine) == (23 + 63) * GIB
    assert engine_named("vllm").capacity_bytes(machine) == 24 * GIB
    assert together_bytes(()) == 0
