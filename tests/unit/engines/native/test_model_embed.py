"""read_model of embedding models: each header that the encoder cannot compute correctly has its own error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.embed_models import write_model

from edgekit.engines.native.families import FAMILIES, ModelUse
from edgekit.engines.native.file import FileHeader, Limits, WeightFile, scan_header
from edgekit.engines.native.layers import alibi_slopes
from edgekit.engines.native.model import read_model
from edgekit.errors import (
    HeaderError,
    HeaderLimitError,
    UnknownArchitectureError,
    WeightsError,
)
from edgekit.formats.dtype import by_name
from edgekit.formats.types import Tensor


def header_of(tmp_path: Path, architecture: str, **shape: Any) -> FileHeader:
    path = write_model(tmp_path / "model.gguf", architecture, **shape)
    with WeightFile(path, Limits()) as file:
        return scan_header(file)


def with_keys(header: FileHeader, **keys: Any) -> FileHeader:
    """The header with other keys; None removes a key. head_count=3 -> {architecture}.head_count."""
    name = header.keys["general.architecture"]
    changed = {f"{name}.{key.replace('__', '.')}": value for key, value in keys.items()}
    merged = {**header.keys, **changed}
    return replace(header, keys={key: value for key, value in merged.items() if value is not None})


def with_tensor(header: FileHeader, name: str, shape: tuple[int, ...] | None) -> FileHeader:
    """The header with a tensor of that shape; None removes the tensor."""
    tensors = dict(header.tensors)
    if shape is None:
        del tensors[name]
    else:
        f32 = by_name("F32")
        tensors[name] = Tensor(name=name, type=f32, shape=shape, size_bytes=4, offset=0)
    return replace(header, tensors=tensors)


@pytest.mark.parametrize(
    "family",
    [family for family in FAMILIES if ModelUse.EMBED in family.uses],
    ids=lambda family: family.architecture,
)
def test_read_model_of_every_family(family: Any, tmp_path: Path) -> None:
    model = read_model(header_of(tmp_path, family.architecture))
    assert model.family is family
    assert model.causal is family.causal
    assert (model.rope is None) == (not family.position.is_rotary)
    assert len(model.layers) == 3


@pytest.mark.parametrize("architecture", ["gemma3", "t5", None, 7, "nomic-bert-moe", "x" * 500])
def test_read_model_lists_the_known_architectures(architecture: Any, tmp_path: Path) -> None:
    header = header_of(tmp_path, "bert")
    changed = replace(header, keys={**header.keys, "general.architecture": architecture})
    with pytest.raises(
        UnknownArchitectureError, match="bert, nomic-bert, jina-bert-v2, qwen2, "
    ) as caught:
        read_model(changed)
    assert len(str(caught.value)) < 400


# --- keys


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block_count", None, "qwen2.block_count is missing, so this is not an embedding model"),
        ("block_count", 0, "block_count is 0, but must be at least 1"),
        ("block_count", 513, "over the limit of 512"),
        ("block_count", "3", "block_count is '3'"),
        ("block_count", True, "block_count is True"),
        ("block_count", -1, "block_count is -1"),
        ("embedding_length", 2**40, "over the limit"),
        ("embedding_length", 257, "not a multiple of 4 heads"),
        ("feed_forward_length", 2**31, "over the limit"),
        ("feed_forward_length", (512, 256, 512), "is a list, but must be a single number"),
        ("attention__head_count", 5000, "over the limit"),
        (
            "attention__head_count_kv",
            3,
            "4 attention heads cannot be divided evenly among 3 key heads",
        ),
        ("attention__head_count_kv", 0, "must be at least 1"),
        ("attention__key_length", 2**20, "over the limit"),
        ("attention__value_length", 32, "keys have 64 dimensions and values 32"),
        ("attention__layer_norm_rms_epsilon", None, "is missing"),
        ("attention__layer_norm_rms_epsilon", -1.0, "must be a finite number of at least 0"),
        (
            "attention__layer_norm_rms_epsilon",
            float("nan"),
            "must be a finite number of at least 0",
        ),
        ("attention__causal", 1, "must be true or false"),
        ("rope__dimension_count", 63, "must be even"),
        ("rope__dimension_count", 66, "over the limit of 64"),
        ("rope__freq_base", 0.5, "must be more than 1"),
        ("rope__freq_base", float("inf"), "must be a finite number of at least 0"),
        ("rope__scaling__type", "longrope", "rope scaling 'longrope' is not supported"),
        ("rope__scaling__type", 3, "rope scaling 3 is not supported"),
        ("rope__dimension_sections", (8, 8, 16), "does not support"),
        ("rope__scaling__alpha", 2.0, "does not support"),
        ("rope__scaling__yarn_log_multiplier", 0.1, "does not support"),
        ("attention__scale", 0.01, "does not support"),
        ("attention__clamp_kqv", 8.0, "does not support"),
        ("attention__max_alibi_bias", 8.0, "does not support"),
        ("attn_logit_softcapping", 50.0, "does not support"),
        ("expert_count", 8, "does not support"),
        ("moe_every_n_layers", 2, "does not support"),
        ("embedding_scale", 12.0, "does not support"),
        ("residual_scale", 0.22, "does not support"),
        ("context_length", None, "context_length is missing"),
    ],
)
def test_read_model_refuses_invalid_or_unsupported_keys(
    key: str, value: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(HeaderError, match=message):
        read_model(with_keys(header_of(tmp_path, "qwen2"), **{key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 0),
        ("embedding_scale", 1.0),
        ("attention__sliding_window", 0),
        ("attention__scale", 0.0),
        ("feed_forward_length", (512, 512, 512)),
        ("final_logit_softcapping", 30.0),
        ("something_new", 3),
    ],
)
def test_read_model_accepts_keys_without_effect(key: str, value: Any, tmp_path: Path) -> None:
    read_model(with_keys(header_of(tmp_path, "qwen2"), **{key: value}))


@pytest.mark.parametrize("name", ["ext_factor", "attn_factor", "beta_fast", "beta_slow"])
def test_read_model_refuses_unusual_yarn_numbers(name: str, tmp_path: Path) -> None:
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    usual = {"ext_factor": 1.0, "attn_factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
    header = with_keys(header_of(tmp_path, "qwen2"), **yarn)
    read_model(with_keys(header, **{f"rope__scaling__yarn_{name}": usual[name]}))
    with pytest.raises(HeaderError, match=f"yarn_{name} is 2.5"):
        read_model(with_keys(header, **{f"rope__scaling__yarn_{name}": 2.5}))


# --- tensors


def test_read_model_names_some_of_the_missing_tensors(tmp_path: Path) -> None:
    header = header_of(tmp_path, "bert")
    without_weight = with_tensor(header, "blk.1.ffn_up.weight", None)
    with pytest.raises(WeightsError, match=r"1 tensors are missing, .*: 'blk.1.ffn_up.weight'$"):
        read_model(with_tensor(without_weight, "blk.1.ffn_up.bias", None))
    only_table = replace(header, tensors={"token_embd.weight": header.tensors["token_embd.weight"]})
    with pytest.raises(WeightsError, match=r"not an embedding model of .* and 27 more") as caught:
        read_model(only_table)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["attn_q", "attn_k", "attn_v"])
def test_read_model_names_a_missing_attention_matrix(name: str, tmp_path: Path) -> None:
    header = header_of(tmp_path, "llama")
    with pytest.raises(WeightsError, match=f"'blk.2.{name}.weight'"):
        read_model(with_tensor(header, f"blk.2.{name}.weight", None))


def test_read_model_refuses_a_model_without_token_table(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"token_embd.weight is missing"):
        read_model(with_tensor(header_of(tmp_path, "llama"), "token_embd.weight", None))


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.ffn_gate_exps.weight",
        "blk.0.ffn_gate_inp.weight",
        "blk.1.attn_q.weight.lora_a",
        "blk.0.attn_sinks.weight",
        "blk.0.attn_output.bias",
        "blk.0.attn_qkv.bias",
        "dense_2.weight",
        "rope_freqs.weight",
        "blk.00.ffn_up.weight",
        "blk.3.ffn_up.weight",
        "mm.0.weight",
    ],
)
def test_read_model_refuses_tensors_it_would_ignore(name: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=name):
        read_model(with_tensor(header_of(tmp_path, "qwen2"), name, (256,)))


@pytest.mark.parametrize("name", ["output.weight", "cls.weight", "cls.output.weight"])
def test_read_model_accepts_output_tensors(name: str, tmp_path: Path) -> None:
    read_model(with_tensor(header_of(tmp_path, "qwen2"), name, (1, 2)))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.attn_q.weight", (255, 256)),
        ("blk.0.attn_q.weight", (256, 128)),
        ("blk.2.attn_k.weight", (256, 256)),
        ("blk.0.attn_q.bias", (255,)),
        ("blk.1.ffn_down.weight", (512, 256)),
        ("blk.1.ffn_norm.weight", (1, 256)),
        ("output_norm.weight", ()),
        ("token_embd.weight", (97, 255)),
    ],
)
def test_read_model_names_a_tensor_of_the_wrong_shape(
    name: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match=f"'{name}' has the shape"):
        read_model(with_tensor(header_of(tmp_path, "qwen2"), name, shape))


@pytest.mark.parametrize("shape", [(256,), (0, 256), (2**40, 256), (3, 97, 256)])
def test_read_model_refuses_a_token_table_of_the_wrong_shape(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match=r"token_embd.weight has the shape"):
        read_model(with_tensor(header_of(tmp_path, "qwen2"), "token_embd.weight", shape))


def test_read_model_refuses_layers_with_different_tensors(tmp_path: Path) -> None:
    header = with_tensor(header_of(tmp_path, "qwen2"), "blk.1.attn_q.bias", None)
    with pytest.raises(
        WeightsError, match=r"layer 1 differs from layer 0 in its tensors: 'attn_q.bias'"
    ):
        read_model(header)


def test_read_model_refuses_a_gate_next_to_a_combined_one(tmp_path: Path) -> None:
    header = header_of(tmp_path, "jina-bert-v2", joined_gate=True, layers=1)
    with pytest.raises(WeightsError, match="gate and up combined"):
        read_model(with_tensor(header, "blk.0.ffn_gate.weight", (512, 256)))


def test_read_model_refuses_a_bias_of_another_length(tmp_path: Path) -> None:
    header = header_of(tmp_path, "jina-bert-v2", joined_gate=True, layers=1)
    with pytest.raises(WeightsError, match=r"ffn_up.bias and its weight have different lengths"):
        read_model(with_tensor(header, "blk.0.ffn_up.bias", (512,)))


def test_read_model_error_has_the_limit(tmp_path: Path) -> None:
    with pytest.raises(HeaderLimitError) as caught:
        read_model(with_keys(header_of(tmp_path, "qwen2"), block_count=10**18))
    assert caught.value.limit == 512


def test_alibi_slopes_equal_the_paper() -> None:
    assert alibi_slopes(8) == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(12) == [
        *(2.0**-n for n in range(1, 9)),
        *(2.0 ** -(n + 0.5) for n in range(4)),
    ]


@pytest.mark.parametrize("architecture", ["bert", "nomic-bert", "jina-bert-v2"])
def test_read_model_refuses_a_causal_encoder(tmp_path: Path, architecture: str) -> None:
    path = write_model(tmp_path / "m.gguf", architecture, causal=True)
    with (
        pytest.raises(HeaderError, match="both directions"),
        WeightFile(path, Limits()) as file,
    ):
        read_model(scan_header(file))


def test_read_model_refuses_another_output_width(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "qwen2", keys={"qwen2.embedding_length_out": 128})
    with (
        pytest.raises(HeaderError, match="embedding_length_out"),
        WeightFile(path, Limits()) as file,
    ):
        read_model(scan_header(file))
