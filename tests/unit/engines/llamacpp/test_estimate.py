"""Lines of llama.cpp's bill, with figures that a reader can check on paper; and models and loads that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.recorded import engine_models

from edgekit.bill.types import (
    CACHES,
    Component,
    Load,
    cache_type,
)
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.types import Backend, Cpu, DeviceSlot, LlamaCppSetup, LlamaMode, Rules
from edgekit.errors import HeaderError, RefusedError
from edgekit.machine.types import DEVICE, Pool, PoolKind
from edgekit.model import open_config
from edgekit.model.types import Attention, Model
from edgekit.units import MIB, Basis

LIBRARY = LlamaCppSetup(rules=Rules.V0_5)
SERVER = LlamaCppSetup(mode=LlamaMode.SERVER, rules=Rules.V0_5)
CUDA = LlamaCppSetup(backend=Backend.CUDA, rules=Rules.V0_5)


def llama() -> Model:
    return engine_models()["llama-3.1-8b", "Q4_K_M"]  # 32 layers of 8 x 128 keys and values


def gemma() -> Model:
    return engine_models()["gemma-3-27b", "Q4_K_M"]  # sliding layers of 1024 tokens


def deepseek() -> Model:
    return engine_models()["deepseek-v3", "Q4_K_M"]


def with_attention(model: Model, **changes: Any) -> Model:
    """The same model with these changes to the attention of every layer."""
    layers = []
    for layer in model.geometry.layers:
        assert isinstance(layer.mixer, Attention)
        changed = replace(layer.mixer, **changes)
        layers.append(replace(layer, mixer=changed))
    return Model(header=model.header, geometry=replace(model.geometry, layers=tuple(layers)))


@pytest.mark.parametrize(
    ("model", "load", "reason"),
    [
        (
            llama,
            Load(cache_v=cache_type("q8_0"), flash_attention=False),
            "requires flash attention",
        ),
        (deepseek, Load(cache_k=cache_type("q8_0")), "different K .q8_0. and V .f16."),
        (llama, Load(cache_k=cache_type("fp8")), "has no cache type fp8 for K; it has f16, q8_0"),
        (llama, Load(cache_v=cache_type("q4_polar")), "has no cache type q4_polar for V"),
        (llama, Load(sequences=257), "n_seq_max must be <= 256"),
        (
            llama,
            Load(context_tokens=4096, sequences=4, output_rows=1),
            "aborts: 1 output rows for 4",
        ),
    ],
)
def test_estimate_refuses_what_llama_cpp_refuses(
    model: Callable[[], Model], load: Load, reason: str
) -> None:
    with pytest.raises(RefusedError, match=reason):
        llamacpp.estimate(model(), load, LIBRARY)


def test_estimate_refuses_a_graph_with_too_many_tensors() -> None:
    phi = engine_models()["phi-3-medium-4k", "Q4_K_M"]
    q8 = cache_type("q8_0")
    with pytest.raises(
        RefusedError,
        match=r"aborts: its graph has 2,058 tensors, but its table only has room for 2,053",
    ):
        llamacpp.estimate(
            phi, Load(context_tokens=32768, sequences=4, cache_k=q8, cache_v=q8), LIBRARY
        )


def test_header_with_sizes_beyond_64_bits_is_an_error() -> None:
    huge = with_attention(llama(), kv_heads=2**40)
    with pytest.raises(HeaderError, match="64-bit"):
        llamacpp.estimate(huge, Load(context_tokens=2**20), LIBRARY)


def test_kv_cache_rows_are_padded_on_a_device() -> None:
    model = engine_models()["gpt-oss-20b", "MXFP4_MOE"]
    q8 = cache_type("q8_0")
    load = Load(context_tokens=4096, cache_k=q8, cache_v=q8)
    host = llamacpp.estimate(model, load, LIBRARY).kv_cache_bytes
    device = llamacpp.estimate(model, load, CUDA).kv_cache_bytes
    assert host <= device <= host + 24 * 2 * 1024


def test_bytes_of_a_kv_cache() -> None:
    bill = llamacpp.estimate(llama(), Load(context_tokens=8192), LIBRARY)
    assert bill.of(Component.KV_CACHE) == 32 * 8192 * (1024 + 1024) * 2
    q8 = Load(context_tokens=8192, cache_k=cache_type("q8_0"), cache_v=cache_type("q8_0"))
    assert (
        llamacpp.estimate(llama(), q8, LIBRARY).of(Component.KV_CACHE)
        == 32 * 8192 * 2048 * 34 // 32
    )


def test_mla_caches_one_latent_vector_per_token() -> None:
    bill = llamacpp.estimate(deepseek(), Load(context_tokens=131072), LIBRARY)
    assert bill.of(Component.KV_CACHE) == 61 * 131072 * 576 * 2


def test_server_lists_growing_caches_outside_the_total() -> None:
    bill = llamacpp.estimate(gemma(), Load(context_tokens=8192), SERVER)
    growing = {line.component: line for line in bill.lines if not line.reserved}
    assert growing[Component.PROMPT_CACHE].size_bytes == 8192 * MIB
    window = bill.of(Component.SLIDING_KV_CACHE) // 4
    assert growing[Component.CHECKPOINTS].size_bytes == 32 * 4 * window
    assert bill.total_bytes == sum(line.size_bytes for line in bill.lines if line.reserved)
    assert Component.CHECKPOINTS not in {
        line.component
        for line in llamacpp.estimate(llama(), Load(context_tokens=8192), SERVER).lines
    }


def test_growing_caches_have_a_bound() -> None:
    bill = llamacpp.estimate(gemma(), Load(context_tokens=32768), SERVER)
    growing = {line.component: line for line in bill.lines if not line.reserved}
    assert growing[Component.PROMPT_CACHE].within == growing[Component.CHECKPOINTS].within == 0.05


def test_bound_of_the_prompt_cache_includes_one_larger_prompt() -> None:
    """Builds before July 2026 keep one prompt of any size: at most a full KV cache."""
    setup = replace(SERVER, cache_ram_mib=1024)
    bill = llamacpp.estimate(llama(), Load(context_tokens=131_072), setup)
    (line,) = [item for item in bill.lines if item.component is Component.PROMPT_CACHE]
    assert line.within is not None
    assert line.size_bytes * (1 + line.within) == pytest.approx(bill.kv_cache_bytes)


def test_cuda_has_a_runtime_line_for_its_context_and_the_first_decode() -> None:
    dense = llamacpp.estimate(llama(), Load(context_tokens=4096), CUDA)
    assert dense.of(Component.RUNTIME) == (527 + 97) * MIB
    experts = llamacpp.estimate(
        engine_models()["mixtral-8x7b", "Q4_K_M"], Load(context_tokens=4096), CUDA
    )
    assert experts.of(Component.RUNTIME) == (527 + 180) * MIB
    assert {line.basis for line in dense.lines if line.component is Component.RUNTIME} == {
        Basis.MODELLED
    }
    assert not llamacpp.estimate(llama(), Load(context_tokens=4096), LIBRARY).of(Component.RUNTIME)


@pytest.mark.parametrize("backend", [Backend.METAL, Backend.VULKAN])
def test_backends_without_measurements_are_modelled(backend: Backend) -> None:
    bill = llamacpp.estimate(llama(), Load(context_tokens=4096), replace(CUDA, backend=backend))
    assert bill.basis is Basis.MODELLED
    assert {line.basis for line in bill.lines if line.pool == DEVICE} == {Basis.MODELLED}
    assert bill.in_pool(PoolKind.DEVICE) > bill.weights_bytes


def test_total_in_gb_is_weights_kv_cache_and_overhead() -> None:
    bill = llamacpp.estimate(llama(), Load(context_tokens=8192), LIBRARY)
    assert bill.weights_gb + bill.kv_cache_gb + bill.overhead_gb == pytest.approx(bill.total_gb)
    assert bill.kv_cache_gb == 1.0
    assert bill.basis is Basis.EXACT
    assert [pool.label for pool in bill.pools] == ["host"]


def test_repacked_weights_are_added_to_the_mapped_file() -> None:
    load = Load(context_tokens=4096)
    plain = llamacpp.estimate(llama(), load, LIBRARY).weights_bytes
    mapped = llamacpp.estimate(
        llama(), load, replace(LIBRARY, repack=True, cpu=Cpu.ARM)
    ).weights_bytes
    copied = llamacpp.estimate(
        llama(), load, replace(LIBRARY, repack=True, cpu=Cpu.ARM, use_mmap=False)
    ).weights_bytes
    assert copied == plain
    assert 1.9 * plain < mapped < 2 * plain
    tied = engine_models()["llama-3.2-1b", "Q4_K_M"]
    tied_plain = llamacpp.estimate(tied, load, LIBRARY).weights_bytes
    tied_copied = llamacpp.estimate(
        tied, load, replace(LIBRARY, repack=True, cpu=Cpu.ARM, use_mmap=False)
    ).weights_bytes
    assert tied_copied - tied_plain == 128256 * 2048 * 210 // 256  # token_embd at Q6_K


def test_repacked_bytes_of_a_tied_head_follow_the_head() -> None:
    tied = engine_models()["llama-3.2-1b", "Q4_K_M"]
    arm = replace(CUDA, backend=Backend.METAL, cpu=Cpu.ARM)
    assert llamacpp.repacked_bytes(tied, arm) == 0  # all layers and the head are on the GPU
    head = 128256 * 2048 * 210 // 256  # token_embd at Q6_K
    assert llamacpp.repacked_bytes(tied, replace(arm, n_gpu_layers=0)) == head
    assert llamacpp.repacked_bytes(tied, replace(LIBRARY, cpu=Cpu.ARM)) == head
    assert llamacpp.repacked_bytes(tied, replace(LIBRARY, cpu=Cpu.X86)) == 0


@pytest.mark.parametrize("backend", [Backend.CUDA, Backend.VULKAN])
def test_nothing_is_repacked_next_to_a_gpu_with_host_buffers(backend: Backend) -> None:
    setup = replace(CUDA, backend=backend, cpu=Cpu.ARM, n_gpu_layers=4)
    load = Load(context_tokens=4096)
    plain = llamacpp.estimate(llama(), load, setup).weights_bytes
    assert llamacpp.estimate(llama(), load, replace(setup, repack=True)).weights_bytes == plain


def test_repacked_bytes_of_an_encoder_have_no_head() -> None:
    encoder = engine_models()["all-minilm-l6-v2", "Q8_0"]
    assert llamacpp.repacked_bytes(encoder, replace(LIBRARY, cpu=Cpu.ARM)) == 0


def test_repeated_estimates_of_a_model_depend_only_on_the_setup() -> None:
    cached, load = llama(), Load(context_tokens=4096)
    setups = [LIBRARY, replace(LIBRARY, repack=True, cpu=Cpu.ARM), replace(LIBRARY, repack=True)]
    fresh = [Model(header=cached.header, geometry=cached.geometry) for _ in setups]
    expected = [
        llamacpp.estimate(model, load, setup).weights_bytes
        for model, setup in zip(fresh, setups, strict=True)
    ]
    assert [llamacpp.estimate(cached, load, setup).weights_bytes for setup in setups] == expected
    assert len(set(expected)) == 3


@pytest.mark.parametrize("make", [llama, gemma, deepseek])
@pytest.mark.parametrize(
    "setup",
    [
        LIBRARY,
        CUDA,
        replace(CUDA, n_gpu_layers=7),
        replace(CUDA, devices=(DeviceSlot(free_bytes=3), DeviceSlot(free_bytes=1))),
        replace(CUDA, mix="Q2_K"),
        replace(CUDA, offload_kqv=False),
    ],
)
def test_held_bytes_are_weights_and_caches_of_the_bill(
    make: Callable[[], Model], setup: LlamaCppSetup
) -> None:
    load = Load(context_tokens=8192)
    bill = llamacpp.estimate(make(), load, setup)
    held_bytes = llamacpp.held_bytes(make(), load, setup)
    kinds = {Component.WEIGHTS, *CACHES}
    billed: dict[Pool, int] = {}
    for line in bill.lines:
        if line.component in kinds:
            billed[line.pool] = billed.get(line.pool, 0) + line.size_bytes
    assert held_bytes == billed
    assert llamacpp.load_facts(make(), load, setup) == bill.facts


def test_unknown_architecture_is_refused() -> None:
    model = llama()
    unknown = Model(
        header=model.header,
        geometry=replace(model.geometry, architecture="foo", basis=Basis.ASSUMED),
    )
    with pytest.raises(RefusedError, match="does not support architecture 'foo'"):
        llamacpp.estimate(unknown, Load(context_tokens=4096), LIBRARY)


def test_bill_of_guessed_layers_is_assumed() -> None:
    model = llama()
    guessed = Model(header=model.header, geometry=replace(model.geometry, basis=Basis.ASSUMED))
    bill = llamacpp.estimate(guessed, Load(context_tokens=4096), LIBRARY)
    assert bill.basis is Basis.ASSUMED
    assert {line.basis for line in bill.lines if line.component is Component.WEIGHTS} == {
        Basis.EXACT
    }


def test_multi_token_prediction_is_a_second_context() -> None:
    with pytest.raises(RefusedError, match="no layers for multi-token prediction"):
        llamacpp.estimate(llama(), Load(context_tokens=4096), replace(LIBRARY, load_mtp=True))
    predicting = Model(header=llama().header, geometry=replace(llama().geometry, mtp_layers=1))
    bill = llamacpp.estimate(predicting, Load(context_tokens=4096), replace(LIBRARY, load_mtp=True))
    lines = {line.component: line for line in bill.lines if line.part == "prediction"}
    assert lines[Component.KV_CACHE].size_bytes == 4096 * 2048 * 2
    assert lines[Component.OUTPUT].size_bytes == 128256 * 4
    assert lines[Component.COMPUTE].basis is Basis.MODELLED


def test_missing_tensors_are_refused() -> None:
    model = llama()
    tensors = tuple(
        item for item in model.header.tensors or () if not item.name.startswith("blk.7.")
    )
    incomplete = Model(header=replace(model.header, tensors=tensors), geometry=model.geometry)
    with pytest.raises(RefusedError, match=r"tensor 'blk.7.attn_norm.weight' not found"):
        llamacpp.estimate(incomplete, Load(context_tokens=4096), LIBRARY)
    empty = Model(header=replace(model.header, tensors=()), geometry=model.geometry)
    with pytest.raises(RefusedError, match=r"tensor 'token_embd.weight' not found"):
        llamacpp.estimate(empty, Load(context_tokens=4096), LIBRARY)


def test_model_type_without_a_converter_is_refused() -> None:
    config = {
        "model_type": "phi3small",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "ff_intermediate_size": 14336,
        "vocab_size": 100352,
        "max_position_embeddings": 8192,
    }
    with pytest.raises(RefusedError, match="converter does not support phi3small"):
        llamacpp.estimate(open_config(config).model, Load(context_tokens=4096), LIBRARY)


def test_cache_type_whose_blocks_do_not_divide_the_head_size_is_refused() -> None:
    phi = engine_models()["phi-3-mini-4k", "Q4_K_M"]  # heads of 96
    llamacpp.estimate(phi, Load(context_tokens=4096, cache_k=cache_type("q8_0")), LIBRARY)
    narrow = with_attention(phi, key_dim=80)
    with pytest.raises(
        RefusedError, match="block size 32 of K cache type q8_0 does not divide the head size 80"
    ):
        llamacpp.estimate(narrow, Load(context_tokens=4096, cache_k=cache_type("q8_0")), LIBRARY)
