"""Where a tier can be: on the largest card, or in RAM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgekit.bill.task import Placement, Task
from edgekit.engines.memo.budget import budgets, devices
from edgekit.engines.memo.types import MemoSetup
from edgekit.engines.spill import Store
from edgekit.machine.types import DEVICE, HOST


def placements(task: Task) -> Iterator[Placement]:
    """The card first. Its second budget is the RAM that pages of its cache can be spilled to."""
    setup: MemoSetup = task.start.setup or MemoSetup()
    every = budgets(task.machine)
    for place, budget in enumerate(every):
        on_card = HOST not in budget.pools
        yield Placement(
            setup=replace(setup, pool=DEVICE if on_card else HOST),
            budgets=every[place:],
            because=f"on the {budget.name}" if on_card else "in RAM",
            cards=devices(task.machine) if on_card else (),
            whole=not place,
        )


def store_of(placement: Placement) -> tuple[Store, int | None]:
    """Where cold pages of the cache would go, and the room that is left there; None: unknown."""
    if len(placement.budgets) == 1:
        return Store.NVME, None
    return Store.HOST_RAM, placement.budgets[1].available_bytes
