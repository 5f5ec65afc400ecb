"""The memory breakdown of the built-in engine: sums by hand, laws, and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recorded import engine_models

from edgekit.bill.spill import PAGE_TOKENS
from edgekit.bill.types import TABLE, Component, Load, MemoryEstimate, cache_type
from edgekit.engines.native.buffers import UNPACKED, matrices, usual_threads
from edgekit.engines.native.kernels import KERNELS, choose_kernels
from edgekit.engines.native.kernels.numpy_kernels import UNPACK
from edgekit.engines.native.rules import estimate, matrix_bytes, stream_model
from edgekit.engines.native.stream_plan import (
    StreamPlan,
    StreamSetup,
    attend_floats,
    multiply_floats,
    plan_stream,
    sampler_bytes,
)
from edgekit.errors import EdgekitError, KvSpillUnsupportedError, RefusedError, UsageError
from edgekit.formats.dtype import TENSOR_TYPES
from edgekit.machine.types import HOST
from edgekit.model.types import Model
from edgekit.units import Basis

F32, F16, Q8_0 = cache_type("f32"), cache_type("f16"), cache_type("q8_0")
MIB = 1024**2
SETUP = StreamSetup(threads=2)


def gemma() -> Model:
    return engine_models()["gemma-3-1b", "Q4_K_M"]  # 26 layers of 1 x 256 keys and values


def llama() -> Model:
    return engine_models()["llama-3.1-8b", "Q4_K_M"]  # 32 layers of 8 x 128


def breakdown(model: Model, load: Load | None = None, **setup: Any) -> MemoryEstimate:
    return estimate(model, load or Load(context_tokens=2048), StreamSetup(threads=2, **setup))


def plan(model: Model, load: Load, **setup: Any) -> StreamPlan:
    return plan_stream(stream_model(model), load, StreamSetup(threads=2, **setup))


def by_array(estimate: MemoryEstimate) -> dict[str, int]:
    """Name of the array (before the colon of its line) -> bytes of all layers."""
    sums: dict[str, int] = {}
    for line in estimate.lines:
        name = line.because.partition(":")[0]
        sums[name] = sums.get(name, 0) + line.size_bytes
    return sums


# --- the cache


def test_cache_bytes_of_gemma_with_90_tokens_in_f32() -> None:
    """A prompt of 6, 20 new tokens and 64 to spare."""
    cache = breakdown(
        gemma(), Load(context_tokens=6 + 20 + 64, cache_k=F32, cache_v=F32)
    ).kv_cache_bytes
    assert cache == 26 * 90 * 2 * 256 * 4 == 4_792_320


def test_cache_bytes_of_gemma_with_full_window() -> None:
    load = Load(context_tokens=32_768, cache_k=F32, cache_v=F32, full_window=True)
    cache = breakdown(gemma(), load).kv_cache_bytes
    assert cache == 26 * 32_768 * 2 * 256 * 4 == 1_744_830_464


def test_sliding_layers_hold_their_window_only() -> None:
    result = breakdown(gemma(), Load(context_tokens=32_768))
    assert result.of(Component.KV_CACHE) == 4 * 32_768 * 2 * 256 * 2
    assert result.of(Component.SLIDING_KV_CACHE) == 22 * 512 * 2 * 256 * 2
    assert dict(result.facts)["cells"] == 32_768
    assert dict(result.facts)["sliding_cells"] == 512


@pytest.mark.parametrize(
    ("keys", "values", "token_bytes"),
    [
        ("f32", "f32", 1024 * 4 * 2),
        ("f16", "f16", 1024 * 2 * 2),
        ("q8_0", "q8_0", 1024 // 32 * 34 * 2),
        ("q8_0", "f16", 1024 // 32 * 34 + 1024 * 2),
        ("f32", "q8_0", 1024 * 4 + 1024 // 32 * 34),
    ],
)
def test_cache_bytes_with_different_types_for_keys_and_values(
    keys: str, values: str, token_bytes: int
) -> None:
    load = Load(context_tokens=1000, cache_k=cache_type(keys), cache_v=cache_type(values))
    result = breakdown(llama(), load)
    assert result.kv_cache_bytes == 32 * 1000 * token_bytes  # without padding
    assert by_array(result)["staging"] == 64 * token_bytes


def test_context_defaults_to_the_native_one() -> None:
    assert dict(breakdown(llama(), Load()).facts)["window"] == 131_072


# --- weights, buffers and threads


def test_breakdown_of_llama_8b_by_array() -> None:
    result = by_array(breakdown(llama()))
    assert result == {
        "norms and biases": (32 * 2 + 1) * 4096 * 4 + 64 * 4,  # the last are the rope factors
        "cache": 32 * 2048 * 2 * 1024 * 2,
        "logits": 128_256 * 4,
        "sampler": sampler_bytes(128_256),
        "tokens": 64 * 4096 * 4,
        "chunk": 64 * 4096 * 4,
        "queries": 64 * 4096 * 4,
        "attention": 64 * (4096 + 2 * 32) * 4,
        "keys and values, then feed-forward": 64 * 14_336 * 4,
        "staging": 64 * 2 * 1024 * 2,
        "rotary": 2 * 64 * 64 * 4,
        "tiles": 2 * (MIB + 64 * 128 * 4 + 65_536 * 4),
    }


def test_rolling_with_sinks_doubles_rotary_tables_and_rotated_queries() -> None:
    full, rolling = by_array(breakdown(gemma())), by_array(breakdown(gemma(), rolling=True))
    assert rolling == full
    sinks = by_array(breakdown(gemma(), rolling=True, sinks=4))
    assert sinks.pop("queries of sinks") == 64 * 1024 * 4
    assert (
        sinks.pop("rotary") == 2 * full.pop("rotary") == 8 * 64 * 128 * 4
    )  # full and sliding layers
    assert sinks == full


def test_kept_weights_are_as_large_as_in_the_file() -> None:
    sizes = {tensor.name: tensor.size_bytes for tensor in llama().header.tensors or ()}
    rows = {name: size for name, size in sizes.items() if "norm" not in name and "rope" not in name}
    assert matrix_bytes(llama()) == sum(rows.values())
    all_kept = breakdown(llama(), keep_bytes=None)
    assert by_array(all_kept)["weights kept"] == sum(rows.values())
    assert dict(all_kept.facts)["streamed_bytes"] == 0
    first_layer = {name: size for name, size in rows.items() if name.startswith("blk.0.")}
    one_kept = breakdown(llama(), keep_bytes=sum(first_layer.values()))
    assert [line.layer for line in one_kept.lines if line.because.startswith("weights kept")] == [0]
    assert by_array(one_kept)["weights kept"] == sum(first_layer.values())


def test_plan_keeps_smaller_matrices_if_not_all_fit() -> None:
    model = stream_model(llama())
    smallest = min(tensor.size_bytes for tensor in matrices(model))
    kept = plan(llama(), Load(), keep_bytes=smallest).kept
    assert len(kept) == 1
    assert plan(llama(), Load(), keep_bytes=smallest - 1).kept == frozenset()


def test_every_line_is_exact_and_in_ram() -> None:
    for model in (gemma(), llama()):
        result = breakdown(model, keep_bytes=None, rolling=True, sinks=4)
        assert {line.basis for line in result.lines} == {Basis.EXACT}
        assert {line.pool for line in result.lines} == {HOST}
        assert all(line.size_bytes > 0 and line.because for line in result.lines)
        assert (result.engine, result.backend) == ("stream", "cpu")


def test_plan_chunk_is_no_longer_than_the_cache() -> None:
    assert plan(llama(), Load(context_tokens=40)).chunk_tokens == 40
    assert plan(llama(), Load(context_tokens=40), rolling=True, sinks=4).chunk_tokens == 36
    assert plan(llama(), Load(context_tokens=40, microbatch_tokens=8)).chunk_tokens == 8


def test_plan_uses_as_many_threads_as_cores_up_to_eight() -> None:
    assert plan_stream(stream_model(gemma()), Load(), StreamSetup()).threads == usual_threads()
    assert [usual_threads(cores) for cores in (1, 4, 64)] == [1, 4, 8]


# --- the same for both kernels


@pytest.mark.parametrize("name", KERNELS)
def test_scratch_of_both_kernels_is_within_the_plan(name: str) -> None:
    kernels = choose_kernels(name)
    for model in (gemma(), llama()):
        result = plan(model, Load())
        size = result.model.dimensions
        assert kernels.attend_floats(size.head_dim) <= result.scratch_floats
        for tensor in matrices(result.model):
            needed = kernels.scratch_floats(tensor.type, tensor.shape[1])
            assert needed <= multiply_floats(tensor.type, tensor.shape[1]) <= result.scratch_floats
    for head_dim in (32, 128, 1024):
        assert kernels.attend_floats(head_dim) <= attend_floats(head_dim)


def test_unpacked_types_equal_those_of_both_kernels() -> None:
    from edgekit.engines.native.kernels import _native

    ids = {row.name: row.ggml_id for row in TENSOR_TYPES}
    assert set(UNPACK) == UNPACKED
    assert {ids[name] for name in UNPACKED} == set(_native.type_ids())


# --- a cache that is partly on disk


def test_resident_cache_is_whole_pages_plus_one_to_read_into() -> None:
    load = Load(context_tokens=131_072)
    result = breakdown(gemma(), load, resident_tokens=5000)
    token_bytes = 2 * 256 * 2
    resident = 5000 // 256 * 256
    assert by_array(result)["cache"] == (4 * resident + 22 * 512) * token_bytes
    assert by_array(result)["page read back"] == PAGE_TOKENS * token_bytes
    assert dict(result.facts)["resident_tokens"] == resident


@pytest.mark.parametrize(
    ("window", "resident", "message"),
    [
        (65_536, 4096, "more than 65,536"),
        (8192, 4096, "more than 65,536"),
        (65_537, 511, "at least 2 pages are needed"),
        (131_072, 0, "at least 2 pages are needed"),
    ],
)
def test_plan_refuses_to_spill_small_windows_or_keep_under_two_pages(
    window: int, resident: int, message: str
) -> None:
    with pytest.raises(KvSpillUnsupportedError, match=message):
        breakdown(llama(), Load(context_tokens=window), resident_tokens=resident)


def test_plan_does_not_spill_a_cache_that_is_fully_resident() -> None:
    assert plan(llama(), Load(context_tokens=100), resident_tokens=100).resident_pages is None


# --- refusals


@pytest.mark.parametrize(
    ("load", "setup", "kind", "message"),
    [
        ({"context_tokens": -1}, {}, UsageError, "the context must be .*got -1"),
        ({"context_tokens": 2**31}, {}, UsageError, "the context must be 1 to 2,147,483,647"),
        ({"microbatch_tokens": 0}, {}, UsageError, "the chunk must be 1 to"),
        ({"sequences": 4}, {}, RefusedError, "one at a time"),
        ({}, {"threads": 0}, UsageError, "the number of threads must be at least 1"),
        ({}, {"threads": 5000}, UsageError, "the number of threads must be at most 1,024"),
        ({}, {"keep_bytes": -1}, UsageError, "must not be negative"),
        ({}, {"sinks": 4}, UsageError, "--rolling"),
        (
            {},
            {"sinks": -4, "rolling": True},
            UsageError,
            "the number of sinks must be 0 to 2,147,483,647 tokens \\(got -4\\)",
        ),
        ({}, {"sinks": 2048, "rolling": True}, UsageError, "fill the whole context"),
        (
            {"context_tokens": 100_000},
            {"resident_tokens": -1},
            UsageError,
            "the part of the cache in memory must be .*got -1",
        ),
    ],
)
def test_plan_refuses_invalid_numbers(
    load: dict[str, Any], setup: dict[str, Any], kind: type[EdgekitError], message: str
) -> None:
    full_load = Load(**{"context_tokens": 2048, **load})
    with pytest.raises(kind, match=message):
        estimate(llama(), full_load, replace(SETUP, **setup))


@pytest.mark.parametrize(
    "name", [row.name for row in TABLE if row.name not in {"f32", "f16", "q8_0"}]
)
def test_plan_refuses_unknown_cache_types(name: str) -> None:
    kind = cache_type(name)
    for load in (Load(cache_k=kind), Load(cache_v=kind)):
        with pytest.raises(RefusedError, match=f"f32, f16, q8_0, not {name}"):
            breakdown(llama(), load)


def test_plan_refuses_q8_0_with_a_head_size_of_80() -> None:
    """80 is not a multiple of the block size, 32."""
    model = stream_model(llama())
    odd = replace(model, dimensions=replace(model.dimensions, head_dim=80))
    with pytest.raises(RefusedError, match="the head size 80"):
        plan_stream(odd, Load(context_tokens=64, cache_v=Q8_0), SETUP)


# --- laws

tokens = st.integers(1, 200_000)
models = st.sampled_from(("gemma-3-1b", "llama-3.1-8b", "qwen3-0.6b"))
LAWS = settings(max_examples=40, deadline=None)


def total(name: str, load: Load, **setup: Any) -> int:
    return breakdown(engine_models()[name, "Q4_K_M"], load, **setup).total_bytes


@LAWS
@given(name=models, first=tokens, second=tokens, kind=st.sampled_from((F32, F16, Q8_0)))
def test_memory_never_shrinks_with_a_longer_context(
    name: str, first: int, second: int, kind: Any
) -> None:
    short, long = sorted((first, second))
    load = Load(cache_k=kind, cache_v=kind)
    assert total(name, replace(load, context_tokens=short)) <= total(
        name, replace(load, context_tokens=long)
    )


@LAWS
@given(name=models, count=tokens)
def test_memory_shrinks_with_a_smaller_cache_type(name: str, count: int) -> None:
    sizes = [
        total(name, Load(context_tokens=count, cache_k=kind, cache_v=kind))
        for kind in (Q8_0, F16, F32)
    ]
    assert sizes[0] < sizes[1] < sizes[2]


@LAWS
@given(name=models, first=st.integers(0, 6 * 2**30), second=st.integers(0, 6 * 2**30))
def test_kept_weights_grow_with_keep_bytes_and_stay_within_it(
    name: str, first: int, second: int
) -> None:
    small, large = sorted((first, second))
    load = Load(context_tokens=64)
    without = total(name, load, keep_bytes=0)
    kept_bytes = [total(name, load, keep_bytes=size) - without for size in (small, large)]
    assert 0 <= kept_bytes[0] <= kept_bytes[1] <= total(name, load, keep_bytes=None) - without
    assert kept_bytes[0] <= small
    assert kept_bytes[1] <= large


@LAWS
@given(name=models, count=st.integers(8, 200_000), threads=st.integers(1, 64))
def test_rolling_has_no_cost_and_each_thread_costs_the_same(
    name: str, count: int, threads: int
) -> None:
    model = stream_model(engine_models()[name, "Q4_K_M"])
    load = Load(context_tokens=count)
    plans = [
        plan_stream(model, load, StreamSetup(threads=number, rolling=rolling))
        for number, rolling in ((threads, False), (threads + 1, True), (threads + 2, True))
    ]
    assert len({item.cells for item in plans}) == 1
    first, second, third = (item.total_bytes for item in plans)
    assert third - second == second - first == MIB + (plans[0].side_floats + 65_536) * 4
