"""The architecture and the keys that llama.cpp's converter would write for a config.json, if a graph depends on them.

conversion/ @ 0c1e570: base.py for all models, a file for each family.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from edgekit.engines.llamacpp.architectures import conversion_of, known_architecture
from edgekit.engines.llamacpp.gguf_tensors import rotary_dim
from edgekit.formats.types import Value
from edgekit.model.hyperparameters import dig, text_section
from edgekit.model.tensor_recipes import tensor_recipe
from edgekit.model.types import (
    Attention,
    Cell,
    HybridLayer,
    LatentAttention,
    ModelGeometry,
    Recurrent,
    Span,
    attention_of,
)

_GATING = {"softmax": 1, "sigmoid": 2, "sqrtsoftplus": 4}  # llama-hparams.h
_GATING_KEYS = (
    "score_function",
    "scoring_func",
    "score_func",
    "moe_router_activation",
    "moe_router_activation_func",
    "expert_selection_fn",
)

# A GGUF key -> the keys of config.json that state its value.
_STATED = {
    "attention.clamp_kqv": ("clip_qkv", "attn_config.clip_qkv"),
    "attention.indexer.block_size": ("sparse_attention_config.sparse_block_size",),
    "attention.indexer.head_count": (
        "index_n_heads",
        "sparse_attention_config.sparse_num_index_heads",
    ),
    "attention.indexer.top_k": ("index_topk", "sparse_attention_config.sparse_topk_blocks"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.output_group_count": ("o_groups",),
    "attention.output_lora_rank": ("o_lora_rank",),
    "attention.temperature_scale": ("rope_parameters.llama_4_scaling_beta",),
    "embedding_scale": ("embedding_multiplier", "scale_emb"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "expert_weights_norm": ("norm_topk_prob", "route_norm", "norm_expert_weight"),
    "expert_weights_scale": (
        "routed_scaling_factor",
        "route_scale",
        "moe_router_scaling_factor",
        "router_scaling_factor",
    ),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "hash_layer_count": ("num_hash_layers",),
    "hyper_connection.count": ("hc_mult",),
    "logit_scale": ("logit_scale", "logits_scaling", "dim_model_base"),
    "residual_scale": (
        "residual_multiplier",
        "scale_depth",
        "layernorm_full_attention_alpha",
        "full_attn_alpha_factor",
    ),
    "swin_norm": ("swin_norm",),
    "use_parallel_residual": ("use_parallel_residual",),
}


def gguf_architecture(geometry: ModelGeometry) -> str:
    name = geometry.architecture
    if name == "nemotron_h" and any(layer.experts for layer in geometry.layers):
        return "nemotron_h_moe"
    return conversion_of(name).to


def gguf_keys(geometry: ModelGeometry, config: Mapping[str, Any]) -> dict[str, Value]:
    """The keys by name. `geometry` is as llama.cpp would read it, with the architecture's name in a GGUF."""
    section = text_section(config)
    found = {
        **dict(_stated(section)),
        **dict(_whole_model(geometry, section)),
        **dict(_attention(geometry)),
        **dict(_experts(geometry, section)),
        **dict(_recurrence(geometry)),
    }
    name = geometry.architecture
    return {"general.architecture": name, **{f"{name}.{key}": one for key, one in found.items()}}


