"""TABLE of spellings: one of our words -> how GGUF keys and config.json files write it.

GGUF spellings follow the architecture's prefix ("{arch}.block_count"); config spellings are looked up in the part of the
file that describes the language model, a dot leads into a nested object. Order matters: the first one that is there and
not null counts.
"""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    word: str
    gguf: tuple[str, ...] = ()
    config: tuple[str, ...] = ()


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _key(word: str, gguf: str = "", config: str = "") -> Key:
    return Key(word, _words(gguf), _words(config))


# fmt: off
TABLE = (
    # the whole model
    _key("layers", "block_count", "num_hidden_layers n_layers n_layer num_layers num_transformer_layers"),
    _key("hidden", "embedding_length", "hidden_size n_embd d_model n_embed dim model_dim hidden_dim"),
    _key(
        "context",
        "context_length",
        "max_position_embeddings max_sequence_length max_seq_len model_max_length n_positions "
        "seq_length n_ctx context_length max_context_length",
    ),
    _key("vocabulary", "vocab_size", "vocab_size padded_vocab_size num_vocab"),
    _key("per_layer_embedding", "embedding_length_per_layer_input", "hidden_size_per_layer_input"),
    _key("loops", "num_loops", "num_loops total_ut_steps loop_num"),
    _key("loop_window", "", "loop_window_size"),
    _key("bidirectional", "", "use_bidirectional_attention"),
    _key("tied", "", "tie_word_embeddings weight_tying share_input_output_layers"),
    _key("mtp_layers", "nextn_predict_layers", "num_nextn_predict_layers mtp_num_hidden_layers num_mtp_modules"),
    _key("causal", "attention.causal", "is_causal"),
    _key("pooling", "pooling_type", ""),
    # feed-forward
    _key(
        "feed_forward",
        "feed_forward_length",
        "intermediate_size ffn_hidden_size ff_intermediate_size n_inner inter_dim ffn_dim "
        "block_ff_dim ffn_config.ffn_hidden_size hidden_dim",
    ),
    _key("dense_feed_forward", "", "dense_intermediate_size intermediate_size_mlp"),
    _key("expert_feed_forward", "expert_feed_forward_length", "moe_intermediate_size expert_intermediate_size moe_inter_dim expert_ffn_hidden_size moe_ffn_hidden_size"),
    _key("shared_feed_forward", "expert_shared_feed_forward_length", "shared_expert_intermediate_size moe_shared_expert_intermediate_size share_expert_dim shared_intermediate_size"),
    _key("ffn_kind", "", "feed_forward_type"),
    _key("width_multiple", "", "multiple_of block_multiple_of"),
    _key("width_scale", "", "ffn_dim_multiplier block_ffn_dim_multiplier"),
    _key("width_ratio", "", "hidden_ratio hidden_dim_scale_factor"),
    _key("width_ratios", "", "ffn_multipliers"),
    _key("width_divisor", "", "ffn_dim_divisor"),
    _key("width_is_raw", "", "block_auto_adjust_ff_dim"),
    _key("experts", "expert_count", "num_experts n_routed_experts num_local_experts num_routed_experts moe_num_experts moe_num_primary_experts ffn_config.moe_num_experts moe.num_experts"),
    _key("experts_used", "expert_used_count", "num_experts_per_tok num_experts_per_token experts_per_token top_k_experts moe_topk moe_top_k n_activated_experts moe_k ffn_config.moe_top_k num_experts_per_topk moe_num_active_primary_experts moe.num_experts_per_tok"),
    _key("shared_experts", "expert_shared_count", "n_shared_experts num_shared_experts num_shared_expert moe_num_shared_experts"),
    _key("expert_latent", "expert_latent_length moe_latent_size", "moe_latent_size routed_expert_hidden_size moe_hidden_size"),
    _key("leading_dense", "leading_dense_block_count", "first_k_dense_replace n_dense_layers num_dense_layers moe_first_k_dense_replace moe_layer_start_index"),
    _key("moe_step", "interleave_moe_layer_step moe_every_n_layers", "interleave_moe_layer_step decoder_sparse_step moe_layer_freq moe_layer_interval moe_layer_frequency expert_layer_period moe_every_n_layers"),
    _key("moe_offset", "", "expert_layer_offset"),
    _key("mlp_only_layers", "", "mlp_only_layers"),
    _key("moe_layers", "", "moe_layers_enum"),
    _key("mlp_layer_types", "", "mlp_layer_types"),
    _key("beside_experts", "", "residual_moe"),
    _key("wide_shared_ffn", "", "use_double_wide_mlp"),
    # attention
    _key("heads", "attention.head_count", "num_attention_heads_per_layer num_attention_heads n_heads n_head num_heads attention_heads num_query_heads"),
    _key("kv_heads", "attention.head_count_kv", "num_key_value_heads num_key_value_heads_per_layer n_kv_heads kv_heads num_kv_heads n_head_kv multi_query_group_num attn_config.kv_n_heads num_query_groups num_attention_groups"),
    _key("heads_per_kv_head", "", "n_shared_head"),
    _key("multi_query", "", "multi_query multi_query_attention"),
    _key("new_decoder", "", "new_decoder_architecture"),
    _key("key_dim", "attention.key_length", "head_dim kv_channels attention_head_dim head_size d_kv hidden_size_per_head"),
    _key("value_dim", "attention.value_length", "v_head_dim"),
    _key("rope_dim", "rope.dimension_count", "qk_rope_head_dim"),
    _key("values_are_keys", "", "attention_k_eq_v"),
    _key("layer_overrides", "", "per_layer_config"),
    _key("block_configs", "", "block_configs"),
    # latent attention and indexers
    _key("latent_dim", "attention.kv_lora_rank", "kv_lora_rank"),
    _key("query_rank", "attention.q_lora_rank", "q_lora_rank"),
    _key("nope_dim", "", "qk_nope_head_dim"),
    _key("key_dim_mla", "attention.key_length_mla", ""),
    _key("value_dim_mla", "attention.value_length_mla", ""),
    _key("window_latent_dim", "attention.kv_lora_rank_swa", ""),
    _key("use_mla", "", "use_mla"),
    _key("index_dim", "attention.indexer.key_length", "index_head_dim sparse_attention_config.sparse_index_dim"),
    _key("index_layers", "attention.indexer.types", "indexer_types sparse_attention_config.sparse_attention_freq"),
    _key("compress_ratios", "attention.compress_ratios", "compress_ratios"),
    _key("compress_rates", "", "compress_rates"),
    # windows
    _key("window", "attention.sliding_window", "sliding_window sliding_window_size sliding_window_attention_size attention_window_size local_attention window_size"),
    _key("window_pattern", "attention.sliding_window_pattern", "sliding_window_pattern _sliding_window_pattern hybrid_layer_pattern global_attn_every_n_layers sliding_window_layout"),
    _key("use_window", "", "use_sliding_window"),
    _key("window_from", "", "max_window_layers"),
    _key("chunk", "", "attention_chunk_size"),
    _key("layer_types", "", "layer_types layers_block_type block_types attn_type_list"),
    _key("rope_layers", "", "no_rope_layers"),
    _key("rope_layer_step", "", "nope_layer_interval no_rope_layer_interval"),
    _key("window_heads", "", "swa_num_attention_heads num_swa_attention_heads num_sliding_attention_heads attention_other_setting.num_attention_heads"),
    _key("window_kv_heads", "", "swa_num_key_value_heads num_swa_key_value_heads attention_other_setting.num_attention_groups"),
    _key("window_key_dim", "attention.key_length_swa", "swa_head_dim attention_other_setting.head_dim"),
    _key("window_value_dim", "attention.value_length_swa", "swa_v_head_dim"),
    _key("global_key_dim", "", "global_head_dim"),
    _key("global_kv_heads", "", "num_global_key_value_heads"),
    _key("shared_cache_layers", "attention.shared_kv_layers", "num_kv_shared_layers num_kv_reuse_layers"),
    _key("share_caches", "", "use_cla"),
    _key("share_factor", "", "cla_share_factor"),
    _key("full_interval", "full_attention_interval", "full_attention_interval attn_layer_period layer_group_size mamba_step"),
    _key("full_offset", "", "attn_layer_offset"),
    _key("recurrent_layers", "attention.recurrent_layers", ""),
    _key("full_layer_indices", "", "full_attn_idxs attn_layer_indices linear_attn_config.full_attn_layers"),
    _key("window_layer_indices", "", "sliding_window_layers"),
    _key("pattern_text", "", "hybrid_override_pattern"),
    # recurrences
    _key("conv_kernel", "ssm.conv_kernel shortconv.l_cache", "conv_kernel mamba_d_conv linear_conv_kernel_dim conv_L_cache d_conv conv_kernel_size conv1d_width linear_attn_config.short_conv_kernel_size short_conv_kernel_size conv_window"),
    _key("inner", "ssm.inner_size", "mamba_d_ssm mamba_intermediate_size"),
    _key("expand", "", "expand mamba_expand"),
    _key("state_size", "ssm.state_size", "ssm_state_size state_size mamba_d_state d_state"),
    _key("state_groups", "ssm.group_count", "n_groups mamba_n_groups mamba_ngroups"),
    _key("time_step_rank", "ssm.time_step_rank", "time_step_rank mamba_dt_rank"),
    _key("state_heads", "", "mamba_num_heads mamba_n_heads n_mamba_heads"),
    _key("state_head_dim", "", "mamba_head_dim mamba_d_head mamba_headdim hidden_size_per_head"),
    _key("linear_key_heads", "", "linear_num_key_heads"),
    _key("linear_value_heads", "", "linear_num_value_heads"),
    _key("linear_key_dim", "", "linear_key_head_dim"),
    _key("linear_value_dim", "", "linear_value_head_dim"),
    _key("kda_head_dim", "kda.head_dim", "linear_attn_config.head_dim linear_head_dim"),
    _key("kda_heads", "", "linear_attn_config.num_heads linear_num_heads"),
    _key("wkv_head_size", "wkv.head_size", "head_size head_dim"),
    _key("token_shift", "token_shift_count", ""),
    _key("expand_k", "", "expand_k"),
    _key("expand_v", "", "expand_v"),
    _key("lru_width", "", "lru_width"),
    # positions
    _key("rope_scaling", "", "rope_scaling rope_parameters"),
    _key("rope_type", "rope.scaling.type", ""),
    _key("rope_factor", "rope.scaling.factor", ""),
    _key("rope_original", "rope.scaling.original_context_length", "original_max_position_embeddings"),
)
# fmt: on

BY_WORD = {key.word: key for key in TABLE}

# Parts that hold an encoder, and what it encodes.
TOWER_SECTIONS = (
    ("vision_config", "vision"),
    ("visual", "vision"),
    ("vit_config", "vision"),
    ("vision_tower_config", "vision"),
    ("audio_config", "audio"),
    ("audio_encoder_config", "audio"),
)
TOWER_LAYERS = _words(
    "num_hidden_layers depth vt_num_hidden_layers n_layer layers num_layers encoder_layers"
)
TOWER_HIDDEN = _words("hidden_size embed_dim vt_hidden_size width d_model")
