"""A graph and several backends -> which node runs where, and what is copied: ggml_backend_sched @ 0c1e570."""

from __future__ import annotations

from edgekit.engine.llamacpp.schedule.assign import assign
from edgekit.engine.llamacpp.schedule.split import split
from edgekit.engine.llamacpp.schedule.types import Backend, Machine

__all__ = ["Backend", "Machine", "assign", "split"]
