"""Layers that repeat: which of them must be built to know them all."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

LONGEST_PERIOD = 12  # real patterns: 6 (Gemma 3), 8 (Jamba)
# Of layers that repeat a period is built before the one that is run again and again: in it what they share is copied or
# freed for the first time. One layer more, the first that frees what a layer like it took. Then come one period that
# shows that they are alike, and one that may differ again: masks are freed there.
SHOWN = 3


class LayerStretch(NamedTuple):
    """`periods` times `period` layers alike, of which SHOWN are built, beginning with built layer `start`."""

    start: int
    period: int
    periods: int

    @property
    def rounds(self) -> int:
        """How often the first period is run: instead of itself, of the next, and of those that are not built."""
        return self.missing + 2

    @property
    def missing(self) -> int:
        """Periods that are not built."""
        return self.periods - SHOWN


class KeptLayers(NamedTuple):
    layers: tuple[int, ...]  # the real numbers of the layers that are built
    stretches: tuple[LayerStretch, ...]

    def shape(self, keys: Sequence[Hashable]) -> Hashable:
        """What is built, of layers with those keys. How long the stretches are does not matter for it."""
        return tuple(keys[i] for i in self.layers), tuple(
            (one.start, one.period) for one in self.stretches
        )

    @property
    def standing(self) -> list[int]:
        """The real numbers again, but of layers after a period that is repeated: those that come after all of them."""
        layers = list(self.layers)
        for start, period, periods in self.stretches:
            for i in range(start + period, start + SHOWN * period):
                layers[i] += (periods - SHOWN) * period
        return layers


def keep_all(count: int) -> KeptLayers:
    return KeptLayers(tuple(range(count)), ())


def keep_some(keys: Sequence[Hashable]) -> KeptLayers:
    """One key for each layer; those with equal keys are built alike."""
    layers: list[int] = []
    stretches: list[LayerStretch] = []
    i = 0
    while i < len(keys):
        period, periods = _repeats(keys, i)
        if periods > SHOWN:
            lead = _lead(period)
            stretches.append(LayerStretch(len(layers) + lead, period, periods))
            layers.extend(range(i, i + lead + SHOWN * period))
            i += lead + period * periods
        else:
            layers.append(i)
            i += 1
    return KeptLayers(tuple(layers), tuple(stretches))


def _lead(period: int) -> int:
    return period + 1


def _repeats(keys: Sequence[Hashable], start: int) -> tuple[int, int]:
    """The period from here on that saves most, and how often it comes after the lead."""
    best, saved = (1, 1), 0
    for period in range(1, LONGEST_PERIOD + 1):
        end = start + period
        while end < len(keys) and keys[end] == keys[end - period]:
            end += 1
        periods = (end - start - _lead(period)) // period
        if (periods - SHOWN) * period > saved:
            best, saved = (period, periods), (periods - SHOWN) * period
    return best
