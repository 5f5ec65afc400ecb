"""A model and a context -> the bytes of llama.cpp's compute buffers: its largest graph in ggml's allocator.

Only a few layers of a repeating stretch are built. Their allocations become a program for all layers, which is cached
with the model and reused for similar loads.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import mul
from typing import NamedTuple

from edgekit.engines.llamacpp.architectures import architecture_names, known_architecture
from edgekit.engines.llamacpp.graph.allocator import (
    ALLOCATE,
    CPU,
    SLICED,
    WHOLE,
    Buffer,
    Event,
    Log,
    PlacedGraph,
    Program,
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
from edgekit.engines.llamacpp.graph.families.transformer import FREQUENT
from edgekit.engines.llamacpp.graph.layers import pool
from edgekit.engines.llamacpp.graph.tensor import (
    GraphTensor,
    NoGraphError,
    Shape,
    Size,
    value,
    variable,
)
from edgekit.engines.llamacpp.types import Context
from edgekit.errors import RefusedError
from edgekit.formats.dtype import TensorType, by_name
from edgekit.model.types import Cached, CachedBy, Model

Values = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The memory and backends that a graph is planned for.

    `layer_key` distinguishes equal layers that are placed differently; `outside` distinguishes targets that differ in
    where they place tensors outside the layers. Targets with equal `outside` and layer keys share a structure.
    """

    key: Hashable
    outside: Hashable = None
    divided: bool = False  # the host has layers, and devices have others or the output
    place: Callable[[Build], PlacedGraph]
    layer_key: Callable[[Hparams, int], Hashable] = lambda _hparams, _il: None


CPU_ONLY = Target(key="cpu", place=lambda build: PlacedGraph.in_one(build.graph, CPU))


def compute_bytes(model: Model, context: Context, target: Target = CPU_ONLY) -> tuple[int, ...]:
    """Compute buffer sizes, one per buffer of the target. Raises NoGraphError; RefusedError where llama.cpp aborts."""
    plan, values = plan_for(model, context, target)
    return tuple(high_water(program, values) for program in plan.programs)


def plan_for(model: Model, context: Context, target: Target = CPU_ONLY) -> tuple[GraphPlan, Values]:
    """The plan of the graph, and the load's values for its variables.

    Raises NoGraphError, and RefusedError where llama.cpp aborts.
    """
    since = known_architecture(model.geometry.architecture).graph_since
    if context.rules < since:
        raise NoGraphError(f"its graph was not compared with builds before b{since}")
    values = load_values(context)
    # Loads with equal keys have graphs that differ only in sizes. Size 1 is a case of its own: that dimension may have
    # any stride.
    is_one = tuple(number == 1 for number in values.values())
    outputs_every_token = context.n_outputs == context.n_tokens
    options = options_of(context, target)
    key: tuple[Hashable, ...] = (options, (is_one, outputs_every_token))
    variables = {name: number if number == 1 else variable(name) for name, number in values.items()}
    plans = model.prepared(PreparedGraphs).plans
    plan = plans.get((target.key, key), lambda: _make_plan(model, context, target, key, variables))
    if not plan.holds(values):
        key = (*key, *values.values())
        plan = plans.get((target.key, key), lambda: _make_plan(model, context, target, key, values))
    check_capacity(plan.tensors, graph_facts(model).hparams, context.n_tokens)
    return plan, values


def load_values(context: Context) -> dict[str, int]:
    """The values of the variables for a load: tokens per sequence, sequences, outputs, cells, sliding-window cells."""
    return {
        "T": context.n_tokens // context.n_seq_max,
        "S": context.n_seq_max,
        "N": context.n_outputs,
        "C": context.kv_cells,
        "W": context.kv_swa_cells,
    }


def options_of(context: Context, target: Target = CPU_ONLY) -> GraphOptions:
    """The load's options that decide which nodes a graph has."""
    return GraphOptions(
        flash_attn=context.flash_attn,
        v_trans=context.v_trans,
        type_k=by_name(context.type_k.name.upper()),
        type_v=by_name(context.type_v.name.upper()),
        embeddings=context.embeddings,
        streams=context.kv_streams > 1,
        divided=target.divided,
        rules=context.rules,
    )


def sizes_of(context: Context, values: Mapping[str, Size]) -> GraphSizes:
    """The sizes of a graph's inputs, from values or variables named as in `load_values`."""
    tokens = values["T"] * values["S"]
    return GraphSizes(
        n_tokens=tokens,
        n_seqs=values["S"],
        n_outputs=tokens if context.n_outputs == context.n_tokens else values["N"],
        n_kv=values["C"],
        n_kv_swa=values["W"],
        n_stream=values["S"] if context.kv_streams > 1 else 1,
    )


