"""What was decided for one part of an answer, and what else was tried."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field


class Lever(enum.Enum):
    """What can be turned, in the order in which memory that is left is spent."""

    WEIGHTS = "weights"  # a bigger model: of one model, a more accurate file
    PLACEMENT = "placement"
    CONTEXT = "context"
    CACHE = "cache"
    DRAFTER = "drafter"
    SEQUENCES = "sequences"
    LIMIT = "limit"  # of the system: what macOS lets the GPU wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One setting of a lever that was looked at."""

    value: str
    outcome: str | Callable[[], str] = field(compare=False)  # finding out may take a bill
    taken: bool = False

    @property
    def told(self) -> str:
        return self.outcome if isinstance(self.outcome, str) else self.outcome()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One lever: where it stands, and why there."""

    lever: Lever
    value: str  # "Q5_K_M", "32,768 tokens", "q8_0"
    because: str
    tried: tuple[Tried, ...] = ()
