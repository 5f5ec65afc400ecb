"""What the dummy engine may use of a machine."""

from __future__ import annotations

from edgekit.engines.budgets import known_ram, ram_budget
from edgekit.machine.types import Budget, Machine
from edgekit.units import GIB


def budgets(machine: Machine) -> tuple[Budget, ...]:
    return (ram_budget(known_ram(machine), (), 2 * GIB, "2 GiB for everything else"),)
