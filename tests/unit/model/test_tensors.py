"""The tensors a model has, on configs so small that every number can be checked by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.recorded import config_header, gguf_header

from edgekit.errors import HeaderError, UnknownArchitectureError
from edgekit.model import read_geometry
from edgekit.model.tensor_recipes import ExpectedTensor, TensorKind, TensorRole
from edgekit.model.tensors import expected_tensors, prediction_tensors

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 160,
    "max_position_embeddings": 512,
    "vocab_size": 1000,
}
MLA = {
    "model_type": "deepseek_v3",
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
}


def tensors(**changes: Any) -> tuple[ExpectedTensor, ...]:
    config = {**LLAMA, **changes}
    return expected_tensors(read_geometry(config_header(config)), config)


def shapes(
    rows: tuple[ExpectedTensor, ...], role: TensorRole, kind: TensorKind | None = None
) -> list[tuple[int, ...]]:
    return [row.shape for row in rows if row.role is role and kind in {None, row.kind}]


def count(rows: tuple[ExpectedTensor, ...]) -> int:
    return sum(row.elements for row in rows)


def test_llama_has_two_embedding_tables_and_nine_tensors_per_layer() -> None:
    rows = tensors()
    layer = (64 * 64, 16 * 64, 16 * 64, 64 * 64, 3 * 64 * 160, 64, 64)
    assert count(rows) == 2 * 1000 * 64 + 2 * sum(layer) + 64
    assert Counter(row.layer for row in rows) == {None: 3, 0: 9, 1: 9}
    assert shapes(rows, TensorRole.KEY) == [(16, 64), (16, 64)]
    assert shapes(rows, TensorRole.DOWN) == [(64, 160), (64, 160)]


def test_tied_output_head_has_no_tensor() -> None:
    assert shapes(tensors(), TensorRole.HEAD) == [(1000, 64)]
    assert shapes(tensors(tie_word_embeddings=True), TensorRole.HEAD) == []


def test_biases_follow_the_config() -> None:
    biased = tensors(attention_bias=True)
    assert shapes(biased, TensorRole.QUERY, TensorKind.BIAS) == [(64,), (64,)]
    assert shapes(biased, TensorRole.OUTPUT, TensorKind.BIAS) == [(64,), (64,)]
    assert count(biased) - count(tensors()) == 2 * (64 + 16 + 16 + 64)
    always = tensors(model_type="qwen2")
    assert shapes(always, TensorRole.VALUE, TensorKind.BIAS) == [(16,), (16,)]
    assert shapes(always, TensorRole.OUTPUT, TensorKind.BIAS) == []


@pytest.mark.parametrize(
    ("model_type", "more", "widths"),
    [
        ("qwen3", {"head_dim": 8}, {8}),  # one head, shared by all
        ("olmo2", {}, {64, 16}),  # all heads together
        ("cohere", {"use_qk_norm": True}, {64, 16}),
        ("cohere", {}, set()),
    ],
)
def test_norms_of_queries_and_keys(model_type: str, more: dict[str, Any], widths: set[int]) -> None:
    rows = tensors(model_type=model_type, **more)
    roles = {TensorRole.QUERY, TensorRole.KEY}
    result = {row.elements for row in rows if row.kind is TensorKind.NORM and row.role in roles}
    assert result == widths


@pytest.mark.parametrize(
    ("model_type", "norms"), [("llama", 2), ("cohere", 1), ("gemma2", 4), ("olmo", 0)]
)
def test_number_of_norms_per_layer(model_type: str, norms: int) -> None:
    rows = tensors(model_type=model_type)
    assert len([r for r in rows if r.role is TensorRole.NORM and r.layer == 0]) == norms


def test_experts_of_a_layer_are_one_row_with_a_count() -> None:
    rows = tensors(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2)
    (up, _) = [row for row in rows if row.role is TensorRole.EXPERT_UP]
    assert (up.shape, up.count, up.elements) == ((160, 64), 4, 4 * 160 * 64)
    assert up.kind is TensorKind.EXPERT
    assert shapes(rows, TensorRole.ROUTER) == [(4, 64), (4, 64)]
    assert shapes(rows, TensorRole.GATE) == []


def test_tensors_of_latent_attention_and_a_leading_dense_layer() -> None:
    rows = tensors(**MLA)
    assert shapes(rows, TensorRole.QUERY_DOWN) == [(48, 64), (48,)] * 2  # with its norm
    assert shapes(rows, TensorRole.QUERY_UP) == [(8 * 24, 48)] * 2
    assert shapes(rows, TensorRole.LATENT_DOWN) == [(32 + 8, 64), (32,)] * 2
    assert shapes(rows, TensorRole.LATENT_UP) == [(8 * (16 + 16), 32)] * 2
    assert shapes(rows, TensorRole.OUTPUT) == [(64, 8 * 16)] * 2
    assert shapes(rows, TensorRole.GATE) == [(160, 64)]
    assert shapes(rows, TensorRole.ROUTER, TensorKind.RAW) == [(4, 64)]
    assert shapes(rows, TensorRole.ROUTER, TensorKind.BIAS) == [(4,)]


def test_indexer_reads_the_compressed_queries() -> None:
    sparse = {**MLA, "model_type": "deepseek_v32", "index_head_dim": 16, "index_n_heads": 2}
    rows = tensors(**sparse)
    assert shapes(rows, TensorRole.INDEX_QUERY) == [(2 * 16, 48)] * 2
    assert shapes(rows, TensorRole.INDEX_KEY, TensorKind.LINEAR) == [(16, 64)] * 2
    with pytest.raises(UnknownArchitectureError, match="index_n_heads"):
        tensors(**{**sparse, "index_n_heads": None})


def test_tensors_of_a_mamba2_layer() -> None:
    rows = tensors(
        model_type="bamba",
        mamba_n_heads=4,
        mamba_d_head=32,
        mamba_d_state=16,
        mamba_n_groups=1,
        mamba_d_conv=4,
        attn_layer_indices=[1],
    )
    inner, conv = 4 * 32, 4 * 32 + 2 * 16
    assert shapes(rows, TensorRole.STATE_IN) == [(2 * inner + 2 * 16 + 4, 64)]
    assert shapes(rows, TensorRole.CONV) == [(conv, 4), (conv,)]
    assert shapes(rows, TensorRole.STATE_OUT) == [(64, inner)]
    assert shapes(rows, TensorRole.STATE_NORM) == [(inner,)]
    assert [row.layer for row in rows if row.role is TensorRole.QUERY] == [1]


def test_gpt_oss_has_attention_sinks_and_biases_in_its_experts() -> None:
    rows = tensors(
        model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2, sliding_window=128
    )
    down = [r for r in rows if r.role is TensorRole.EXPERT_DOWN and r.kind is TensorKind.BIAS]
    assert [(row.shape, row.count) for row in down] == [((64,), 4)] * 2
    assert shapes(rows, TensorRole.SINKS) == [(8,), (8,)]


def test_rounds_of_a_looped_model_share_their_weights() -> None:
    assert count(tensors(model_type="nanbeige", num_loops=3)) == count(tensors())


def test_prediction_blocks_are_listed_separately() -> None:
    config = {**LLAMA, **MLA, "num_nextn_predict_layers": 1}
    geometry = read_geometry(config_header(config))
    rows = prediction_tensors(geometry, config)
    assert {row.layer for row in rows} == {2}
    assert shapes(rows, TensorRole.PREDICTION) == [(64, 128)]
    layer = [row for row in expected_tensors(geometry, config) if row.layer == 1]
    assert count(rows) == count(tuple(layer)) + 64 * 128 + 3 * 64


def test_unknown_vocabulary_or_output_head_is_an_error() -> None:
    geometry = read_geometry(config_header(LLAMA))
    with pytest.raises(UnknownArchitectureError, match="vocabulary"):
        expected_tensors(replace(geometry, vocabulary=None))
    with pytest.raises(UnknownArchitectureError, match="output head"):
        expected_tensors(replace(geometry, tied_embeddings=None))


def test_recurrence_without_known_tensors_is_an_error() -> None:
    keys = {
        "general.architecture": "rwkv6",
        "rwkv6.block_count": 2,
        "rwkv6.embedding_length": 64,
        "rwkv6.feed_forward_length": 128,
        "rwkv6.wkv.head_size": 16,
        "rwkv6.vocab_size": 1000,
    }
    geometry = replace(read_geometry(gguf_header(keys)), tied_embeddings=False)
    with pytest.raises(UnknownArchitectureError, match=r"rwkv .* model/tensors.py"):
        expected_tensors(geometry)


@pytest.mark.parametrize("value", [-1, 2**40, "many", 1.5])
def test_invalid_number_of_index_heads_is_an_error(value: object) -> None:
    config = {**LLAMA, **MLA, "model_type": "deepseek_v32", "index_head_dim": 16}
    geometry = read_geometry(config_header(config))
    with pytest.raises(HeaderError, match="index_n_heads"):
        expected_tensors(geometry, {**config, "index_n_heads": value})
