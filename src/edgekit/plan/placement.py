"""The placements that an engine offers for a task, the first that holds a context, and the longest context."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice, takewhile

from edgekit.bill.types import Placement, Placements, Task
from edgekit.engines import engine_named
from edgekit.errors import RefusedError
from edgekit.machine.types import gpu_budgets, together_bytes
from edgekit.plan.fit import Fitting, longest


def placements_of(task: Task) -> Placements:
    """Placements, whole ones first; each of the others uses no more device memory than the one before it.

    Raises HardwareError if the engine cannot run on the machine.
    """
    return tuple(_placements(task))


def whole_placements(task: Task) -> Placements:
    """Placements with the whole model where the engine computes: on the devices, or on the CPU if there are none.

    A placement given by the user counts even if it leaves a part of the model elsewhere.
    """
    found = tuple(takewhile(lambda placement: placement.whole, _placements(task)))
    return found or placements_of(task)


def first_placement(task: Task) -> Placement:
    return next(_placements(task))


def can_divide(task: Task) -> bool:
    """Whether part of the model may be off the devices (for the built-in engine: off the memory)."""
    return any(not placement.whole for placement in islice(_placements(task), 1, None))


def _placements(task: Task) -> Iterator[Placement]:
    engine = engine_named(task.engine)
    engine.check_runs(task.machine)
    engine.check_limits(task.reserve_bytes, task.max_use)
    for placement in engine.placements(task):
        if task.reserve_bytes is None:
            yield placement
            continue
        budgets = tuple(
            replace(
                one,
                reserve_bytes=task.reserve_bytes,
                because="set with --reserve",
                has_default_reserve=False,
            )
            for one in placement.budgets
        )
        yield replace(placement, budgets=budgets)


SHORT = 8  # up to this many placements are tried one by one
# A load that fits several cards together may not fit each of them: only whole layers move between cards.
LOOK_FURTHER = 12
WORTH_A_PATTERN = 0.003  # share of device memory; for less, the simpler command is better
NEARLY_HELD = (
    0.05  # margin: buffers may be smaller than they seem, and a reserve covers the first request
)


class Ladder:
    """The placements of a task. Each rung uses less device memory, and usually more RAM, than the one above it."""

    def __init__(self, task: Task, placements: Placements) -> None:
        self.task, self._placements = task, placements
        self._rungs: dict[int, Fitting] = {}
        self._held: dict[int, int] = {}  # tokens -> first rung that fits its devices in sum

    def rung(self, place: int) -> Fitting:
        if place not in self._rungs:
            self._rungs[place] = Fitting(self.task, self._placements[place])
        return self._rungs[place]

    @property
    def top(self) -> Fitting:
        return self.rung(0)

    @cached_property
    def _wholes(self) -> int:
        """The number of whole placements at the top, at least 1. Each of them is tried."""
        leading = sum(1 for _ in takewhile(lambda placement: placement.whole, self._placements))
        return min(max(leading, 1), len(self._placements))

    @cached_property
    def _seam(self) -> int:
        """The last placement with all layers on the devices. The next has the head in RAM and may need more there."""
        return sum(1 for _ in takewhile(lambda one: one.all_layers, self._placements)) - 1

    @property
    def last(self) -> int:
        return len(self._placements) - 1

    def holder(self, tokens: int) -> Fitting | None:
        """The placement with the most on the devices that holds a context of this length; None if there is none."""
        rung = self._first_holder(tokens)
        return rung if rung is None or rung.placement.whole else self._finer(rung, tokens)

    def _finer(self, rung: Fitting, tokens: int) -> Fitting:
        """The best placement between this rung and the one above; this one if the gain is too small."""
        between = rung.engine.finer_placements(self.task.model, rung.placement)
        finer = [Fitting(self.task, placement) for placement in between]
        if not finer or self.last == 0:
            return rung
        held = rung.held_share(tokens)
        most = 1 + NEARLY_HELD - (rung.devices_share(tokens) - held)
        shares = {one: one.held_share(tokens) for one in finer}
        better = [one for one in finer if held + WORTH_A_PATTERN <= shares[one] <= most]
        better.sort(
            key=lambda one: shares[one] + WORTH_A_PATTERN * one.placement.is_short_command,
            reverse=True,
        )
        return next((one for one in better if one.fits(tokens)), rung)

    def _first_holder(self, tokens: int) -> Fitting | None:
        for place in range(self._wholes):
            if self.rung(place).fits(tokens):
                return self.rung(place)
        if self.last < SHORT or self._wholes > self.last:
            rungs = (self.rung(place) for place in range(self._wholes, self.last + 1))
            return next((one for one in rungs if one.fits(tokens)), None)
        # weights and caches alone may exceed all memories together; on the CPU nothing is held twice
        if self.rung(self.last).held_bytes(tokens) > together_bytes(self.top.placement.budgets):
            return None
        first = self._first_held(tokens)
        several = len(gpu_budgets(self.top.placement.budgets)) > 1
        further = LOOK_FURTHER if several or not first else 0
        seam = [self._seam] if self._wholes <= self._seam < first else []
        near = [*seam, *range(first, min(first + further, self.last) + 1), self.last]
        rungs = (self.rung(place) for place in dict.fromkeys(near))
        return next((one for one in rungs if one.fits(tokens)), None)

    def nearest(self, tokens: int) -> Fitting:
        """The placement that exceeds its limits least, if none holds the context."""
        tried = [one for one in self._rungs.values() if _is_run(one, tokens)]
        return min(tried, key=lambda one: one.price(tokens).fullness, default=self.top)

    @cached_property
    def longest(self) -> int:
        """The longest context that any placement holds."""
        step, most = self.top.step, self.top.most
        is_short = self.last < SHORT
        found = self.top.longest
        for place in range(1, self.last + 1 if is_short else self._wholes):
            if found == most:
                break
            if _is_run(self.rung(place)):
                found = max(found, self.rung(place).longest)
        if found == most or is_short or self._wholes > self.last:
            return found
        anywhere = longest(
            lambda tokens: self._first_holder(tokens) is not None, step=step, most=most
        )
        return max(found, anywhere)

    def _first_held(self, tokens: int) -> int:
        """The first rung that holds the context. Fewer tokens never need a lower one, so known results narrow it."""
        if tokens in self._held:
            return self._held[tokens]
        known_low = (rung - 1 for known, rung in self._held.items() if known < tokens)
        low = max(self._wholes - 1, *known_low, 0)
        high = min(
            (rung for known, rung in self._held.items() if known > tokens), default=self.last
        )
        low = min(max(low, 0), high - 1)
        rung = self.rung(low)
        overflows = rung.held_share(tokens) > 1 or rung.devices_share(tokens) > 1
        found = self._searched(tokens, low, high) if overflows else low
        self._held[tokens] = found
        return found

    def _searched(self, tokens: int, low: int, high: int) -> int:
        """Binary search by weights and caches, which are cheap to compute; buffers hardly change between rungs."""
        rest = 0.0  # the share of the devices that the buffers take

        def seems_held(place: int) -> bool:
            return self.rung(place).held_share(tokens) + rest <= 1

        while high - low > 1:
            guess = bisect_left(range(low + 1, high), True, key=seems_held)
            place = min(low + 1 + guess, high - 1)
            share = self.rung(place).devices_share(tokens)
            rest = share - self.rung(place).held_share(tokens)
            if share <= 1:
                high = place
            else:
                low = place
        return high


def _is_run(fitting: Fitting, tokens: int | None = None) -> bool:
    """Whether the engine would start in this placement: some numbers of cards cannot divide the heads."""
    try:
        fitting.price(fitting.least if tokens is None else tokens)
    except RefusedError:
        return False
    return True
