"""The system's limit on what the GPU may use -> the command that raises it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from edgekit.bill.decisions import Lever
from edgekit.machine.gpu_limit import raised_limit
from edgekit.report.commands.types import Command, Planned

NAME = "GPU memory limit"


def ready(planned: Planned) -> Iterator[Command]:
    """Only where the plan says that a higher limit helps."""
    decision = planned.plan.decision(Lever.LIMIT)
    raised = None if decision is None else raised_limit(planned.plan.result.machine)
    if decision is not None and raised is not None and raised.is_command:
        yield planned.command(NAME, shlex.split(raised.how), notes=[decision.because, raised.note])
