"""Layers that repeat: which of them must be built to know them all."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

LONGEST_PERIOD = 12  # real patterns: 6 (Gemma 3), 8 (Jamba)
# How many of equal periods are built: the first may differ from those after it (what came before is freed there), the
# last from those before it (masks are freed there); two in between show that they are alike. Where a period frees what
# the one before it took, it may be one later that they are.
FEW, MORE = 4, 5


class Stretch(NamedTuple):
    """`periods` times `period` layers alike, of which `built` periods are built, beginning with built layer `start`."""

    start: int
    period: int
    periods: int
    built: int = FEW

    @property
    def body(self) -> int:
        """Which of the built periods is the one that is repeated: the next is like it, then comes the last."""
        return self.built - 3


class Kept(NamedTuple):
    layers: tuple[int, ...]  # the real numbers of the layers that are built
    stretches: tuple[Stretch, ...]


def keep_all(count: int) -> Kept:
    return Kept(tuple(range(count)), ())


def keep_some(keys: Sequence[Hashable], built: int) -> Kept:
    """One key for each layer; those with equal keys are built alike."""
    layers: list[int] = []
    stretches: list[Stretch] = []
    i = 0
    while i < len(keys):
        period, periods = _repeats(keys, i, built)
        if periods > built:
            stretches.append(Stretch(len(layers), period, periods, built))
            layers.extend(range(i, i + built * period))
            i += period * periods
        else:
            layers.append(i)
            i += 1
    return Kept(tuple(layers), tuple(stretches))


def _repeats(keys: Sequence[Hashable], start: int, built: int) -> tuple[int, int]:
    """The period from here on that saves most, and how often it comes."""
    best, saved = (1, 1), 0
    for period in range(1, LONGEST_PERIOD + 1):
        end = start + period
        while end < len(keys) and keys[end] == keys[end - period]:
            end += 1
        periods = (end - start) // period
        if (periods - built) * period > saved:
            best, saved = (period, periods), (periods - built) * period
    return best
