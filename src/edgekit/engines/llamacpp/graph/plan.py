"""A model and a context -> the bytes of llama.cpp's compute buffers: its largest graph in ggml's allocator.

Only a few layers of a repeating stretch are built. Their allocations become a program for all layers, which is cached
with the model and reused for similar loads.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import mul
from typing import NamedTuple

from edgekit.engines.llamacpp.architectures import architecture_names, known_architecture
from edgekit.engines.llamacpp.graph.allocator import (
    ALLOCATE,
    CPU,
    WHOLE,
    Buffer,
    Event,
    Log,
    PlacedGraph,
    Program,
    ProgramSizes,
    Section,
    Weight,
    high_water,
    trace,
)
from edgekit.engines.llamacpp.graph.build import (
    Build,
    GraphFacts,
    GraphFamily,
    GraphOptions,
    GraphSizes,
    Hparams,
)
from edgekit.engines.llamacpp.graph.families.transformer import USUAL
from edgekit.engines.llamacpp.graph.layers import pool
from edgekit.engines.llamacpp.graph.tensor import (
    GraphTensor,
    NoGraphError,
    Shape,
    Size,
    value,
    variable,
)
from edgekit.engines.llamacpp.prepared import prepare
from edgekit.engines.llamacpp.types import Context
from edgekit.errors import RefusedError
from edgekit.formats.dtype import TensorType, by_name
from edgekit.model.types import Model

Values = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the nodes of a graph run. `layer_key` tells apart equal layers that are placed differently.

    `outside` does so for everything outside the layers. Targets with equal `outside` and layer keys share a structure.
    """

    key: Hashable
    outside: Hashable = None
    place: Callable[[Build], PlacedGraph]
    layer_key: Callable[[Hparams, int], Hashable] = lambda _hparams, _il: None


CPU_ONLY = Target(key="cpu", place=lambda build: PlacedGraph.in_one(build.graph, CPU))


def compute_bytes(model: Model, context: Context, target: Target = CPU_ONLY) -> tuple[int, ...]:
    """Compute buffer sizes, one per buffer of the target. Raises NoGraphError; RefusedError where llama.cpp aborts."""
    plan, values = plan_for(model, context, target)
    return tuple(high_water(program, values) for program in plan.programs)


def plan_for(model: Model, context: Context, target: Target = CPU_ONLY) -> tuple[GraphPlan, Values]:
    """The plan, and the load's values to run it with. Raises NoGraphError; RefusedError where llama.cpp aborts."""
    values = load_values(context)
    # Loads with equal keys have the same graph up to the numbers: a dimension of 1 may have any stride.
    ones = tuple(number == 1 for number in values.values())
    every_row = context.n_outputs == context.n_tokens
    key: tuple[Hashable, ...] = (options_of(context), (ones, every_row))
    variables = {name: number if number == 1 else variable(name) for name, number in values.items()}
    graphs = prepare(model).graphs
    plan = graphs.get((target.key, key), lambda: _planned(model, context, target, key, variables))
    if not plan.holds(values):
        key = (*key, *values.values())
        plan = graphs.get((target.key, key), lambda: _planned(model, context, target, key, values))
    check_capacity(plan.tensors, graph_capacity(known(model).hparams, context.n_tokens))
    return plan, values


def load_values(context: Context) -> dict[str, int]:
    """The values of the variables for a load."""
    return {
        "T": context.n_tokens // context.n_seq_max,
        "S": context.n_seq_max,
        "N": context.n_outputs,
        "C": context.cells,
        "W": context.swa_cells,
    }


def options_of(context: Context) -> GraphOptions:
    return GraphOptions(
        flash_attn=context.flash_attn,
        v_trans=context.v_trans,
        type_k=by_name(context.type_k.name.upper()),
        type_v=by_name(context.type_v.name.upper()),
        embeddings=context.embeddings,
        streams=context.streams > 1,
        rules=context.rules,
    )


def sizes_of(context: Context, values: Mapping[str, Size]) -> GraphSizes:
    tokens = values["T"] * values["S"]
    return GraphSizes(
        n_tokens=tokens,
        n_seqs=values["S"],
        n_outputs=tokens if context.n_outputs == context.n_tokens else values["N"],
        n_kv=values["C"],
        n_kv_swa=values["W"],
        n_stream=values["S"] if context.streams > 1 else 1,
    )


def family_of(architecture: str) -> GraphFamily | None:
    """The family of an architecture; None if no graph is known."""
    if architecture not in architecture_names():
        return None  # a name from config.json: the tables have GGUF names only
    name = known_architecture(architecture).graph or architecture
    if name in USUAL:
        return USUAL[name]
    from edgekit.engines.llamacpp.graph.families.every import FAMILIES

    return FAMILIES.get(name)


def known(model: Model) -> GraphFacts:
    """Raises NoGraphError."""
    return prepare(model).graph_facts.get(partial(_known, model))


def _known(model: Model) -> GraphFacts:
    family = family_of(model.geometry.architecture)
    if family is None:
        raise NoGraphError(
            f"no compute graph known for the architecture {model.geometry.architecture}"
        )
    if model.header.tensors is None:
        raise NoGraphError("the tensor directory was not read")
    hparams = Hparams(model)
    layers = tuple(hparams.layer(il, family.more(hparams, il)) for il in range(hparams.n_layer))
    keys: list[Hashable] = []
    for il, facts in enumerate(layers):
        own = hparams.weights(il).values()
        # A node may write its result over a copied weight of its size, which only a vector can be.
        vectors = tuple(tensor.type.name for tensor in own if len(tensor.shape) == 1)
        keys.append((facts, vectors, _expert_types(hparams, il)))
    numbers: dict[Hashable, int] = {}
    return GraphFacts(
        family=family,
        hparams=hparams,
        layers=layers,
        alike=tuple(numbers.setdefault(key, len(numbers)) for key in keys),
        types={tensor.name: tensor.type for tensor in model.header.tensors},
    )


