"""Placements that share a structure: nothing but the numbers of layers and the types of their weights may differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recorded import engine_models
from tests.thoroughness import LONG

from edgekit.bill.types import Load
from edgekit.engines.llamacpp.context import resolve
from edgekit.engines.llamacpp.graph.allocator import high_water
from edgekit.engines.llamacpp.graph.plan import (
    PreparedGraphs,
    all_layers,
    build_graph,
    compute_bytes,
    fold_graph,
    graph_facts,
    load_values,
    options_of,
    plan_for,
    sizes_of,
)
from edgekit.engines.llamacpp.graph.scheduler import spread
from edgekit.engines.llamacpp.types import (
    NEWEST,
    Backend,
    Context,
    DeviceSlot,
    LlamaCppSetup,
    LlamaMode,
    Rules,
)
from edgekit.engines.llamacpp.weights import place
from edgekit.errors import RefusedError
from edgekit.formats.dtype import by_name
from edgekit.model.types import Model

NAMES = (
    "llama-3.1-8b",
    "gemma-3-4b",
    "gemma-2-2b",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",
    "falcon-h1-1.5b",
    "granite-4-h-tiny",
    "gemma-3n-e4b",
    "mamba-2.8b",
    "qwen3-next-80b-a3b",
)
setups = st.builds(
    LlamaCppSetup,
    backend=st.just(Backend.CUDA),
    n_gpu_layers=st.integers(0, 50),
    cpu_moe=st.booleans(),
    offload_kqv=st.booleans(),
    devices=st.sampled_from(((DeviceSlot(),), (DeviceSlot(),), (DeviceSlot(), DeviceSlot()))),
    rules=st.sampled_from(Rules),
)
loads = st.fixed_dictionaries(
    {
        "context_tokens": st.sampled_from([256, 4096, 32_768]),
        "microbatch_tokens": st.sampled_from([1, 16, 64, 512]),
        "sequences": st.sampled_from([1, 1, 4]),
        "output_rows": st.sampled_from([None, 4, 40]),
        "unified": st.booleans(),
        "flash_attention": st.booleans(),
    }
)


def model_of(name: str) -> Model:
    return engine_models()[name, "Q4_K_M"]


def asked(model: Model, load: dict[str, Any], setup: LlamaCppSetup) -> tuple[Context, Any]:
    context = resolve(model, Load(**load), setup)
    placement = place(model, setup)
    return context, spread(context, placement, setup.devices)


def by_the_book(model: Model, context: Context, target: Any) -> tuple[int, ...]:
    """Every layer is built, with this load's numbers."""
    facts, values = graph_facts(model), load_values(context)
    every = all_layers(len(facts.layers))
    build = build_graph(facts, every, options_of(context), sizes_of(context, values))
    structure = fold_graph(build, every, target)
    assert structure is not None
    plan = structure.bind(every, facts.types)
    assert plan.tensors == plan_for(model, context, target)[0].tensors
    return tuple(high_water(program, values) for program in plan.programs)


@settings(deadline=None, max_examples=120 if LONG else 12)
@given(st.sampled_from(NAMES), loads, setups)
def test_a_structure_is_good_for_every_number_of_layers(
    name: str, load: dict[str, Any], setup: LlamaCppSetup
) -> None:
    model = model_of(name)
    try:
        context, target = asked(model, load, setup)
        short = compute_bytes(model, context, target)
    except RefusedError:
        return
    assert short == by_the_book(model, context, target)


@settings(deadline=None, max_examples=80 if LONG else 8)
@given(st.sampled_from(NAMES), loads, setups)
def test_an_answer_does_not_depend_on_what_was_asked_before(
    name: str, load: dict[str, Any], setup: LlamaCppSetup
) -> None:
    model = model_of(name)
    fresh = Model(header=model.header, geometry=model.geometry)
    try:
        kept = compute_bytes(model, *asked(model, load, setup))
    except RefusedError:
        return
    assert kept == compute_bytes(fresh, *asked(fresh, load, setup))


def test_a_shared_expert_of_another_type_makes_a_layer_differ() -> None:
    """CUDA runs it with the routed experts only where the types are the same."""
    one = model_of("qwen3-next-80b-a3b")
    tensors = tuple(
        replace(tensor, type=by_name("Q8_0"))
        if "ffn_up_shexp" in tensor.name and not tensor.name.startswith("blk.20.")
        else tensor
        for tensor in one.header.tensors or ()
    )
    model = Model(header=replace(one.header, tensors=tensors), geometry=one.geometry)
    setup = LlamaCppSetup(backend=Backend.CUDA, rules=NEWEST, mode=LlamaMode.SERVER)
    context, target = asked(model, {"context_tokens": 4096}, setup)
    assert compute_bytes(model, context, target) == by_the_book(model, context, target)


def structures(model: Model) -> int:
    return len(model.prepared(PreparedGraphs).structures)


def test_another_number_of_layers_is_no_new_structure() -> None:
    one = model_of("llama-3.1-8b")
    model = Model(header=one.header, geometry=one.geometry)
    for layers in (10, 15, 20, 26):
        setup = LlamaCppSetup(backend=Backend.CUDA, n_gpu_layers=layers)
        compute_bytes(model, *asked(model, {"context_tokens": 4096}, setup))
    assert structures(model) == 1
