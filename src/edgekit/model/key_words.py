"""Keys of a GGUF -> words of config.json: the numbers of a tensor list that geometry has no place for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.formats.types import ModelHeader

# A word of config.json -> the GGUF key, after the architecture's name.
_KEYS = {
    "altup_num_inputs": "altup.num_inputs",
    "a_low_rank_dim": "attention.iclr_lora_rank",
    "decay_low_rank_dim": "attention.decay_lora_rank",
    "gate_low_rank_dim": "attention.gate_lora_rank",
    "hc_mult": "hyper_connection.count",
    "index_n_heads": "attention.indexer.head_count",
    "num_hash_layers": "hash_layer_count",
    "o_groups": "attention.output_group_count",
    "o_lora_rank": "attention.output_lora_rank",
    "parallel_expert_intermediate_size": "expert_chunk_feed_forward_length",
    "q_lora_rank": "attention.q_lora_rank",
    "rotary_dim": "rope.dimension_count",
    "use_parallel_residual": "use_parallel_residual",
    "v_low_rank_dim": "attention.value_residual_mix_lora_rank",
}
_GATING, _SIGMOID = (
    "expert_gating_func",
    2,
)  # llama-hparams.h: LLAMA_EXPERT_GATING_FUNC_TYPE_SIGMOID


def config_words(header: ModelHeader) -> Mapping[str, Any]:
    """The config.json itself, or as much of one as the keys of a GGUF state."""
    if header.config:
        return header.config
    prefix = f"{header.keys.get('general.architecture')}."
    found = {word: header.keys.get(prefix + key) for word, key in _KEYS.items()}
    words: dict[str, Any] = {word: value for word, value in found.items() if value is not None}
    if (gating := header.keys.get(prefix + _GATING)) is not None:
        words["sigmoid_router"] = gating == _SIGMOID
    return words
