"""read_geometry on small hand-written headers: one test per spelling found in real files."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.recorded import config_header, gguf_header

from edgekit.errors import EdgekitError, HeaderError, HeaderLimitError, UnknownArchitectureError
from edgekit.formats.types import ArrayFact
from edgekit.model import not_a_language_model, read_geometry
from edgekit.model.inspect import count_parameters
from edgekit.model.types import (
    Attention,
    CompressedAttention,
    HybridLayer,
    LatentAttention,
    ModelGeometry,
    NoCache,
    Recurrent,
    SharedCache,
    Span,
)
from edgekit.units import Basis

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "vocab_size": 1000,
}


def of_config(**changes: Any) -> ModelGeometry:
    merged = {**LLAMA, **changes}
    return read_geometry(config_header({k: v for k, v in merged.items() if v is not ...}))


def of_gguf(architecture: str = "llama", **changes: Any) -> ModelGeometry:
    keys = {
        "block_count": 4,
        "embedding_length": 64,
        "context_length": 4096,
        "feed_forward_length": 128,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
    } | {name.replace("__", "."): value for name, value in changes.items()}
    spelled = {f"{architecture}.{key}": value for key, value in keys.items() if value is not ...}
    return read_geometry(gguf_header({"general.architecture": architecture, **spelled}))


def kinds(geometry: ModelGeometry) -> dict[str, int]:
    return dict(Counter(layer.mixer.label for layer in geometry.layers))


def attention(geometry: ModelGeometry, layer: int = 0) -> Attention:
    mixer = geometry.layers[layer].mixer
    assert isinstance(mixer, Attention)
    return mixer


def per_token(geometry: ModelGeometry) -> int:
    return sum(s.elements for layer in geometry.layers for s in layer.mixer.streams)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, 4 * 2 * (2 * 8), id="grouped queries"),
        pytest.param(
            {"num_key_value_heads": ...}, 4 * 2 * (8 * 8), id="no kv heads: same as heads"
        ),
        pytest.param(
            {"num_key_value_heads": ..., "n_kv_heads": 4}, 4 * 2 * (4 * 8), id="n_kv_heads"
        ),
        pytest.param({"num_key_value_heads": ..., "kv_heads": 1}, 4 * 2 * 8, id="kv_heads"),
        pytest.param(
            {"num_key_value_heads": ..., "multi_query": True}, 4 * 2 * 8, id="multi_query"
        ),
        pytest.param({"head_dim": 32}, 4 * 2 * (2 * 32), id="explicit head_dim wins"),
        pytest.param({"num_hidden_layers": ..., "n_layer": 6}, 6 * 2 * 16, id="n_layer"),
        pytest.param({"num_hidden_layers": ..., "num_layers": 5}, 5 * 2 * 16, id="num_layers"),
        pytest.param({"hidden_size": ..., "n_embd": 128}, 4 * 2 * 32, id="n_embd"),
        pytest.param({"hidden_size": ..., "d_model": 32}, 4 * 2 * 8, id="d_model"),
        pytest.param({"v_head_dim": 0}, 4 * 2 * 16, id="v_head_dim 0 means unset"),
    ],
)
def test_elements_per_token_by_spelling(changes: dict[str, Any], expected: int) -> None:
    assert per_token(of_config(**changes)) == expected


@pytest.mark.parametrize("section", ["text_config", "llm_config", "language_config"])
def test_text_and_vision_sections_of_a_nested_config(section: str) -> None:
    config = {
        "model_type": "some_vlm",
        section: LLAMA,
        "vision_config": {"depth": 7, "hidden_size": 9},
    }
    geometry = read_geometry(config_header(config))
    assert geometry.architecture == "llama"
    assert [(t.kind, t.layers, t.hidden) for t in geometry.towers] == [("vision", 7, 9)]


@pytest.mark.parametrize("value", [-45, 0, True, 10**400, 2**32, 7.0, "7", None, [7]])
def test_impossible_size_of_a_tower_is_unknown(value: object) -> None:
    config = {"model_type": "some_vlm", "text_config": LLAMA, "vision_config": {"depth": value, "hidden_size": value}}  # fmt: skip
    (tower,) = read_geometry(config_header(config)).towers
    assert (tower.kind, tower.layers, tower.hidden) == ("vision", None, None)


def test_config_nested_two_levels_deep() -> None:
    config = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": LLAMA}}
    assert len(read_geometry(config_header(config)).layers) == 4


def test_nested_config_with_library_defaults_is_modelled() -> None:
    config = {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}}
    geometry = read_geometry(config_header(config))
    assert (len(geometry.layers), geometry.hidden, geometry.basis) == (32, 4096, Basis.MODELLED)
    assert "hidden" in geometry.because


def test_error_of_an_invalid_value_uses_the_key_of_the_file() -> None:
    with pytest.raises(HeaderError, match=r"^config\.json: n_layer is 'many', not a whole number$"):
        of_config(num_hidden_layers=..., n_layer="many")


def test_missing_key_is_an_error() -> None:
    with pytest.raises(
        UnknownArchitectureError,
        match=r"does not state its hidden .*hidden_size.*hyperparameters\.tsv",
    ):
        of_config(hidden_size=...)


# Context.
@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (None, 4096),
        ({"type": "linear", "factor": 4.0}, 4 * 4096),
        ({"rope_type": "dynamic", "factor": 2}, 2 * 4096),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}, 4 * 2048),
        ({"type": "yarn", "factor": 4.0}, 4 * 4096),
        ({"type": "su", "long_factor": [1.0]}, 4096),
        ({"type": "longrope", "factor": 32.0}, 4096),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}, 4096),
        ({"type": "mrope", "mrope_section": [16, 24, 24]}, 4096),
        (
            {"full_attention": {"rope_type": "linear", "factor": 2.0}, "sliding_attention": {}},
            2 * 4096,
        ),
    ],
)
def test_native_context_after_rope_scaling(scaling: dict[str, Any] | None, expected: int) -> None:
    geometry = of_config(rope_scaling=scaling)
    assert (geometry.trained_context, geometry.native_context) == (4096, expected)


def test_rope_parameters_replace_rope_scaling() -> None:
    assert of_config(rope_parameters={"rope_type": "linear", "factor": 2.0}).native_context == 8192


def test_gemma3_context_already_includes_rope_scaling() -> None:
    geometry = of_config(
        model_type="gemma3_text",
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        sliding_window=512,
        sliding_window_pattern=2,
    )
    assert geometry.native_context == 4096


def test_max_length_is_not_a_context() -> None:
    assert of_config(max_position_embeddings=..., max_length=20).native_context is None


# Windows.
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"model_type": "gemma2"}, "WFWF", id="gemma2"),
        pytest.param({"model_type": "gemma3_text", "num_hidden_layers": 7}, "WWWWWFW", id="gemma3"),
        pytest.param(
            {"model_type": "gemma3_text", "sliding_window_pattern": 2}, "WFWF", id="pattern number"
        ),
        pytest.param({"model_type": "cohere2", "num_hidden_layers": 5}, "WWWFW", id="cohere2"),
        pytest.param({"model_type": "mistral"}, "WWWW", id="mistral: all"),
        pytest.param({"model_type": "mistral", "sliding_window": None}, "FFFF", id="mistral: null"),
        pytest.param(
            {"model_type": "qwen2", "use_sliding_window": False, "max_window_layers": 2},
            "FFFF",
            id="qwen2 off",
        ),
        pytest.param(
            {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 3},
            "FFFW",
            id="qwen2 on",
        ),
        pytest.param(
            {"model_type": "exaone4", "sliding_window_pattern": "LLG"}, "WWFW", id="exaone4 letters"
        ),
        pytest.param(
            {"model_type": "gpt_oss", "layer_types": ["full_attention", "sliding_attention"] * 2},
            "FWFW",
            id="layer_types win",
        ),
        pytest.param(
            {"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [0, 1, 1, 0]}, "FWWF", id="list"
        ),
        pytest.param({"model_type": "llama"}, "FFFF", id="llama has no windows"),
    ],
)
def test_sliding_window_layers(changes: dict[str, Any], expected: str) -> None:
    geometry = of_config(**{"sliding_window": 100, **changes})
    letters = "".join(
        "F" if attention(geometry, i).span is Span.ALL else "W" for i in range(len(geometry.layers))
    )
    assert letters == expected


def test_window_pattern_of_a_gguf_may_be_an_array() -> None:
    geometry = of_gguf(
        "gemma4",
        attention__sliding_window=512,
        attention__sliding_window_pattern=(True, True, False, True),
    )
    assert kinds(geometry) == {"sliding window": 3, "full attention": 1}


def test_two_kv_geometries_in_one_model() -> None:
    geometry = of_config(
        model_type="gemma4_text",
        sliding_window=16,
        head_dim=8,
        global_head_dim=16,
        num_global_key_value_heads=1,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    assert [(x.kv_heads, x.key_dim) for x in (attention(geometry, 0), attention(geometry, 1))] == [
        (2, 8),
        (1, 16),
    ]


def test_keys_and_values_of_different_width() -> None:
    geometry = of_config(model_type="mimo_v2_flash", head_dim=24, v_head_dim=16)
    assert [s.elements for s in geometry.layers[0].mixer.streams] == [2 * 24, 2 * 16]


def test_shared_caches_have_no_streams_and_name_their_source() -> None:
    geometry = of_config(
        model_type="gemma4_text",
        sliding_window=16,
        num_hidden_layers=6,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    )
    shared = geometry.layers[4].mixer, geometry.layers[5].mixer
    assert all(isinstance(kind, SharedCache) and kind.streams == () for kind in shared)
    assert [kind.source_layer for kind in shared if isinstance(kind, SharedCache)] == [3, 2]


def test_llama4_has_chunked_attention_in_three_of_four_layers() -> None:
    geometry = of_config(
        model_type="llama4_text", attention_chunk_size=8192, num_hidden_layers=8, num_local_experts=16,
        num_experts_per_tok=1, intermediate_size_mlp=256, interleave_moe_layer_step=2,
    )  # fmt: skip
    assert kinds(geometry) == {"chunked attention": 6, "full attention": 2}
    assert [layer.experts is not None for layer in geometry.layers] == [False, True] * 4
    assert geometry.layers[0].dense is not None
    assert geometry.layers[0].dense.width == 256


# Latent attention.
MLA = {
    "model_type": "deepseek_v3",
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 8,  # in every such config, though it is not what is cached
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "moe_layer_freq": 1,
}


def test_mla_stores_one_latent_and_one_rotary_key() -> None:
    geometry = of_config(**MLA)
    assert per_token(geometry) == 4 * (32 + 8)
    kind = geometry.layers[0].mixer
    assert isinstance(kind, LatentAttention)
    assert (kind.heads, kind.key_dim, kind.value_dim, kind.absorbed) == (8, 24, 16, True)
    assert [layer.experts is not None for layer in geometry.layers] == [False, True, True, True]


def test_mla_switched_off_is_plain_attention() -> None:
    geometry = of_config(
        **{
            **MLA,
            "model_type": "deepseek_v2",
            "kv_lora_rank": None,
            "use_mla": False,
            "v_head_dim": 0,
        }
    )
    assert per_token(geometry) == 4 * 8 * (8 + 8)


@pytest.mark.parametrize("absorbed", [True, False])
def test_mla_of_a_gguf_is_absorbed_only_with_the_newer_keys(absorbed: bool) -> None:  # noqa: FBT001
    mla = {"attention__key_length_mla": 24, "attention__value_length_mla": 16} if absorbed else {}
    geometry = of_gguf(
        "deepseek2",
        attention__kv_lora_rank=32,
        attention__key_length=40 if absorbed else 24,
        attention__value_length=32 if absorbed else 16,
        rope__dimension_count=8,
        **mla,
    )
    kind = geometry.layers[0].mixer
    assert isinstance(kind, LatentAttention)
    assert (kind.absorbed, kind.key_dim, kind.value_dim) == (absorbed, 24, 16)
    assert sum(s.elements for s in kind.streams) == (32 + 8 if absorbed else 8 * (24 + 16))


def test_indexer_key_only_in_layers_with_their_own_indexer() -> None:
    geometry = of_config(
        **{
            **MLA,
            "model_type": "glm_moe_dsa",
            "index_head_dim": 4,
            "indexer_types": ["full", "shared", "shared", "full"],
        }
    )
    assert per_token(geometry) == 4 * 40 + 2 * 4


def test_compressed_attention_stores_one_row_for_many_tokens() -> None:
    geometry = of_config(
        model_type="deepseek_v4", head_dim=16, num_key_value_heads=1, sliding_window=8, index_head_dim=4,
        compress_ratios=[0, 4, 128, 4, 0], n_routed_experts=4, num_experts_per_tok=1, moe_intermediate_size=8,
    )  # fmt: skip
    kind = geometry.layers[1].mixer
    assert isinstance(kind, CompressedAttention)
    assert [(s.name, s.elements, s.tokens_per_row) for s in kind.streams] == [
        ("k", 16, 1),
        ("compressed k", 16, 4),
        ("index", 4, 4),
    ]
    assert [s.elements for s in kind.states] == [2 * 8 * 2 * 16, 2 * 8 * 2 * 4]
    assert geometry.layers[0].mixer.label == "sliding window"


# Recurrences.
def test_layer_of_a_gguf_without_kv_heads_is_a_recurrence() -> None:
    geometry = of_gguf(
        "jamba",
        attention__head_count_kv=(0, 2, 0, 0),
        ssm__conv_kernel=4,
        ssm__inner_size=128,
        ssm__state_size=16,
        ssm__time_step_rank=4,
    )
    assert kinds(geometry) == {"mamba": 3, "full attention": 1}
    state = geometry.layers[0].mixer
    assert isinstance(state, Recurrent)
    assert (state.conv_elements, state.state_elements) == (3 * 128, 16 * 128)


def test_gated_delta_is_equal_in_gguf_and_config() -> None:
    config = of_config(
        model_type="qwen3_next", full_attention_interval=4, linear_conv_kernel_dim=4, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=8,
    )  # fmt: skip
    gguf = of_gguf(
        "qwen3next", full_attention_interval=4, ssm__conv_kernel=4, ssm__group_count=2, ssm__state_size=16,
        ssm__inner_size=4 * 8, ssm__time_step_rank=4,
    )  # fmt: skip
    assert kinds(config) == kinds(gguf) == {"gated delta net": 3, "full attention": 1}
    assert config.layers[0].mixer.states == gguf.layers[0].mixer.states
    assert sum(s.elements for s in config.layers[0].mixer.states) == 3 * (32 + 2 * 2 * 16) + 16 * 32


def test_nemotron_pattern_sets_mixers_and_feed_forwards() -> None:
    geometry = of_config(
        model_type="nemotron_h", hybrid_override_pattern="M*E-", mamba_num_heads=4, mamba_head_dim=8,
        ssm_state_size=16, n_groups=2, conv_kernel=4, n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16,
    )  # fmt: skip
    assert [layer.mixer.label for layer in geometry.layers] == [
        "mamba-2",
        "full attention",
        "no cache",
        "no cache",
    ]
    assert [layer.experts is not None for layer in geometry.layers] == [False, False, True, False]
    assert geometry.layers[3].dense is not None


def test_layer_count_from_the_list_of_types() -> None:
    geometry = of_config(
        model_type="nemotron_h", num_hidden_layers=..., layers_block_type=["mamba", "attention", "mlp"],
        mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=16, n_groups=2, conv_kernel=4,
    )  # fmt: skip
    assert len(geometry.layers) == 3


def test_hybrid_layers_have_streams_and_states() -> None:
    geometry = of_gguf(
        "falcon-h1", ssm__conv_kernel=4, ssm__inner_size=64, ssm__state_size=8, ssm__group_count=1,
        ssm__time_step_rank=4,
    )  # fmt: skip
    kind = geometry.layers[0].mixer
    assert isinstance(kind, HybridLayer)
    assert sum(s.elements for s in kind.streams) == 2 * 16
    assert sum(s.elements for s in kind.states) == 3 * (64 + 2 * 8) + 8 * 64


def test_kimi_numbers_attention_layers_from_one() -> None:
    geometry = of_config(
        **{**MLA, "model_type": "kimi_linear", "n_routed_experts": ..., "num_experts": 8},
        linear_attn_config={"full_attn_layers": [4], "kda_layers": [1, 2, 3], "head_dim": 8, "num_heads": 8,
                            "short_conv_kernel_size": 4},
    )  # fmt: skip
    assert [layer.mixer.label for layer in geometry.layers] == ["kimi delta attention"] * 3 + [
        "latent attention (MLA)"
    ]


def test_mamba_model_needs_no_feed_forward() -> None:
    geometry = of_config(
        model_type="mamba2",
        intermediate_size=...,
        state_size=8,
        conv_kernel=4,
        num_heads=4,
        head_dim=32,
        n_groups=1,
    )
    assert all(layer.dense is None and layer.experts is None for layer in geometry.layers)


def test_states_of_rwkv_and_short_convolutions() -> None:
    assert (
        sum(s.elements for s in of_gguf("rwkv7", wkv__head_size=16).layers[0].mixer.states)
        == 2 * 64 + 64 * 16
    )
    lfm = of_gguf("lfm2", attention__head_count_kv=(0, 2, 0, 2), shortconv__l_cache=3)
    assert [s.elements for s in lfm.layers[0].mixer.states] == [64 * 2]


# Pruned models, prediction blocks, misleading counts.
def test_block_configs_switch_attention_off_and_set_widths() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 4, "no_op": False}, "ffn": {"ffn_mult": 1.5}},
        {"attention": {"no_op": True, "n_heads_in_group": None}, "ffn": {"no_op": True}},
    ]
    geometry = of_config(
        model_type="nemotron-nas",
        num_key_value_heads=None,
        intermediate_size=None,
        block_configs=blocks * 2,
    )
    assert [layer.mixer.label for layer in geometry.layers] == ["full attention", "no cache"] * 2
    assert attention(geometry).kv_heads == 8 // 4
    assert geometry.layers[0].dense is not None
    assert geometry.layers[0].dense.width == 256  # 2 x 1.5 x 64 / 3 = 64, rounded up to 256
    assert geometry.layers[1].dense is None


def test_mtp_blocks_are_counted_in_a_gguf_and_not_in_configs() -> None:
    assert (
        len(of_gguf("glm4moe", nextn_predict_layers=1).layers),
        of_gguf("glm4moe", nextn_predict_layers=1).mtp_layers,
    ) == (3, 1)
    geometry = of_config(model_type="glm4_moe", num_nextn_predict_layers=1)
    assert (len(geometry.layers), geometry.mtp_layers) == (4, 1)


def test_leading_dense_block_count_is_not_block_count() -> None:
    geometry = of_gguf("glm4moe", leading_dense_block_count=1, expert_count=4, expert_used_count=2)
    assert len(geometry.layers) == 4
    assert [layer.experts is not None for layer in geometry.layers] == [False, True, True, True]


def test_general_keys_of_a_gguf_are_not_hyperparameters() -> None:
    keys = {"general.architecture": "qwen2", "general.block_count": 9, "llama.block_count": 4,
            "llama.embedding_length": 64, "llama.attention.head_count": 8}  # fmt: skip
    assert len(read_geometry(gguf_header(keys)).layers) == 4


def test_llama_keys_of_a_gguf_replace_missing_ones() -> None:
    geometry = of_gguf("qwen2", attention__head_count_kv=...)
    assert attention(geometry).kv_heads == 8
    keys = {"general.architecture": "qwen2", "qwen2.block_count": 2, "llama.block_count": 9,
            "llama.embedding_length": 64, "llama.attention.head_count": 8}  # fmt: skip
    assert len(read_geometry(gguf_header(keys)).layers) == 2


def test_moe_layer_freq_may_be_a_list() -> None:
    geometry = of_config(
        model_type="mimo_v2_flash", n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        moe_layer_freq=[0, 1, 1, 0], n_shared_experts=None,
    )  # fmt: skip
    assert [layer.experts is not None for layer in geometry.layers] == [False, True, True, False]


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        ({"intermediate_size": ..., "multiple_of": 32, "ffn_dim_multiplier": 1.3}, 224),  # 170 x 1.3 = 221
        ({"model_type": "gpt2", "intermediate_size": None}, 4 * 64),
        ({"model_type": "qwen", "intermediate_size": 300}, 150),
        ({"model_type": "gla", "intermediate_size": None, "hidden_ratio": 4}, 256),
        ({"model_type": "lfm2", "layer_types": ["full_attention"] * 4, "block_ff_dim": 96, "intermediate_size": ...,
          "block_auto_adjust_ff_dim": True, "block_multiple_of": 32}, 64),
    ],
)  # fmt: skip
def test_derived_feed_forward_widths(changes: dict[str, Any], width: int) -> None:
    dense = of_config(**changes).layers[0].dense
    assert dense is not None
    assert dense.width == width


def test_encoder_has_no_cache() -> None:
    geometry = of_gguf(
        "bert", attention__causal=False, pooling_type=1, attention__head_count_kv=...
    )
    assert isinstance(geometry.layers[0].mixer, NoCache)
    assert (geometry.causal, geometry.pooling, per_token(geometry)) == (False, "mean", 0)


def test_falcon_and_chatglm_use_stated_kv_heads_only_with_their_flag() -> None:
    old = of_config(model_type="falcon", num_key_value_heads=..., num_kv_heads=8, multi_query=True)
    new = of_config(
        model_type="falcon", num_key_value_heads=..., num_kv_heads=4, new_decoder_architecture=True
    )
    assert (attention(old).kv_heads, attention(new).kv_heads) == (1, 4)
    glm = {"model_type": "chatglm", "num_key_value_heads": ..., "multi_query_group_num": 2}
    assert attention(of_config(**glm, multi_query_attention=True)).kv_heads == 2
    assert attention(of_config(**glm, multi_query_attention=False)).kv_heads == 8


def test_key_that_is_too_long_to_store_is_an_error() -> None:
    keys = {"general.architecture": "llama", "llama.block_count": 4, "llama.embedding_length": 64,
            "llama.attention.head_count": 8}  # fmt: skip
    arrays = {"llama.attention.head_count_kv": ArrayFact(element="uint32", count=5_000)}
    with pytest.raises(HeaderError, match="head_count_kv is too long"):
        read_geometry(replace(gguf_header(keys), arrays=arrays))


# Newer config keys, and families with special rules.
def test_per_layer_config_overrides_single_layers() -> None:
    geometry = of_config(
        model_type="gemma4_text",
        head_dim=8,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"] * 2,
        per_layer_config={
            "01": {"head_dim": 32, "num_key_value_heads": 1},
            "3": {"intermediate_size": 256},
        },
    )
    assert [
        (attention(geometry, i).kv_heads, attention(geometry, i).key_dim) for i in range(4)
    ] == [
        (2, 8),
        (1, 32),
        (2, 8),
        (2, 512),  # the library's default for layers with full attention
    ]
    assert [layer.dense.width for layer in geometry.layers if layer.dense] == [128, 128, 128, 256]


def test_gemma4_has_global_kv_heads_only_if_values_are_keys() -> None:
    gemma = {"model_type": "gemma4_text", "sliding_window": 16, "num_global_key_value_heads": 1,
             "layer_types": ["sliding_attention", "full_attention"] * 2}  # fmt: skip
    assert attention(of_config(**gemma, attention_k_eq_v=False), 1).kv_heads == 2
    assert attention(of_config(**gemma, attention_k_eq_v=True), 1).kv_heads == 1


def test_refined_web_is_read_as_falcon() -> None:
    old = {"num_key_value_heads": ..., "n_head_kv": 4, "multi_query": True}
    assert attention(of_config(model_type="RefinedWeb", **old)).kv_heads == 4
    assert attention(of_config(model_type="RefinedWebModel", **old)).kv_heads == 1


def test_looped_model_has_a_cache_per_round() -> None:
    looped, once = of_config(model_type="nanbeige", num_loops=3), of_config(model_type="nanbeige")
    assert (per_token(looped), looped.loops) == (3 * per_token(once), 3)
    assert count_parameters(looped) == count_parameters(once)
    assert per_token(of_gguf("nanbeige", num_loops=2)) == 2 * per_token(of_gguf("nanbeige"))


def test_longcat_has_two_attentions_per_layer() -> None:
    geometry = of_config(
        **{
            **MLA,
            "model_type": "longcat_flash",
            "num_hidden_layers": ...,
            "num_layers": 4,
            "first_k_dense_replace": ...,
            "moe_layer_freq": ...,
        }
    )
    assert per_token(geometry) == 8 * (32 + 8)
    assert [layer.experts is not None for layer in geometry.layers] == [True, False] * 4
    assert all(layer.dense is not None for layer in geometry.layers)


def test_bamba_lists_its_attention_layers() -> None:
    mamba = {
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
    }
    geometry = of_config(model_type="bamba", attn_layer_indices=[1], **mamba)
    assert kinds(geometry) == {"mamba-2": 3, "full attention": 1}
    assert kinds(of_config(model_type="bamba", **mamba)) == {"mamba-2": 4}


def test_step_lists_kv_groups_and_expert_layers() -> None:
    geometry = of_config(
        model_type="step3p5", num_key_value_heads=..., num_attention_groups=2, moe_layers_enum="1, 3",
        num_experts=4, num_experts_per_tok=1, moe_intermediate_size=16, sliding_window=8,
        layer_types=["full_attention", "sliding_attention"] * 2,
        attention_other_setting={"num_attention_heads": 4, "num_attention_groups": 1, "head_dim": 8},
    )  # fmt: skip
    assert [(attention(geometry, i).heads, attention(geometry, i).kv_heads) for i in (0, 1)] == [
        (8, 2),
        (4, 1),
    ]
    assert [layer.experts is not None for layer in geometry.layers] == [False, True, False, True]


def test_hunyuan_shares_caches_in_pairs() -> None:
    geometry = of_config(model_type="hunyuan", use_cla=True, cla_share_factor=2)
    assert [type(layer.mixer) for layer in geometry.layers] == [Attention, SharedCache] * 2


def test_compression_ratio_depends_on_the_layer_type() -> None:
    geometry = of_config(
        model_type="deepseek_v4", head_dim=16, num_key_value_heads=1, sliding_window=8, index_head_dim=4,
        layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
                     "compressed_sparse_attention"],
        compress_rates={"heavily_compressed_attention": 64}, mlp_layer_types=["hash_moe", "moe", "moe", "moe"],
        n_routed_experts=4, num_experts_per_tok=1, moe_intermediate_size=8,
    )  # fmt: skip
    assert [
        kind.ratio
        for layer in geometry.layers
        if isinstance(kind := layer.mixer, CompressedAttention)
    ] == [0, 4, 64, 4]
    assert all(layer.experts is not None for layer in geometry.layers)


@pytest.mark.parametrize(
    ("architecture", "layers", "expected"),
    [
        pytest.param("phi3", 4, {"full attention": 4}, id="phi3: llama.cpp switches it off"),
        pytest.param("starcoder2", 4, {"full attention": 4}, id="starcoder2: never read"),
        pytest.param("exaone4", 4, {"full attention": 4}, id="exaone4: only the 32B has windows"),
        pytest.param("exaone4", 64, {"sliding window": 48, "full attention": 16}, id="exaone4 32B"),
        pytest.param(
            "plamo3", 8, {"sliding window": 7, "full attention": 1}, id="plamo3: every eighth"
        ),
        pytest.param(
            "brand-new", 4, {"full attention": 4}, id="unknown: a window alone is ignored"
        ),
    ],
)
def test_sliding_windows_of_gguf_architectures(
    architecture: str, layers: int, expected: dict[str, int]
) -> None:
    assert (
        kinds(of_gguf(architecture, block_count=layers, attention__sliding_window=100)) == expected
    )


def test_gemma3n_gguf_has_twenty_cache_owners() -> None:
    geometry = of_gguf("gemma3n", block_count=30, attention__sliding_window=100)
    assert sum(isinstance(layer.mixer, SharedCache) for layer in geometry.layers) == 10


def test_negative_window_means_no_window() -> None:
    assert kinds(of_config(model_type="mistral", sliding_window=-1)) == {"full attention": 4}


def test_bidirectional_decoder_is_an_encoder() -> None:
    geometry = of_config(
        model_type="gemma3_text", sliding_window=16, use_bidirectional_attention=True
    )
    assert (geometry.causal, per_token(geometry)) == (False, 0)


def test_bidirectional_decoder_with_a_tower_is_causal() -> None:
    text = {**LLAMA, "model_type": "gemma", "use_bidirectional_attention": True}
    config = {"model_type": "paligemma", "text_config": text, "vision_config": {"depth": 2}}
    geometry = read_geometry(config_header(config))
    assert geometry.causal
    assert per_token(geometry) > 0


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        ("smollm3", True),
        ("gemma2", True),
        ("llama", False),
        ("granitemoehybrid", False),
        ("new_one", None),
    ],
)
def test_tied_embeddings_by_default(name: str, tied: bool | None) -> None:  # noqa: FBT001
    assert of_config(model_type=name).tied_embeddings is tied


def test_mtp_blocks_without_a_tensor_directory_are_modelled() -> None:
    geometry = of_gguf("glm4moe", nextn_predict_layers=1)
    assert (geometry.basis, geometry.mtp_layers) == (Basis.MODELLED, 1)
    assert of_gguf("glm4moe").basis is Basis.EXACT


def test_mla_layers_may_have_a_sliding_window() -> None:
    geometry = of_config(
        **MLA, sliding_window=16, layer_types=["sliding_attention", "full_attention"] * 2
    )
    assert [layer.mixer.streams[0].span for layer in geometry.layers] == [Span.WINDOW, Span.ALL] * 2
    assert geometry.layers[0].mixer.streams[0].span_tokens == 16


def test_nested_section_without_kv_heads_is_modelled() -> None:
    text = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    geometry = read_geometry(
        config_header({"model_type": "vlm", "text_config": {**text, "model_type": "qwen3"}})
    )
    assert geometry.basis is Basis.MODELLED
    assert "kv_heads" in geometry.because
    assert of_config(num_key_value_heads=...).basis is Basis.EXACT


def test_bert_is_gated_if_its_feed_forward_type_is_geglu() -> None:
    gated = of_config(model_type="bert", feed_forward_type="geglu").layers[0].dense
    assert gated is not None
    assert gated.gated
    plain = of_config(model_type="bert").layers[0].dense
    assert plain is not None
    assert not plain.gated


def test_unknown_architecture_without_a_vocabulary_is_an_error() -> None:
    with pytest.raises(UnknownArchitectureError, match="does not state its vocabulary"):
        of_config(model_type="brand_new", vocab_size=...)


def test_falcon_mamba_uses_its_stated_inner_width() -> None:
    geometry = of_config(
        model_type="falcon_mamba", intermediate_size=96, expand=16, state_size=4, conv_kernel=4
    )
    assert sum(s.elements for s in geometry.layers[0].mixer.states) == 3 * 96 + 4 * 96


def test_native_context_of_a_gguf_is_extended_only_by_yarn() -> None:
    stretched = of_gguf(rope__scaling__type="linear", rope__scaling__factor=4.0)
    assert stretched.native_context == 4096
    yarn: dict[str, Any] = {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 4.0,
        "rope__scaling__original_context_length": 4096,
    }
    assert of_gguf(**yarn).native_context == 4 * 4096


def test_expert_width_of_a_list_is_the_widest() -> None:
    geometry = of_config(
        model_type="ernie4_5_vl_moe",
        moe_num_experts=4,
        moe_k=1,
        moe_intermediate_size=[32, 16],
        moe_layer_interval=1,
    )
    assert geometry.layers[1].experts is not None  # the first is dense
    assert geometry.layers[1].experts.width == 32


# Unknown architectures and invalid values.
def test_unknown_architecture_with_standard_keys_is_assumed() -> None:
    geometry = of_config(model_type="brand_new")
    assert geometry.basis is Basis.ASSUMED
    assert "model/architectures.json" in geometry.because
    assert per_token(geometry) == 4 * 2 * 16


def test_unknown_architecture_with_states_is_an_error() -> None:
    with pytest.raises(UnknownArchitectureError, match=r"brand-new.*architectures\.json"):
        of_gguf("brand-new", ssm__conv_kernel=4)


def test_unknown_layer_type_is_an_error() -> None:
    with pytest.raises(HeaderError, match="warp_attention"):
        of_config(layer_types=["warp_attention"] * 4)


@pytest.mark.parametrize(
    "header",
    [
        gguf_header({"general.architecture": "clip"}),
        gguf_header({"general.architecture": "llama", "general.type": "adapter"}),
        config_header({"model_type": "whisper"}),
        config_header({"model_type": "mbart", "is_encoder_decoder": True}),
    ],
)
def test_not_a_language_model_has_a_reason(header: Any) -> None:
    assert not_a_language_model(header)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"num_hidden_layers": 2**40}, HeaderLimitError),
        ({"num_hidden_layers": -1}, HeaderError),
        ({"num_hidden_layers": 0}, HeaderError),
        ({"num_hidden_layers": "many"}, HeaderError),
        ({"hidden_size": [1, 2]}, HeaderError),
        ({"intermediate_size": ...}, UnknownArchitectureError),
        ({"rope_scaling": {"type": "linear", "factor": "many"}}, HeaderError),
        ({"rope_scaling": {"type": "linear", "factor": 10**400}}, HeaderError),
        ({"rope_scaling": {"type": "linear", "factor": float("nan")}}, HeaderError),
        (
            {"model_type": "mamba2", "conv_kernel": 4, "state_size": 4, "expand": 10**400},
            HeaderError,
        ),
        (
            {"model_type": "mamba2", "conv_kernel": 4, "state_size": 4, "expand": float("inf")},
            HeaderError,
        ),
        ({"model_type": "gla", "expand_k": float("nan")}, HeaderError),
        (
            {
                "model_type": "lfm2",
                "layer_types": ["full_attention"] * 4,
                "block_auto_adjust_ff_dim": True,
                "block_multiple_of": 0.5,
            },
            HeaderError,
        ),
        (
            {
                "block_configs": [{"attention": {}, "ffn": {"intermediate_size": "abc"}}] * 4,
                "intermediate_size": None,
            },
            HeaderError,
        ),
        ({"sliding_window": [1, 2], "model_type": "mistral"}, HeaderError),
        ({"num_local_experts": [8, 4], "model_type": "mixtral"}, HeaderError),
        ({"hidden_size": 2**63}, HeaderLimitError),
        ({"num_attention_heads": 0}, EdgekitError),
        ({"num_key_value_heads": 3}, HeaderError),
        ({"num_key_value_heads": 0}, HeaderError),
        ({"num_attention_heads": [8, 8]}, HeaderError),
        ({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 9}, HeaderError),
        (
            {"model_type": "gemma2", "sliding_window": 16, "sliding_window_pattern": "??"},
            HeaderError,
        ),
        ({"block_configs": [1]}, HeaderError),
        ({"block_configs": [{"attention": {"n_heads_in_group": 3}}] * 4}, HeaderError),
        ({"model_type": "mamba2", "conv_kernel": 0, "state_size": 4}, HeaderError),
        ({"model_type": ...}, UnknownArchitectureError),
        ({"layer_types": ["full_attention"]}, HeaderError),
        (
            {"model_type": "gemma4_text", "sliding_window": 4, "num_kv_shared_layers": 4},
            HeaderError,
        ),
    ],
)
def test_invalid_values_are_errors(changes: dict[str, Any], error: type[EdgekitError]) -> None:
    with pytest.raises(error):
        of_config(**changes)


@pytest.mark.parametrize("model_type", ["xlm-roberta", "roberta", "mpnet"])
def test_roberta_cannot_use_its_first_two_positions(model_type: str) -> None:
    """Positions are counted from the padding id + 1: bge-m3 has 8,194 rows and takes 8,192 tokens."""
    geometry = of_config(model_type=model_type, max_position_embeddings=8194)
    assert (geometry.native_context, geometry.trained_context) == (8192, 8194)
