"""Mixes on small lists of tensors: one test for each kind of rule."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from tests.recorded import config_header, gguf_header

from edgekit.engines.llamacpp.conversion import source_model
from edgekit.engines.llamacpp.quantization import (
    CONDITIONS,
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
from edgekit.formats.types import GgufTensor
from edgekit.model import read_geometry
from edgekit.units import Basis

LAYERS = 16
LLAMA = MixFacts(architecture="llama", layers=LAYERS, group=4)


def laid(name: str, *shape: int, type_: str = "F16") -> GgufTensor:
    return GgufTensor(name=name, shape=shape or (256, 512), type=by_name(type_))


def types(
    mix: str, *tensors: GgufTensor, imatrix: bool | None = None, **facts: Any
) -> dict[str, str]:
    model = MixFacts(**{"architecture": "llama", "layers": LAYERS, "group": 4, **facts})
    mixed = quantize(in_order(tensors), mix, model, imatrix=imatrix)
    return {tensor.name: tensor.type.name for tensor in mixed}


def in_layers(part: str, mix: str, **more: Any) -> list[str]:
    """The type of that tensor, layer by layer."""
    tensors = [laid(f"blk.{i}.{part}.weight") for i in range(LAYERS)]
    result = types(mix, *tensors, **more)
    return [result[f"blk.{i}.{part}.weight"] for i in range(LAYERS)]


def test_q4_k_m_gives_more_bits_to_the_first_the_last_and_every_third_layer() -> None:
    more = [0, 1, 4, 7, 10, 13, 14, 15]
    expected = ["Q6_K" if layer in more else "Q4_K" for layer in range(LAYERS)]
    assert in_layers("ffn_down", "Q4_K_M") == expected
    assert in_layers("attn_v", "Q4_K_M") == expected
    assert in_layers("attn_q", "Q4_K_M") == ["Q4_K"] * LAYERS


def test_layers_without_a_feed_forward_are_not_counted() -> None:
    """llama-quantize counts what it meets; only with experts it goes by the layer's number."""
    odd = [laid(f"blk.{i}.ffn_down.weight") for i in range(1, LAYERS, 2)]
    assert [*types("Q4_K_S", *odd).values()] == ["Q5_K"] * 2 + ["Q4_K"] * 6
    assert [*types("Q4_K_S", *odd, experts=16).values()] == ["Q5_K"] + ["Q4_K"] * 7


def test_output_and_embedding() -> None:
    both = (laid("output.weight"), laid("token_embd.weight"))
    assert types("Q4_K_M", *both) == {"output.weight": "Q6_K", "token_embd.weight": "Q4_K"}
    assert types("Q4_K_M", both[1], tied=True) == {"token_embd.weight": "Q6_K"}
    assert types("Q8_0", *both) == {"output.weight": "Q8_0", "token_embd.weight": "Q8_0"}
    assert types("IQ2_M", *both) == {"output.weight": "Q5_K", "token_embd.weight": "IQ3_S"}


@pytest.mark.parametrize(
    ("row", "mix", "stand_in"),
    [
        (2880, "Q4_K_M", "Q5_0"),  # gpt-oss: no multiple of 256
        (2880, "Q5_K_S", "Q5_1"),
        (2880, "Q6_K", "Q8_0"),
        (2880, "Q2_K_S", "Q4_0"),
        (2880, "IQ4_XS", "IQ4_NL"),
        (2880, "Q8_0", "Q8_0"),  # a multiple of 32
        (100, "Q8_0", "F16"),  # of nothing
        (100, "Q4_K_M", "F16"),
    ],
)
def test_a_row_that_blocks_do_not_divide(row: int, mix: str, stand_in: str) -> None:
    assert types(mix, laid("blk.9.attn_q.weight", 64, row)) == {"blk.9.attn_q.weight": stand_in}


def test_a_type_without_a_fallback_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"no fallback for Q1_0 in blk\.0\.attn_q\.weight"):
        types("Q1_0", laid("blk.0.attn_q.weight", 64, 100))


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
    assert types("Q4_K_M", laid(name, type_="F32")) == {name: "F32"}


def test_vectors_are_not_quantised() -> None:
    for shape in ((512,), (1, 512)):
        assert types("Q4_K_M", laid("blk.0.x.weight", *shape)) == {"blk.0.x.weight": "F16"}


def test_mixtral_gets_more_bits_for_its_small_attention() -> None:
    assert in_layers("attn_v", "Q4_K_M", experts=8) == ["Q8_0"] * LAYERS
    assert in_layers("attn_k", "Q4_K_M", experts=8) == ["Q8_0"] * LAYERS
    assert in_layers("attn_output", "Q4_K_M", experts=8) == ["Q5_K"] * LAYERS


def test_the_70b_gets_more_bits_for_its_small_values() -> None:
    assert set(in_layers("attn_v", "Q4_K_S", seventy=True)) == {"Q5_K"}
    keys = {"general.architecture": "llama", "llama.block_count": 80}
    shared = {"llama.attention.head_count": 64, "llama.attention.head_count_kv": 8}
    alone = {"llama.attention.head_count": 64}
    assert facts_of_header(gguf_header({**keys, **shared})).seventy
    assert not facts_of_header(gguf_header({**keys, **alone})).seventy  # the 65B


def test_mxfp4_is_for_experts() -> None:
    result = types("MXFP4_MOE", laid("blk.0.ffn_up_exps.weight", 4, 64, 64), laid("output.weight"))
    assert result == {"blk.0.ffn_up_exps.weight": "MXFP4", "output.weight": "Q8_0"}


def test_an_importance_matrix_changes_some_mixes() -> None:
    assert in_layers("ffn_down", "IQ4_XS")[0] == "Q5_K"
    assert in_layers("ffn_down", "IQ4_XS", imatrix=True)[0] == "IQ4_XS"
    assert in_layers("ffn_down", "Q4_0", imatrix=True)[0] == "Q4_1"
    # Cannot be made without one, so it is taken for granted.
    assert in_layers("ffn_down", "IQ3_XXS")[0] == "IQ3_XXS"
    assert in_layers("ffn_down", "IQ3_XXS", imatrix=False)[0] == "Q4_K"


def test_sizes_are_rows_of_blocks() -> None:
    (mixed,) = quantize(in_order([laid("blk.5.attn_q.weight", 3, 512)]), "Q4_K_M", LLAMA)
    assert mixed.size_bytes == 3 * 2 * 144


def test_an_unknown_mix_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match=r"unknown quantisation 'Q4_K_XXL'; choose one of .*Q4_K_M"
    ):
        mix_row("Q4_K_XXL")
    assert mix_row("q4_k").name == "Q4_K_M"


def test_every_named_mix_has_rules() -> None:
    assert {mix.name for mix in all_mixes()} - mix_rows().keys() == {
        "NVFP4"
    }  # only converters make it


def test_directory_tensors_needs_the_whole_header() -> None:
    with pytest.raises(UsageError, match="needs a GGUF file with its whole header"):
        directory_tensors(gguf_header({"general.architecture": "llama"}))


def test_a_mix_of_a_config_is_modelled() -> None:
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


def test_every_condition_and_every_field_is_used_by_a_record() -> None:
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
