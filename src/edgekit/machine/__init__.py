"""The machine to run a model on: this one, or one described with flags.

Probes and the device table are imported on first use, because every module imports this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekit.machine.surroundings import Surroundings
    from edgekit.machine.types import Machine


def detect(here: Surroundings | None = None) -> Machine:
    """Probe this machine. Never raises: whatever could not be read is in `notes`."""
    from edgekit.machine.probes import look

    return look(here)


def requested_machine(
    *, devices: Sequence[str] = (), ram: str | None = None, vram: str | None = None
) -> Machine:
    """The described machine, or this one if none is described. Raises UsageError."""
    if not devices and ram is None and vram is None:
        return detect()
    from edgekit.machine.what_if import what_if_machine  # detecting needs no device table

    return what_if_machine(devices=tuple(devices), ram=ram, vram=vram)
