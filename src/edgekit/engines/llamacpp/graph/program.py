"""Events of the layers that were built -> a program for all layers, with repeated sections. Only a few layers of a
repeating stretch are built: `keep_some` selects them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import mul
from typing import NamedTuple

from edgekit.engines.llamacpp.graph.dims import Dim, Monomial, Size, value
from edgekit.engines.llamacpp.graph.tensor import GraphTensor, Shape
from edgekit.engines.llamacpp.graph.trace import ALLOCATE, WHOLE, Buffer, Event, Log, Weight
from edgekit.formats.dtype import TensorType

NOWHERE = -2
Values = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Consecutive events. A repeated section renumbers its slots: first `slots` of the previous run, then its own."""

    events: tuple[Event, ...]
    base: int = 0
    slots: int = 0
    carried: tuple[int, ...] = ()  # own slots that the next run frees
    own: tuple[int, ...] = ()  # indices of the sizes that differ between rounds
    rounds: tuple[tuple[int, ...], ...] = ()  # those sizes, for each round


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The allocations of one buffer. `sizes` become bytes with a load's values; `fixed` are bytes by index."""

    alignment: int
    sections: tuple[Section, ...]
    sizes: ProgramSizes
    slots: int
    own: int = 0  # sizes that sections set
    fixed: tuple[tuple[int, int], ...] = ()


