"""llama.cpp's own arithmetic, on numbers a reader can check on paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.recorded import engine_models

from edgekit.bill.types import (
    CACHES,
    TABLE,
    Component,
    Load,
    MemoryEstimate,
    MemoryLine,
    cache_type,
)
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.types import Backend, Cpu, DeviceSlot, LlamaCppSetup, LlamaMode, Rules
from edgekit.errors import HeaderError, RefusedError, UsageError
from edgekit.machine.types import DEVICE, HOST, Pool, PoolKind
from edgekit.model import open_config
from edgekit.model.types import Attention, Model
from edgekit.units import MIB, Basis

LIBRARY = LlamaCppSetup(rules=Rules.V0_5)
SERVER = LlamaCppSetup(mode=LlamaMode.SERVER, rules=Rules.V0_5)
CUDA = LlamaCppSetup(backend=Backend.CUDA, rules=Rules.V0_5)


def llama() -> Model:
    return engine_models()["llama-3.1-8b", "Q4_K_M"]  # 32 layers of 8 x 128 keys and values


def gemma() -> Model:
    return engine_models()["gemma-3-27b", "Q4_K_M"]  # windows of 1024


def deepseek() -> Model:
    return engine_models()["deepseek-v3", "Q4_K_M"]


def _with_heads(model: Model, **changes: Any) -> Model:
    """The same model with other heads in every layer."""
    layers = []
    for layer in model.geometry.layers:
        assert isinstance(layer.mixer, Attention)
        changed = replace(layer.mixer, **changes)
        layers.append(replace(layer, mixer=changed))
    return Model(header=model.header, geometry=replace(model.geometry, layers=tuple(layers)))


# What llama_context makes of a load.


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
def test_what_the_engine_refuses_is_refused(
    model: Callable[[], Model], load: Load, reason: str
) -> None:
    with pytest.raises(RefusedError, match=reason):
        llamacpp.estimate(model(), load, LIBRARY)


def test_an_engine_that_would_abort_says_so() -> None:
    phi = engine_models()["phi-3-medium-4k", "Q4_K_M"]
    q8 = cache_type("q8_0")
    with pytest.raises(
        RefusedError,
        match=r"aborts: its graph has 2,058 tensors, but its table only has room for 2,053",
    ):
        llamacpp.estimate(
            phi, Load(context_tokens=32768, sequences=4, cache_k=q8, cache_v=q8), LIBRARY
        )


def test_a_lying_header_gives_no_number_beyond_64_bits() -> None:
    vast = _with_heads(llama(), kv_heads=2**40)
    with pytest.raises(HeaderError, match="64-bit"):
        llamacpp.estimate(vast, Load(context_tokens=2**20), LIBRARY)


# Where things lie.


def test_rows_that_do_not_fit_a_512_grid_cost_a_little_more_on_a_device() -> None:
    model = engine_models()["gpt-oss-20b", "MXFP4_MOE"]
    q8 = cache_type("q8_0")
    load = Load(context_tokens=4096, cache_k=q8, cache_v=q8)
    host = llamacpp.estimate(model, load, LIBRARY).kv_cache_bytes
    device = llamacpp.estimate(model, load, CUDA).kv_cache_bytes
    assert host <= device <= host + 24 * 2 * 1024


# The bill.


def test_the_cache_on_paper() -> None:
    bill = llamacpp.estimate(llama(), Load(context_tokens=8192), LIBRARY)
    assert bill.of(Component.KV_CACHE) == 32 * 8192 * (1024 + 1024) * 2
    q8 = Load(context_tokens=8192, cache_k=cache_type("q8_0"), cache_v=cache_type("q8_0"))
    assert (
        llamacpp.estimate(llama(), q8, LIBRARY).of(Component.KV_CACHE)
        == 32 * 8192 * 2048 * 34 // 32
    )


def test_mla_keeps_one_latent() -> None:
    bill = llamacpp.estimate(deepseek(), Load(context_tokens=131072), LIBRARY)
    assert bill.of(Component.KV_CACHE) == 61 * 131072 * 576 * 2


def test_a_server_lists_what_may_grow_without_adding_it() -> None:
    bill = llamacpp.estimate(gemma(), Load(context_tokens=8192), SERVER)
    later = {line.component: line for line in bill.lines if not line.reserved}
    assert later[Component.PROMPT_CACHE].size_bytes == 8192 * MIB
    window = bill.of(Component.SLIDING_KV_CACHE) // 4
    assert later[Component.CHECKPOINTS].size_bytes == 32 * 4 * window
    assert bill.total_bytes == sum(line.size_bytes for line in bill.lines if line.reserved)
    assert Component.CHECKPOINTS not in {
        line.component
        for line in llamacpp.estimate(llama(), Load(context_tokens=8192), SERVER).lines
    }


def test_lines_that_may_grow_carry_a_bound() -> None:
    bill = llamacpp.estimate(gemma(), Load(context_tokens=32768), SERVER)
    later = {line.component: line for line in bill.lines if not line.reserved}
    assert later[Component.PROMPT_CACHE].within == later[Component.CHECKPOINTS].within == 0.05


def test_a_prompt_larger_than_the_prompt_cache_is_in_its_bound() -> None:
    """Builds before July 2026 hold one prompt, however large: here all that the cache has room for."""
    setup = replace(SERVER, cache_ram_mib=1024)
    bill = llamacpp.estimate(llama(), Load(context_tokens=131_072), setup)
    (line,) = [item for item in bill.lines if item.component is Component.PROMPT_CACHE]
    assert line.within is not None
    assert line.size_bytes * (1 + line.within) == pytest.approx(bill.kv_cache_bytes)


def test_a_device_pays_for_its_context_and_the_first_decode() -> None:
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


def test_other_backends_are_modelled() -> None:
    for backend in (Backend.METAL, Backend.VULKAN):
        bill = llamacpp.estimate(llama(), Load(context_tokens=4096), replace(CUDA, backend=backend))
        assert bill.basis is Basis.MODELLED
        assert bill.in_pool(PoolKind.DEVICE) > bill.weights_bytes


def test_an_estimate_has_the_face_of_three_parts() -> None:
    bill = llamacpp.estimate(llama(), Load(context_tokens=8192), LIBRARY)
    assert bill.weights_gb + bill.kv_cache_gb + bill.overhead_gb == pytest.approx(bill.total_gb)
    assert bill.kv_cache_gb == 1.0
    assert bill.basis is Basis.EXACT
    assert [pool.label for pool in bill.pools] == ["host"]


def test_the_basis_of_a_bill_is_that_of_its_weakest_line() -> None:
    lines = tuple(
        MemoryLine(component=Component.WEIGHTS, size_bytes=1, pool=HOST, basis=basis)
        for basis in (Basis.EXACT, Basis.ASSUMED, Basis.MODELLED)
    )
    assert MemoryEstimate(engine="x", backend="cpu", lines=lines).basis is Basis.ASSUMED
    assert MemoryEstimate(engine="x", backend="cpu", lines=()).basis is Basis.EXACT


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("f32", 32),
        ("f16", 16),
        ("q8_0", 8.5),
        ("q5_1", 6),
        ("q4_0", 4.5),
        ("iq4_nl", 4.5),
        ("qjl1_256", 2.125),
        ("turbo3_0", 3.5),
        ("q4_polar", 4.5),
    ],
)
def test_cache_types_by_their_blocks(name: str, bits: float) -> None:
    assert cache_type(name).bits == bits


def test_an_unknown_cache_type_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="unknown cache type 'q3_7'; choose one of f32, f16, bf16"):
        cache_type("q3_7")
    assert len({row.name for row in TABLE}) == len(TABLE)


def test_rearranged_weights_stand_beside_the_mapped_file() -> None:
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
    once = llamacpp.estimate(tied, load, LIBRARY).weights_bytes
    twice = llamacpp.estimate(
        tied, load, replace(LIBRARY, repack=True, cpu=Cpu.ARM, use_mmap=False)
    ).weights_bytes
    assert twice - once == 128256 * 2048 * 210 // 256  # token_embd at Q6_K


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


def test_one_model_asked_twice_is_not_answered_with_what_was_asked_before() -> None:
    model, load = llama(), Load(context_tokens=4096)
    setups = [LIBRARY, replace(LIBRARY, repack=True, cpu=Cpu.ARM), replace(LIBRARY, repack=True)]
    own = [llamacpp.estimate(llama(), load, setup).weights_bytes for setup in setups]
    assert [llamacpp.estimate(model, load, setup).weights_bytes for setup in setups] == own
    assert len(set(own)) == 3


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
def test_what_is_held_is_the_bill_without_its_buffers(
    make: Callable[[], Model], setup: LlamaCppSetup
) -> None:
    load = Load(context_tokens=8192)
    bill = llamacpp.estimate(make(), load, setup)
    held = llamacpp.held_bytes(make(), load, setup)
    kinds = {Component.WEIGHTS, *CACHES}
    billed: dict[Pool, int] = {}
    for line in bill.lines:
        if line.component in kinds:
            billed[line.pool] = billed.get(line.pool, 0) + line.size_bytes
    assert held == billed
    assert llamacpp.load_facts(make(), load, setup) == bill.facts


def test_an_architecture_the_engine_does_not_have_is_refused() -> None:
    model = llama()
    strange = Model(
        header=model.header,
        geometry=replace(model.geometry, architecture="foo", basis=Basis.ASSUMED),
    )
    with pytest.raises(RefusedError, match="does not support architecture 'foo'"):
        llamacpp.estimate(strange, Load(context_tokens=4096), LIBRARY)


def test_nothing_is_better_known_than_the_layers() -> None:
    model = llama()
    guessed = Model(header=model.header, geometry=replace(model.geometry, basis=Basis.ASSUMED))
    bill = llamacpp.estimate(guessed, Load(context_tokens=4096), LIBRARY)
    assert bill.basis is Basis.ASSUMED
    assert {line.basis for line in bill.lines if line.component is Component.WEIGHTS} == {
        Basis.EXACT
    }


def test_a_backend_that_was_not_measured_is_modelled_on_the_device() -> None:
    bill = llamacpp.estimate(
        llama(), Load(context_tokens=4096), replace(CUDA, backend=Backend.METAL)
    )
    assert {line.basis for line in bill.lines if line.pool == DEVICE} == {Basis.MODELLED}


def test_drafting_with_the_models_own_blocks_is_a_second_context() -> None:
    with pytest.raises(RefusedError, match="no layers for multi-token prediction"):
        llamacpp.estimate(llama(), Load(context_tokens=4096), replace(LIBRARY, load_mtp=True))
    predicting = Model(header=llama().header, geometry=replace(llama().geometry, mtp_layers=1))
    bill = llamacpp.estimate(predicting, Load(context_tokens=4096), replace(LIBRARY, load_mtp=True))
    own = {line.component: line for line in bill.lines if line.part == "prediction"}
    assert own[Component.KV_CACHE].size_bytes == 4096 * 2048 * 2
    assert own[Component.OUTPUT].size_bytes == 128256 * 4
    assert own[Component.COMPUTE].basis is Basis.MODELLED


def test_a_file_without_the_tensors_of_a_block_is_refused() -> None:
    model = llama()
    some = tuple(item for item in model.header.tensors or () if not item.name.startswith("blk.7."))
    holed = Model(header=replace(model.header, tensors=some), geometry=model.geometry)
    with pytest.raises(RefusedError, match=r"tensor 'blk.7.attn_norm.weight' not found"):
        llamacpp.estimate(holed, Load(context_tokens=4096), LIBRARY)
    empty = Model(header=replace(model.header, tensors=()), geometry=model.geometry)
    with pytest.raises(RefusedError, match=r"tensor 'token_embd.weight' not found"):
        llamacpp.estimate(empty, Load(context_tokens=4096), LIBRARY)


def test_a_model_type_that_nothing_converts_is_refused() -> None:
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
