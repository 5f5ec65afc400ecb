"""The GGUF that a config.json becomes, compared with headers that llama.cpp accepts."""

from __future__ import annotations

from typing import Any

import pytest
from tests.recorded import further_model

from edgekit.bill.types import Component
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.conversion import convert
from edgekit.engines.llamacpp.setups import read_row
from edgekit.model import open_config
from edgekit.model.types import Model

ANY = {"max_position_embeddings": 32_768, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}


def layer_types(count: int, other: str, full: str = "full_attention") -> list[str]:
    """Every fourth layer has full attention."""
    return [full if (layer + 1) % 4 == 0 else other for layer in range(count)]


# The file of headers_more with the same widths -> a config.json as the model's publisher would write it.
CONFIGS: dict[str, dict[str, Any]] = {
    "muse-glimmer-small": {
        "model_type": "muse_glimmer_text",
        "hidden_size": 2048,
        "num_hidden_layers": 12,
        "intermediate_size": 6144,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 202_048,
        "sliding_window": 1024,
    },
    "talkie-scaled-small": {
        "model_type": "talkie",
        "hidden_size": 5120,
        "num_hidden_layers": 10,
        "intermediate_size": 13_824,
        "num_attention_heads": 40,
        "num_key_value_heads": 40,
        "head_dim": 128,
        "vocab_size": 65_536,
    },
    "hrm-text-1b": {
        "model_type": "hrm_text",
        "hidden_size": 1536,
        "num_hidden_layers": 16,
        "num_layers_per_stack": 16,
        "H_cycles": 2,
        "L_cycles": 3,
        "intermediate_size": 4096,
        "vocab_size": 65_536,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "head_dim": 128,
    },
    "hy-v4-indexed-small": {
        "model_type": "hy_v4",
        **LATENT,
        "hidden_size": 4096,
        "num_hidden_layers": 12,
        "intermediate_size": 12_288,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "q_lora_rank": 1024,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 64,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "vocab_size": 129_280,
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 512,
        "hc_mult": 4,
        "indexer_types": ["shared" if layer % 4 else "full" for layer in range(12)],
    },
    "qwen4-exp-small": {
        "model_type": "qwen4_exp_text",
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "vocab_size": 248_320,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "layer_types": layer_types(16, "linear_attention"),
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "hc_count": 4,
        "hc_lowrank": 64,
        "indexer_n_heads": 4,
        "indexer_head_dim": 128,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 4,
        "ple_layer_ids": [2],
        "ngram_size": 3,
        "heads_per_ngram": 4,
        "ple_conv_kernel_size": 4,
    },
    "glm5-next-unshared-small": {
        "model_type": "glm5_next_text",
        **LATENT,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 0,
        "hidden_size": 3072,
        "num_hidden_layers": 9,
        "intermediate_size": 12_288,
        "num_attention_heads": 24,
        "num_key_value_heads": 24,
        "q_lora_rank": 1536,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 64,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "vocab_size": 154_880,
        "layer_types": layer_types(9, "linear_attention", "deepseek_sparse_attention"),
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 2048,
        "index_kpool": 4,
        "hc_mult": 4,
        "linear_attn_config": {"num_heads": 24, "head_dim": 128, "short_conv_kernel_size": 4},
    },
    "kimi-k3-small": {
        "model_type": "kimi_linear",
        **LATENT,
        "hidden_size": 7168,
        "num_hidden_layers": 29,
        "intermediate_size": 33_792,
        "num_attention_heads": 96,
        "num_key_value_heads": 96,
        "q_lora_rank": 1536,
        "moe_intermediate_size": 3072,
        "num_experts": 64,
        "num_experts_per_token": 16,
        "num_shared_experts": 2,
        "first_k_dense_replace": 1,
        "vocab_size": 163_840,
        "routed_expert_hidden_size": 3584,
        "latent_moe_use_norm": True,
        "attn_res_block_size": 12,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "activation_situ_linear_beta": 25.0,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "linear_attn_config": {
            "num_heads": 96,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
            "use_full_rank_gate": True,
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 28, 29],
        },
    },
}
# Made by the converter from constants, not from tensors of the original.
SYNTHESISED = {"muse-glimmer-small": {"attn_q_norm.weight", "attn_k_norm.weight"}}
LOADS = (
    {"n_ctx": 4096},
    {"n_ctx": 8192, "n_seq_max": 4, "kv_unified": True, "n_outputs_max": 4},
)
PARTS = (
    Component.KV_CACHE,
    Component.SLIDING_KV_CACHE,
    Component.STATE,
    Component.OUTPUT,
    Component.COMPUTE,
)


def accepted(name: str) -> Model:
    return further_model(f"{name}.Q4_K_M", 2**42)


@pytest.mark.parametrize("name", CONFIGS)
def test_converted_config_has_the_tensors_of_an_accepted_file(name: str) -> None:
    made = convert(open_config({**ANY, **CONFIGS[name]}).model, "F16").model
    expected = accepted(name)
    assert made.geometry.architecture == expected.geometry.architecture
    names = {tensor.name for tensor in made.header.tensors or ()}
    missing = {tensor.name for tensor in expected.header.tensors or ()} - names
    assert {part.split(".", 2)[2] for part in missing} == SYNTHESISED.get(name, set())
    assert not names - {tensor.name for tensor in expected.header.tensors or ()}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("load", LOADS)
def test_converted_config_has_the_caches_and_the_graph_of_an_accepted_file(
    name: str, load: dict[str, Any]
) -> None:
    options = {**load, "llama_version": "0.6"}
    of_config, of_file = (
        llamacpp.estimate(model, *read_row(options, "cpu"))
        for model in (open_config({**ANY, **CONFIGS[name]}).model, accepted(name))
    )
    assert {part: of_config.of(part) for part in PARTS} == {
        part: of_file.of(part) for part in PARTS
    }


MOE = {
    "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 4096,
}  # fmt: skip


def test_prediction_blocks_that_llama_cpp_cannot_load_are_not_converted() -> None:
    """src/models/minimax-m2.cpp @ b21e4de has no NextN tensors; with three blocks more b11549 refused the file."""
    config = {"model_type": "minimax_m2", **MOE, "num_local_experts": 8, "num_experts_per_tok": 2,
              "use_mtp": True, "num_mtp_modules": 3}  # fmt: skip
    model = open_config(config).model
    assert model.geometry.mtp_layers == 3
    converted = convert(model, "Q8_0").model
    assert converted.header.keys["minimax-m2.block_count"] == 6
    assert {
        tensor.name.split(".")[1]
        for tensor in converted.header.tensors or ()
        if tensor.name.startswith("blk.")
    } == set("012345")


def test_mimo_keeps_its_sliding_windows() -> None:
    """conversion/mimo.py @ b21e4de writes the window and its pattern; the cache of a window has 128 + 512 cells."""
    config = {
        "model_type": "mimo_v2_flash", **MOE, "head_dim": 16, "v_head_dim": 16, "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4, "swa_head_dim": 16, "swa_v_head_dim": 16, "sliding_window": 128,
        "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0], "moe_layer_freq": [0, 1, 1, 1, 1, 1],
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    }  # fmt: skip
    load, setup = read_row({"n_ctx": 4096, "n_seq_max": 1}, "cpu")
    bill = llamacpp.estimate(open_config(config).model, load, setup)
    assert bill.of(Component.KV_CACHE) == 2 * 4096 * 2 * (16 + 16) * 2  # 2 layers, 2 KV heads
    assert bill.of(Component.SLIDING_KV_CACHE) == 4 * 768 * 4 * (16 + 16) * 2  # padded to 256
