"""stream_model of generating models: windows, rotary bases and scales as in llama.cpp, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from tests.recorded import config_header, engine_models, gguf_header

import edgekit
from edgekit.bill.types import Load
from edgekit.engines import engine_name, engine_named
from edgekit.engines.native.buffers import matrices, vectors
from edgekit.engines.native.families import FAMILIES, Activation, ModelUse, families_for
from edgekit.engines.native.rules import estimate, stream_model
from edgekit.engines.native.stream_plan import StreamSetup
from edgekit.errors import (
    EdgekitError,
    HeaderError,
    RefusedError,
    UnknownArchitectureError,
    UnknownDtypeError,
)
from edgekit.formats.dtype import by_name
from edgekit.formats.types import Tensor
from edgekit.model.types import Model

SETUP = StreamSetup(threads=2)


def recorded(name: str) -> Model:
    return engine_models()[name, "Q4_K_M"]


def with_keys(model: Model, **keys: Any) -> Model:
    """The model with other keys; None removes a key. rope__freq_base -> {architecture}.rope.freq_base."""
    name = model.header.keys["general.architecture"]
    changed = {f"{name}.{key.replace('__', '.')}": value for key, value in keys.items()}
    merged = {**model.header.keys, **changed}
    header = replace(
        model.header, keys={key: value for key, value in merged.items() if value is not None}
    )
    return Model(header=header, geometry=model.geometry)


def with_tensor(model: Model, name: str, kind: str, *shape: int) -> Model:
    """The model with a tensor added or replaced."""
    tensor_type = by_name(kind)
    size = tensor_type.row_bytes(math.prod(shape))
    tensor = Tensor(name=name, type=tensor_type, shape=shape, size_bytes=size, offset=0)
    others = tuple(item for item in model.header.tensors or () if item.name != name)
    header = replace(model.header, tensors=(*others, tensor))
    return Model(header=header, geometry=model.geometry)


def test_stream_engine_version_is_that_of_edgekit() -> None:
    engine = engine_named("built-in")
    shown = f"{engine.name} {engine.version(engine.default_setup())}"
    assert shown == f"stream {edgekit.__version__}"


@pytest.mark.parametrize("name", ["stream", "edgekit", "built-in", "builtin", "Streaming"])
def test_stream_engine_has_other_names(name: str) -> None:
    assert engine_name(name) == "stream"


def test_families_for_generating_and_embedding() -> None:
    assert set(families_for(ModelUse.GENERATE)) == {"llama", "qwen2", "qwen3", "gemma3"}
    assert "gemma3" not in families_for(ModelUse.EMBED)
    assert {"bert", "nomic-bert", "jina-bert-v2"}.isdisjoint(families_for(ModelUse.GENERATE))
    assert len({family.architecture for family in FAMILIES}) == len(FAMILIES)


# --- gemma3


def test_gemma3_1b_windows_rope_and_scales() -> None:
    model = stream_model(recorded("gemma-3-1b"))
    assert model.windows == tuple(None if layer % 6 == 5 else 512 for layer in range(26))
    assert model.rope is not None
    assert model.local_rope is not None
    assert (model.rope.base, model.local_rope.base) == (1_000_000.0, 10_000.0)
    assert model.family.activation is Activation.GELU_TANH
    assert model.embedding_scale == math.sqrt(1152)
    assert model.query_scale == 1 / math.sqrt(256)


def test_gemma3_27b_query_scale_and_rope_scaling() -> None:
    model = stream_model(recorded("gemma-3-27b"))
    assert model.query_scale == 1 / math.sqrt(5376 // 32)
    assert model.dimensions.head_dim == 128
    assert model.rope is not None
    assert model.local_rope is not None
    assert (model.rope.interpolate, model.local_rope.interpolate) == (1 / 8, 1.0)


@pytest.mark.parametrize(
    ("period", "full"),
    [(None, {5, 11, 17, 23}), (4, set(range(3, 26, 4))), (1, set(range(26))), (0, set())],
)
def test_gemma3_window_period(period: int | None, full: set[int]) -> None:
    """llama.cpp's set_swa_pattern: with 1 no layer has a window, with 0 all have one."""
    header = with_keys(recorded("gemma-3-1b"), attention__sliding_window_pattern=period)
    windows = stream_model(header).windows
    assert {layer for layer, window in enumerate(windows) if window is None} == full


def test_gemma3_window_list_must_match_the_period() -> None:
    model = recorded("gemma-3-1b")
    usual = tuple(layer % 6 < 5 for layer in range(26))
    equal = with_keys(model, attention__sliding_window_pattern=usual)
    assert stream_model(equal).windows == stream_model(model).windows
    other = with_keys(model, attention__sliding_window_pattern=(True,) * 26)
    with pytest.raises(RefusedError, match="one full layer in every 6"):
        stream_model(other)


def test_gemma3_without_windows_has_one_rotary_base() -> None:
    model = stream_model(with_keys(recorded("gemma-3-1b"), attention__sliding_window=0))
    assert set(model.windows) == {None}
    assert model.local_rope is None


