"""Plans with a few layers and symbolic sizes equal full graphs; graphs that cannot be built are errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from tests.full_graphs import full_graph_bytes
from tests.recorded import engine_models, models
from tests.thoroughness import LONG

from edgekit.bill.types import Load, cache_type
from edgekit.engines.llamacpp.context import resolve
from edgekit.engines.llamacpp.graph.plan import PreparedGraphs, compute_bytes, family_of
from edgekit.engines.llamacpp.graph.tensor import NoGraphError
from edgekit.engines.llamacpp.types import Context, LlamaCppSetup, Rules
from edgekit.errors import RefusedError
from edgekit.model.types import Model

NAMES = sorted(
    {
        model["model"]
        for model in models()
        if model["quant"] == "Q4_K_M" and family_of(model["arch"])
    }
)


def model_of(name: str) -> Model:
    return engine_models()[name, "Q4_K_M"]


def context(model: Model, **load: Any) -> Context:
    return resolve(model, Load(**load), LlamaCppSetup(rules=Rules.V0_5))


loads = st.fixed_dictionaries(
    {
        "context_tokens": st.sampled_from([100, 256, 777, 4096, 32_768]),
        "microbatch_tokens": st.sampled_from([1, 7, 32, 256, 512]),
        "sequences": st.sampled_from([1, 1, 3, 4]),
        "output_rows": st.sampled_from([None, 4, 16]),
        "unified": st.booleans(),
        "flash_attention": st.booleans(),
        "full_window": st.booleans(),
    }
)


@settings(deadline=None, max_examples=60 if LONG else 12)
@given(st.sampled_from(NAMES), loads, st.sampled_from(["f16", "f32", "q8_0"]))
def test_plan_of_a_few_layers_equals_the_full_graph(
    name: str, load: dict[str, Any], kind: str
) -> None:
    if not load["flash_attention"] and kind == "q8_0":
        kind = "f16"
    model = model_of(name)
    try:
        at = context(model, **load, cache_k=cache_type(kind), cache_v=cache_type(kind))
        planned = compute_bytes(model, at)
    except RefusedError:
        reject()
    assert planned == full_graph_bytes(model, at)


def test_plan_is_rebuilt_for_a_load_whose_sizes_coincide() -> None:
    """With 128 tokens and 128 experts the router's scores are square, unlike in the plans of other loads."""
    model = model_of("qwen3-30b-a3b")
    for tokens in (64, 128, 8, 2048):
        at = context(model, context_tokens=4096, microbatch_tokens=tokens, output_rows=8)
        assert compute_bytes(model, at) == full_graph_bytes(model, at)


def test_graph_with_more_tensors_than_the_table_is_refused() -> None:
    model = model_of("phi-3-medium-4k")
    q8 = cache_type("q8_0")
    four_sequences = {"context_tokens": 4096, "sequences": 4, "cache_k": q8, "cache_v": q8}
    with pytest.raises(RefusedError, match="2,058 tensors, but its table only has room for 2,053"):
        compute_bytes(model, context(model, **four_sequences))
    assert compute_bytes(model, context(model, **four_sequences, unified=True))


def without_tensor(model: Model, name: str) -> Model:
    tensors = tuple(item for item in model.header.tensors or () if item.name != name)
    return Model(header=replace(model.header, tensors=tensors), geometry=model.geometry)


def with_keys(model: Model, **keys: Any) -> Model:
    changed = {f"{model.geometry.architecture}.{name}": value for name, value in keys.items()}
    header = replace(model.header, keys={**model.header.keys, **changed})
    return Model(header=header, geometry=model.geometry)


LLAMA = model_of("llama-3.2-1b")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (without_tensor(LLAMA, "blk.3.ffn_down.weight"), None),
        (without_tensor(LLAMA, "blk.3.attn_q.weight"), "no tensor blk.3.attn_q.weight"),
        (without_tensor(LLAMA, "token_embd.weight"), "no tensor token_embd.weight"),
        (
            Model(header=replace(LLAMA.header, tensors=None), geometry=LLAMA.geometry),
            "was not read",
        ),
        (
            Model(header=LLAMA.header, geometry=replace(LLAMA.geometry, architecture="unheard-of")),
            "no compute graph known for the architecture unheard-of",
        ),
        (
            with_keys(LLAMA, embedding_length="wide"),
            "embedding_length is .wide., not a whole number",
        ),
        (with_keys(LLAMA, embedding_length=2048, **{"attention.head_count": 7}), "cannot become"),
        (
            with_keys(LLAMA, **{"attention.head_count": (32,)}),
            "lists 1 layers, but the model has 16",
        ),
        (with_keys(LLAMA, expert_count=2**20, expert_used_count=2**20), "at most 1024 experts"),
        (
            with_keys(model_of("deepseek-v2-lite"), expert_gating_func=99),
            "does not describe a graph",
        ),
    ],
)
def test_graph_that_cannot_be_built_is_an_error(model: Model, message: str | None) -> None:
    with pytest.raises(NoGraphError, match=message):
        compute_bytes(model, context(LLAMA, context_tokens=4096))


def test_graph_with_a_different_number_of_used_experts_per_layer_is_refused() -> None:
    """No two layers are alike, so none can be left out: it is refused instead of taking long."""
    model = model_of("mixtral-8x7b")
    hostile = with_keys(model, expert_count=1024, expert_used_count=tuple(range(993, 1025)))
    with pytest.raises((NoGraphError, RefusedError)):
        compute_bytes(hostile, context(model, context_tokens=4096))


def test_plan_is_reused_for_other_contexts() -> None:
    recorded = model_of("llama-3.1-70b")
    model = Model(header=recorded.header, geometry=recorded.geometry)  # without cached plans
    compute_bytes(model, context(model, context_tokens=4096))
    contexts = [context(model, context_tokens=8192 + 256 * i) for i in range(20)]
    prepared = model.prepared(PreparedGraphs)
    before = len(prepared.plans), len(prepared.structures)
    for at in contexts:
        compute_bytes(model, at)
    assert (len(prepared.plans), len(prepared.structures)) == before == (1, 1)