def family_of(architecture: str) -> GraphFamily | None:
    """The family that builds an architecture's graph; None if no graph is known."""
    if architecture not in architecture_names():
        return None  # a name from config.json: the tables have GGUF names only
    name = known_architecture(architecture).graph or architecture
    if name in FREQUENT:
        return FREQUENT[name]
    from edgekit.engines.llamacpp.graph.families.every import FAMILIES

    return FAMILIES.get(name)


def graph_facts(model: Model) -> GraphFacts:
    """The facts about the model's graph that its header states, read once. Raises NoGraphError."""
    return model.prepared(PreparedGraphs).facts.get(partial(_read_facts, model))


def _read_facts(model: Model) -> GraphFacts:
    family = family_of(model.geometry.architecture)
    if family is None:
        raise NoGraphError(
            f"no compute graph known for the architecture {model.geometry.architecture}"
        )
    if model.header.tensors is None:
        raise NoGraphError("the tensor directory was not read")
    hparams = Hparams(model)
    layers = tuple(hparams.layer(il, family.variant(hparams, il)) for il in range(hparams.n_layer))
    keys: list[Hashable] = []
    for il, facts in enumerate(layers):
        weights = hparams.weights(il)
        # A node may overwrite the copy of a weight of its own size. Only a vector is small enough.
        vectors = tuple(weight.type.name for weight in weights.values() if len(weight.shape) == 1)
        # CUDA runs a shared expert with the routed ones if their up and gate weights have equal types.
        experts: tuple[str, ...] | None = None
        if "ffn_up_shexp.weight" in weights:
            names = [
                f"ffn_{side}_{kind}.weight" for kind in ("exps", "shexp") for side in ("up", "gate")
            ]
            experts = tuple(weights[name].type.name for name in names if name in weights)
        sliced = tuple(weights[name].type.name for name in SLICED if name in weights)
        keys.append((facts, vectors, experts, sliced))
    numbers: dict[Hashable, int] = {}
    return GraphFacts(
        family=family,
        hparams=hparams,
        layers=layers,
        alike=tuple(numbers.setdefault(key, len(numbers)) for key in keys),
        types={tensor.name: tensor.type for tensor in model.header.tensors},
    )


def _make_plan(
    model: Model, context: Context, target: Target, key: Hashable, values: Mapping[str, Size]
) -> GraphPlan:
    """Builds the fewest layers that show the repeating pattern, and plans all layers from them."""
    facts = graph_facts(model)
    keys = tuple(
        (alike, target.layer_key(facts.hparams, il)) for il, alike in enumerate(facts.alike)
    )
    structures = model.prepared(PreparedGraphs).structures
    for sample in (sample_layers(keys), all_layers(len(keys))):
        structure = structures.get(
            (key, target.outside, sample.shape(keys)),
            partial(_make_structure, facts, context, target, sample, values),
        )
        if structure is not None:
            return structure.bind(sample, facts.types)
    raise AssertionError("with every layer built there is nothing left to fold")


def _make_structure(
    facts: GraphFacts,
    context: Context,
    target: Target,
    sample: LayerSample,
    values: Mapping[str, Size],
) -> Structure | None:
    """Builds the sample's layers and folds them. None if they do not show the repeating pattern."""
    # Without the garbage collector it takes a sixth less time: a graph has thousands of tensors and no cycles.
    enabled = gc.isenabled()
    gc.disable()
    try:
        build = build_graph(facts, sample, options_of(context, target), sizes_of(context, values))
        return fold_graph(build, sample, target)
    finally:
        if enabled:
            gc.enable()


def build_graph(
    facts: GraphFacts, sample: LayerSample, options: GraphOptions, sizes: GraphSizes
) -> Build:
    """The graph of the sample's layers. NoGraphError if the header does not describe one."""
    build = Build(facts.hparams, {il: facts.layers[il] for il in sample.layers}, options, sizes)
    try:
        facts.family.build(build)
        pool(build)
    except (ArithmeticError, LookupError, ValueError) as error:
        reason = f"{facts.hparams.header.name} does not describe a graph of {facts.hparams.arch}"
        raise NoGraphError(f"{reason}: {error}") from error
    return build


# -- a few layers that stand for all of them

