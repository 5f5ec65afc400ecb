"""A machine and an engine -> what weights may take there at most."""

from __future__ import annotations

from edgekit.engines.budgets import devices_for, llamacpp_budgets, mlx_budgets
from edgekit.machine.types import Machine, together_bytes


def room_bytes(machine: Machine, engine: str) -> int:
    """What weights may take at most, in all memories together."""
    devices = devices_for(machine, engine)
    if engine == "vllm":
        return sum(one.free_bytes for one in devices)
    budgets = {"llama.cpp": llamacpp_budgets, "mlx": mlx_budgets}[engine]
    return together_bytes(budgets(machine, devices))
