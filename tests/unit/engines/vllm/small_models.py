"""Configs small enough to check a bill by hand, and their bills."""

from __future__ import annotations

from typing import Any

from tests.recorded import config_header

from edgekit.bill.types import Load, MemoryEstimate
from edgekit.engines.vllm import estimate as vllm
from edgekit.engines.vllm.types import VllmSetup
from edgekit.model import read_geometry
from edgekit.model.types import Model

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
WINDOWS = {
    **CONFIG,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 6,
    "sliding_window": 128,
    "sliding_window_pattern": 6,
}
HYBRID = {
    **CONFIG,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
PAGE = 16 * 4 * (64 + 64) * 2  # tokens x KV heads x (key + value) x bytes
BLOCK = 4 * PAGE  # of the four layers of CONFIG
# Bytes of q, k, v, o, two norms, gate, up and down.
LAYER = 2 * (512 * 512 + 2 * 256 * 512 + 512 * 512 + 2 * 512 + 3 * 512 * 1024)
VOCABULARY = 2 * 1024 * 512  # 1000 padded to 1024
WEIGHTS = 4 * LAYER + 2 * VOCABULARY + 2 * 512


def model(config: dict[str, Any] | None = None) -> Model:
    header = config_header(config or CONFIG)
    return Model(header=header, geometry=read_geometry(header))


def estimate(
    config: dict[str, Any] | None = None, tokens: int = 1000, **flags: Any
) -> MemoryEstimate:
    return vllm.estimate(model(config), Load(context_tokens=tokens), VllmSetup(**flags))


def facts(config: dict[str, Any] | None = None, tokens: int = 1000, **flags: Any) -> dict[str, Any]:
    return dict(estimate(config, tokens, **flags).facts)
