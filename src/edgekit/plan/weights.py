"""A wish -> the quantisation to take, and where it lies: the first decision, in a fixed order of preference.

The order knows nothing of the memory at hand, and more memory only adds to what is possible: so a plan never gets worse
with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgekit.hardware.budgets import devices_for
from edgekit.plan.caches import with_setup
from edgekit.plan.candidates import CLOSE_PLACE, Candidate, open_window, reaches
from edgekit.plan.ladder import Ladder
from edgekit.plan.pace import pace, steady_pace
from edgekit.plan.placement import PLACED, first_way
from edgekit.plan.planned import Tried, Variant, Wish
from edgekit.plan.variants import USUAL_ACCURACY
from edgekit.units import format_bytes

MORE_BITS_FROM_TOKENS_PER_S = 15.0  # below it nobody gives up speed for them


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The candidate that is taken, why its weights, and what was looked at before."""

    candidate: Candidate
    divided: bool
    because: str
    tried: tuple[Tried, ...]


def take_weights(wish: Wish, *, brief: bool = False) -> Taken | None:
    """None where no quantisation fits in any way. `brief`: without looking how much longer another cache would hold.

    First about four bits or more, all of it where the engine computes; then with experts or layers on the host; fewer
    bits only where nothing else fits. More bits than usual where they cost nothing else.
    """
    good = [one for one in wish.variants if one.is_good]
    usual = [one for one in good if one.accuracy <= USUAL_ACCURACY] or good[-1:]
    better = [one for one in good if one not in usual]
    tried: list[Tried] = []
    for variants, divided, told in _stages(wish, usual):
        found = _first(wish, variants, tried, brief=brief, divided=divided)
        if found is None:
            continue
        if not divided and better and found.variant in usual[:1]:
            return _bettered(wish, better, found, tried, brief=brief)
        return _taken(found, told, tried, divided=divided)
    return None


def _stages(wish: Wish, usual: Sequence[Variant]) -> Iterator[tuple[Sequence[Variant], bool, str]]:
    low = [one for one in wish.variants if not one.is_good]
    alone = len(wish.variants) == 1
    only = "as asked" if {"mix", "quantize"} & wish.start.settled else "the file there is"
    divides = _may_be_divided(wish)
    yield usual, False, only if alone else "the most accurate that fits as a whole"
    if divides:
        told = "with more bits even less of it would lie on the device"
        yield usual, True, only if alone else told
    yield low, False, "fewer bits than usual, for nothing else fits"
    if divides:
        yield low, True, "fewer bits than usual, for nothing else fits"


def _may_be_divided(wish: Wish) -> bool:
    if wish.engine != "llama.cpp" or wish.start.settled & PLACED or wish.machine.host is None:
        return False
    return bool(devices_for(wish.machine, wish.engine))


def _first(
    wish: Wish, variants: Sequence[Variant], tried: list[Tried], *, brief: bool, divided: bool
) -> Candidate | None:
    for variant in variants:
        found = open_window(wish, variant, brief=brief, divided=divided)
        if found is not None:
            return _cache_on_host(found) if divided else found
        where = "with a part on the host" if divided else "as a whole"
        tried.append(Tried(value=variant.name, told=f"does not fit {where}"))
    return None


def _cache_on_host(found: Candidate) -> Candidate:
    """All layers on the devices and the cache on the host, where that fits as well and is faster.

    With the window half full: an empty cache is nowhere in the way, and nobody opens a window for nothing.
    """
    asked = with_setup(found.question, offload_kqv=False)
    other = found.on(Ladder(asked, (first_way(asked),)))
    if other is None or _half_full(other) <= _half_full(found):
        return found
    return other


def _half_full(candidate: Candidate) -> float:
    """Tokens a second, in the middle of the range; 0 where nothing is known."""
    each = candidate.tokens // candidate.held.streams
    speed = pace(candidate.question, candidate.weighed, each // 2)
    return 0.0 if speed is None else math.sqrt(math.prod(speed.decode))


def _bettered(
    wish: Wish, better: Sequence[Variant], found: Candidate, tried: list[Tried], *, brief: bool
) -> Taken:
    """More bits, where they cost neither window nor a cache of eight bits, and do not make it slow."""
    if found.choice.place > CLOSE_PLACE:
        told = "the usual accuracy; with more memory the cache comes first"
        return _taken(found, told, tried, divided=False)
    for variant in better:
        if not reaches(wish, variant, found.needed):
            told = f"leaves no room for {found.tokens:,} tokens in 8 bits"
            tried.append(Tried(value=variant.name, told=told))
            continue
        other = open_window(wish, variant, brief=brief)
        if other is None:
            continue
        speed = _pace(other)
        if speed is None or speed < MORE_BITS_FROM_TOKENS_PER_S:
            told = (
                "how fast it would be is not known"
                if speed is None
                else f"about {speed:.1f} tokens a second"
            )
            tried.append(Tried(value=variant.name, told=f"fits, but {told}"))
            continue
        told = f"the most accurate that leaves room for {other.tokens:,} tokens, and quick enough"
        return _taken(other, told, tried, divided=False)
    return _taken(found, "more bits would cost window, cache or speed", tried, divided=False)


def _pace(candidate: Candidate) -> float | None:
    return steady_pace(candidate.question, candidate.weighed)


def _taken(found: Candidate, because: str, tried: list[Tried], *, divided: bool) -> Taken:
    size = format_bytes(found.weighed.estimate.weights_bytes)
    mine = Tried(value=found.variant.name, told=f"{size} of weights", taken=True)
    return Taken(candidate=found, divided=divided, because=because, tried=(*tried, mine))
