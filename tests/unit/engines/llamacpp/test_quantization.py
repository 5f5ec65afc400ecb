"""The type that each mix gives to a tensor, on small lists of tensors."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from tests.recorded import config_header, gguf_header

from edgekit.engines.llamacpp.conversion import source_model
from edgekit.engines.llamacpp.quantization import (
    CONDITIONS,
    KEPT_WITHIN,
    MixFacts,
    MixRow,
    directory_tensors,
    facts_of_header,
    in_order,
    mix_row,
    mix_rows,
    quantize,
)
from edgekit.errors import RefusedError, UsageError
from edgekit.formats.dtype import by_name
from edgekit.formats.mixes import all_mixes, mix_records
from edgekit.formats.types import GgufTensor, ModelHeader
from edgekit.model import read_geometry
from edgekit.units import Basis

LAYERS = 16
LLAMA = MixFacts(architecture="llama", layers=LAYERS, group=4)


def tensor(name: str, *shape: int, type_: str = "F16") -> GgufTensor:
    return GgufTensor(name=name, shape=shape or (256, 512), type=by_name(type_))


def types_at(
    mix: str, *tensors: GgufTensor, imatrix: bool | None = None, **facts: Any
) -> dict[str, str]:
    model = MixFacts(**{"architecture": "llama", "layers": LAYERS, "group": 4, **facts})
    mixed = quantize(in_order(tensors), mix, model, imatrix=imatrix)
    return {item.name: item.type.name for item in mixed}


def types_in_layers(part: str, mix: str, **more: Any) -> list[str]:
    """The type of this tensor in each layer."""
    tensors = [tensor(f"blk.{i}.{part}.weight") for i in range(LAYERS)]
    result = types_at(mix, *tensors, **more)
    return [result[f"blk.{i}.{part}.weight"] for i in range(LAYERS)]


def test_q4_k_m_gives_more_bits_to_first_last_and_every_third_layers() -> None:
    more = [0, 1, 4, 7, 10, 13, 14, 15]
    expected = ["Q6_K" if layer in more else "Q4_K" for layer in range(LAYERS)]
    assert types_in_layers("ffn_down", "Q4_K_M") == expected
    assert types_in_layers("attn_v", "Q4_K_M") == expected
    assert types_in_layers("attn_q", "Q4_K_M") == ["Q4_K"] * LAYERS


def test_layers_without_a_feed_forward_are_not_counted() -> None:
    """llama-quantize counts the tensors of this kind; only with experts does it use the layer's number."""
    odd = [tensor(f"blk.{i}.ffn_down.weight") for i in range(1, LAYERS, 2)]
    assert [*types_at("Q4_K_S", *odd).values()] == ["Q5_K"] * 2 + ["Q4_K"] * 6
    assert [*types_at("Q4_K_S", *odd, experts=16).values()] == ["Q5_K"] + ["Q4_K"] * 7


def test_types_of_output_and_embedding() -> None:
    output, embedding = tensor("output.weight"), tensor("token_embd.weight")
    assert types_at("Q4_K_M", output, embedding) == {
        "output.weight": "Q6_K",
        "token_embd.weight": "Q4_K",
    }
    assert types_at("Q4_K_M", embedding, tied=True) == {"token_embd.weight": "Q6_K"}
    assert types_at("Q8_0", output, embedding) == {
        "output.weight": "Q8_0",
        "token_embd.weight": "Q8_0",
    }
    assert types_at("IQ2_M", output, embedding) == {
        "output.weight": "Q5_K",
        "token_embd.weight": "IQ3_S",
    }


@pytest.mark.parametrize(
    ("row", "mix", "fallback"),
    [
        (2880, "Q4_K_M", "Q5_0"),  # gpt-oss: not a multiple of 256
        (2880, "Q5_K_S", "Q5_1"),
        (2880, "Q6_K", "Q8_0"),
        (2880, "Q2_K_S", "Q4_0"),
        (2880, "IQ4_XS", "IQ4_NL"),
        (2880, "Q8_0", "Q8_0"),  # a multiple of 32
        (100, "Q8_0", "F16"),  # not a multiple of 32 either
        (100, "Q4_K_M", "F16"),
    ],
)
def test_row_that_blocks_do_not_divide_gets_a_fallback_type(
    row: int, mix: str, fallback: str
) -> None:
    assert types_at(mix, tensor("blk.9.attn_q.weight", 64, row)) == {
        "blk.9.attn_q.weight": fallback
    }


