"""The system's limit on what the GPU may use -> a decision of the plan, where a higher limit gives a longer window."""

from __future__ import annotations

from collections.abc import Callable

from edgekit.hardware.gpu_limit import raised_limit
from edgekit.hardware.types import Machine
from edgekit.plan.planned import Decision, Lever


def decide_limit(
    machine: Machine, tokens: int, longest_on: Callable[[Machine], int]
) -> Decision | None:
    """None where it would not lengthen the window. A plan never counts on it: it has to be set first."""
    raised = raised_limit(machine)
    if raised is None:
        return None
    longer = longest_on(raised.machine)
    if longer <= tokens:
        return None
    return Decision(
        lever=Lever.LIMIT,
        value=raised.setting or raised.how,
        because=raised.sentence(f"up to {longer:,} tokens"),
    )
