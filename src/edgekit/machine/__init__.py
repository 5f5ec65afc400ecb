"""Where we run -> a Machine. The table of probes is in probes.py: it is imported when something is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekit.machine.surroundings import Surroundings
    from edgekit.machine.types import Machine


def detect(here: Surroundings | None = None) -> Machine:
    """What is here now. Never raises for what a driver or a file answers: that is in `notes`."""
    from edgekit.machine.probes import look

    return look(here)


def requested_machine(
    *, devices: Sequence[str] = (), ram: str | None = None, vram: str | None = None
) -> Machine:
    """The machine that is described; the one at hand where nothing is. Raises UsageError."""
    if not devices and ram is None and vram is None:
        return detect()
    from edgekit.machine.what_if import what_if_machine

    return what_if_machine(devices=tuple(devices), ram=ram, vram=vram)
