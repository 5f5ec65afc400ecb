"""token_reads: the bytes that one decoded token reads from each memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.recorded import config_header, engine_models, rows

from edgekit.app.open import open_named
from edgekit.bill.types import Load
from edgekit.engines.llamacpp.estimate import estimate
from edgekit.engines.llamacpp.speed import reads_per_token
from edgekit.engines.llamacpp.types import Backend, LlamaCppSetup
from edgekit.engines.token_reads import PoolReads, TokenReads, active_weights, token_reads
from edgekit.engines.vllm.estimate import estimate as vllm_estimate
from edgekit.engines.vllm.types import VllmSetup
from edgekit.machine.types import DEVICE, HOST
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.request import Session
from edgekit.sources.types import Reach

CPU, CUDA = LlamaCppSetup(backend=Backend.CPU), LlamaCppSetup(backend=Backend.CUDA)


def recorded(name: str, quant: str = "Q4_K_M") -> Model:
    return engine_models()[name, quant]


def reads_of(model: Model, setup: LlamaCppSetup, context: int = 8192) -> TokenReads:
    load = Load(context_tokens=context)
    return reads_per_token(model, load, setup, estimate(model, load, setup))


def tensor_bytes(model: Model, *without: str) -> int:
    tensors = model.header.tensors or ()
    return sum(tensor.size_bytes for tensor in tensors if tensor.name not in without)


def expert_bytes(model: Model) -> int:
    tensors = model.header.tensors or ()
    return sum(tensor.size_bytes for tensor in tensors if "_exps" in tensor.name)


def card_of(reads: TokenReads) -> PoolReads:
    return next(pool for pool in reads.pools if pool.pool == DEVICE)


def test_token_reads_the_head_but_not_the_embedding() -> None:
    model = recorded("llama-3.1-8b")
    (host,) = reads_of(model, CPU).pools
    assert host.weights_bytes == pytest.approx(tensor_bytes(model, "token_embd.weight"), rel=1e-5)


def test_token_reads_a_tied_embedding_as_the_head() -> None:
    model = recorded("qwen3-0.6b", "Q8_0")
    assert all(tensor.name != "output.weight" for tensor in model.header.tensors or ())
    (host,) = reads_of(model, CPU).pools
    assert host.weights_bytes == pytest.approx(tensor_bytes(model), rel=1e-5)


def test_token_reads_only_the_experts_that_it_uses() -> None:
    model = recorded("qwen3-30b-a3b")
    experts = expert_bytes(model)
    rest = tensor_bytes(model, "token_embd.weight") - experts
    (host,) = reads_of(model, CPU).pools
    assert host.weights_bytes == pytest.approx(rest + experts * 8 / 128, rel=1e-5)


def test_token_reads_experts_on_the_host_from_the_host() -> None:
    model = recorded("qwen3-30b-a3b")
    experts = expert_bytes(model)
    rest = tensor_bytes(model, "token_embd.weight") - experts
    reads = reads_of(model, replace(CUDA, cpu_moe=True))
    sizes = {pool.pool: pool.weights_bytes for pool in reads.pools}
    assert sizes[HOST] == pytest.approx(experts * 8 / 128, rel=1e-4)
    assert sizes[DEVICE] == pytest.approx(rest, rel=1e-3)
    assert reads.crossings == 2 * 48  # to the host and back in each layer


def test_token_reads_only_the_filled_part_of_a_cache() -> None:
    reads = reads_of(recorded("llama-3.1-8b"), CUDA)
    card = card_of(reads)
    per_token = 32 * 2 * 8 * 128 * 2  # layers, K and V, heads, width, f16
    assert card.cache_bytes(0) == 0
    assert card.cache_bytes(1000) == pytest.approx(1000 * per_token)
    assert card.cache_bytes(8192) == card.cache_bytes(10**9) == 8192 * per_token


def test_token_reads_only_the_cache_of_its_own_sequence() -> None:
    model = recorded("llama-3.1-8b")
    load = Load(context_tokens=8192, sequences=4, unified=False)
    reads = reads_per_token(model, load, CUDA, estimate(model, load, CUDA))
    card = card_of(reads)
    assert reads.context_tokens == 2048
    assert card.cache_bytes(2048) == 2048 * 32 * 2 * 8 * 128 * 2


def test_token_reads_a_sliding_window_up_to_its_length() -> None:
    reads = reads_of(recorded("gemma-3-27b"), CUDA, 32_768)
    card = card_of(reads)
    assert {cache.full_tokens for cache in card.caches} == {1024, 32_768}
    sliding = next(cache for cache in card.caches if cache.full_tokens == 1024)
    assert sliding.filled_bytes(512) == sliding.full_bytes / 2
    assert sliding.filled_bytes(1024) == sliding.filled_bytes(30_000) == sliding.full_bytes


@pytest.mark.parametrize("sequences", [1, 4, 8])
def test_one_user_reads_the_window_however_many_may_come(sequences: int) -> None:
    model = recorded("gemma-3-27b")
    load = Load(context_tokens=32_768, sequences=sequences, unified=True)
    reads = reads_per_token(model, load, CUDA, estimate(model, load, CUDA))
    # 62 layers, 16 heads of 128 for keys and values, 16 bits each
    assert card_of(reads).cache_bytes(1024) == 62 * 16 * 128 * 2 * 2 * 1024


@pytest.mark.parametrize("length", [2048, 8192, 131_072])
def test_vllm_reads_the_same_windows_at_any_length(length: int) -> None:
    row = next(row for row in rows("vllm.jsonl.gz") if row["model"] == "gemma-3-27b-text")
    header = config_header(row["config"])
    model = Model(header=header, geometry=read_geometry(header))
    load = Load(context_tokens=length)
    reads = token_reads(model, load, vllm_estimate(model, load, VllmSetup()))
    each = 16 * 128 * 2 * 2  # bytes of a token in a layer
    # 62 layers in 6 groups with windows and one without, each with room for 10
    assert sum(pool.cache_bytes(1024) for pool in reads.pools) == 70 * each * 1024
    assert sum(pool.cache_bytes(2048) for pool in reads.pools) == (60 + 2 * 10) * each * 1024


def test_embedding_models_do_not_read_a_table_as_a_head() -> None:
    header = open_named("bge-large-en-v1.5", Session(reach=Reach(network=False)))
    model = header.as_file("llama.cpp").model
    assert active_weights(model).outside_read < 0.01 * active_weights(model).outside


def test_token_reads_and_writes_a_recurrent_state_of_constant_size() -> None:
    reads = reads_of(recorded("mamba-2.8b"), CUDA)
    card = card_of(reads)
    assert not card.caches
    # read and written: 64 layers x 5,120 channels x (3 inputs of the convolution + 16 states) in f32
    assert card.state_bytes == 2 * 64 * 5120 * (3 + 16) * 4


def test_token_reads_of_gpt_oss_have_experts_of_four_bits() -> None:
    row = next(row for row in rows("vllm.jsonl.gz") if row["model"] == "gpt-oss-20b")
    header = config_header(row["config"])
    model = Model(header=header, geometry=read_geometry(header))
    load, setup = Load(context_tokens=4096), VllmSetup()
    (card,) = token_reads(model, load, vllm_estimate(model, load, setup)).pools
    experts = 24 * 3 * 2880 * 2880 * 4  # 4 of the 32 in each layer
    rest = 24 * 2 * 2880 * (64 + 8) * 64 + 201_088 * 2880  # Q, K, V and out; the head
    assert card.weights_bytes == pytest.approx(experts * 17 / 32 + rest * 2, rel=0.05)
