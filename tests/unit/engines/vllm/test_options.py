"""Options: the defaults that vLLM chooses for a model and a GPU, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.engines.vllm.small_models import CONFIG, WINDOWS, estimate, facts

from edgekit.engines.vllm.types import Gpu
from edgekit.errors import RefusedError, UsageError
from edgekit.units import GIB


@pytest.mark.parametrize(
    ("config", "flags", "reason"),
    [
        ({}, {"tensor_parallel_size": 3}, "8 attention heads are not divisible"),
        ({}, {"pipeline_parallel_size": 5}, "4 layers cannot be split"),
        ({"architectures": ["QWenLMHeadModel"]}, {}, "until 0.23.0"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, {}, "does not support"),
        ({"quantization_config": {"quant_method": "fbgemm_fp8"}}, {}, "deprecated"),
        ({"quantization_config": {"bits": 4, "group_size": 64}}, {}, "MLX"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, {}, "3 bits"),
        ({}, {"quantization": "bitsandbytes"}, "does not support"),
        ({}, {"kv_cache_dtype": "fp8", "gpu": Gpu(name="A100", capability=(8, 0))}, "8.9"),
        ({}, {"kv_cache_dtype": "nvfp4"}, "no attention backend"),
        ({}, {"block_size": 24}, "no attention backend"),
        ({}, {"dtype": "bfloat16", "gpu": Gpu(name="T4", capability=(7, 5))}, "bfloat16"),
    ],
)
def test_estimate_refuses_what_vllm_refuses(
    config: dict[str, Any], flags: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RefusedError, match=reason):
        estimate({**CONFIG, **config}, **flags)


def test_context_longer_than_the_models_is_refused() -> None:
    with pytest.raises(RefusedError, match="8,192"):
        estimate(tokens=8193)


def test_context_may_be_as_long_as_model_max_length() -> None:
    assert facts({**CONFIG, "model_max_length": 16384}, tokens=16384)["max_model_len"] == 16384


def test_context_of_0_tokens_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        estimate(tokens=0)


@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel_size": 0},
        {"gpu_memory_utilization": 1.5},
        {"max_num_batched_tokens": 0},
        {"mamba_ssm_cache_dtype": "int8"},
        {"dtype": "int4"},
    ],
)
def test_invalid_option_is_a_usage_error(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        estimate(**options)


@pytest.mark.parametrize(
    ("name", "gib", "expected"),
    [
        ("NVIDIA B200", 180, (16384, 1024)),
        ("NVIDIA H100 80GB HBM3", 80, (8192, 1024)),
        ("NVIDIA A100-SXM4-80GB", 80, (2048, 256)),
        ("NVIDIA L4", 24, (2048, 256)),
    ],
)
def test_batch_defaults_depend_on_the_gpu(name: str, gib: int, expected: tuple[int, int]) -> None:
    resolved = facts(gpu=Gpu(name=name, memory_bytes=gib * GIB), tokens=8192)
    assert (resolved["max_num_batched_tokens"], resolved["max_num_seqs"]) == expected
    assert resolved["max_in_flight_tokens"] == 2 * expected[0]


def test_block_size_of_heads_of_256_on_blackwell_is_128_in_bf16() -> None:
    wide = {**CONFIG, "head_dim": 256}
    blackwell = Gpu(name="B200", capability=(10, 0))
    assert facts(wide, gpu=blackwell)["block_size"] == 128
    assert facts(wide, gpu=blackwell, kv_cache_dtype="fp8")["block_size"] == 16
    assert facts(wide, gpu=blackwell, flashinfer=True)["block_size"] == 16
    assert facts(wide)["block_size"] == 16


def test_dtype_on_turing_is_float16_or_for_gemma_float32() -> None:
    assert facts(gpu=Gpu(name="Tesla T4", capability=(7, 5)))["dtype"] == "float16"
    assert facts(WINDOWS, gpu=Gpu(name="Tesla T4", capability=(7, 5)))["dtype"] == "float32"
