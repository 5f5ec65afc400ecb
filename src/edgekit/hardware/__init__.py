"""Where we run -> a Machine. The table of probes is in probes.py: it is imported when something is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekit.hardware.surroundings import Surroundings
    from edgekit.hardware.types import Machine


def detect(here: Surroundings | None = None) -> Machine:
    """What is here now. Never raises for what a driver or a file answers: that is in `notes`."""
    from edgekit.hardware.probes import look

    return look(here)
