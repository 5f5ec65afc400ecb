"""A task -> the placements that its engine offers, within the limits that were set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, takewhile

from edgekit.bill.task import Placement, Placements, Task
from edgekit.engines import engine_named


def placements_of(task: Task) -> Placements:
    """Whole ones first; behind them no placement takes more of the devices than the one before it.

    Raises HardwareError where the engine cannot run there at all.
    """
    return tuple(_placements(task))


def whole_placements(task: Task) -> Placements:
    """Those with all of the model where the engine computes: on the devices, or on a CPU without any.

    Where the user settled a placement that leaves something elsewhere, that one.
    """
    found = tuple(takewhile(lambda placement: placement.whole, _placements(task)))
    return found or placements_of(task)


def first_placement(task: Task) -> Placement:
    return next(_placements(task))


def can_divide(task: Task) -> bool:
    """Whether a part of the model may leave the devices (of the built-in engine: the memory)."""
    return any(not placement.whole for placement in islice(_placements(task), 1, None))


def _placements(task: Task) -> Iterator[Placement]:
    engine = engine_named(task.engine)
    engine.check_runs(task.machine)
    engine.check_limits(task.reserve_bytes, task.max_use)
    for placement in engine.placements(task):
        if task.reserve_bytes is None:
            yield placement
            continue
        budgets = tuple(
            replace(
                one,
                reserve_bytes=task.reserve_bytes,
                because="set with --reserve",
                has_default_reserve=False,
            )
            for one in placement.budgets
        )
        yield replace(placement, budgets=budgets)
