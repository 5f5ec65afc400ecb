"""A model, an engine and a machine -> whether it fits, how long a context, and how it would be started."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial

from edgekit.errors import RefusedError
from edgekit.plan.fitting import Fitting
from edgekit.plan.placement import ways_of
from edgekit.plan.types import FULL_PERCENT, PreflightResult, Question

SHORT_LADDER = 8  # so few ways are tried one by one

Ladder = Callable[[int], Fitting]  # a rung -> what is asked of it, worked out once


def judge(question: Question) -> PreflightResult:
    """The verdict for the best way to start the engine there: the first that fits, with most on the devices.

    Raises HardwareError where the engine cannot run on the machine, RefusedError where it would not run the model.
    """
    ways = ways_of(question.model, question.engine, question.machine, question.start)
    ladder = cache(lambda rung: Fitting(question, ways[rung]))
    tried = [ladder(0).result()]
    if tried[0].can_load:
        return tried[0]
    for rung in _further(ladder, len(ways) - 1):
        try:
            tried.append(ladder(rung).result())
        except RefusedError:  # heads that so many cards do not divide
            continue
        if tried[-1].can_load:
            return tried[-1]
    return min(tried, key=lambda result: result.utilization)


def _further(ladder: Ladder, last: int) -> Iterator[int]:
    """Of a long ladder only the first rung on which the devices hold the load: the host has to hold the rest."""
    if last < SHORT_LADDER:
        yield from range(1, last + 1)
        return
    for tokens in _targets(ladder(0)):
        yield _first_held(partial(_share, ladder, tokens), last)


def _share(ladder: Ladder, tokens: int, rung: int) -> float:
    return ladder(rung).device_utilization(tokens)


def _first_held(share: Callable[[int], float], last: int) -> int:
    """The first rung whose share of the devices is within 85 %; the last needs no device.

    Every rung takes nearly as much off as the one before: a straight line guesses it in three looks instead of seven.
    """
    low, high = 0, last
    above, below = share(low), 0.0
    limit = FULL_PERCENT / 100
    while high - low > 1:
        part = (above - limit) / (above - below) if math.isfinite(above) else 0.5
        rung = min(max(low + round(part * (high - low)), low + 1), high - 1)
        found = share(rung)
        if found <= limit:
            high, below = rung, found
        else:
            low, above = rung, found
    return high


def _targets(full: Fitting) -> tuple[int, ...]:
    """The context to make room for: what was asked for, else the window that would be opened, else the least."""
    if full.asked is not None:
        return (full.asked,)
    return tuple(dict.fromkeys((full.window_tokens, full.minimum)))