LONGEST_PERIOD = 12  # real patterns: 6 (Gemma 3), 8 (Jamba)
# A stretch begins with one period and one layer that are not repeated: shared tensors are first copied or freed in that
# period, and the layer is the first that frees blocks of its predecessor. Three more periods are built: the one that is
# repeated, one to show that they are alike, and a last one, which may differ because masks are freed there.
BUILT_PERIODS = 3


class LayerStretch(NamedTuple):
    """`periods` repetitions of `period` layers; BUILT_PERIODS of them are built, starting at built layer `start`."""

    start: int
    period: int
    periods: int

    @property
    def rounds(self) -> int:
        """How often the events of the first period run: also for the second, and for each period that is not built."""
        return self.missing + 2

    @property
    def missing(self) -> int:
        """Number of periods that are not built."""
        return self.periods - BUILT_PERIODS


class LayerSample(NamedTuple):
    """The layers that are built."""

    layers: tuple[int, ...]  # their numbers in the model
    stretches: tuple[LayerStretch, ...]

    def shape(self, keys: Sequence[Hashable]) -> Hashable:
        """A key of the graph built from layers with these keys. It does not depend on how often periods repeat."""
        return tuple(keys[i] for i in self.layers), tuple(
            (stretch.start, stretch.period) for stretch in self.stretches
        )

    @property
    def final_numbers(self) -> list[int]:
        """The number in the model of the layer that each built layer stands for.

        Layers after a repeated period stand for those after its last repetition.
        """
        layers = list(self.layers)
        for stretch in self.stretches:
            start, period = stretch.start, stretch.period
            for i in range(start + period, start + BUILT_PERIODS * period):
                layers[i] += stretch.missing * period
        return layers


def all_layers(count: int) -> LayerSample:
    return LayerSample(tuple(range(count)), ())


def sample_layers(keys: Sequence[Hashable]) -> LayerSample:
    """The layers to build. `keys`: one per layer; layers with equal keys are built alike."""
    layers: list[int] = []
    stretches: list[LayerStretch] = []
    i = 0
    while i < len(keys):
        period, periods = _best_period(keys, i)
        if periods > BUILT_PERIODS:
            lead = period + 1
            stretches.append(LayerStretch(len(layers) + lead, period, periods))
            layers.extend(range(i, i + lead + BUILT_PERIODS * period))
            i += lead + period * periods
        else:
            layers.append(i)
            i += 1
    return LayerSample(tuple(layers), tuple(stretches))


def _best_period(keys: Sequence[Hashable], start: int) -> tuple[int, int]:
    """The period from `start` on that saves the most layers, and how often it repeats after the lead."""
    best, saved = (1, 1), 0
    for period in range(1, LONGEST_PERIOD + 1):
        end = start + period
        while end < len(keys) and keys[end] == keys[end - period]:
            end += 1
        periods = (end - start - (period + 1)) // period
        if (periods - BUILT_PERIODS) * period > saved:
            best, saved = (period, periods), (periods - BUILT_PERIODS) * period
    return best


