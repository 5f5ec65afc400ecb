"""Events of the layers that were built -> a program for all layers: sections, of which some are run again and again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from edgekit.engine.llamacpp.graph.dims import Dim, Monomial, Size
from edgekit.engine.llamacpp.graph.stretches import Stretch
from edgekit.engine.llamacpp.graph.trace import Event, Log


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Events in a row. In one that is repeated slots are counted anew: `slots` of the run before it, then its own."""

    events: tuple[Event, ...]
    repeats: int = 1
    base: int = 0
    slots: int = 0
    carried: tuple[int, ...] = ()  # slots of its own that the next run frees


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What one buffer goes through. `sizes` become bytes with a load's numbers."""

    alignment: int
    sections: tuple[Section, ...]
    sizes: Sizes
    slots: int


class Sizes:
    """Polynomials that are evaluated together: each product of variables is made once."""

    def __init__(self, sizes: Iterable[Size]) -> None:
        self.products: dict[Monomial, int] = {}
        self.rows = [self._row(size) for size in sizes]

    def _row(self, size: Size) -> tuple[tuple[int, int], ...]:
        terms = size.terms if isinstance(size, Dim) else {(): size}
        return tuple(
            (factor, self.products.setdefault(monomial, len(self.products)))
            for monomial, factor in terms.items()
        )

    def at(self, values: Mapping[str, int]) -> list[int]:
        products = []
        for monomial in self.products:
            product = 1
            for name in monomial:
                product *= values[name]
            products.append(product)
        return [
            row[0][0] * products[row[0][1]]
            if len(row) == 1
            else sum(factor * products[i] for factor, i in row)
            for row in self.rows
        ]


def fold(log: Log, stretches: Sequence[Stretch]) -> Program | None:
    """None: a stretch does not repeat as its layers do; more of them must be built."""
    sections: list[Section] = []
    done = 0
    for stretch in stretches:
        first = (
            stretch.start + 1 + stretch.body * stretch.period
        )  # part 0 is before the first layer
        body = _body(log, stretch, first)
        if body is None:
            return None
        sections += (_literal(log.parts[done:first]), body)
        done = first + 2 * stretch.period
    sections.append(_literal(log.parts[done:]))
    return Program(
        alignment=log.buffer.alignment,
        sections=tuple(sections),
        sizes=Sizes(log.sizes),
        slots=log.slots,
    )


def _literal(parts: Iterable[Sequence[Event]]) -> Section:
    return Section(events=tuple(chain.from_iterable(parts)))


def _body(log: Log, stretch: Stretch, first: int) -> Section | None:
    second = first + stretch.period
    one = tuple(chain.from_iterable(log.parts[first:second]))
    two = tuple(chain.from_iterable(log.parts[second : second + stretch.period]))
    base, slots = _taken(log, first), sum(1 for event in one if not event.kind)
    if not _alike(one, two, slots) or any(event.slot < base - slots for event in one):
        return None
    later = chain.from_iterable(log.parts[second + stretch.period :])
    if any(base <= event.slot < base + slots for event in later):
        return None
    return Section(
        events=tuple(event._replace(slot=event.slot - base + slots) for event in one),
        repeats=stretch.periods - stretch.built + 2,
        base=base,
        slots=slots,
        carried=tuple(event.slot - base + slots for event in one if event.slot < base),
    )


def _taken(log: Log, part: int) -> int:
    """Slots taken before a part begins."""
    return sum(1 for event in chain.from_iterable(log.parts[:part]) if not event.kind)


def _alike(one: Sequence[Event], two: Sequence[Event], shift: int) -> bool:
    return len(one) == len(two) and all(
        a.slot + shift == b.slot and a._replace(slot=0) == b._replace(slot=0)
        for a, b in zip(one, two, strict=True)
    )
