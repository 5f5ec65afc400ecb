"""The ways to start an engine -> the first of them that holds a context, and the longest that any holds."""

from __future__ import annotations

import math
from functools import cached_property

from edgekit.errors import RefusedError
from edgekit.memory.types import CACHES, Component
from edgekit.plan.context import longest
from edgekit.plan.fitting import Fitting
from edgekit.plan.types import FULL_PERCENT, Question, Ways

SHORT = 8  # so few ways are tried one by one
_LIMIT = FULL_PERCENT / 100


class Ladder:
    """Every rung takes less of the devices, and more of the host, than the one before it."""

    def __init__(self, question: Question, ways: Ways) -> None:
        self._question, self._ways = question, ways
        self._rungs: dict[int, Fitting] = {}
        self._held: dict[int, int] = {}  # tokens -> the first rung on which the devices hold them

    def rung(self, place: int) -> Fitting:
        if place not in self._rungs:
            self._rungs[place] = Fitting(self._question, self._ways[place])
        return self._rungs[place]

    @property
    def top(self) -> Fitting:
        return self.rung(0)

    @property
    def last(self) -> int:
        return len(self._ways) - 1

    def holder(self, tokens: int) -> Fitting | None:
        """The first way that holds so many tokens; None where none does."""
        if _fits(self.top, tokens):
            return self.top
        if self.last < SHORT:
            rungs = (self.rung(place) for place in range(1, self.last + 1))
            return next((one for one in rungs if _fits(one, tokens)), None)
        if self._is_hopeless(tokens):
            return None
        found = self.rung(self._first_held(tokens))
        return found if _fits(found, tokens) else None

    def nearest(self, tokens: int) -> Fitting:
        """Where none holds them: the one that lacks least."""
        tried = [one for one in self._rungs.values() if _is_run(one, tokens)]
        return min(tried, key=lambda one: one.price(tokens).tightest.utilization, default=self.top)

    @cached_property
    def longest(self) -> int:
        """Of all ways."""
        if self.top.longest == self.top.most or not self.last:
            return self.top.longest
        if self.last < SHORT:
            rungs = (self.rung(place) for place in range(self.last + 1))
            return max(one.longest for one in rungs if _is_run(one, one.least))
        step, most = self.top.step, self.top.most
        return max(
            self.top.longest,
            longest(lambda tokens: self.holder(tokens) is not None, step=step, most=most),
        )

    def _is_hopeless(self, tokens: int) -> bool:
        """Weights and caches alone are more than all memories together may hold: no rung mends that."""
        weighed = self.top.price(tokens)
        needed = weighed.estimate.of(Component.WEIGHTS, *CACHES)
        budgets = [use.budget for use in weighed.uses]
        apart = [one for one in budgets if not any(one.pools < other.pools for other in budgets)]
        return needed * 100 > sum(one.available_bytes for one in apart) * FULL_PERCENT

    def _first_held(self, tokens: int) -> int:
        """Every rung takes nearly as much off as the one before: a straight line guesses it in three looks, not seven.

        Fewer tokens never need a lower rung, so what is known of others narrows it. The last needs no device.
        """
        if tokens in self._held:
            return self._held[tokens]
        low = max((rung - 1 for known, rung in self._held.items() if known < tokens), default=0)
        high = min(
            (rung for known, rung in self._held.items() if known > tokens), default=self.last
        )
        low = min(max(low, 0), high - 1)
        above, below = self._share(low, tokens), 0.0
        if above <= _LIMIT:  # it is not the devices that lack
            low = high = low or self.last
        while high - low > 1:
            part = (above - _LIMIT) / (above - below) if math.isfinite(above) else 0.5
            rung = min(max(low + round(part * (high - low)), low + 1), high - 1)
            share = self._share(rung, tokens)
            if share <= _LIMIT:
                high, below = rung, share
            else:
                low, above = rung, share
        self._held[tokens] = high
        return high

    def _share(self, place: int, tokens: int) -> float:
        return self.rung(place).device_utilization(tokens)


def _fits(fitting: Fitting, tokens: int) -> bool:
    try:
        return fitting.price(tokens).fits
    except RefusedError:  # heads that so many cards do not divide, or a ceiling of the engine's own
        return False


def _is_run(fitting: Fitting, tokens: int) -> bool:
    try:
        fitting.price(tokens)
    except RefusedError:
        return False
    return True
