"""A model and a context -> programs, one for each buffer, kept with the model for all loads they are good for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial

from edgekit.engine.llamacpp.graph.capacity import check_capacity, graph_capacity
from edgekit.engine.llamacpp.graph.cgraph import Graph
from edgekit.engine.llamacpp.graph.dims import Size, value, variable
from edgekit.engine.llamacpp.graph.families import FAMILIES
from edgekit.engine.llamacpp.graph.llama.build import Build, Options, Sizes
from edgekit.engine.llamacpp.graph.llama.hparams import Hparams, LayerFacts
from edgekit.engine.llamacpp.graph.llama.pooling import pool
from edgekit.engine.llamacpp.graph.program import Program, fold
from edgekit.engine.llamacpp.graph.stretches import FEW, MORE, Kept, keep_all, keep_some
from edgekit.engine.llamacpp.graph.trace import CPU, Placed, trace
from edgekit.engine.llamacpp.graph.types import NoGraphError
from edgekit.engine.llamacpp.types import Context
from edgekit.engine.types import Model
from edgekit.header.dtype import by_name

Values = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the nodes of a graph run. `layer_key`: what makes layers differ there that are built alike."""

    key: Hashable
    place: Callable[[Build], Placed]
    layer_key: Callable[[Hparams, int], Hashable] = lambda _hparams, _il: None


CPU_ONLY = Target(key="cpu", place=lambda build: Placed.in_one(build.graph, CPU))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`unequal`: sizes that were taken to differ. At a load where two of them meet, the plan does not hold."""

    programs: tuple[Program, ...]
    tensors: int  # nodes and leafs of the whole graph
    unequal: tuple[tuple[Size, Size], ...]

    def holds(self, values: Values) -> bool:
        return all(value(one, values) != value(other, values) for one, other in self.unequal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is read from the header once."""

    hparams: Hparams
    layers: tuple[LayerFacts, ...]


def plan_for(model: Model, context: Context, target: Target = CPU_ONLY) -> tuple[Plan, Values]:
    """With the numbers to run it with. Raises NoGraphError, and RefusedError where llama.cpp would give up."""
    values = load_values(context)
    key = ("graph", target.key, options_of(context), _alike(context, values))
    plan = model.keep(key, lambda: _compiled(model, context, target, _named(values)))
    if not plan.holds(values):
        exact = (*key, *values.values())
        plan = model.keep(exact, lambda: _compiled(model, context, target, values))
    check_capacity(plan.tensors, graph_capacity(known(model).hparams, context.n_tokens))
    return plan, values


def load_values(context: Context) -> dict[str, int]:
    """The numbers of a load that the variables stand for."""
    return {
        "T": context.n_tokens // context.n_seq_max,
        "S": context.n_seq_max,
        "N": context.n_outputs,
        "C": context.cells,
        "W": context.swa_cells,
    }


def _alike(context: Context, values: Values) -> Hashable:
    """Loads that agree in this have the same graph but for the numbers: a dimension of 1 lies anywhere."""
    ones = tuple(number == 1 for number in values.values())
    return ones, context.n_outputs == context.n_tokens


def _named(values: Values) -> dict[str, Size]:
    return {name: number if number == 1 else variable(name) for name, number in values.items()}


def options_of(context: Context) -> Options:
    return Options(
        flash_attn=context.flash_attn,
        type_k=by_name(context.type_k.name.upper()),
        type_v=by_name(context.type_v.name.upper()),
        embeddings=context.embeddings,
        streams=context.streams > 1,
    )


def sizes_of(context: Context, values: Mapping[str, Size]) -> Sizes:
    tokens = values["T"] * values["S"]
    return Sizes(
        n_tokens=tokens,
        n_seqs=values["S"],
        n_outputs=tokens if context.n_outputs == context.n_tokens else values["N"],
        n_kv=values["C"],
        n_kv_swa=values["W"],
        n_stream=values["S"] if context.streams > 1 else 1,
    )


def known(model: Model) -> Known:
    """Raises NoGraphError."""
    return model.keep("graph facts", partial(_known, model))


def _known(model: Model) -> Known:
    family = FAMILIES.get(model.geometry.architecture)
    if family is None:
        raise NoGraphError(f"no graph is known for the architecture {model.geometry.architecture}")
    if model.header.tensors is None:
        raise NoGraphError("the tensor directory was not read")
    hparams = Hparams(model)
    layers = tuple(hparams.layer(il, family.more(hparams, il)) for il in range(hparams.n_layer))
    return Known(hparams=hparams, layers=layers)


def _compiled(model: Model, context: Context, target: Target, values: Mapping[str, Size]) -> Plan:
    """From as few layers as show how the others go on."""
    have = known(model)
    keys = _layer_keys(have, target)
    options, sizes = options_of(context), sizes_of(context, values)
    for kept in (keep_some(keys, FEW), keep_some(keys, MORE), keep_all(len(keys))):
        plan = _folded(built(have, kept, options, sizes), kept, target)
        if plan is not None:
            return plan
    raise NotImplementedError  # without stretches there is nothing to fold


def _layer_keys(have: Known, target: Target) -> list[int]:
    """Small numbers, the same for layers that are built and placed alike."""
    seen: dict[Hashable, int] = {}
    return [
        seen.setdefault((facts, target.layer_key(have.hparams, il)), len(seen))
        for il, facts in enumerate(have.layers)
    ]


def built(have: Known, kept: Kept, options: Options, sizes: Sizes) -> Build:
    build = Build(have.hparams, {il: have.layers[il] for il in kept.layers}, options, sizes)
    try:
        FAMILIES[have.hparams.arch].build(build)
        pool(build)
    except (ArithmeticError, LookupError, ValueError) as error:
        told = f"{have.hparams.header.name} does not describe a graph of {have.hparams.arch}"
        raise NoGraphError(f"{told}: {error}") from error
    return build


def _folded(build: Build, kept: Kept, target: Target) -> Plan | None:
    placed = target.place(build)
    if kept.stretches and not placed.repeats:
        return None
    logs = trace(placed, build.graph.same)
    programs = [fold(log, kept.stretches) for log in logs]
    whole = tuple(program for program in programs if program is not None)
    if len(whole) < len(programs):
        return None
    return Plan(
        programs=whole,
        tensors=_tensors(build.graph, kept),
        unequal=tuple(build.graph.unequal),
    )


def _tensors(graph: Graph, kept: Kept) -> int:
    """Those that were built, and of the layers that were not as many as of those they are like."""
    count = len(graph.nodes) + len(graph.leafs)
    for stretch in kept.stretches:
        first = stretch.start + stretch.body * stretch.period
        begin, end = graph.marks[first], graph.marks[first + stretch.period]
        count += (stretch.periods - stretch.built) * (sum(end) - sum(begin))
    return count