def test_gemma3_rotary_base_of_sliding_layers() -> None:
    model = stream_model(with_keys(recorded("gemma-3-1b"), rope__freq_base_swa=5000.0))
    assert model.local_rope is not None
    assert model.local_rope.base == 5000.0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"logit_scale": 0.5}, "logit_scale"),
        ({"attention__sliding_window_pattern": 2.5}, "not a valid period"),
        ({"attention__sliding_window_pattern": -1}, "not a valid period"),
        ({"attention__sliding_window": -3}, "must be at least 1"),
        ({"rope__freq_base_swa": 0.5}, "must be more than 1"),
        ({"rope__scaling__type": "yarn"}, "yarn in sliding-window layers"),
        ({"attention__causal": False}, "both directions"),
        ({"attention__key_length_swa": 128}, "does not support"),
        ({"block_count": None}, "not a model that generates text"),
        ({"attn_logit_softcapping": 50.0}, "the built-in engine does not support"),
    ],
)
def test_gemma3_refuses_unsupported_keys(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        stream_model(with_keys(recorded("gemma-3-1b"), **keys))


def test_gemma3_accepts_softcapping_of_zero() -> None:
    stream_model(with_keys(recorded("gemma-3-1b"), final_logit_softcapping=0.0, logit_scale=1.0))


# --- other families


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen2.5-7b", "qwen3-8b", "mistral-7b-v0.1"])
def test_other_families_ignore_window_keys(name: str) -> None:
    model = stream_model(with_keys(recorded(name), attention__sliding_window=4096))
    assert set(model.windows) == {None}
    assert model.window_tokens is None
    assert (model.local_rope, model.embedding_scale) == (None, 1.0)
    assert model.query_scale == 1 / math.sqrt(model.dimensions.head_dim)


def test_llama_refuses_a_rotary_base_of_sliding_layers() -> None:
    with pytest.raises(RefusedError, match=r"rope.freq_base_swa"):
        stream_model(with_keys(recorded("llama-3.1-8b"), rope__freq_base_swa=10_000.0))


# --- the output matrix


def test_output_matrix_comes_after_the_layers() -> None:
    model = stream_model(recorded("llama-3.1-8b"))
    assert "output.weight" in model.outside
    assert [tensor.name for tensor in matrices(model)][-2:] == [
        "output.weight",
        "token_embd.weight",
    ]


def test_tied_output_uses_the_token_table() -> None:
    model = stream_model(recorded("gemma-3-1b"))
    assert "output.weight" not in model.outside
    assert [tensor.name for tensor in matrices(model)].count("token_embd.weight") == 1


def test_output_bias_is_kept_in_memory() -> None:
    model = with_tensor(recorded("qwen2.5-7b"), "output.bias", "F32", 152_064)
    assert "output.bias" in {tensor.name for tensor in vectors(stream_model(model))}
    without_bias = estimate(recorded("qwen2.5-7b"), Load(context_tokens=64), SETUP)
    with_bias = estimate(model, Load(context_tokens=64), SETUP)
    assert with_bias.weights_bytes - without_bias.weights_bytes == 152_064 * 4


def test_output_matrix_of_another_size_is_refused() -> None:
    model = with_tensor(recorded("llama-3.1-8b"), "output.weight", "F32", 1000, 4096)
    with pytest.raises(RefusedError, match=r"'output.weight' has the shape 1000 x 4096"):
        stream_model(model)


def test_unknown_tensor_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"'dense_2.weight'"):
        stream_model(with_tensor(recorded("gemma-3-1b"), "dense_2.weight", "F32", 3072, 1152))


# --- unsupported files


@pytest.mark.parametrize("name", ["gemma-2-2b", "qwen3-30b-a3b", "mamba-2.8b", "starcoder2-3b"])
def test_unsupported_family_error_suggests_llamacpp(name: str) -> None:
    with pytest.raises(
        UnknownArchitectureError,
        match=r"use engine llama.cpp, or add a row to engines/native/families.py",
    ):
        estimate(recorded(name), Load(), SETUP)


def test_mixture_of_experts_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"llama.expert_count"):
        estimate(recorded("mixtral-8x7b"), Load(), SETUP)


def with_header(model: Model, **fields: Any) -> Model:
    return Model(header=replace(model.header, **fields), geometry=model.geometry)


@pytest.mark.parametrize(
    ("header", "kind", "message"),
    [
        ({"big_endian": True}, RefusedError, "gguf_convert_endian.py"),
        ({"tensors": None}, HeaderError, "read the whole header"),
    ],
)
def test_big_endian_or_partial_header_is_refused(
    header: dict[str, Any], kind: type[EdgekitError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        estimate(with_header(recorded("llama-3.1-8b"), **header), Load(), SETUP)


def test_shards_are_refused() -> None:
    model = recorded("llama-3.1-8b")
    keys = {**model.header.keys, "split.count": 3}
    with pytest.raises(RefusedError, match="llama-gguf-split --merge"):
        estimate(with_header(model, keys=keys), Load(), SETUP)


def test_config_without_gguf_is_refused() -> None:
    model = Model(header=config_header({}), geometry=recorded("llama-3.1-8b").geometry)
    with pytest.raises(RefusedError, match="reads GGUF files"):
        estimate(model, Load(), SETUP)


def test_header_without_architecture_is_refused() -> None:
    header = replace(gguf_header({}), tensors=())
    model = Model(header=header, geometry=recorded("llama-3.1-8b").geometry)
    with pytest.raises(UnknownArchitectureError, match="architecture None"):
        estimate(model, Load(), SETUP)


def test_unsupported_weight_type_is_refused() -> None:
    model = with_tensor(recorded("llama-3.1-8b"), "blk.3.ffn_up.weight", "NVFP4", 14336, 4096)
    with pytest.raises(UnknownDtypeError, match=r"tensor blk.3.ffn_up.weight: .* NVFP4"):
        estimate(model, Load(), SETUP)