class Body(NamedTuple):
    """A section that runs once per period of a stretch; `weights` are the sizes that differ between rounds."""

    section: Section
    stretch: int
    weights: tuple[Weight, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A program for any number of layers, with any weight types."""

    buffer: Buffer
    sections: tuple[Section | Body, ...]
    sizes: ProgramSizes
    own: int  # number of per-round sizes, indexed after `sizes`
    weights: tuple[tuple[int, Weight], ...]  # weights outside bodies, by the index of their size
    slots: int

    def bind(self, kept: KeptLayers, types: Mapping[str, TensorType]) -> Program:
        """The program for a model's layers. `types`: its weights' types by name."""
        known: dict[tuple[TensorType, Shape], int] = {}
        alignment = self.buffer.alignment

        def taken(weight: Weight, layer: int) -> int:
            kind = types[f"{weight.before}{layer}{weight.after}"]
            if (kind, weight.ne) not in known:
                size = self.buffer.bytes_of(GraphTensor(op="NONE", type=kind, ne=weight.ne))
                known[kind, weight.ne] = -(-value(size, {}) // alignment) * alignment
            return known[kind, weight.ne]

        standing = kept.standing
        return Program(
            alignment=alignment,
            sections=tuple(
                _bound(one, kept, taken) if isinstance(one, Body) else one for one in self.sections
            ),
            sizes=self.sizes,
            own=self.own,
            slots=self.slots,
            fixed=tuple((i, taken(one, standing[one.layer])) for i, one in self.weights),
        )


def _bound(body: Body, kept: KeptLayers, taken: Callable[[Weight, int], int]) -> Section:
    stretch = kept.stretches[body.stretch]
    rounds = tuple(
        tuple(taken(one, kept.layers[one.layer] + i * stretch.period) for one in body.weights)
        for i in range(stretch.rounds)
    )
    return replace(body.section, rounds=rounds)


class ProgramSizes:
    """Polynomials evaluated together: each product of variables is computed once."""

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


def fold(log: Log, kept: KeptLayers) -> Outline | None:
    """None if the events of a stretch do not repeat with its layers: more layers must be built."""
    sizes = _by_place(log.sizes, kept)
    sections: list[Section | Body] = []
    done, count = 0, len(sizes)
    for i, stretch in enumerate(kept.stretches):
        first = stretch.start + 1  # part 0 is before the first layer
        section = _repeated(log, stretch.period, first, sizes)
        if section is None:
            return None
        body = _body(section, i, sizes, count)
        sections += (_literal(log.parts[done:first]), body)
        done = first + 2 * stretch.period
        count += len(body.weights)
    sections.append(_literal(log.parts[done:]))
    literal = (one.events for one in sections if isinstance(one, Section))
    outside = _weights(chain.from_iterable(literal), sizes)
    return Outline(
        buffer=log.buffer,
        sections=tuple(sections),
        sizes=ProgramSizes(0 if isinstance(one, Weight) else one for one in sizes),
        own=count - len(sizes),
        weights=tuple(outside.items()),
        slots=log.slots,
    )


def _by_place(sizes: Iterable[Size | Weight], kept: KeptLayers) -> list[Size | Weight]:
    """Replaces a weight's layer number by its index among the built layers."""
    place = {layer: i for i, layer in enumerate(kept.layers)}
    return [
        size._replace(layer=place[size.layer]) if isinstance(size, Weight) else size
        for size in sizes
    ]


def _literal(parts: Iterable[Sequence[Event]]) -> Section:
    return Section(events=tuple(chain.from_iterable(parts)))


def _repeated(log: Log, period: int, first: int, sizes: Sequence[Size | Weight]) -> Section | None:
    second = first + period
    one = tuple(chain.from_iterable(log.parts[first:second]))
    two = tuple(chain.from_iterable(log.parts[second : second + period]))
    base, slots = _taken(log.parts[:first]), _taken([one])
    later = _a_period_later(sizes, period)
    if two != tuple(
        (kind, slot + slots, later[size], later[tail]) for kind, slot, size, tail in one
    ) or any(slot < base - slots for _, slot, _, _ in one):
        return None
    after = chain.from_iterable(log.parts[second + period :])
    if any(base <= slot < base + slots for _, slot, _, _ in after):
        return None
    return Section(
        events=tuple((kind, slot - base + slots, size, tail) for kind, slot, size, tail in one),
        base=base,
        slots=slots,
        carried=tuple(slot - base + slots for _, slot, _, _ in one if slot < base),
    )


def _taken(parts: Iterable[Sequence[Event]]) -> int:
    """The number of slots that the events allocate."""
    return sum(1 for kind, *_ in chain.from_iterable(parts) if kind == ALLOCATE)


def _a_period_later(sizes: Sequence[Size | Weight], period: int) -> dict[int, int]:
    """Maps each size index to its counterpart in the next period: for a weight, that of the next layer."""
    index = {size: i for i, size in enumerate(sizes)}
    moved = (
        size._replace(layer=size.layer + period) if isinstance(size, Weight) else size
        for size in sizes
    )
    return {WHOLE: WHOLE, **{i: index.get(size, NOWHERE) for i, size in enumerate(moved)}}


def _weights(events: Iterable[Event], sizes: Sequence[Size | Weight]) -> dict[int, Weight]:
    """The weights whose sizes the events use, by size index."""
    used = {i for _, _, size, tail in events for i in (size, tail) if i != WHOLE}
    return {i: one for i in sorted(used) if isinstance(one := sizes[i], Weight)}


def _body(section: Section, stretch: int, sizes: Sequence[Size | Weight], count: int) -> Body:
    """Gives its weight sizes new indices, starting at `count`."""
    weights = _weights(section.events, sizes)
    own = {i: count + k for k, i in enumerate(weights)}
    events = tuple(
        (kind, slot, own.get(size, size), own.get(tail, tail))
        for kind, slot, size, tail in section.events
    )
    section = replace(section, events=events, own=tuple(own.values()))
    return Body(section, stretch, tuple(weights.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPlan:
    """`unequal`: pairs of sizes assumed to differ. The plan is invalid for a load in which a pair is equal."""

    programs: tuple[Program, ...]
    tensors: int  # nodes and leafs of the whole graph
    unequal: tuple[tuple[Size, Size], ...]

    def holds(self, values: Values) -> bool:
        return all(value(one, values) != value(other, values) for one, other in self.unequal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """A plan for any number of layers with the same pattern."""

    outlines: tuple[Outline, ...]
    tensors: int  # of the layers that were built
    per_period: tuple[int, ...]  # of one period of each stretch
    unequal: tuple[tuple[Size, Size], ...]

    def bind(self, kept: KeptLayers, types: Mapping[str, TensorType]) -> GraphPlan:
        missing = (one.missing for one in kept.stretches)
        return GraphPlan(
            programs=tuple(outline.bind(kept, types) for outline in self.outlines),
            tensors=self.tensors + sum(map(mul, missing, self.per_period)),
            unequal=self.unequal,
        )


LONGEST_PERIOD = 12  # real patterns: 6 (Gemma 3), 8 (Jamba)
# Built before the repeated period: one period in which shared tensors are copied or freed for the first time, and one
# layer, the first to free what its predecessor allocated. Built after it: one period that shows that they are alike,
# and one that may differ because masks are freed there.
SHOWN = 3


class LayerStretch(NamedTuple):
    """`periods` repetitions of `period` layers; SHOWN of them are built, starting at built layer `start`."""

    start: int
    period: int
    periods: int

    @property
    def rounds(self) -> int:
        """How often the first period runs: for itself, for the next one, and for those that are not built."""
        return self.missing + 2

    @property
    def missing(self) -> int:
        """Number of periods that are not built."""
        return self.periods - SHOWN


class KeptLayers(NamedTuple):
    layers: tuple[int, ...]  # the real numbers of the layers that are built
    stretches: tuple[LayerStretch, ...]

    def shape(self, keys: Sequence[Hashable]) -> Hashable:
        """A key for what is built from layers with these keys, regardless of how long the stretches are."""
        return tuple(keys[i] for i in self.layers), tuple(
            (one.start, one.period) for one in self.stretches
        )

    @property
    def standing(self) -> list[int]:
        """Real layer numbers, except that layers after a repeated period are numbered as after its last repetition."""
        layers = list(self.layers)
        for start, period, periods in self.stretches:
            for i in range(start + period, start + SHOWN * period):
                layers[i] += (periods - SHOWN) * period
        return layers


def keep_all(count: int) -> KeptLayers:
    return KeptLayers(tuple(range(count)), ())


def keep_some(keys: Sequence[Hashable]) -> KeptLayers:
    """The layers to build. `keys`: one per layer; layers with equal keys are built alike."""
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
    """The period from here on that saves the most layers, and how often it repeats after the lead."""
    best, saved = (1, 1), 0
    for period in range(1, LONGEST_PERIOD + 1):
        end = start + period
        while end < len(keys) and keys[end] == keys[end - period]:
            end += 1
        periods = (end - start - _lead(period)) // period
        if (periods - SHOWN) * period > saved:
            best, saved = (period, periods), (periods - SHOWN) * period
    return best
