"""Configs small enough to check a bill by hand, and their bills."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.recorded import config_header

from edgekit.bill.types import Load, MemoryEstimate
from edgekit.engines.mlx.estimate import estimate
from edgekit.engines.mlx.setups import MlxSetup
from edgekit.formats.types import Tensor
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.sources.types import Container

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MLA = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "num_key_value_heads": 8,
    "kv_lora_rank": 128,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "first_k_dense_replace": 8,
}


def model_of(config: dict[str, Any], tensors: tuple[Tensor, ...] | None = None) -> Model:
    header = config_header(config)
    if tensors is not None:
        header = replace(header, name="model", container=Container.SAFETENSORS, tensors=tensors)
    return Model(header=header, geometry=read_geometry(header))


def bill_of(config: dict[str, Any], tokens: int = 1000, **setup: Any) -> MemoryEstimate:
    return estimate(model_of(config), Load(context_tokens=tokens), MlxSetup(**setup))
