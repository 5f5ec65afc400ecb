"""Times functions that take turns, so that a busy machine slows all of them equally."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Work = Callable[[], object]


def best_turns(work: Mapping[str, Work], *, turns_s: float, min_turns: int) -> dict[str, float]:
    """Name -> the fewest CPU seconds of a turn, all threads together."""
    best = dict.fromkeys(work, float("inf"))
    end_s = time.perf_counter() + turns_s
    turns = 0
    while turns < min_turns or time.perf_counter() < end_s:
        for name, function in work.items():
            start_s = time.process_time()
            function()
            best[name] = min(best[name], time.process_time() - start_s)
        turns += 1
    return best
