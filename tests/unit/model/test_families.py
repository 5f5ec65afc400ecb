"""Families whose geometry differs from what their keys suggest: one small config each, checked by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.recorded import config_header, gguf_header

from edgekit.errors import HeaderError, UnknownArchitectureError
from edgekit.model import read_geometry
from edgekit.model.architectures import architecture_of, names
from edgekit.model.tensor_recipes import TensorRole
from edgekit.model.tensors import expected_tensors
from edgekit.model.types import (
    Attention,
    Cell,
    HybridLayer,
    LatentAttention,
    ModelGeometry,
    Recurrent,
    SharedCache,
    Span,
)
from edgekit.units import Basis

PLAIN = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "vocab_size": 1000,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MLA = {
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}


def geometry_of(model_type: str, **changes: Any) -> ModelGeometry:
    merged = {**PLAIN, "model_type": model_type, **changes}
    return read_geometry(config_header({k: v for k, v in merged.items() if v is not ...}))


def parameters(model_type: str, role: TensorRole, **changes: Any) -> int:
    config = {**PLAIN, "model_type": model_type, **changes}
    tensors = expected_tensors(read_geometry(config_header(config)), config)
    return sum(tensor.elements for tensor in tensors if tensor.role is role)


def spans(geometry: ModelGeometry) -> str:
    """One letter per layer: F full attention, W window, R recurrence, B both, - neither."""
    return "".join(_letter(layer.mixer) for layer in geometry.layers)


def _letter(mixer: object) -> str:
    if isinstance(mixer, (Attention, LatentAttention)):
        return "W" if mixer.span is Span.WINDOW else "F"
    return "R" if isinstance(mixer, Recurrent) else "B" if isinstance(mixer, HybridLayer) else "-"


def kv_heads(geometry: ModelGeometry) -> list[int]:
    mixers = (layer.mixer for layer in geometry.layers)
    return [mixer.kv_heads for mixer in mixers if isinstance(mixer, Attention)]


def widths(geometry: ModelGeometry) -> list[int]:
    return [layer.dense.width if layer.dense else 0 for layer in geometry.layers]


# Feed-forwards.
def test_recurrent_gemma_halves_its_stated_width_and_repeats_block_types() -> None:
    geometry = geometry_of("recurrent_gemma", attention_window_size=16, num_hidden_layers=5)
    assert widths(geometry) == [128 // 2] * 5
    assert spans(geometry) == "RRWRR"
    short = geometry_of(
        "recurrent_gemma",
        attention_window_size=16,
        num_hidden_layers=2,
        block_types=["recurrent", "attention", "recurrent"],
    )
    assert spans(short) == "RW"
    with pytest.raises(HeaderError, match="block_types"):
        geometry_of("recurrent_gemma", attention_window_size=16, block_types=["conv"])


GRANITE = {
    "layer_types": ["mamba", "attention", "mamba", "mamba"],
    "shared_intermediate_size": 96,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
}


def test_granite_hybrid_without_experts_has_dense_layers_of_the_shared_width() -> None:
    dense = geometry_of("granitemoehybrid", **GRANITE, num_local_experts=0)
    assert widths(dense) == [96] * 4
    routed = geometry_of("granitemoehybrid", **GRANITE, num_local_experts=4, num_experts_per_tok=2)
    assert widths(routed) == [0] * 4
    assert [layer.experts.shared_width for layer in routed.layers if layer.experts] == [96] * 4
    assert spans(geometry_of("granitemoehybrid", **{**GRANITE, "layer_types": None})) == "RRRR"


def test_arctic_has_a_dense_part_as_wide_as_the_model() -> None:
    geometry = geometry_of(
        "arctic", num_local_experts=4, num_experts_per_tok=2, moe_layer_frequency=2
    )
    assert widths(geometry) == [128, 64, 128, 64]
    assert [layer.experts is not None for layer in geometry.layers] == [False, True, False, True]


def test_grok_2_has_a_dense_part_next_to_its_experts_if_residual() -> None:
    mixed = {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    assert widths(geometry_of("grok-1", **mixed)) == [0] * 4
    assert widths(geometry_of("grok-1", **mixed, residual_moe=True)) == [128] * 4


def test_openelm_has_an_ffn_multiplier_per_layer() -> None:
    geometry = geometry_of(
        "openelm",
        intermediate_size=...,
        num_attention_heads=...,
        num_key_value_heads=...,
        num_query_heads=[4, 4, 8, 8],
        num_kv_heads=[1, 1, 2, 2],
        head_dim=8,
        ffn_multipliers=[0.5, 1.123, 2.0, 4.0],
        ffn_dim_divisor=16,
        share_input_output_layers=True,
    )
    # 1.123 x 64 = 71.9 is rounded to 80, because 64 is more than 10 % less.
    assert widths(geometry) == [32, 80, 128, 256]
    assert kv_heads(geometry) == [1, 1, 2, 2]
    assert geometry.tied_embeddings is True


def test_lille_rounds_eight_thirds_to_the_nearest_256() -> None:
    geometry = geometry_of("lille-130m", intermediate_size=..., hidden_size=..., n_embd=640)
    assert widths(geometry) == [1792] * 4  # 640 x 8 / 3 = 1706


def test_layer_without_experts_or_width_is_an_error() -> None:
    with pytest.raises(UnknownArchitectureError, match="feed_forward"):
        geometry_of("deepseek_v3", **MLA, **EXPERTS, intermediate_size=..., first_k_dense_replace=1)
    all_experts = geometry_of(
        "deepseek_v3", **MLA, **EXPERTS, intermediate_size=..., first_k_dense_replace=0
    )
    assert all(layer.experts is not None for layer in all_experts.layers)


def test_phixtral_experts_are_four_times_hidden() -> None:
    geometry = geometry_of(
        "phi-msft", intermediate_size=..., num_local_experts=4, num_experts_per_tok=2
    )
    experts = geometry.layers[0].experts
    assert experts is not None
    assert (experts.width, experts.gated) == (4 * 64, False)


# Attention.
def test_plamo_shares_each_kv_head_among_eight() -> None:
    assert kv_heads(geometry_of("plamo", num_key_value_heads=...)) == [1] * 4
    assert kv_heads(geometry_of("plamo", num_key_value_heads=..., n_shared_head=4)) == [2] * 4


def test_mimo_has_twice_the_kv_heads_in_sliding_layers() -> None:
    mimo = {**EXPERTS, "num_experts": ..., "n_routed_experts": 4, "sliding_window": 16}
    plain = geometry_of("mimo_v2_flash", **mimo, num_hidden_layers=7, head_dim=8, v_head_dim=4)
    assert spans(plain) == "FWWWWFW"
    assert kv_heads(plain) == [2, 4, 4, 4, 4, 2, 4]
    assert plain.layers[0].dense is not None
    stated = geometry_of(
        "mimo_v2_flash", **mimo, hybrid_layer_pattern=[0, 1, 1, 0], swa_num_key_value_heads=8
    )
    assert (spans(stated), kv_heads(stated)) == ("FWWF", [2, 8, 8, 2])


def test_laguna_has_heads_per_layer() -> None:
    geometry = geometry_of(
        "laguna",
        **EXPERTS,
        head_dim=8,
        sliding_window=16,
        num_attention_heads_per_layer=[8, 16, 16, 16],
    )
    mixers = [layer.mixer for layer in geometry.layers]
    assert [m.heads for m in mixers if isinstance(m, Attention)] == [8, 16, 16, 16]
    assert spans(geometry) == "FFFF"  # without a list of types, all are full


def test_olmo_hybrid_queries_have_no_gate() -> None:
    delta = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    for model_type, gated in (("olmo_hybrid", False), ("qwen3_next", True)):
        last = geometry_of(model_type, **delta, head_dim=8).layers[3].mixer
        assert isinstance(last, Attention)
        assert last.gated is gated


@pytest.mark.parametrize(
    ("changes", "indexed"),
    [
        ({"layer_types": ["full_attention", *["minimax_m3_sparse"] * 3]}, [0, 16, 16, 16]),
        ({"sparse_attention_config": {"sparse_attention_freq": [0, 0, 1, 1]}}, [0, 0, 16, 16]),
        ({"layer_types": ["full_attention"] * 4}, [0, 0, 0, 0]),
    ],
)
def test_minimax_m3_has_an_indexer_only_in_sparse_layers(
    changes: dict[str, Any], indexed: list[int]
) -> None:
    geometry = geometry_of("minimax_m3_vl_text", index_head_dim=16, **EXPERTS, **changes)
    mixers = [layer.mixer for layer in geometry.layers]
    assert [m.index_dim for m in mixers if isinstance(m, Attention)] == indexed


def test_afm_shares_the_cache_of_the_last_layer_that_has_one() -> None:
    geometry = geometry_of(
        "afm7",
        hidden_size=...,
        hidden_dim=64,
        intermediate_size=...,
        num_key_value_heads=...,
        num_kv_heads=2,
        num_kv_reuse_layers=1,
    )
    assert widths(geometry) == [int(64 * 3.25)] * 4
    assert kv_heads(geometry) == [2] * 3
    last = geometry.layers[3].mixer
    assert isinstance(last, SharedCache)
    assert last.source_layer == 2


def test_iquest_second_round_has_a_short_window() -> None:
    geometry = geometry_of("iquestloopcoder")
    assert (spans(geometry), geometry.loops) == ("FFFFWWWW", 2)
    mixer = geometry.layers[4].mixer
    assert isinstance(mixer, Attention)
    assert mixer.span_tokens == 64


def test_baichuan_m1_stores_the_tail_of_its_convolution() -> None:
    geometry = geometry_of(
        "baichuan_m1",
        sliding_window=16,
        sliding_window_layers=[1, 3],
        num_swa_attention_heads=4,
        num_swa_key_value_heads=4,
        conv_window=2,
    )
    states = [sum(s.elements for s in layer.mixer.states) for layer in geometry.layers]
    assert states == [2 * 2 * 8, 2 * 4 * 16, 2 * 2 * 8, 2 * 4 * 16]  # (K and V) x heads x width
    streams = [layer.mixer.streams for layer in geometry.layers]
    assert [[s.span_tokens for s in pair] for pair in streams] == [[0, 0], [16, 16]] * 2


# Arrangements.
@pytest.mark.parametrize(
    ("model_type", "changes", "expected"),
    [
        ("cwm", {"num_hidden_layers": 6}, "FWWWFW"),
        ("granite_swa", {"num_hidden_layers": 6}, "FWWWFW"),
        ("vaultgemma", {"num_hidden_layers": 5}, "WFWFW"),
        ("mellum", {}, "FFFF"),
        ("muse_glimmer_text", {"num_hidden_layers": 6}, "WFWWWF"),
        ("cohere2_moe", {**EXPERTS, "num_hidden_layers": 6, "first_k_dense_replace": 1}, "FWWWFW"),
        ("cohere2_moe", {**EXPERTS, "num_hidden_layers": 6}, "WWWFWW"),
        ("minimax", {"num_local_experts": 4, "num_experts_per_tok": 2}, "FRFR"),
    ],
)
def test_arrangement_of_layers_without_a_list_of_types(
    model_type: str, changes: dict[str, Any], expected: str
) -> None:
    assert spans(geometry_of(model_type, sliding_window=16, **changes)) == expected


PLAMO2 = {
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "mamba_num_heads": 4,
    "hidden_size_per_head": 16,
    "num_hidden_layers": 6,
}


def test_plamo_2_convolves_only_its_inner_width() -> None:
    geometry = geometry_of("plamo2", **PLAMO2)
    assert spans(geometry) == "RFRFRF"
    mixer = geometry.layers[0].mixer
    assert isinstance(mixer, Recurrent)
    assert (mixer.conv_elements, mixer.state_elements) == (3 * 4 * 16, 4 * 16 * 8)
    attention = geometry.layers[1].mixer
    assert isinstance(attention, Attention)
    assert attention.key_dim == 16
    assert spans(geometry_of("plamo2", **PLAMO2, mamba_step=3)) == "RFRRFR"


@pytest.mark.parametrize(
    ("changes", "cell", "states"),
    [
        ({"group_norm_size": 2}, Cell.LIGHTNING, 8 * 8 * 8),
        ({"short_conv_kernel_size": 4}, Cell.KIMI_DELTA, 3 * 3 * 8 * 8 + 8 * 8 * 8),
    ],
)
def test_bailing_hybrids_of_both_generations(
    changes: dict[str, Any], cell: Cell, states: int
) -> None:
    geometry = geometry_of(
        "bailing_hybrid",
        **MLA,
        **EXPERTS,
        head_dim=8,
        layer_group_size=3,
        num_hidden_layers=7,
        **changes,
    )
    assert spans(geometry) == "RRFRRFF"  # the seventh is not a complete group
    mixer = geometry.layers[0].mixer
    assert isinstance(mixer, Recurrent)
    assert (mixer.cell, sum(s.elements for s in mixer.states)) == (cell, states)


def test_ring_linear_caches_only_in_attention_layers() -> None:
    geometry = geometry_of("bailing_moe_linear", **EXPERTS, head_dim=8, layer_group_size=2)
    assert spans(geometry) == "RFRF"
    assert sum(s.elements for s in geometry.layers[1].mixer.streams) == 2 * 2 * 8


def test_gear_convolves_keys_and_values_instead_of_attention() -> None:
    kinds = ["conv_mixer", "sliding_attention", "conv_mixer", "full_attention"]
    geometry = geometry_of("gear", head_dim=8, sliding_window=16, conv_L_cache=3, layer_types=kinds)
    assert spans(geometry) == "RWRF"
    assert [s.elements for s in geometry.layers[0].mixer.states] == [2 * 2 * 2 * 8]


@pytest.mark.parametrize("name", ["paddleocr_vl_text", "ernie4_5_vl_moe_text", "muse_glimmer_text"])
def test_language_models_of_vision_models_are_known(name: str) -> None:
    assert name in names(gguf=False)


def test_sliding_window_pattern_of_a_gguf_lists_the_windows() -> None:
    keys = {
        "general.architecture": "spark2_5",
        "spark2_5.block_count": 3,
        "spark2_5.embedding_length": 64,
        "spark2_5.feed_forward_length": 128,
        "spark2_5.attention.head_count": 8,
        "spark2_5.attention.head_count_kv": 2,
        "spark2_5.attention.sliding_window": 16,
        "spark2_5.attention.sliding_window_pattern": (True, False, True),
    }
    assert spans(read_geometry(gguf_header(keys))) == "WFW"


# Tensors.
def test_longcat_has_tables_for_preceding_tokens() -> None:
    latent = {**MLA, "num_layers": 2, "ffn_hidden_size": 128, "expert_ffn_hidden_size": 32}
    count = parameters(
        "longcat_flash_ngram",
        TensorRole.NGRAM,
        **latent,
        n_routed_experts=4,
        moe_topk=2,
        ngram_vocab_size_ratio=3,
        emb_split_num=2,
        emb_neighbor_num=3,
    )
    # Four tables, each as wide as a quarter of the model.
    tables = sum(3 * 1000 + 2 * i + 1 for i in range(4)) * 16
    assert count == tables + 4 * 64 * 16


def test_ernie_vl_has_a_second_set_of_experts() -> None:
    experts = {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": [32, 16]}
    count = parameters("ernie4_5_vl_moe_text", TensorRole.EXPERT_UP, **experts)
    assert count == 3 * 4 * (32 + 16) * 64  # the first layer is dense


def test_grove_experts_share_small_experts_in_pairs() -> None:
    count = parameters(
        "grove_moe", TensorRole.EXPERT_UP, **EXPERTS, parallel_expert_intermediate_size=8
    )
    assert count == 4 * (4 * 32 * 64 + 2 * 8 * 64)


def test_opt_embedding_may_be_narrower_than_its_layers() -> None:
    narrow = {"word_embed_proj_dim": 32, "ffn_dim": 128, "do_layer_norm_before": False}
    assert parameters("opt", TensorRole.EMBEDDING, **narrow) == 1000 * 32
    assert parameters("opt", TensorRole.EMBEDDING_IN, **narrow) == 64 * 32
    assert parameters("opt", TensorRole.EMBEDDING_OUT, **narrow) == 32 * 64
    assert parameters("opt", TensorRole.EMBEDDING_OUT) == 0


def test_talkie_has_gains_instead_of_norms() -> None:
    assert parameters("talkie", TensorRole.NORM) == 0
    assert parameters("talkie", TensorRole.SCALE) == 4 * (8 + 3) + 1


# Defaults of keys that config.json omits.
def test_library_defaults_of_a_text_config() -> None:
    text = {"model_type": "qwen3_5_moe_text", "num_hidden_layers": 4}
    geometry = read_geometry(config_header({"model_type": "qwen3_5_moe", "text_config": text}))
    experts = geometry.layers[0].experts
    assert experts is not None
    assert (experts.count, experts.used, experts.width, experts.shared_width) == (256, 8, 512, 512)
    assert (geometry.hidden, spans(geometry), geometry.basis) == (2048, "RRRF", Basis.MODELLED)
    assert "shared_feed_forward" in geometry.because


def test_hidden_size_has_no_library_default() -> None:
    geometry = geometry_of("qwen3")
    mixer = geometry.layers[0].mixer
    assert isinstance(mixer, Attention)
    assert (mixer.key_dim, geometry.basis) == (128, Basis.MODELLED)
    with pytest.raises(UnknownArchitectureError, match="hidden"):
        geometry_of("qwen3", hidden_size=...)


def test_null_overrides_the_library_default() -> None:
    assert spans(geometry_of("mistral")) == "WWWW"  # the library's default window
    assert spans(geometry_of("mistral", sliding_window=None)) == "FFFF"


def test_kv_heads_default_that_does_not_divide_is_ignored() -> None:
    """The library's default is 32."""
    assert kv_heads(geometry_of("qwen2", num_key_value_heads=...)) == [8] * 4


