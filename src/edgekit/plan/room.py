"""A machine and an engine -> what weights may take there at most, and of a wish what is then still possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import dropwhile

from edgekit.hardware.budgets import devices_for, llamacpp_budgets, mlx_budgets, together_bytes
from edgekit.hardware.types import Machine
from edgekit.plan.planned import Wish
from edgekit.plan.types import Variant


def room_bytes(machine: Machine, engine: str) -> int:
    """What weights may take at most, in all memories together."""
    devices = devices_for(machine, engine)
    if engine == "vllm":
        return sum(one.free_bytes for one in devices)
    budgets = {"llama.cpp": llamacpp_budgets, "mlx": mlx_budgets}[engine]
    return together_bytes(budgets(machine, devices))


def possible(wish: Wish, sizes: Mapping[str, int]) -> Wish:
    """The wish without the first quantisations, as far as they are beyond all memory there is: its plan is the same.

    `sizes` are those of the tensors, by the name of a quantisation; one that is not there stays. So does the last:
    where nothing fits, the verdict is on that.
    """
    room = room_bytes(wish.machine, wish.engine)

    def is_beyond(variant: Variant) -> bool:
        idle = variant.model.geometry.mtp_layers  # in the file and not loaded: never half of it
        return sizes.get(variant.name, 0) > room * (2 if idle else 1)

    left = tuple(dropwhile(is_beyond, wish.variants)) or wish.variants[-1:]
    return replace(wish, variants=left)
