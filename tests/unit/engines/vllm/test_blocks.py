"""Groups of layers, sizes of their blocks, and the pool of blocks."""

from __future__ import annotations

import pytest
from tests.unit.engines.vllm.small_models import (
    BLOCK,
    HYBRID,
    PAGE,
    WINDOWS,
    estimate,
    facts,
    model,
)

from edgekit.bill.types import Component, Load
from edgekit.engines.vllm import estimate as vllm
from edgekit.engines.vllm.types import Gpu, VllmSetup
from edgekit.errors import RefusedError
from edgekit.units import GIB, MIB, Basis


def test_equal_layers_are_one_group_of_pages() -> None:
    resolved = facts(kv_cache_memory_bytes=100 * BLOCK)
    assert resolved["block_size"] == 16
    assert resolved["groups"] == (4,)
    assert resolved["bytes_per_block"] == BLOCK
    assert resolved["blocks_per_group"] == (63,)  # 1000 tokens in blocks of 16
    assert resolved["request_bytes"] == 63 * BLOCK
    assert resolved["num_blocks"] == 100
    assert resolved["max_concurrency"] == 100 / 63


def test_pool_needs_one_block_more_than_the_request() -> None:
    assert facts(kv_cache_memory_bytes=64 * BLOCK)["num_blocks"] == 64
    bill = estimate(kv_cache_memory_bytes=63 * BLOCK)
    assert dict(bill.facts)["num_blocks"] is None
    assert "1,000 tokens" in str(dict(bill.facts)["refused"])
    assert bill.kv_cache_bytes == 63 * BLOCK  # what the request would need


def test_pool_is_one_line_of_whole_blocks() -> None:
    bill = estimate(kv_cache_memory_bytes=100 * BLOCK + 5)
    (line,) = [line for line in bill.lines if line.component is Component.KV_CACHE]
    assert line.size_bytes == 100 * BLOCK
    assert line.basis is Basis.EXACT


def test_pool_without_a_gpu_is_what_the_requests_need() -> None:
    bill = vllm.estimate(model(), Load(context_tokens=1000, sequences=3), VllmSetup())
    assert bill.kv_cache_bytes == 3 * 63 * BLOCK
    assert dict(bill.facts)["num_blocks"] is None


def test_groups_have_as_many_layers_as_the_rarest_kind() -> None:
    resolved = facts(WINDOWS, tokens=8192, max_num_batched_tokens=512)
    assert resolved["groups"] == (1, 1, 1, 1, 1, 1)
    assert resolved["bytes_per_block"] == PAGE
    # 127 tokens of the window, two steps of 512 in flight, and a block because a window may start inside one
    assert resolved["blocks_per_group"] == (-(-(127 + 1024) // 16) + 1,) * 5 + (512,)


def test_windows_without_the_hybrid_manager_hold_all_tokens() -> None:
    resolved = facts(WINDOWS, disable_hybrid_kv_cache_manager=True)
    assert resolved["groups"] == (6,)
    assert resolved["blocks_per_group"] == (63,)


def test_blocks_of_attention_are_as_large_as_a_recurrent_state() -> None:
    resolved = facts(HYBRID, enable_prefix_caching=False)
    state_bytes = 3 * (4 * 64 + 2 * 2 * 64) * 2 + 4 * 64 * 64 * 2
    token_bytes = 4 * 128 * 2
    assert resolved["block_size"] == 16 * -(-state_bytes // (16 * token_bytes))
    assert resolved["groups"] == (1, 1, 1, 1)
    assert resolved["bytes_per_block"] == resolved["block_size"] * token_bytes
    assert resolved["blocks_per_group"][:3] == (1, 1, 1)


def test_prefix_caching_keeps_a_second_state() -> None:
    assert facts(HYBRID)["blocks_per_group"][:3] == (2, 2, 2)


def test_states_in_float32_need_larger_blocks() -> None:
    in_float32 = facts(HYBRID, mamba_ssm_cache_dtype="float32")
    assert in_float32["block_size"] > facts(HYBRID)["block_size"]


def test_recurrent_layers_without_the_hybrid_manager_are_refused() -> None:
    with pytest.raises(RefusedError, match="hybrid cache manager"):
        estimate(HYBRID, disable_hybrid_kv_cache_manager=True)


def test_pool_is_what_weights_and_overhead_leave_free() -> None:
    gpu = Gpu(name="card", memory_bytes=16 * GIB)
    bill = estimate(gpu=gpu, gpu_memory_utilization=0.5)
    others = bill.total_bytes - bill.kv_cache_bytes
    resolved = dict(bill.facts)
    assert resolved["available_kv_bytes"] == 8 * GIB - others
    assert resolved["num_blocks"] == (8 * GIB - others) // BLOCK
    (pool,) = [line for line in bill.lines if line.component is Component.KV_CACHE]
    assert pool.basis is Basis.MODELLED


def test_pool_without_free_memory_is_refused() -> None:
    resolved = facts(gpu=Gpu(name="card", memory_bytes=512 * MIB))
    assert resolved["refused"] == "no memory is left for the KV cache"
