"""Cache dtypes: bytes of a head, and the dtype that vLLM chooses."""

from __future__ import annotations

import pytest
from tests.unit.engines.vllm.small_models import BLOCK, CONFIG, WINDOWS, estimate, facts, model

from edgekit.bill.types import F16, Load, cache_type
from edgekit.engines.vllm import estimate as vllm
from edgekit.engines.vllm.caches import HEAD_BYTES
from edgekit.engines.vllm.types import VllmSetup
from edgekit.errors import RefusedError, UsageError


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("bfloat16", 512),
        ("fp8", 256),
        ("int8_per_token_head", 264),
        ("fp8_per_token_head", 264),
        ("int4_per_token_head", 136),
        ("turboquant_k8v4", 128 + 64 + 4),
        ("turboquant_4bit_nc", 64 + 2 + 64 + 4),
        ("turboquant_k3v4_nc", 48 + 2 + 64 + 4),
        ("turboquant_3bit_nc", 48 + 2 + 48 + 4),
        ("nvfp4", 2 * (64 + 8)),
    ],
)
def test_head_bytes_of_128_keys_and_values(name: str, size: int) -> None:
    assert HEAD_BYTES[name](128, 128) == size


def test_unknown_cache_dtype_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="turboquant_k8v4"):
        estimate(kv_cache_dtype="q8_0")


def test_cache_type_of_a_load_is_the_dtype() -> None:
    load = Load(context_tokens=1000, cache_k=cache_type("fp8"))
    assert vllm.estimate(model(), load, VllmSetup()).kv_cache_bytes == 63 * BLOCK // 2


def test_cache_type_of_a_load_must_be_one_of_vllm_and_the_same_for_k_and_v() -> None:
    with pytest.raises(UsageError, match="q4_0"):
        vllm.estimate(model(), Load(cache_k=cache_type("q4_0")), VllmSetup())
    with pytest.raises(RefusedError, match="one dtype"):
        vllm.estimate(model(), Load(cache_k=F16, cache_v=cache_type("fp8")), VllmSetup())


def test_auto_cache_dtype_is_that_of_a_calibrated_checkpoint() -> None:
    scheme = {"dynamic": False, "num_bits": 8, "type": "float"}
    config = {
        **CONFIG,
        "quantization_config": {
            "quant_method": "modelopt",
            "quant_algo": "FP8",
            "kv_cache_scheme": scheme,
        },
    }
    assert facts(config)["kv_cache_dtype"] == "fp8_e4m3"
    assert facts(config)["bytes_per_block"] == BLOCK // 2
    assert facts(config, kv_cache_dtype="bfloat16")["bytes_per_block"] == BLOCK


def test_turboquant_leaves_the_first_two_and_last_two_layers_in_bf16() -> None:
    deep = {**CONFIG, "num_hidden_layers": 8}
    resolved = facts(deep, kv_cache_dtype="turboquant_k8v4")
    assert resolved["block_size"] == 32
    assert resolved["bytes_per_block"] == 32 * 4 * (4 * 256 + 4 * (64 + 32 + 4))


def test_turboquant_of_a_model_with_windows_is_refused() -> None:
    with pytest.raises(RefusedError, match="turboquant_4bit_nc"):
        estimate({**WINDOWS, "num_hidden_layers": 12}, kv_cache_dtype="turboquant_4bit_nc")


def test_kv_heads_are_divided_among_ranks_and_then_duplicated() -> None:
    assert facts(tensor_parallel_size=2)["bytes_per_block"] == BLOCK // 2
    assert facts(tensor_parallel_size=4)["bytes_per_block"] == BLOCK // 4
    assert facts(tensor_parallel_size=8)["bytes_per_block"] == BLOCK // 4
