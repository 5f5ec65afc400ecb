"""Seconds of several pieces of work that take turns, so that a busy machine slows all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Work = Callable[[], object]


def best_turns(work: Mapping[str, Work], *, turns_s: float, least_turns: int) -> dict[str, float]:
    """CPU seconds that each needs at best, all threads together."""
    least = dict.fromkeys(work, float("inf"))
    end = time.perf_counter() + turns_s
    turns = 0
    while turns < least_turns or time.perf_counter() < end:
        for name, run in work.items():
            began = time.process_time()
            run()
            least[name] = min(least[name], time.process_time() - began)
        turns += 1
    return least
