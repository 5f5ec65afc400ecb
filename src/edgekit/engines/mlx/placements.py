"""Where MLX puts a model."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.bill.task import Placement, Task
from edgekit.engines.mlx.budget import budgets, devices
from edgekit.engines.mlx.types import MlxSetup


def placements(task: Task) -> Iterator[Placement]:
    """One: the GPU uses the same memory as the CPU."""
    cards = devices(task.machine)
    yield Placement(
        setup=task.start.setup or MlxSetup(),
        budgets=budgets(task.machine),
        cards=cards[:1],
        because=f"in the unified memory of {cards[0].name}",
        whole=True,
    )
