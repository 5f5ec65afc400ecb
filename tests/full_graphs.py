"""Compute buffers of llama.cpp from a graph of every layer, for comparison with plans of a few layers."""

from __future__ import annotations

from edgekit.engines.llamacpp.graph.allocator import high_water
from edgekit.engines.llamacpp.graph.plan import (
    CPU_ONLY,
    Target,
    all_layers,
    build_graph,
    fold_graph,
    graph_facts,
    load_values,
    options_of,
    plan_for,
    sizes_of,
)
from edgekit.engines.llamacpp.types import Context
from edgekit.model.types import Model


def full_graph_bytes(model: Model, context: Context, target: Target = CPU_ONLY) -> tuple[int, ...]:
    """Bytes per buffer. Asserts that the plan from a few layers has as many tensors."""
    facts, values = graph_facts(model), load_values(context)
    every = all_layers(len(facts.layers))
    build = build_graph(facts, every, options_of(context), sizes_of(context, values))
    structure = fold_graph(build, every, target)
    assert structure is not None
    plan = structure.bind(every, facts.types)
    assert plan.tensors == plan_for(model, context, target)[0].tensors
    return tuple(high_water(program, values) for program in plan.programs)
