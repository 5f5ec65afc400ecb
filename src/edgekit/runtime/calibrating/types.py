"""Nouns of a calibration: how much is measured, and what came out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgekit.engines.comparison import Verification
from edgekit.engines.program import BUSY_SHARE
from edgekit.machine.measured import EngineMeasured, HostMeasured
from edgekit.machine.types import Machine

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """How long and how much is measured."""

    read_bytes: int | None = None  # of memory; None: 1 GiB, or an eighth of what is free
    read_seconds: float = 1.0
    shape: Any = None  # of the test model that the engine generates; None: its usual one
    pace_seconds: float = 20.0
    folder: Path | None = None  # None: that of temporary files
    busy_share: float = BUSY_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where and how much is measured."""

    machine: Machine
    options: CalibrateOptions
    tell: Tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What was measured now. What is None could not be, or is not kept: a note says why."""

    machine: Machine = field(repr=False)
    host: HostMeasured
    engine: EngineMeasured | None = None
    verification: Verification | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether a part of the bill was outside its bounds: that is kept too."""
        return self.verification is not None and not self.verification.within

    @property
    def is_kept(self) -> bool:
        """Whether there is anything to be kept."""
        host = self.host
        return bool(host.bandwidth_bytes_per_s or host.disk or self.engine or self.differs)
