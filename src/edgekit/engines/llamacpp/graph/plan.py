"""A model and a context -> allocation programs, one per buffer, cached with the model and reused for similar loads."""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from edgekit.engines.llamacpp.graph.build import Build, GraphFacts, GraphOptions, GraphSizes
from edgekit.engines.llamacpp.graph.dims import Size, variable
from edgekit.engines.llamacpp.graph.families import family_of
from edgekit.engines.llamacpp.graph.hparams import Hparams
from edgekit.engines.llamacpp.graph.outputs import pool
from edgekit.engines.llamacpp.graph.program import (
    GraphPlan,
    KeptLayers,
    Structure,
    Values,
    fold,
    keep_all,
    keep_some,
)
from edgekit.engines.llamacpp.graph.tensor import NoGraphError
from edgekit.engines.llamacpp.graph.trace import CPU, PlacedGraph, trace
from edgekit.engines.llamacpp.prepared import prepare
from edgekit.engines.llamacpp.types import Context
from edgekit.errors import RefusedError
from edgekit.formats.dtype import by_name
from edgekit.model.types import Model


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
