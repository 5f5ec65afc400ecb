"""Where the dummy engine puts a model."""

from __future__ import annotations

from collections.abc import Iterator

from tests.data.dummy_engine.budget import budgets
from tests.data.dummy_engine.flags import DummySetup

from edgekit.bill.task import Placement, Task


def placements(task: Task) -> Iterator[Placement]:
    yield Placement(
        setup=task.start.setup or DummySetup(),
        budgets=budgets(task.machine),
        because="in dummy memory",
        whole=True,
    )
