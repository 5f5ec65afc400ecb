"""The machine a model is to run on: this one, or one that is described.

Probes and the table of devices are imported when they are needed: every module imports this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekit.machine.surroundings import Surroundings
    from edgekit.machine.types import Machine


def detect(here: Surroundings | None = None) -> Machine:
    """Probe this machine. Never raises: what a driver or a file refuses to answer is in `notes`."""
    from edgekit.machine.probes import look

    return look(here)


def requested_machine(
    *, devices: Sequence[str] = (), ram: str | None = None, vram: str | None = None
) -> Machine:
    """The machine that is described, or this one if nothing is. Raises UsageError."""
    if not devices and ram is None and vram is None:
        return detect()
    from edgekit.machine.what_if import what_if_machine  # this machine needs no table of devices

    return what_if_machine(devices=tuple(devices), ram=ram, vram=vram)
