"""Quantisation: how configs state it, and how many weights packed tensors hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.recorded import TRUTH

from edgekit.formats.dtype import by_name
from edgekit.formats.quantization import count_weights, mlx_bits_per_weight, read_quantization
from edgekit.formats.types import Quantization, Tensor


@pytest.mark.parametrize(("bits", "expected"), [(2, 2.5), (4, (64 * 4 + 32) / 64), (8, 8.5)])
def test_mlx_bits_per_weight_include_scale_and_bias(bits: int, expected: float) -> None:
    assert mlx_bits_per_weight(bits) == expected


# --- configs, each as a real tool writes it

Q = Quantization
CONFIGS: dict[str, tuple[dict[str, Any], Quantization | None]] = {
    "none": ({"model_type": "llama"}, None),
    "null": ({"quantization_config": None}, None),
    "mlx": (
        {"quantization": {"group_size": 64, "bits": 4}},
        Q(method="affine", bits=4, group_size=64, mlx=True),
    ),
    "mlx, only a mode": (
        {"quantization": {"mode": "nvfp4"}},
        Q(method="nvfp4", bits=4, group_size=16, mlx=True),
    ),
    "mlx, only quantization_config": (
        {"quantization_config": {"group_size": 32, "bits": 8, "mode": "affine"}},
        Q(method="affine", bits=8, group_size=32, mlx=True),
    ),
    "mlx as quant_method": (
        {"quantization_config": {"quant_method": "mlx", "bits": 4, "group_size": 32}},
        Q(method="affine", bits=4, group_size=32, mlx=True),
    ),
    "MLX as quant_method, in capitals": (
        {"quantization_config": {"quant_method": "MLX", "mode": "mxfp4"}},
        Q(method="mxfp4", bits=4, group_size=32, mlx=True),
    ),
    "mlx with overrides": (
        {
            "quantization": {
                "group_size": 32,
                "bits": 4,
                "mode": "mxfp4",
                "model.layers.0.mlp.gate": {"group_size": 64, "bits": 8},
                "model.embed_tokens": False,
            }
        },
        Q(
            method="mxfp4",
            bits=4,
            group_size=32,
            overrides=(
                ("model.layers.0.mlp.gate", {"group_size": 64, "bits": 8}),
                ("model.embed_tokens", False),
            ),
            mlx=True,
        ),
    ),
    "gptq": (
        {"quantization_config": {"bits": 3, "group_size": -1, "quant_method": "gptq"}},
        Q(method="gptq", bits=3),
    ),
    "awq": (
        {"quantization_config": {"bits": 4, "group_size": 128, "quant_method": "awq"}},
        Q(method="awq", bits=4, group_size=128),
    ),
    "fp8": (
        {
            "quantization_config": {
                "quant_method": "fp8",
                "fmt": "e4m3",
                "weight_block_size": [128, 128],
            }
        },
        Q(method="fp8", format="e4m3", bits=8),
    ),
    "fbgemm": (
        {"quantization_config": {"quant_method": "fbgemm_fp8"}},
        Q(method="fbgemm_fp8", bits=8),
    ),
    "gpt-oss": (
        {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}},
        Q(method="mxfp4", bits=4, group_size=32),
    ),
    "compressed-tensors": (
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
            }
        },
        Q(method="compressed-tensors", format="pack-quantized", bits=4, group_size=32),
    ),
    "two groups that differ": (
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": {"num_bits": 4}},
                    "b": {"weights": {"num_bits": 8}},
                },
            }
        },
        Q(method="compressed-tensors"),
    ),
    "modelopt": (
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}},
        Q(method="modelopt", format="NVFP4", bits=4, group_size=16),
    ),
    "modelopt without a method": (
        {
            "quantization_config": {
                "quant_algo": "FP8",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            }
        },
        Q(method="modelopt", format="FP8", bits=8),
    ),
    "modelopt, mixed": (
        {
            "quantization_config": {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {"model.layers.0": {"quant_algo": "FP8"}},
            }
        },
        Q(
            method="modelopt",
            format="MIXED_PRECISION",
            overrides=(("model.layers.0", {"quant_algo": "FP8"}),),
        ),
    ),
    "bitsandbytes": (
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        Q(method="bitsandbytes", bits=4),
    ),
    "quark": (
        {
            "quantization_config": {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}},
            }
        },
        Q(method="quark", format="fp4", bits=4, group_size=32),
    ),
    "nested": (
        {"text_config": {"quantization_config": {"quant_method": "fp8"}}},
        Q(method="fp8", bits=8),
    ),
    "nested twice": (
        {"thinker_config": {"text_config": {"quantization_config": {"quant_method": "fp8"}}}},
        Q(method="fp8", bits=8),
    ),
    "unknown method": (
        {"quantization_config": {"quant_method": "squeeze9"}},
        Q(method="squeeze9"),
    ),
    "invalid values": (
        {"quantization_config": {"quant_method": 7, "config_groups": 5, "quantized_layers": [1]}},
        Q(method="unknown"),
    ),
    "invalid values, MLX": (
        {"quantization": {"bits": "four", "group_size": True, "mode": ["affine"], "a": 1}},
        Q(method="affine", mlx=True),
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_read_quantization_of_configs(name: str) -> None:
    config, expected = CONFIGS[name]
    assert read_quantization(config) == expected


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (
            {
                "producer": {"name": "modelopt"},
                "quantization": {"quant_algo": "NVFP4", "group_size": 16},
            },
            Q(method="modelopt", format="NVFP4", bits=4, group_size=16),
        ),
        (
            {"bits": 4, "group_size": 128, "desc_act": False},
            Q(method="gptq", bits=4, group_size=128),
        ),
        ({"w_bit": 4, "q_group_size": 128}, Q(method="awq", bits=4, group_size=128)),
        ({"something": "else"}, None),
        ({}, None),
    ],
)
def test_read_quantization_of_a_quantiser_file(
    extra: dict[str, Any], expected: Quantization | None
) -> None:
    assert read_quantization({}, extra) == expected


def test_read_quantization_prefers_the_config_to_the_quantiser_file() -> None:
    result = read_quantization({"quantization": {"bits": 4, "group_size": 64}}, {"bits": 8})
    assert result is not None
    assert result.bits == 4


def test_read_quantization_of_every_public_config() -> None:
    folder = TRUTH / "configs"
    if not folder.is_dir():
        pytest.skip(
            "the collection of public configs is not part of the project; set EDGEKIT_TRUTH"
        )
    stated = read = 0
    for path in sorted(folder.glob("*.json")):
        text = path.read_text()
        stated += '"quantization_config": {' in text or '"quantization": {' in text
        read += read_quantization(json.loads(text)) is not None
    assert read == stated > 0


# --- weights in packed tensors


def tensor(name: str, kind: str, *shape: int) -> Tensor:
    elements = 1
    for dimension in shape:
        elements *= dimension
    row = by_name(kind)
    return Tensor(name=name, type=row, shape=shape, size_bytes=row.row_bytes(elements), offset=0)


MLX4 = Q(method="affine", bits=4, group_size=64, mlx=True, overrides=(("gate", {"bits": 8}),))
COUNTS: dict[str, tuple[Quantization | None, list[Tensor], int | None]] = {
    "plain": (None, [tensor("a.weight", "BF16", 3, 64), tensor("a.scales", "F32", 5)], 3 * 64 + 5),
    "GGUF": (None, [tensor("t", "Q4_K", 2, 256)], 2 * 256),
    "MLX, 4 bits: 8 weights in a U32": (
        MLX4,
        [
            tensor("q.weight", "U32", 10, 64 * 4 // 32),
            tensor("q.scales", "BF16", 10, 1),
            tensor("q.biases", "BF16", 10, 1),
            tensor("q.bias", "BF16", 10),
            tensor("norm.weight", "BF16", 64),
        ],
        10 * 64 + 10 + 64,
    ),
    "MLX, a module with an override": (
        MLX4,
        [tensor("gate.weight", "U32", 10, 64 * 8 // 32)],
        10 * 64,
    ),
    "MLX, 3 bits": (
        Q(method="affine", bits=3, group_size=64, mlx=True),
        [tensor("q.weight", "U32", 5, 64 * 3 // 32)],
        5 * 64,
    ),
    "GPTQ": (
        Q(method="gptq", bits=4, group_size=128),
        [
            tensor("q.qweight", "I32", 512 * 4 // 32, 96),
            tensor("q.qzeros", "I32", 4, 12),
            tensor("q.scales", "F16", 4, 96),
            tensor("q.g_idx", "I32", 512),
            tensor("q.bias", "F16", 96),
        ],
        512 * 96 + 96,
    ),
    "GPTQ, 3 bits": (
        Q(method="gptq", bits=3),
        [tensor("q.qweight", "I32", 512 * 3 // 32, 96)],
        512 * 96,
    ),
    "fp8": (
        Q(method="fp8", bits=8),
        [
            tensor("q.weight", "F8_E4M3", 256, 128),
            tensor("q.weight_scale_inv", "F32", 2, 1),
            tensor("q.input_scale", "F32"),
            tensor("attn.k_scale", "F32"),
        ],
        256 * 128,
    ),
    "fp8 with 4-bit experts": (
        Q(method="fp8", bits=8),
        [tensor("w1.weight", "I8", 64, 32), tensor("w1.scale", "F8_E8M0", 64, 2)],
        64 * 64,
    ),
    "NVFP4 of ModelOpt": (
        Q(method="modelopt", bits=4, group_size=16),
        [
            tensor("q.weight", "U8", 64, 32),
            tensor("q.weight_scale", "F8_E4M3", 64, 4),
            tensor("q.weight_scale_2", "F32"),
            tensor("q.input_scale", "F32"),
            tensor("k.weight", "F8_E4M3", 8, 8),
        ],
        64 * 64 + 8 * 8,
    ),
    "gpt-oss": (
        Q(method="mxfp4", bits=4, group_size=32),
        [
            tensor("experts.gate_up_proj_blocks", "U8", 32, 60, 90, 16),
            tensor("experts.gate_up_proj_scales", "U8", 32, 60, 90),
            tensor("experts.gate_up_proj_bias", "BF16", 32, 60),
        ],
        32 * 60 * 90 * 32 + 32 * 60,
    ),
    "compressed-tensors, packed": (
        Q(method="compressed-tensors", bits=4, group_size=32),
        [
            tensor("q.weight_packed", "I32", 64, 16),
            tensor("q.weight_scale", "BF16", 64, 4),
            tensor("q.weight_shape", "I64", 2),
        ],
        64 * 128,
    ),
    "compressed-tensors, 4-bit floats": (
        Q(method="compressed-tensors", bits=4, group_size=16),
        [
            tensor("q.weight_packed", "U8", 64, 32),
            tensor("q.weight_scale", "F8_E4M3", 64, 4),
            tensor("q.weight_global_scale", "F32", 1),
            tensor("q.input_global_scale", "F32", 1),
        ],
        64 * 64,
    ),
    "bitsandbytes, 4 bits": (
        Q(method="bitsandbytes", bits=4),
        [
            tensor("q.weight", "U8", 2048, 1),
            tensor("q.weight.absmax", "U8", 64),
            tensor("q.weight.quant_map", "F32", 16),
            tensor("q.weight.nested_absmax", "F32", 1),
            tensor("q.weight.nested_quant_map", "F32", 256),
            tensor("q.weight.quant_state.bitsandbytes__nf4", "U8", 90),
        ],
        2048 * 2,
    ),
    "bitsandbytes, 8 bits": (
        Q(method="bitsandbytes", bits=8),
        [tensor("q.weight", "I8", 8, 8), tensor("q.SCB", "F32", 8)],
        64,
    ),
    "a scale without a weight is a parameter": (
        Q(method="fp8", bits=8),
        [tensor("logit_scale", "F32"), tensor("ln.scale", "F32", 64)],
        65,
    ),
    "unknown method": (Q(method="squeeze9"), [tensor("q.weight", "U32", 4, 4)], None),
}


@pytest.mark.parametrize("name", COUNTS)
def test_count_weights_of_packed_tensors(name: str) -> None:
    quantization, tensors, expected = COUNTS[name]
    assert count_weights(tensors, quantization) == expected


def test_count_weights_with_and_without_quantization() -> None:
    packed = tensor("q.weight", "U32", 10, 8)
    assert count_weights([packed], MLX4) == 640
    assert count_weights([packed], None) == 80


def test_count_weights_with_invalid_bits_is_unknown() -> None:
    for bits in (0, -1, "many", None, 4.5, 2**70, True):
        setting = Q(method="affine", bits=4, mlx=True, overrides=(("q", {"bits": bits}),))
        assert count_weights([tensor("q.weight", "U32", 10, 8)], setting) is None


@pytest.mark.parametrize("bits", [4, 4.0, "4"])
def test_count_weights_accepts_bits_as_int_float_or_text(bits: object) -> None:
    result = read_quantization({"quantization_config": {"quant_method": "gptq", "bits": bits}})
    assert result is not None
    assert count_weights([tensor("q.qweight", "I32", 10, 8)], result) == 640


def test_count_weights_by_scales_if_bits_differ_by_pattern() -> None:
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {".*q": {"bits": 8}}}
    result = read_quantization({"quantization_config": config})
    packed, scales = tensor("q.qweight", "I32", 16, 8), tensor("q.scales", "F16", 2, 8)
    assert count_weights([packed, scales], result) == 2 * 32 * 8
    assert count_weights([packed], result) is None


def test_count_weights_by_scales_if_groups_differ() -> None:
    groups = {
        name: {"weights": {"num_bits": bits, "group_size": 32}}
        for name, bits in (("a", 4), ("b", 8))
    }
    config = {"quant_method": "compressed-tensors", "config_groups": groups}
    result = read_quantization({"quantization_config": config})
    tensors = [tensor("q.weight_packed", "I32", 8, 16), tensor("q.weight_scale", "F16", 8, 2)]
    assert count_weights(tensors, result) == 8 * 2 * 32