def test_type_without_a_fallback_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"no fallback for Q1_0 in blk\.0\.attn_q\.weight"):
        types_at("Q1_0", tensor("blk.0.attn_q.weight", 64, 100))


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_norm.weight",
        "blk.0.ffn_gate_inp.weight",
        "blk.0.ssm_conv1d.weight",
        "position_embd.weight",
        "token_types.weight",
        "per_layer_model_proj.weight",
        "blk.0.ffn_up_exps.bias",
    ],
)
def test_small_and_sensitive_tensors_are_not_quantised(name: str) -> None:
    assert types_at("Q4_K_M", tensor(name, type_="F32")) == {name: "F32"}


def test_vectors_are_not_quantised() -> None:
    for shape in ((512,), (1, 512)):
        assert types_at("Q4_K_M", tensor("blk.0.x.weight", *shape)) == {"blk.0.x.weight": "F16"}


def test_eight_experts_get_more_bits_for_their_small_attention() -> None:
    assert types_in_layers("attn_v", "Q4_K_M", experts=8) == ["Q8_0"] * LAYERS
    assert types_in_layers("attn_k", "Q4_K_M", experts=8) == ["Q8_0"] * LAYERS
    assert types_in_layers("attn_output", "Q4_K_M", experts=8) == ["Q5_K"] * LAYERS


def test_llama_70b_gets_more_bits_for_its_small_values() -> None:
    assert set(types_in_layers("attn_v", "Q4_K_S", seventy=True)) == {"Q5_K"}
    keys = {"general.architecture": "llama", "llama.block_count": 80}
    grouped = {"llama.attention.head_count": 64, "llama.attention.head_count_kv": 8}
    ungrouped = {"llama.attention.head_count": 64}
    assert facts_of_header(gguf_header({**keys, **grouped})).seventy
    assert not facts_of_header(gguf_header({**keys, **ungrouped})).seventy  # LLaMA 65B


def test_mxfp4_moe_uses_mxfp4_only_for_experts() -> None:
    result = types_at(
        "MXFP4_MOE", tensor("blk.0.ffn_up_exps.weight", 4, 64, 64), tensor("output.weight")
    )
    assert result == {"blk.0.ffn_up_exps.weight": "MXFP4", "output.weight": "Q8_0"}


def test_importance_matrix_changes_some_mixes() -> None:
    assert types_in_layers("ffn_down", "IQ4_XS")[0] == "Q5_K"
    assert types_in_layers("ffn_down", "IQ4_XS", imatrix=True)[0] == "IQ4_XS"
    assert types_in_layers("ffn_down", "Q4_0", imatrix=True)[0] == "Q4_1"
    # llama-quantize requires one for IQ3_XXS, so it is the default there.
    assert types_in_layers("ffn_down", "IQ3_XXS")[0] == "IQ3_XXS"
    assert types_in_layers("ffn_down", "IQ3_XXS", imatrix=False)[0] == "Q4_K"


def test_size_of_a_quantised_tensor() -> None:
    (mixed,) = quantize(in_order([tensor("blk.5.attn_q.weight", 3, 512)]), "Q4_K_M", LLAMA)
    assert mixed.size_bytes == 3 * 2 * 144


def test_unknown_mix_names_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match=r"unknown quantisation 'Q4_K_XXL'; choose one of .*Q4_K_M"
    ):
        mix_row("Q4_K_XXL")


def test_mix_row_by_an_alias() -> None:
    assert mix_row("q4_k").name == "Q4_K_M"


def test_every_mix_except_nvfp4_has_rules() -> None:
    assert {mix.name for mix in all_mixes()} - mix_rows().keys() == {
        "NVFP4"
    }  # only converters produce it


def test_directory_tensors_needs_the_complete_header() -> None:
    with pytest.raises(UsageError, match="needs a GGUF file with its whole header"):
        directory_tensors(gguf_header({"general.architecture": "llama"}))


