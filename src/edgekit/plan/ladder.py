"""The ways to start an engine -> the first of them that holds a context, and the longest that any holds."""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property, partial
from itertools import takewhile
from typing import Any

from edgekit.bill.task import Placements, Task
from edgekit.engines.llamacpp.types import ALL_LAYERS
from edgekit.errors import RefusedError
from edgekit.machine.types import gpu_budgets, together_bytes
from edgekit.plan.context import longest
from edgekit.plan.fitting import Fitting
from edgekit.plan.placement import finer_ways

SHORT = 8  # so few ways are tried one by one
# Several cards that hold something together need not hold it each: whole layers move from one to the next.
LOOK_FURTHER = 12
WORTH_A_PATTERN = 0.003  # of the devices' memory: for less a simpler command is better
NEARLY_HELD = (
    0.05  # beyond what seems to fit: buffers may be smaller, and a reserve covers the first request
)


class Ladder:
    """Every rung takes less of the devices, and as a rule more of the host, than the one before it."""

    def __init__(self, question: Task, ways: Placements) -> None:
        self.question, self._ways = question, ways
        self._rungs: dict[int, Fitting] = {}
        self._held: dict[int, int] = {}  # tokens -> the first rung they hold, taken together

    def rung(self, place: int) -> Fitting:
        if place not in self._rungs:
            self._rungs[place] = Fitting(self.question, self._ways[place])
        return self._rungs[place]

    @property
    def top(self) -> Fitting:
        return self.rung(0)

    @cached_property
    def _wholes(self) -> int:
        """So many ways at the top have all of it on devices; at least the first is tried on its own."""
        leading = sum(1 for _ in takewhile(lambda way: way.whole, self._ways))
        return min(max(leading, 1), len(self._ways))

    @cached_property
    def _seam(self) -> int:
        """The last way with every layer on the devices. The next, with the head on the host, may need more there."""
        setups = (way.setup for way in self._ways)
        return sum(1 for _ in takewhile(_has_all_layers, setups)) - 1

    @property
    def last(self) -> int:
        return len(self._ways) - 1

    def holder(self, tokens: int) -> Fitting | None:
        """The way with most on the devices that holds so many tokens; None where none does."""
        rung = self._first_holder(tokens)
        return rung if rung is None or rung.way.whole else self._finer(rung, tokens)

    def _finer(self, rung: Fitting, tokens: int) -> Fitting:
        """The best of the ways between this and the one before it; itself where they are not worth it."""
        finer = [Fitting(self.question, way) for way in finer_ways(self.question.model, rung.way)]
        if not finer or self.last == 0:
            return rung
        held = rung.held_share(tokens)
        most = 1 + NEARLY_HELD - (rung.devices_share(tokens) - held)
        shares = {one: one.held_share(tokens) for one in finer}
        better = [one for one in finer if held + WORTH_A_PATTERN <= shares[one] <= most]
        better.sort(
            key=lambda one: shares[one] + WORTH_A_PATTERN * bool(one.way.setup.n_cpu_moe),
            reverse=True,
        )
        return next((one for one in better if one.fits(tokens)), rung)

    def _first_holder(self, tokens: int) -> Fitting | None:
        for place in range(self._wholes):
            if self.rung(place).fits(tokens):
                return self.rung(place)
        if self.last < SHORT:
            rungs = (self.rung(place) for place in range(self._wholes, self.last + 1))
            return next((one for one in rungs if one.fits(tokens)), None)
        if self._is_hopeless(tokens):
            return None
        first = self._first_held(tokens)
        several = len(gpu_budgets(self.top.way.budgets)) > 1
        further = LOOK_FURTHER if several or not first else 0
        seam = [self._seam] if self._wholes <= self._seam < first else []
        near = [*seam, *range(first, min(first + further, self.last) + 1), self.last]
        rungs = (self.rung(place) for place in dict.fromkeys(near))
        return next((one for one in rungs if one.fits(tokens)), None)

    def nearest(self, tokens: int) -> Fitting:
        """Where none holds them: the one that lacks least."""
        tried = [one for one in self._rungs.values() if _is_run(one, tokens)]
        return min(tried, key=lambda one: one.price(tokens).fullness, default=self.top)

    @cached_property
    def longest(self) -> int:
        """Of all ways."""
        if self.top.longest == self.top.most or not self.last:
            return self.top.longest
        if self.last < SHORT:
            rungs = (self.rung(place) for place in range(self.last + 1))
            return max((one.longest for one in rungs if _is_run(one)), default=0)
        step, most = self.top.step, self.top.most
        return max(
            *(self.rung(place).longest for place in range(self._wholes)),
            longest(lambda tokens: self._first_holder(tokens) is not None, step=step, most=most),
        )

    def _is_hopeless(self, tokens: int) -> bool:
        """Weights and caches alone are more than all memories together may hold: no rung mends that."""
        needed = self.rung(self.last).held_bytes(tokens)  # on the processor nothing is held twice
        return needed > together_bytes(self.top.way.budgets)

    def _first_held(self, tokens: int) -> int:
        """Fewer tokens never need a lower rung, so what is known of others narrows it. The last needs no device."""
        if tokens in self._held:
            return self._held[tokens]
        known_low = (rung - 1 for known, rung in self._held.items() if known < tokens)
        low = max(self._wholes - 1, *known_low, 0)
        high = min(
            (rung for known, rung in self._held.items() if known > tokens), default=self.last
        )
        low = min(max(low, 0), high - 1)
        found = self._searched(tokens, low, high) if self._overflows(low, tokens) else low
        self._held[tokens] = found
        return found

    def _searched(self, tokens: int, low: int, high: int) -> int:
        """Weights and caches are cheap to work out, and compute buffers hardly change from one rung to the next."""
        rest = 0.0
        while high - low > 1:
            places = range(low + 1, high)
            guess = bisect_left(places, True, key=partial(self._seems_held, tokens, rest))
            place = min(low + 1 + guess, high - 1)
            share = self.rung(place).devices_share(tokens)
            rest = share - self.rung(place).held_share(tokens)
            if share <= 1:
                high = place
            else:
                low = place
        return high

    def _seems_held(self, tokens: int, rest: float, place: int) -> bool:
        return self.rung(place).held_share(tokens) + rest <= 1

    def _overflows(self, place: int, tokens: int) -> bool:
        """Whether the devices together have too little room."""
        rung = self.rung(place)
        return rung.held_share(tokens) > 1 or rung.devices_share(tokens) > 1


def _has_all_layers(setup: Any) -> bool:
    return bool(getattr(setup, "n_gpu_layers", 0) == ALL_LAYERS)


def _is_run(fitting: Fitting, tokens: int | None = None) -> bool:
    """Whether the engine would start so: some numbers of cards do not divide the heads."""
    try:
        fitting.price(fitting.least if tokens is None else tokens)
    except RefusedError:
        return False
    return True
