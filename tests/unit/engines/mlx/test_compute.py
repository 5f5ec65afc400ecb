"""Memory that MLX holds while it reads a prompt, compared with public logs of a Mac.

mlx_lm/BENCHMARKS.md of ml-explore/mlx-lm @ d78bf58: mlx-lm 0.28.2, MLX 0.29.2, M4 Max with 64 GB, a prompt of 2,048 tokens
and 128 new ones. The logs print mlx.core.get_peak_memory() / 1e9: a GB is 10^9 bytes.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.recorded import config_header

from edgekit.bill.types import Component, Load, MemoryEstimate
from edgekit.engines.mlx import estimate as mlx
from edgekit.engines.mlx.compute import BUFFER_NUMBERS, BUFFER_OPERATIONS, Operation, held_numbers
from edgekit.engines.mlx.quantization import PLAIN
from edgekit.engines.mlx.setups import MlxSetup
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.units import Basis

QWEN3_4B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "max_position_embeddings": 262144,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
QWEN3_30B_A3B: dict[str, Any] = {
    **QWEN3_4B,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
# Config, bits, group size, and the peak in GB.
LOGS = [
    (QWEN3_4B, None, None, 9.02),
    (QWEN3_4B, 8, 64, 5.254),
    (QWEN3_4B, 6, 64, 4.25),
    (QWEN3_4B, 5, 32, 4.0),
    (QWEN3_4B, 5, 64, 3.86),
    (QWEN3_4B, 4, 32, 3.603),
    (QWEN3_4B, 4, 64, 3.35),
    (QWEN3_30B_A3B, 8, 64, 33.46),
    (QWEN3_30B_A3B, 6, 64, 25.82),
    (QWEN3_30B_A3B, 5, 64, 22.01),
    (QWEN3_30B_A3B, 4, 64, 18.2),
]


def _bill(config: dict[str, Any], bits: int | None, group: int | None) -> MemoryEstimate:
    if bits is not None:
        config = {**config, "quantization": {"bits": bits, "group_size": group}}
    header = config_header(config)
    model = Model(header=header, geometry=read_geometry(header))
    setup = MlxSetup(max_tokens=128, quantize=PLAIN if bits is None else None)
    return mlx.estimate(model, Load(context_tokens=2048 + 128), setup)


@pytest.mark.parametrize(("config", "bits", "group", "peak_gb"), LOGS)
def test_compute_is_near_the_logged_peak(
    config: dict[str, Any], bits: int | None, group: int | None, peak_gb: float
) -> None:
    """The peak is during the prompt: caches have 2,048 rows then, and 2,304 at the end. The runtime is not in it."""
    bill = _bill(config, bits, group)
    caches = bill.kv_cache_bytes * 2048 // 2304
    logged_compute = peak_gb * 1e9 - bill.weights_bytes - caches
    compute = bill.of(Component.COMPUTE)
    assert 0.85 * compute < logged_compute < 1.1 * compute
    assert all(line.within for line in bill.lines if line.component is Component.COMPUTE)


def test_runtime_lines_have_a_bound() -> None:
    bill = _bill(QWEN3_4B, 4, 64)
    lines = [line for line in bill.lines if line.component is Component.RUNTIME]
    assert [(line.basis, line.within) for line in lines] == [(Basis.MODELLED, 1.0)] * 2


def test_held_numbers_are_those_of_at_most_twelve_buffers() -> None:
    tokens = BUFFER_NUMBERS
    assert held_numbers((Operation(1, 1),), 64, tokens, 0.0) == 12 * tokens
    assert held_numbers((Operation(1, 1),), 5, tokens, 0.0) == 5 * tokens


def test_buffer_of_small_results_ends_after_51_operations() -> None:
    layer = (Operation(1, 1),) * BUFFER_OPERATIONS
    assert held_numbers(layer, 64, 1, 0.0) == 12 * BUFFER_OPERATIONS


def test_weights_that_are_read_count_towards_the_end_of_a_buffer() -> None:
    layer = (Operation(1, 1, BUFFER_NUMBERS),)
    assert held_numbers(layer, 64, 10, 1.0) == 12 * 10
    assert held_numbers(layer, 64, 10, 0.0) == 64 * 10
