"""MLX: numbers that can be checked on paper, and what mlx-lm refuses."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from tests.recorded import config_header, gguf_header

from edgekit.bill.types import F16, Component, Load, MemoryEstimate
from edgekit.engines.mlx.estimate import estimate
from edgekit.engines.mlx.models import MlxModel, mlx_model
from edgekit.engines.mlx.quantization import (
    AS_STORED,
    FOUR_BIT,
    PLAIN,
    AsStored,
    BitsRecipe,
    Packing,
    PackingMode,
    Quantize,
    read_quantize,
)
from edgekit.engines.mlx.setups import MlxSetup, read_row
from edgekit.errors import (
    EdgekitError,
    HeaderError,
    RefusedError,
    UnknownArchitectureError,
    UsageError,
)
from edgekit.formats.dtype import by_name
from edgekit.formats.types import Tensor
from edgekit.model import read_geometry
from edgekit.model.architectures import section_by_name
from edgekit.model.types import Model
from edgekit.sources.types import Container
from edgekit.units import Basis

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN2 = {**LLAMA, "model_type": "qwen2"}
GEMMA3 = {
    **LLAMA,
    "model_type": "gemma3_text",
    "sliding_window": 512,
    "sliding_window_pattern": 4,
    "tie_word_embeddings": True,
}
MLA = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "num_key_value_heads": 8,
    "kv_lora_rank": 128,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "first_k_dense_replace": 8,
}
ROW = 2 * 64 * 2 * 2  # KV heads x head_dim x (K and V) x bf16


def model_of(config: dict[str, Any], tensors: tuple[Tensor, ...] | None = None) -> Model:
    header = config_header(config)
    if tensors is not None:
        header = replace(header, name="model", container=Container.SAFETENSORS, tensors=tensors)
    return Model(header=header, geometry=read_geometry(header))


def bill_of(config: dict[str, Any], tokens: int = 1000, **setup: Any) -> MemoryEstimate:
    return estimate(model_of(config), Load(context_tokens=tokens), MlxSetup(**setup))


@pytest.mark.parametrize(
    ("config", "tokens", "setup", "cache"),
    [
        (LLAMA, 1000, {}, 8 * 1024 * ROW),
        (LLAMA, 1000, {"max_kv_size": 300}, 8 * 1024 * ROW),  # its own make_cache: ignored
        (QWEN2, 1000, {"max_kv_size": 300}, 8 * 300 * ROW),
        (LLAMA, 1000, {"max_tokens": 100}, 8 * 1024 * ROW),
        (LLAMA, 1000, {"kv_bits": 8}, 8 * 1024 * ROW),  # starts at 5000 tokens
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
def test_caches(config: dict[str, Any], tokens: int, setup: dict[str, Any], cache: int) -> None:
    bill = bill_of(config, tokens, **setup)
    assert dict(bill.facts)["cache_bytes"] == cache == bill.kv_cache_bytes


def test_caches_of_several_sequences() -> None:
    model, setup = model_of(LLAMA), MlxSetup()
    one = estimate(model, Load(context_tokens=1000), setup)
    three = estimate(model, Load(context_tokens=1000, sequences=3), setup)
    assert three.kv_cache_bytes == 3 * one.kv_cache_bytes
    assert three.weights_bytes == one.weights_bytes


def test_session_without_a_context_fills_the_window() -> None:
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
def test_refusals(config: dict[str, Any], setup: dict[str, Any], reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        bill_of(config, **setup)


def test_gguf_is_refused() -> None:
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


def test_cache_quantised_by_the_last_token_is_accepted() -> None:
    """DeepSeek-V3 fails on the step after: one token before the end nothing has happened yet."""
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


def test_unknown_layers_are_refused() -> None:
    config = {**LLAMA, "model_type": "bailing_hybrid"}
    model = Model(header=config_header(config), geometry=read_geometry(config_header(config)))
    if model.geometry.basis is Basis.ASSUMED:
        with pytest.raises(UnknownArchitectureError, match="bailing_hybrid"):
            estimate(model, Load(context_tokens=10), MlxSetup())


# Weights: embedding, head, 8 x (q, k, v, o, gate, up, down) and 17 norms.
MATRICES = 2 * 1000 * 512 + 8 * (512 * 512 + 2 * 128 * 512 + 512 * 512 + 3 * 512 * 1024)
NORMS = 17 * 512 * 2


@pytest.mark.parametrize(
    ("quantize", "weights"),
    [
        (None, MATRICES * 9 // 16 + NORMS),  # 4 bits and 32 / 64
        (PLAIN, MATRICES * 2 + NORMS),
        (AS_STORED, MATRICES * 2 + NORMS),
        (Quantize(packing=Packing(bits=8, group_size=32)), MATRICES * 9 // 8 + NORMS),
        (Quantize(packing=Packing(bits=3, group_size=128)), MATRICES * 13 // 32 + NORMS),
        (
            Quantize(packing=Packing(bits=4, group_size=32, mode=PackingMode.MXFP4)),
            MATRICES * 17 // 32 + NORMS,
        ),
        (
            Quantize(packing=Packing(bits=4, group_size=16, mode=PackingMode.NVFP4)),
            MATRICES * 9 // 16 + NORMS,
        ),
        (
            Quantize(packing=Packing(bits=8, group_size=32, mode=PackingMode.MXFP8)),
            MATRICES * 33 // 32 + NORMS,
        ),
    ],
)
def test_weights_by_config(quantize: Quantize | AsStored | None, weights: int) -> None:
    assert bill_of(LLAMA, quantize=quantize).weights_bytes == weights


def test_unquantised_repository_has_a_note() -> None:
    bill = bill_of(LLAMA)
    lines = [line for line in bill.lines if line.component is Component.WEIGHTS]
    assert all("as if converted" in line.because for line in lines)
    assert all(line.basis is Basis.MODELLED and line.within == 0.005 for line in lines)
    assert "as if" in bill.notes[0]
    assert bill_of(LLAMA, quantize=AS_STORED).notes == ()


def test_rows_that_are_not_a_multiple_of_the_group_are_not_packed() -> None:
    odd = {**LLAMA, "intermediate_size": 1000}  # the rows of down_proj: 1000 % 64 = 40
    down = 8 * 512 * 1000
    rest = MATRICES - 8 * 3 * 512 * 1024 + 8 * 2 * 512 * 1000
    assert bill_of(odd).weights_bytes == rest * 9 // 16 + down * 2 + NORMS


def tensor(name: str, type_name: str, *shape: int) -> Tensor:
    elements = 1
    for size in shape:
        elements *= size
    kind = by_name(type_name)
    return Tensor(name=name, type=kind, shape=shape, size_bytes=kind.row_bytes(elements), offset=0)


def stored_bill(config: dict[str, Any], *tensors: Tensor) -> MemoryEstimate:
    return estimate(
        model_of(config, tensors), Load(context_tokens=10), MlxSetup(quantize=AS_STORED)
    )


LAYER = "model.layers.0.self_attn.q_proj"


def test_stored_weights_exclude_dropped_tensors() -> None:
    bill = stored_bill(
        {**LLAMA, "tie_word_embeddings": True},
        tensor("model.embed_tokens.weight", "BF16", 1000, 512),
        tensor(f"{LAYER}.weight", "BF16", 512, 512),
        tensor("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 32),
        tensor("lm_head.weight", "BF16", 1000, 512),
        tensor("mtp.layers.0.self_attn.q_proj.weight", "BF16", 512, 512),
        tensor("model.layers.8.mlp.up_proj.weight", "BF16", 1024, 512),
        tensor("vision_tower.patch_embed.weight", "BF16", 64, 64),
    )
    assert bill.weights_bytes == (1000 * 512 + 512 * 512) * 2
    line = next(line for line in bill.lines if line.layer == 0)
    assert line.basis is Basis.EXACT
    assert "does not load" in line.because


def test_stored_packed_tensors_count_as_stored() -> None:
    packed = {**LLAMA, "quantization": {"group_size": 64, "bits": 4}}
    model = model_of(
        packed,
        (
            tensor(f"{LAYER}.weight", "U32", 512, 64),
            tensor(f"{LAYER}.scales", "BF16", 512, 8),
            tensor(f"{LAYER}.biases", "BF16", 512, 8),
        ),
    )
    bill = estimate(model, Load(context_tokens=10), MlxSetup())
    assert bill.weights_bytes == 512 * 512 * 9 // 16
    assert bill.notes == ()


def test_fp8_becomes_bf16_if_the_model_file_unpacks_it() -> None:
    config = {**MLA, "quantization_config": {"quant_method": "fp8"}}
    bill = stored_bill(
        config,
        tensor("model.layers.0.mlp.up_proj.weight", "F8_E4M3", 1024, 512),
        tensor("model.layers.0.mlp.up_proj.weight_scale_inv", "F32", 8, 4),
    )
    assert bill.weights_bytes == 1024 * 512 * 2


def test_awq_zero_points_become_biases() -> None:
    config = {**LLAMA, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    bill = stored_bill(
        config,
        tensor(f"{LAYER}.qweight", "I32", 512, 64),
        tensor(f"{LAYER}.scales", "F16", 4, 512),
        tensor(f"{LAYER}.qzeros", "I32", 4, 64),
    )
    assert bill.weights_bytes == 512 * 64 * 4 + 2 * (4 * 512 * 2)


@pytest.mark.parametrize("setting", [{"bits": 9}, {"group_size": 48}, {"mode": "nf4", "bits": 4}])
def test_unsupported_quantisation_settings_are_refused(setting: dict[str, Any]) -> None:
    config = {**LLAMA, "quantization": {"bits": 4, "group_size": 64, **setting}}
    with pytest.raises(HeaderError):
        bill_of(config)


@pytest.mark.parametrize(
    ("name", "quantize"),
    [
        ("bf16", PLAIN),
        ("as_stored", AS_STORED),
        ("q4_g64", Quantize(packing=FOUR_BIT)),
        ("q4", Quantize(packing=FOUR_BIT)),
        ("q2_g128", Quantize(packing=Packing(bits=2, group_size=128))),
        ("nvfp4", Quantize(packing=Packing(bits=4, group_size=16, mode=PackingMode.NVFP4))),
        ("mixed_2_6", Quantize(recipe=BitsRecipe.MIXED_2_6)),
        (
            "MXFP4-Q8_g32",
            Quantize(
                packing=Packing(bits=8, group_size=32),
                experts=Packing(bits=4, group_size=32, mode=PackingMode.MXFP4),
            ),
        ),
    ],
)
def test_names_of_quantisations(name: str, quantize: object) -> None:
    assert read_quantize(name) == quantize


@pytest.mark.parametrize("name", ["q7_g64", "q4_g48", "gguf", "q9"])
def test_unknown_quantisations(name: str) -> None:
    with pytest.raises(UsageError):
        read_quantize(name)


def test_read_row_with_the_names_of_rows() -> None:
    load, setup = read_row({"prompt_tokens": 1000, "new_tokens": 24, "kv_bits": 4, "batch_size": 2})
    assert (load.context_tokens, load.sequences) == (1024, 2)
    assert (setup.max_tokens, setup.kv_bits, setup.quantized_kv_start) == (24, 4, 5000)
    with pytest.raises(UsageError, match="kv_bits"):
        read_row({"kv_bits": "four"})


def test_every_section_of_the_records_can_be_read_and_every_field_is_used() -> None:
    sections = section_by_name("mlx", ("config",))
    for name in sections:
        mlx_model({"model_type": name})
    used = {key for section in sections.values() for key in section}
    assert used - {"file", "file_by_class"} == {item.name for item in fields(MlxModel)} - {"name"}


def test_mlx_model_of_remapped_names() -> None:
    assert mlx_model({"model_type": "kimi_k2"}).name == "deepseek_v3"
    assert mlx_model({"model_type": "mistral"}).name == "llama"
    special = {"model_type": "bailing_hybrid", "architectures": ["BailingMoeV3ForCausalLM"]}
    assert mlx_model(special).name == "bailing_moe_v3"
    with pytest.raises(EdgekitError):
        mlx_model({})


def test_unfused_attention_scores_of_wide_heads() -> None:
    """256-wide heads are not fused: 2048 tokens meet 16,384 in 8 heads, twice in bf16."""
    narrow, wide = bill_of(LLAMA, 16_385), bill_of({**LLAMA, "head_dim": 256}, 16_385)
    scores = 2048 * 16_384 * (2 * 8 * 2 + 1)
    assert any(line.size_bytes == scores for line in wide.lines)
    assert not any("not fused" in line.because for line in narrow.lines)
