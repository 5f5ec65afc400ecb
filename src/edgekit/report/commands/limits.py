"""What macOS lets the GPU wire -> the command that raises it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from edgekit.plan.planned import Lever
from edgekit.report.commands.types import Planned, Ready

SETTING = re.compile(r"iogpu\.wired_limit_mb=[0-9]{1,9}")
UNTIL_RESTART = (
    "until the next restart; `sudo sysctl iogpu.wired_limit_mb=0` goes back to macOS' own limit"
)


def ready(planned: Planned) -> Iterator[Ready]:
    """mlx-lm's README @ d78bf58: sudo sysctl iogpu.wired_limit_mb=N."""
    decision = planned.plan.decision(Lever.LIMIT)
    if decision is None:
        return
    if not SETTING.fullmatch(decision.value):  # a limit that stays as it is says so in words
        return
    words = ["sudo", "sysctl", decision.value]
    notes = (decision.because, UNTIL_RESTART)
    yield planned.command("wired limit of the GPU", words, notes=[note for note in notes if note])
