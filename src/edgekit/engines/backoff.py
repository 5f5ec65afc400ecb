"""The pauses before an engine that failed is started again."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STEADY_S = 300.0  # counting begins anew after an engine was up for this long
_MOST_DOUBLINGS = 10  # beyond the longest pause


@dataclass(slots=True)
class Backoff:
    """The failures of an engine, one after another. Each doubles the pause, up to the longest."""

    failures: int = 0

    def next_pause_s(self) -> float:
        """Counts a failure."""
        pause_s = FIRST_PAUSE_S * 2.0 ** min(self.failures, _MOST_DOUBLINGS)
        self.failures += 1
        return min(pause_s, LONGEST_PAUSE_S)