def _stated(section: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    for key, spellings in _STATED.items():
        values = (dig(section, spelling) for spelling in spellings)
        value = next((one for one in values if isinstance(one, (bool, int, float))), None)
        if value is not None:
            yield key, value


def _whole_model(
    geometry: ModelGeometry, section: Mapping[str, Any]
) -> Iterator[tuple[str, Value]]:
    yield "block_count", len(geometry.layers) // geometry.loops + geometry.mtp_layers
    yield "embedding_length", geometry.hidden
    halves = (layer.dense or layer.experts for layer in geometry.layers)
    yield "feed_forward_length", _for_all(0 if half is None else half.width for half in halves)
    yield "embedding_length_per_layer_input", geometry.per_layer_embedding
    yield "rope.dimension_count", rotary_dim(geometry, section)
    if geometry.trained_context is not None:
        yield "context_length", geometry.trained_context
    if "position_embedding_type" in section:  # Granite
        yield "rope.scaling.finetuned", section["position_embedding_type"] == "rope"
    if sections := _rope_sections(geometry.architecture, section):
        yield "rope.dimension_sections", sections


def _rope_sections(architecture: str, section: Mapping[str, Any]) -> tuple[int, ...]:
    for path in ("rope_parameters.mrope_section", "rope_scaling.mrope_section"):
        stated = dig(section, path)
        if isinstance(stated, list) and all(isinstance(one, int) for one in stated):
            return (*stated, 0, 0, 0, 0)[:4]
    return known_architecture(architecture).rope_sections


def _attention(geometry: ModelGeometry) -> Iterator[tuple[str, Value]]:
    layers = [attention_of(layer.mixer) for layer in geometry.layers]
    found = [one for one in layers if one is not None]
    if not found:
        yield "attention.head_count", 0
        return
    # One number if all layers with attention agree; recurrent layers between them count as equal.
    heads = {one.heads for one in found}
    listed = tuple(0 if one is None else one.heads for one in layers)
    yield "attention.head_count", heads.pop() if len(heads) == 1 else listed
    yield "attention.head_count_kv", _for_all(map(_kv_heads, layers))
    whole = next((one for one in found if one.span is Span.ALL), found[0])
    sliding = next((one for one in found if one.span is not Span.ALL), None)
    yield from _head_widths(whole)
    if isinstance(sliding, Attention):
        yield "attention.key_length_swa", sliding.key_dim
        yield "attention.value_length_swa", sliding.value_dim
    if index_dim := max(one.index_dim for one in found):
        yield "attention.indexer.key_length", index_dim


def _kv_heads(attention: Attention | LatentAttention | None) -> int:
    if isinstance(attention, LatentAttention):
        return 1 if attention.absorbed else attention.heads
    return 0 if attention is None else attention.kv_heads


def _head_widths(attention: Attention | LatentAttention) -> Iterator[tuple[str, Value]]:
    if not isinstance(attention, LatentAttention) or not attention.absorbed:
        yield "attention.key_length", attention.key_dim
        yield "attention.value_length", attention.value_dim
    else:
        yield "attention.key_length", attention.latent_dim + attention.rope_dim
        yield "attention.value_length", attention.latent_dim
        yield "attention.key_length_mla", attention.key_dim
        yield "attention.value_length_mla", attention.value_dim
    if isinstance(attention, LatentAttention):
        yield "attention.kv_lora_rank", attention.latent_dim
        yield "attention.q_lora_rank", attention.query_rank


def _experts(geometry: ModelGeometry, section: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    routed = [layer.experts for layer in geometry.layers if layer.experts]
    if not routed:
        return
    yield "expert_count", routed[0].count
    yield "expert_used_count", routed[0].used
    yield "expert_feed_forward_length", routed[0].width
    first = next(layer.index for layer in geometry.layers if layer.experts)
    yield "leading_dense_block_count", first
    stated = next((one for key in _GATING_KEYS if (one := section.get(key))), None)
    if isinstance(stated, str) and stated in _GATING:
        yield "expert_gating_func", _GATING[stated]
    elif tensor_recipe(geometry.architecture).correction.holds(section):
        yield "expert_gating_func", _GATING["sigmoid"]  # routing with a selection bias uses it


def _recurrence(geometry: ModelGeometry) -> Iterator[tuple[str, Value]]:
    mixers = (layer.mixer for layer in geometry.layers)
    kinds = (one.recurrent if isinstance(one, HybridLayer) else one for one in mixers)
    kind = next((one for one in kinds if isinstance(one, Recurrent)), None)
    if kind is None:
        return
    if kind.cell is Cell.SHORT_CONV:
        yield "shortconv.l_cache", kind.conv_kernel
        return
    if kind.cell is Cell.KIMI_DELTA:
        yield "kda.head_dim", kind.state_size
    yield "ssm.conv_kernel", kind.conv_kernel
    yield "ssm.inner_size", kind.inner
    yield "ssm.state_size", kind.state_size
    yield "ssm.time_step_rank", kind.rank if kind.cell is Cell.MAMBA else kind.heads
    yield "ssm.group_count", kind.groups


def _for_all(numbers: Iterable[int]) -> Value:
    """One number if all are equal, else the list."""
    listed = tuple(numbers)
    return listed[0] if len(set(listed)) == 1 else listed
