"""Placements that differ only in numbers of layers and in weight types share a structure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, reject, settings
from hypothesis import strategies as st
from tests.full_graphs import full_graph_bytes
from tests.recorded import engine_models
from tests.thoroughness import LONG

from edgekit.bill.types import Load
from edgekit.engines.llamacpp.context import resolve
from edgekit.engines.llamacpp.graph.plan import PreparedGraphs, Target, compute_bytes
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


def context_and_target(
    model: Model, load: dict[str, Any], setup: LlamaCppSetup
) -> tuple[Context, Target]:
    context = resolve(model, Load(**load), setup)
    placement = place(model, setup)
    return context, spread(context, placement, setup.devices)


@settings(deadline=None, max_examples=120 if LONG else 12)
@given(st.sampled_from(NAMES), loads, setups)
def test_plan_on_devices_equals_the_full_graph(
    name: str, load: dict[str, Any], setup: LlamaCppSetup
) -> None:
    model = model_of(name)
    try:
        context, target = context_and_target(model, load, setup)
        planned = compute_bytes(model, context, target)
    except RefusedError:
        reject()
    assert planned == full_graph_bytes(model, context, target)


@settings(deadline=None, max_examples=80 if LONG else 8)
@given(st.sampled_from(NAMES), loads, setups)
def test_cached_plans_give_the_same_bytes_as_fresh_ones(
    name: str, load: dict[str, Any], setup: LlamaCppSetup
) -> None:
    model = model_of(name)
    fresh = Model(header=model.header, geometry=model.geometry)
    try:
        cached = compute_bytes(model, *context_and_target(model, load, setup))
    except RefusedError:
        reject()
    assert cached == compute_bytes(fresh, *context_and_target(fresh, load, setup))


def test_layers_with_other_types_of_shared_experts_are_built_separately() -> None:
    """CUDA moves a shared expert next to the routed ones only if their types are equal."""
    recorded = model_of("qwen3-next-80b-a3b")
    tensors = tuple(
        replace(tensor, type=by_name("Q8_0"))
        if "ffn_up_shexp" in tensor.name and not tensor.name.startswith("blk.20.")
        else tensor
        for tensor in recorded.header.tensors or ()
    )
    model = Model(header=replace(recorded.header, tensors=tensors), geometry=recorded.geometry)
    setup = LlamaCppSetup(backend=Backend.CUDA, rules=NEWEST, mode=LlamaMode.SERVER)
    context, target = context_and_target(model, {"context_tokens": 4096}, setup)
    assert compute_bytes(model, context, target) == full_graph_bytes(model, context, target)


def count_structures(model: Model) -> int:
    return len(model.prepared(PreparedGraphs).structures)


def test_placements_with_other_numbers_of_layers_share_a_structure() -> None:
    recorded = model_of("llama-3.1-8b")
    model = Model(header=recorded.header, geometry=recorded.geometry)
    for layers in (10, 15, 20, 26):
        setup = LlamaCppSetup(backend=Backend.CUDA, n_gpu_layers=layers)
        compute_bytes(model, *context_and_target(model, {"context_tokens": 4096}, setup))
    assert count_structures(model) == 1