def test_some_library_defaults_apply_only_to_nested_sections() -> None:
    qwen3 = architecture_of("qwen3", gguf=False)
    assert qwen3 is not None
    assert qwen3.defaults(nested=True)["layers"] == 32
    assert "layers" not in qwen3.defaults(nested=False)
    assert architecture_of("brand_new", gguf=False) is None


KIMI: dict[str, Any] = {
    **MLA,
    **EXPERTS,
    "linear_attn_config": {
        "full_attn_layers": [4],
        "head_dim": 8,
        "num_heads": 8,
        "short_conv_kernel_size": 4,
    },
    "routed_expert_hidden_size": 32,
    "first_k_dense_replace": 1,
}


def test_kimi_k3_has_full_gates_and_block_residuals() -> None:
    linear = {**KIMI["linear_attn_config"], "use_full_rank_gate": True}
    fields = {"mla_use_output_gate": True, "attn_res_block_size": 2, "latent_moe_use_norm": True}
    more = {**KIMI, **fields, "linear_attn_config": linear}
    assert parameters("kimi_linear", TensorRole.STATE_GATE, **KIMI) == 0
    assert parameters("kimi_linear", TensorRole.STATE_GATE, **more) == 3 * 64 * 64
    assert parameters("kimi_linear", TensorRole.STATE_LOW, **more) == 3 * 2 * 8 * 64
    assert parameters("kimi_linear", TensorRole.ATTENTION_GATE, **more) == 8 * 16 * 64
    assert parameters("kimi_linear", TensorRole.RESIDUAL, **more) == (4 * 2 + 1) * 2 * 64
    assert parameters("kimi_linear", TensorRole.EXPERTS_IN, **more) == 3 * (32 * 64 + 32)