def _expert_types(hparams: Hparams, il: int) -> Hashable:
    """Weight types of up and gate: CUDA runs a shared expert with the routed ones if they are equal."""
    own = hparams.weights(il)
    if "ffn_up_shexp.weight" not in own:
        return None
    names = (f"ffn_{side}_{kind}.weight" for kind in ("exps", "shexp") for side in ("up", "gate"))
    return tuple(own[name].type.name for name in names if name in own)


def _planned(
    model: Model, context: Context, target: Target, key: Hashable, values: Mapping[str, Size]
) -> GraphPlan:
    """Builds as few layers as show the repeating pattern, and plans all of them from these."""
    have = known(model)
    keys = tuple((alike, target.layer_key(have.hparams, il)) for il, alike in enumerate(have.alike))
    prepared = prepare(model)
    for kept in prepared.layer_choices.get(keys, lambda: (keep_some(keys), keep_all(len(keys)))):
        structure = prepared.structures.get(
            (key, target.outside, kept.shape(keys)),
            partial(_compiled, have, context, target, kept, values),
        )
        if structure is not None:
            return structure.bind(kept, have.types)
    raise AssertionError("with every layer built there is nothing left to fold")


def _compiled(
    have: GraphFacts, context: Context, target: Target, kept: KeptLayers, values: Mapping[str, Size]
) -> Structure | None:
    with _without_collection():
        return structured(
            built(have, kept, options_of(context), sizes_of(context, values)), kept, target
        )


@contextmanager
def _without_collection() -> Iterator[None]:
    """Disables the garbage collector: thousands of tensors without reference cycles cost it a sixth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def built(have: GraphFacts, kept: KeptLayers, options: GraphOptions, sizes: GraphSizes) -> Build:
    build = Build(have.hparams, {il: have.layers[il] for il in kept.layers}, options, sizes)
    try:
        have.family.build(build)
        pool(build)
    except (ArithmeticError, LookupError, ValueError) as error:
        why = f"{have.hparams.header.name} does not describe a graph of {have.hparams.arch}"
        raise NoGraphError(f"{why}: {error}") from error
    return build


def structured(build: Build, kept: KeptLayers, target: Target) -> Structure | None:
    """None if the layers that were built do not show the repeating pattern."""
    placed, graph = target.place(build), build.graph
    for stretch in kept.stretches:
        begin, end = placed.marks[stretch.start], placed.marks[stretch.start + stretch.period]
        if any(begin <= i < end for i in placed.leafs_of):
            return None  # the layers that are not built would add leafs
    outlines = [fold(log, kept) for log in trace(placed, graph.same)]
    whole = tuple(outline for outline in outlines if outline is not None)
    if len(whole) < len(outlines):
        return None
    return Structure(
        outlines=whole,
        tensors=len(graph.nodes) + len(graph.leafs),
        per_period=tuple(
            sum(graph.marks[one.start + one.period]) - sum(graph.marks[one.start])
            for one in kept.stretches
        ),
        unequal=tuple(graph.unequal),
    )


# -- the layers that are built, and the program for all of them

NOWHERE = -2


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


# -- how many tensors a graph may have before llama.cpp aborts
#
# The scheduler keeps nodes and leafs in a table of fixed size: a prime just above a power of two. Phi-3-medium with a
# quantised cache and a stream for each sequence has 2,058 of them for 2,053 places. llama-context.cpp (graph_max_nodes)
# and ggml.c (ggml_hash_size) @ 0c1e570.

_PRIMES = (
    *(2, 3, 5, 11, 17, 37, 67, 131, 257, 521, 1031, 2053, 4099, 8209, 16411, 32771, 65537),
    *(131101, 262147, 524309, 1048583, 2097169, 4194319, 8388617, 16777259, 33554467, 67108879),
)

_SMALLEST = 1024
_PER_TENSOR = 8
_MANY = (40, 32)
# Nodes per token of the micro-batch and per tensor of the model, for architectures with a larger budget.
_BUDGETS: Mapping[str, tuple[int, int]] = {
    "kimi-k3": (160, 64),
    "glm5-next": (160, 64),
    "hrm-text": (80, 64),
    **dict.fromkeys(
        (
            *("qwen3next", "kimi-linear", "bailingmoe3", "qwen35", "qwen35moe", "qwen4exp"),
            *("deepseek4", "nanbeige", "minimax-01", "minimax-m3", "hy-v4"),
        ),
        _MANY,
    ),
}


def graph_capacity(hparams: Hparams, n_tokens: int) -> int:
    """The most nodes and leafs that the scheduler's table holds."""
    tensors = hparams.n_tensors
    if hparams.arch in _BUDGETS:
        per_token, per_tensor = _BUDGETS[hparams.arch]
        nodes = max(n_tokens * per_token, tensors * per_tensor)
    else:
        nodes = max(_SMALLEST, tensors * _PER_TENSOR)
    place = bisect_left(_PRIMES, nodes)
    return _PRIMES[place] if place < len(_PRIMES) else nodes | 1


def check_capacity(tensors: int, capacity: int) -> None:
    if tensors > capacity:
        raise RefusedError(
            f"llama.cpp aborts: its graph has {tensors:,} tensors, but its table only has "
            f"room for {capacity:,}; a unified cache (--kv-unified) or an unquantised one "
            "needs fewer"
        )