# -- the program for all layers


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPlan:
    """The programs of all buffers. `unequal`: pairs of sizes that must differ for the plan to be valid for a load."""

    programs: tuple[Program, ...]
    tensors: int  # nodes and leafs of the whole graph
    unequal: tuple[tuple[Size, Size], ...]

    def holds(self, values: Values) -> bool:
        """True if the plan is valid for a load with these values."""
        return all(value(left, values) != value(right, values) for left, right in self.unequal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """A plan for any number of layers with the same pattern."""

    outlines: tuple[Outline, ...]
    tensors: int  # nodes and leafs of the layers that were built
    per_period: tuple[int, ...]  # nodes and leafs of one period of each stretch
    unequal: tuple[tuple[Size, Size], ...]

    def bind(self, sample: LayerSample, types: Mapping[str, TensorType]) -> GraphPlan:
        """The plan for a model's layers. `types`: its weights' types by name."""
        unbuilt_periods = (stretch.missing for stretch in sample.stretches)
        return GraphPlan(
            programs=tuple(outline.bind(sample, types) for outline in self.outlines),
            tensors=self.tensors + sum(map(mul, unbuilt_periods, self.per_period)),
            unequal=self.unequal,
        )


class PreparedGraphs:
    """The facts and plans of a model's graphs, cached with the model."""

    def __init__(self) -> None:
        self.facts: Cached[GraphFacts] = Cached()
        self.plans: CachedBy[tuple[Hashable, Hashable], GraphPlan] = CachedBy()
        self.structures: CachedBy[tuple[Hashable, Hashable, Hashable], Structure | None] = (
            CachedBy()
        )


class RepeatedSection(NamedTuple):
    """A section that runs once per period of a stretch; `weights` are the sizes that differ between rounds."""

    section: Section
    stretch: int
    weights: tuple[Weight, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A program for any number of layers, with any weight types."""

    buffer: Buffer
    sections: tuple[Section | RepeatedSection, ...]
    sizes: tuple[Size, ...]
    round_sizes: int  # number of sizes that differ between rounds, indexed after `sizes`
    weights: tuple[tuple[int, Weight], ...]  # outside repeated sections, by the index of their size
    slots: int

    def bind(self, sample: LayerSample, types: Mapping[str, TensorType]) -> Program:
        """The program for a model's layers. `types`: its weights' types by name."""
        sizes: dict[tuple[TensorType, Shape], int] = {}
        alignment = self.buffer.alignment

        def weight_bytes(weight: Weight, layer: int) -> int:
            kind = types[f"{weight.before}{layer}{weight.after}"]
            if (kind, weight.ne) not in sizes:
                size = self.buffer.bytes_of(GraphTensor(op="NONE", type=kind, ne=weight.ne))
                sizes[kind, weight.ne] = -(-value(size, {}) // alignment) * alignment
            return sizes[kind, weight.ne]

        sections: list[Section] = []
        for section in self.sections:
            if isinstance(section, Section):
                sections.append(section)
                continue
            stretch = sample.stretches[section.stretch]
            rounds = tuple(
                tuple(
                    weight_bytes(weight, sample.layers[weight.layer] + i * stretch.period)
                    for weight in section.weights
                )
                for i in range(stretch.rounds)
            )
            sections.append(replace(section.section, rounds=rounds))
        numbers = sample.final_numbers
        return Program(
            alignment=alignment,
            sections=tuple(sections),
            sizes=self.sizes,
            round_sizes=self.round_sizes,
            slots=self.slots,
            fixed=tuple(
                (i, weight_bytes(weight, numbers[weight.layer])) for i, weight in self.weights
            ),
        )


def fold_graph(build: Build, sample: LayerSample, target: Target) -> Structure | None:
    """The structure of a built graph. None if the layers that were built do not show the repeating pattern."""
    placed, graph = target.place(build), build.graph
    for stretch in sample.stretches:
        begin, end = placed.marks[stretch.start], placed.marks[stretch.start + stretch.period]
        if any(begin <= i < end for i in placed.leafs_of):
            return None  # the layers that are not built would add leafs
    outlines: list[Outline] = []
    for log in trace(placed, graph.same):
        outline = fold(log, sample)
        if outline is None:
            return None
        outlines.append(outline)
    return Structure(
        outlines=tuple(outlines),
        tensors=len(graph.nodes) + len(graph.leafs),
        per_period=tuple(
            sum(graph.marks[stretch.start + stretch.period]) - sum(graph.marks[stretch.start])
            for stretch in sample.stretches
        ),
        unequal=tuple(graph.unequal),
    )


def fold(log: Log, sample: LayerSample) -> Outline | None:
    """The outline of one buffer's events. None if those of a stretch do not repeat: then more layers must be built."""
    built_index = {layer: i for i, layer in enumerate(sample.layers)}
    sizes = [  # with positions among the built layers in place of layer numbers
        size._replace(layer=built_index[size.layer]) if isinstance(size, Weight) else size
        for size in log.sizes
    ]
    sections: list[Section | RepeatedSection] = []
    next_part, size_count = 0, len(sizes)
    for i, stretch in enumerate(sample.stretches):
        first = stretch.start + 1  # part 0 is before the first layer
        section = _repeated_section(log, stretch.period, first, sizes)
        if section is None:
            return None
        # The sizes of its weights differ between rounds: they get indices after all other sizes.
        weights = _weights(section.events, sizes)
        new_index = {index: size_count + k for k, index in enumerate(weights)}
        events = tuple(
            (kind, slot, new_index.get(size, size), new_index.get(tail, tail))
            for kind, slot, size, tail in section.events
        )
        section = replace(section, events=events, round_sizes=tuple(new_index.values()))
        sections.append(Section(events=log.events(next_part, first)))
        sections.append(RepeatedSection(section, i, tuple(weights.values())))
        next_part = first + 2 * stretch.period
        size_count += len(weights)
    sections.append(Section(events=log.events(next_part)))
    unrepeated = (section.events for section in sections if isinstance(section, Section))
    return Outline(
        buffer=log.buffer,
        sections=tuple(sections),
        sizes=tuple(0 if isinstance(size, Weight) else size for size in sizes),
        round_sizes=size_count - len(sizes),
        weights=tuple(_weights(chain.from_iterable(unrepeated), sizes).items()),
        slots=log.slots,
    )


def _repeated_section(
    log: Log, period: int, first: int, sizes: Sequence[Size | Weight]
) -> Section | None:
    """The events of the period that begins with part `first`. None if those of the next period differ.

    The slots of its events are renumbered: the blocks that the period allocates start at `slot_count`, and those that
    the period before it allocated are below. A period repeats if the next one has the same events in slots that are
    higher by `slot_count`.
    """
    second = first + period
    events = log.events(first, second)
    base, slot_count = _allocations(log.events(0, first)), _allocations(events)
    # The index of each size in the next period: the same size, or that of the same weight one period later.
    index = {size: i for i, size in enumerate(sizes)}
    shifted_sizes = (
        size._replace(layer=size.layer + period) if isinstance(size, Weight) else size
        for size in sizes
    )
    next_size = {WHOLE: WHOLE, **{i: index.get(size) for i, size in enumerate(shifted_sizes)}}
    expected_events = tuple(
        (kind, slot + slot_count, next_size[size], next_size[tail])
        for kind, slot, size, tail in events
    )
    if log.events(second, second + period) != expected_events:
        return None
    if any(slot < base - slot_count for _, slot, _, _ in events):
        return None  # it frees a block from before the previous period
    later_events = log.events(second + period)
    if any(base <= slot < base + slot_count for _, slot, _, _ in later_events):
        return None  # a block of the first period is freed after the second
    return Section(
        events=tuple(
            (kind, slot - base + slot_count, size, tail) for kind, slot, size, tail in events
        ),
        base=base,
        slots=slot_count,
        carried=tuple(slot - base + slot_count for _, slot, _, _ in events if slot < base),
    )


def _allocations(events: Iterable[Event]) -> int:
    """The number of blocks that the events allocate."""
    return sum(1 for kind, *_ in events if kind == ALLOCATE)


def _weights(events: Iterable[Event], sizes: Sequence[Size | Weight]) -> dict[int, Weight]:
    """The weights whose sizes the events use, by size index."""
    used = {i for _, _, size, tail in events for i in (size, tail) if i != WHOLE}
    sizes_used = ((i, sizes[i]) for i in sorted(used))
    return {i: size for i, size in sizes_used if isinstance(size, Weight)}


# -- how many tensors a graph may have before llama.cpp aborts
#
# The scheduler keeps nodes and leafs in a table of fixed size: a prime just above a power of two. Phi-3-medium with a
# quantised cache and a stream for each sequence has 2,058 tensors, but its table has 2,053 entries.
# llama-context.cpp (graph_max_nodes) and ggml.c (ggml_hash_size) @ 0c1e570.

_PRIMES = (
    *(2, 3, 5, 11, 17, 37, 67, 131, 257, 521, 1031, 2053, 4099, 8209, 16411, 32771, 65537),
    *(131101, 262147, 524309, 1048583, 2097169, 4194319, 8388617, 16777259, 33554467, 67108879),
)

_MIN_NODES = 1024
_NODES_PER_TENSOR = 8
# Nodes per token of the micro-batch and per tensor of the model, for architectures with a larger budget.
_BUDGETS: Mapping[str, tuple[int, int]] = {
    "kimi-k3": (160, 64),
    "glm5-next": (160, 64),
    "hrm_text": (80, 64),
    **dict.fromkeys(
        (
            *("qwen3next", "kimi-linear", "bailingmoe3", "qwen35", "qwen35moe", "qwen4exp"),
            *("deepseek4", "nanbeige", "minimax-01", "minimax-m3", "hy_v4", "clef"),
        ),
        (40, 32),
    ),
}


def check_capacity(tensors: int, hparams: Hparams, n_tokens: int) -> None:
    """Raises RefusedError for a graph with more nodes and leafs than the scheduler's table holds."""
    if hparams.arch in _BUDGETS:
        per_token, per_tensor = _BUDGETS[hparams.arch]
        max_nodes = max(n_tokens * per_token, hparams.n_tensors * per_tensor)
    else:
        max_nodes = max(_MIN_NODES, hparams.n_tensors * _NODES_PER_TENSOR)
    i = bisect_left(_PRIMES, max_nodes)
    capacity = _PRIMES[i] if i < len(_PRIMES) else max_nodes | 1
    if tensors > capacity:
        raise RefusedError(
            f"llama.cpp aborts: its graph has {tensors:,} tensors, but its table only has "
            f"room for {capacity:,}; a unified cache (--kv-unified) or an unquantised one "
            "needs fewer"
        )
