"""Bills of MLX that can be checked by hand, and what mlx-lm refuses."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from tests.recorded import gguf_header
from tests.unit.engines.mlx.small_models import LLAMA, MLA, bill_of, model_of

from edgekit.bill.types import F16, Load
from edgekit.engines.mlx.estimate import estimate
from edgekit.engines.mlx.models import MlxModel, mlx_model
from edgekit.engines.mlx.quantization import BitsRecipe, Quantize
from edgekit.engines.mlx.setups import MlxSetup, read_row
from edgekit.errors import EdgekitError, RefusedError, UnknownArchitectureError, UsageError
from edgekit.model import read_geometry
from edgekit.model.architectures import section_by_name
from edgekit.model.types import Model
from edgekit.units import Basis

QWEN2 = {**LLAMA, "model_type": "qwen2"}
GEMMA3 = {
    **LLAMA,
    "model_type": "gemma3_text",
    "sliding_window": 512,
    "sliding_window_pattern": 4,
    "tie_word_embeddings": True,
}
ROW = 2 * 64 * 2 * 2  # KV heads x head_dim x (K and V) x bf16


@pytest.mark.parametrize(
    ("config", "tokens", "setup", "cache"),
    [
        (LLAMA, 1000, {}, 8 * 1024 * ROW),
        (LLAMA, 1000, {"max_kv_size": 300}, 8 * 1024 * ROW),  # not used: it makes its own caches
        (QWEN2, 1000, {"max_kv_size": 300}, 8 * 300 * ROW),
        (LLAMA, 1000, {"max_tokens": 100}, 8 * 1024 * ROW),
        (LLAMA, 1000, {"kv_bits": 8}, 8 * 1024 * ROW),  # quantised from 5000 tokens on
        (LLAMA, 5000, {"kv_bits": 8}, 8 * 5120 * 2 * 2 * (64 + 64 // 64 * 4)),
        (
            LLAMA,
            1000,
            {"kv_bits": 4, "kv_group_size": 32, "quantized_kv_start": 0},
            8 * 1024 * 2 * 2 * (32 + 64 // 32 * 4),
        ),
        (GEMMA3, 1000, {}, (6 * 512 + 2 * 1024) * ROW),
        (GEMMA3, 200, {}, (6 * (199 + 256) + 2 * 256) * ROW),
        ({**LLAMA, "sliding_window": 512}, 1000, {}, 8 * 1024 * ROW),
        ({**LLAMA, "torch_dtype": "float32"}, 1000, {}, 8 * 1024 * ROW * 2),
        (MLA, 1000, {}, 8 * 1024 * (128 + 32) * 2),
        ({**MLA, "model_type": "deepseek_v2"}, 1000, {}, 8 * 1024 * 8 * (96 + 64) * 2),
    ],
)
def test_cache_bytes(
    config: dict[str, Any], tokens: int, setup: dict[str, Any], cache: int
) -> None:
    bill = bill_of(config, tokens, **setup)
    assert dict(bill.facts)["cache_bytes"] == cache == bill.kv_cache_bytes


def test_cache_bytes_are_multiplied_by_the_sequences() -> None:
    one = bill_of(LLAMA)
    three = estimate(model_of(LLAMA), Load(context_tokens=1000, sequences=3), MlxSetup())
    assert three.kv_cache_bytes == 3 * one.kv_cache_bytes
    assert three.weights_bytes == one.weights_bytes


def test_bill_without_a_context_is_for_the_whole_window() -> None:
    bill = estimate(model_of(LLAMA), Load(), MlxSetup(max_tokens=92))
    assert dict(bill.facts)["prompt_tokens"] == 8100
    assert bill.kv_cache_bytes == 8 * 8192 * ROW


@pytest.mark.parametrize(
    ("config", "setup", "reason"),
    [
        ({**LLAMA, "model_type": "bloom"}, {}, "Model type bloom not supported"),
        ({**LLAMA, "model_file": "mine.py"}, {}, "disabled by default"),
        (GEMMA3, {"kv_bits": 8, "quantized_kv_start": 0}, "RotatingKVCache Quantization NYI"),
        (
            QWEN2,
            {"kv_bits": 8, "quantized_kv_start": 0, "max_kv_size": 512},
            "RotatingKVCache Quantization NYI",
        ),
        (MLA, {"kv_bits": 8, "quantized_kv_start": 0, "kv_group_size": 32}, "swapaxes"),
        (
            {**LLAMA, "head_dim": 96},
            {"kv_bits": 4, "quantized_kv_start": 0},
            "divisible by the group size 64",
        ),
        (LLAMA, {"kv_bits": 7, "quantized_kv_start": 0}, "7 bits are not supported"),
        (
            LLAMA,
            {"kv_bits": 8, "quantized_kv_start": 0, "kv_group_size": 48},
            "group size 48 is not supported",
        ),
        (
            {**LLAMA, "model_type": "starcoder2"},
            {"quantize": Quantize(recipe=BitsRecipe.MIXED_3_6)},
            "Model does not have expected keys for mixed quant",
        ),
        (
            {**LLAMA, "quantization_config": {"quant_method": "bitsandbytes"}},
            {},
            "does not load weights quantised with bitsandbytes",
        ),
        (
            {**LLAMA, "quantization_config": {"quant_method": "fp8"}},
            {},
            "does not load weights quantised with fp8",
        ),
    ],
)
def test_estimate_refuses_what_mlx_lm_refuses(
    config: dict[str, Any], setup: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RefusedError, match=reason):
        bill_of(config, **setup)


def test_estimate_refuses_gguf() -> None:
    keys = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.embedding_length": 64,
        "llama.attention.head_count": 2,
        "llama.feed_forward_length": 128,
    }
    header = gguf_header(keys)
    with pytest.raises(RefusedError, match="safetensors"):
        estimate(Model(header=header, geometry=read_geometry(header)), Load(), MlxSetup())


def test_deepseek_v3_is_refused_only_if_a_token_follows_the_quantised_cache() -> None:
    """DeepSeek-V3 fails in the step after its cache is quantised. With 1,000 tokens there is no such step."""
    setup = {"kv_bits": 8, "kv_group_size": 32}
    bill = bill_of(MLA, 1000, quantized_kv_start=1000, **setup)
    assert bill.kv_cache_bytes == 8 * 1024 * (128 + 32 + (4 + 1) * 4)
    with pytest.raises(RefusedError):
        bill_of(MLA, 1000, quantized_kv_start=999, **setup)


@pytest.mark.parametrize(
    ("load", "setup"),
    [
        (Load(context_tokens=0), MlxSetup()),
        (Load(context_tokens=10), MlxSetup(max_tokens=10)),
        (Load(context_tokens=10, sequences=0), MlxSetup()),
        (Load(context_tokens=10), MlxSetup(max_tokens=-1)),
        (Load(context_tokens=10), MlxSetup(prefill_step_size=0)),
        (Load(context_tokens=10), MlxSetup(max_kv_size=0)),
        (Load(context_tokens=10), MlxSetup(quantized_kv_start=-1)),
        (Load(context_tokens=10, cache_k=F16), MlxSetup()),
    ],
)
def test_invalid_options_are_usage_errors(load: Load, setup: MlxSetup) -> None:
    with pytest.raises(UsageError):
        estimate(model_of(LLAMA), load, setup)


def test_estimate_refuses_layers_that_edgekit_does_not_know() -> None:
    model = model_of({**LLAMA, "model_type": "bailing_hybrid"})
    assumed = replace(model.geometry, basis=Basis.ASSUMED)
    with pytest.raises(UnknownArchitectureError, match="bailing_hybrid"):
        estimate(Model(header=model.header, geometry=assumed), Load(context_tokens=10), MlxSetup())


def test_read_row_has_prompt_new_tokens_and_batch() -> None:
    load, setup = read_row({"prompt_tokens": 1000, "new_tokens": 24, "kv_bits": 4, "batch_size": 2})
    assert (load.context_tokens, load.sequences) == (1024, 2)
    assert (setup.max_tokens, setup.kv_bits, setup.quantized_kv_start) == (24, 4, 5000)
    with pytest.raises(UsageError, match="kv_bits"):
        read_row({"kv_bits": "four"})


def test_mlx_model_reads_every_section_and_every_field_is_used() -> None:
    sections = section_by_name("mlx", ("config",))
    for name in sections:
        mlx_model({"model_type": name})
    keys = {key for section in sections.values() for key in section}
    names = {field.name for field in fields(MlxModel)}
    assert keys - {"file", "file_by_class"} == names - {"name"}


def test_mlx_model_maps_model_types_to_its_own_names() -> None:
    assert mlx_model({"model_type": "kimi_k2"}).name == "deepseek_v3"
    assert mlx_model({"model_type": "mistral"}).name == "llama"
    special = {"model_type": "bailing_hybrid", "architectures": ["BailingMoeV3ForCausalLM"]}
    assert mlx_model(special).name == "bailing_moe_v3"
    with pytest.raises(EdgekitError):
        mlx_model({})


def test_attention_scores_of_wide_heads_are_billed() -> None:
    """Heads of 256 are not fused: scores of 2,048 x 16,384 tokens in 8 heads, twice in bf16, and a mask."""
    narrow, wide = bill_of(LLAMA, 16_385), bill_of({**LLAMA, "head_dim": 256}, 16_385)
    scores = 2048 * 16_384 * (2 * 8 * 2 + 1)
    assert any(line.size_bytes == scores for line in wide.lines)
    assert not any("not fused" in line.because for line in narrow.lines)