def test_mix_of_a_config_is_modelled() -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 512,
        "vocab_size": 1000,
        "tie_word_embeddings": True,
    }
    header = config_header(config)
    mixed = source_model(header, read_geometry(header)).at_mix("Q8_0")
    matrices = 1000 * 256 + 2 * (4 * 256 * 256 + 3 * 256 * 512)
    assert mixed.tensor_bytes == matrices * 34 // 32 + 5 * 256 * 4
    assert mixed.basis is Basis.MODELLED
    assert "llama" in mixed.because


def test_every_condition_and_field_is_used_by_a_record() -> None:
    sections = [record["llamacpp"] for record in mix_records() if "llamacpp" in record]
    used = {key for section in sections for key in section}
    assert used == {item.name for item in fields(MixRow)} - {"name"}
    cases = [
        case
        for section in sections
        for item in section.values()
        if isinstance(item, list)
        for case in item
    ]
    assert {name for *names, _ in cases for name in names} == CONDITIONS.keys()
    assert {by_name(type_).name for *_, type_ in cases if type_}


GPT_OSS = config_header(
    {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "vocab_size": 201088,
        "quantization_config": {"quant_method": "mxfp4"},
    }
)
EXPERT_WEIGHTS = 24 * 3 * 32 * 2880 * 2880  # layers x gate, up and down x experts x their shape
MXFP4_BYTES = 17 / 32  # a block has 32 weights of 4 bits and a scale of one byte


def gpt_oss_bytes(mix: str, header: ModelHeader = GPT_OSS) -> int:
    return source_model(header, read_geometry(header)).at_mix(mix).tensor_bytes


@pytest.mark.parametrize(
    ("mix", "published"),  # GiB of unsloth/gpt-oss-safeguard-20b-GGUF, as its page rounds them
    [("F16", 12.8), ("Q8_0", 11.3), ("Q6_K", 11.2), ("Q5_K_M", 10.9), ("Q4_K_M", 10.8), ("Q4_1", 10.8),
     ("Q4_0", 10.7), ("Q3_K_M", 10.7), ("Q2_K", 10.7)],
)  # fmt: skip
def test_experts_released_in_mxfp4_stay_mxfp4_at_every_mix(mix: str, published: float) -> None:
    mixed = source_model(GPT_OSS, read_geometry(GPT_OSS)).at_mix(mix)
    experts = [tensor for tensor in mixed.tensors if tensor.name.endswith("_exps.weight")]
    assert {tensor.type.name for tensor in experts} == {"MXFP4"}
    assert sum(tensor.size_bytes for tensor in experts) == EXPERT_WEIGHTS * MXFP4_BYTES
    header_bytes = 13_007_296  # ggml-org/gpt-oss-20b-GGUF: 12,109,565,632 bytes in all
    assert round((mixed.tensor_bytes + header_bytes) / 1024**3, 1) == published
    assert mixed.basis is Basis.MODELLED


def test_other_makers_files_are_within_the_bound_of_kept_experts() -> None:
    """bartowski/openai_gpt-oss-20b-GGUF, rounded to 0.1 GiB, gives other tensors more bits."""
    for mix, published in {"Q4_K_M": 10.9, "Q3_K_M": 10.8, "IQ4_XS": 10.8, "Q2_K": 10.8}.items():
        computed = (gpt_oss_bytes(mix) + 13_007_296) / 1024**3
        assert (published + 0.05) / computed - 1 < KEPT_WITHIN


def test_experts_released_in_16_bits_are_quantised() -> None:
    """gabriellarson/Huihui-gpt-oss-20b-BF16-abliterated-GGUF: F16 39.0 GiB, Q4_K_M 14.7, MXFP4_MOE 11.3."""
    header = replace(GPT_OSS, quantization=None)
    sizes = {mix: gpt_oss_bytes(mix, header) / 1024**3 for mix in ("F16", "Q4_K_M", "MXFP4_MOE")}
    assert {mix: round(size, 1) for mix, size in sizes.items()} == {
        "F16": 39.0,
        "Q4_K_M": 14.7,
        "MXFP4_MOE": 11.3,
    }
    assert gpt_oss_bytes("MXFP4_MOE", header) == gpt_oss_bytes("MXFP4_MOE")
