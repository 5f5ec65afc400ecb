"""What the dummy engine may use of a machine, and where it puts a model."""

from __future__ import annotations

from collections.abc import Iterator

from tests.data.dummy_engine.setups import DummySetup

from edgekit.bill.types import Placement, Task
from edgekit.engines.choices import known_ram, ram_budget
from edgekit.machine.types import Budget, Machine
from edgekit.units import GIB


def budgets(machine: Machine) -> tuple[Budget, ...]:
    return (ram_budget(known_ram(machine), (), 2 * GIB, "2 GiB for everything else"),)


def placements(task: Task) -> Iterator[Placement]:
    yield Placement(
        setup=task.start.setup or DummySetup(),
        budgets=budgets(task.machine),
        because="in dummy memory",
        whole=True,
    )
