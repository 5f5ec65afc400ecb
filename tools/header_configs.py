"""A config.json for models of which only the GGUF header was recorded, so that MLX and vLLM can be estimated too.

The numbers come from the header, the rest from a config of the same architecture. The result is taken only if its
layers, widths, vocabulary and number of parameters are those of the header.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from edgekit.engines.entries import gguf_header
from edgekit.errors import EdgekitError
from edgekit.index.types import Entry, ModelPurpose, StoredHeader
from edgekit.model import open_config, read_geometry
from edgekit.model.tensors import expected_tensors
from edgekit.model.types import ModelGeometry

# GGUF architecture -> model_type of its config.json; elsewhere both have the same name.
MODEL_TYPES = {
    "granitehybrid": "granitemoehybrid",
    "nomic-bert": "nomic_bert",
    "qwen35": "qwen3_5",
    "qwen3next": "qwen3_next",
}
# Key of a GGUF header, without its architecture -> keys of a config.json that mean the same
NUMBERS = {
    "block_count": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "embedding_length": ("hidden_size", "n_embd", "d_model"),
    "feed_forward_length": ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "d_ff"),
    "context_length": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads"),
    "attention.head_count_kv": ("num_key_value_heads", "num_kv_heads"),
    "attention.key_length": ("head_dim",),
    "attention.sliding_window": ("sliding_window",),
    "expert_count": ("num_experts", "num_local_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "ssm.group_count": ("linear_num_key_heads", "mamba_n_groups"),
    "ssm.state_size": ("linear_key_head_dim", "mamba_d_state"),
    "ssm.time_step_rank": ("linear_num_value_heads", "mamba_n_heads"),
}
# What a config must state even if that of the other model does not.
ALWAYS = ("block_count", "embedding_length", "feed_forward_length", "context_length")
OWN_CONFIG = "its own config.json"
LISTS = ("layer_types", "mlp_layer_types", "no_rope_layers", "block_types")  # one item per layer


def config_of(
    entry: Entry,
    own: Mapping[str, Any] | None,
    others: Iterable[tuple[Mapping[str, Any], str]],
    inner_of: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> tuple[dict[str, Any], str] | None:
    """A config with the numbers of the entry's GGUF header, and whose config the rest is from; None if none is right.

    `own`: the model's config, if it was found. `others`: configs of the same architecture, and whose they are.
    """
    header = entry.header or StoredHeader()
    geometry = read_geometry(gguf_header(entry.id, header))
    if own is not None and _counted(own) == entry.parameters:
        return dict(own), OWN_CONFIG
    for other, name in others:
        for tied in (None, True, False):
            config = _filled(other, header, entry, inner_of)
            if tied is not None:
                config["tie_word_embeddings"] = tied
            if _describes(config, geometry, entry):
                return config, name
    return None


def model_type_of(entry: Entry) -> str:
    """The model_type of the config.json that a model with this GGUF header has."""
    if entry.architecture == "llama" and entry.family.startswith("mistral"):
        return "mistral3" if ModelPurpose.VISION in entry.kinds else "mistral"
    return MODEL_TYPES.get(entry.architecture, entry.architecture)


def _filled(
    other: Mapping[str, Any],
    header: StoredHeader,
    entry: Entry,
    inner_of: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> dict[str, Any]:
    """The other model's config with the numbers of this header."""
    keys = header.keys
    config: dict[str, Any] = json.loads(json.dumps(other, default=dict))
    inner: Any = inner_of(config)
    for key, names in NUMBERS.items():
        value = keys.get(f"{entry.architecture}.{key}")
        present = next((name for name in names if inner.get(name) is not None), None)
        if type(value) is int and (present or key in ALWAYS):
            inner[present or names[0]] = value
    inner["vocab_size"] = entry.vocabulary
    if "mamba_expand" in inner:
        inner["mamba_expand"] = keys[f"{entry.architecture}.ssm.inner_size"] // inner["hidden_size"]
    if "attention_bias" in inner:
        inner["attention_bias"] = any("attn_q.bias" in line for line in header.tensors)
    for name in LISTS:
        if isinstance(inner.get(name), list) and len(inner[name]) != inner["num_hidden_layers"]:
            del inner[name]
    return config


def _describes(config: Mapping[str, Any], geometry: ModelGeometry, entry: Entry) -> bool:
    """Whether the config has the layers, widths, vocabulary and parameters of the GGUF header."""
    if _counted(config) != entry.parameters:
        return False
    stated = open_config(json.loads(json.dumps(config, default=dict))).model.geometry
    widths = [(found.layers, found.hidden, found.vocabulary) for found in (stated, geometry)]
    return widths[0] == widths[1]


def _counted(config: Mapping[str, Any]) -> int:
    """The parameters that the config implies; 0 if it does not describe a model."""
    plain = json.loads(json.dumps(config, default=dict))
    try:
        geometry = open_config(plain).model.geometry
        return sum(tensor.elements for tensor in expected_tensors(geometry, plain))
    except (EdgekitError, TypeError, ValueError, ArithmeticError):
        return 0
