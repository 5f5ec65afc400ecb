"""A graph and several backends -> which node runs where, and what is copied: ggml_backend_sched @ 0c1e570."""

from __future__ import annotations

from edgekit.engines.llamacpp.schedule.assign import assign
from edgekit.engines.llamacpp.schedule.split import split
from edgekit.engines.llamacpp.schedule.types import ScheduledBackend, ScheduledMachine

__all__ = ["ScheduledBackend", "ScheduledMachine", "assign", "split"]
