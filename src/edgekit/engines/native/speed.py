"""How fast the built-in engine is, if it never has to read weights from a disk."""

from __future__ import annotations

from edgekit.engines.native.estimate import NAME
from edgekit.engines.speed import speed_bound
from edgekit.machine.types import Machine


def fastest_tokens_per_s(read_bytes: float, held_bytes: int, machine: Machine) -> float | None:
    """A bound for models of `held_bytes` that read `read_bytes` per token."""
    return speed_bound(read_bytes, held_bytes, machine, NAME)
