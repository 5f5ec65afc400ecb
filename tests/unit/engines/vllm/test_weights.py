"""Weights on one GPU: of ranks, stages and quantisation schemes, from the config and from tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.recorded import config_header
from tests.unit.engines.vllm.small_models import BLOCK, CONFIG, LAYER, VOCABULARY, WEIGHTS, estimate

from edgekit.bill.types import Component, Load
from edgekit.engines.vllm import estimate as vllm
from edgekit.engines.vllm.expected import stages
from edgekit.engines.vllm.schemes import ListedModules
from edgekit.engines.vllm.types import Gpu, VllmSetup
from edgekit.formats.dtype import by_safetensors
from edgekit.formats.types import Tensor
from edgekit.model import read_geometry
from edgekit.model.tensor_recipes import TensorRole
from edgekit.model.types import Model
from edgekit.units import Basis


@pytest.mark.parametrize(
    ("layers", "count", "sizes"),
    [
        (8, 2, (4, 4)),
        (61, 4, (15, 15, 16, 15)),
        (10, 4, (2, 3, 3, 2)),
        (11, 4, (3, 3, 3, 2)),
        (4, 1, (4,)),
    ],
)
def test_stages_before_the_last_take_the_remaining_layers(
    layers: int, count: int, sizes: tuple[int, ...]
) -> None:
    ranges = stages(layers, count)
    assert tuple(map(len, ranges)) == sizes
    assert [layer for stage in ranges for layer in stage] == list(range(layers))


def test_last_stage_has_its_layers_the_head_and_the_final_norm() -> None:
    bill = estimate(pipeline_parallel_size=2)
    assert bill.weights_bytes == 2 * LAYER + VOCABULARY + 2 * 512
    assert dict(bill.facts)["bytes_per_block"] == BLOCK // 2
    assert dict(bill.facts)["max_in_flight_tokens"] == 3 * 2048  # one per stage, and one more


def test_tied_embedding_is_also_on_the_last_stage() -> None:
    tied = {**CONFIG, "tie_word_embeddings": True}
    assert estimate(tied).weights_bytes == WEIGHTS - VOCABULARY
    last_stage = 2 * LAYER + VOCABULARY + 2 * 512
    assert estimate(tied, pipeline_parallel_size=2).weights_bytes == last_stage


def test_weights_from_the_config_are_by_layer() -> None:
    bill = estimate()
    assert bill.weights_bytes == WEIGHTS
    lines = [line for line in bill.lines if line.component is Component.WEIGHTS]
    assert {line.layer for line in lines} == {None, 0, 1, 2, 3}


def test_weights_of_a_rank_are_its_share_of_matrices_and_all_norms() -> None:
    norm_bytes = 2 * (4 * 2 * 512 + 512)
    rank_bytes = estimate(tensor_parallel_size=2).weights_bytes
    assert rank_bytes == norm_bytes + (WEIGHTS - norm_bytes) // 2


def quantised_bytes(**quantization: Any) -> int:
    return estimate({**CONFIG, "quantization_config": quantization}).weights_bytes


# Weights in the quantised matrices, and the bytes of everything else.
MATRICES = 4 * (2 * 512 * 512 + 2 * 256 * 512 + 3 * 512 * 1024)
PLAIN = WEIGHTS - 2 * MATRICES


def test_weights_in_fp8_have_a_scale_per_block() -> None:
    # four layers, four bytes per block of 128 x 128 weights in q; k and v; o; gate, up and down
    scales = 4 * 4 * (4 * 4 + 2 * 2 * 4 + 4 * 4 + 3 * 4 * 8)
    size_bytes = quantised_bytes(quant_method="fp8", weight_block_size=[128, 128])
    of_attention = 4 * 4 * 2  # four layers, four scales each, two bytes
    assert size_bytes == PLAIN + MATRICES + scales + of_attention


def test_weights_in_gptq_have_scales_and_zeros_per_group() -> None:
    groups = MATRICES // 128
    size_bytes = quantised_bytes(quant_method="gptq", bits=4, group_size=128)
    assert size_bytes == PLAIN + MATRICES // 2 + groups * 2 + groups // 2


def test_weights_of_ignored_modules_are_not_quantised() -> None:
    all_quantised = quantised_bytes(quant_method="fp8", activation_scheme="dynamic")
    with_ignored = quantised_bytes(
        quant_method="fp8",
        activation_scheme="dynamic",
        modules_to_not_convert=["model.layers.0.mlp"],
    )
    assert with_ignored - all_quantised == 3 * 512 * 1024 - 3 * 4


def test_mxfp4_experts_are_padded_for_marlin() -> None:
    config = {
        **CONFIG,
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "hidden_size": 288,
        "intermediate_size": 96,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
        "quantization_config": {"quant_method": "mxfp4"},
    }
    not_padded = estimate(config).weights_bytes
    padded = estimate(config, gpu=Gpu(name="L4", capability=(8, 9))).weights_bytes

    def expert_bytes(width: int, hidden: int) -> int:
        packed = 3 * width * hidden // 2 + 3 * width * hidden // 32
        return 4 * 4 * (packed + 2 * (2 * width + hidden))

    assert padded - not_padded == expert_bytes(128, 512) - expert_bytes(128, 288)


@pytest.mark.parametrize(
    ("pattern", "role", "layer", "covered"),
    [
        ("lm_head", TensorRole.QUERY, 0, False),
        ("model.layers.3.mlp.gate", TensorRole.ROUTER, 3, True),
        ("model.layers.3.mlp.gate", TensorRole.ROUTER, 4, False),
        ("model.layers.3.mlp.gate", TensorRole.GATE, 3, False),
        ("re:.*self_attn.*", TensorRole.OUTPUT, 7, True),
        ("re:.*mlp\\.gate$", TensorRole.ROUTER, 7, True),
        ("model.language_model.layers.0.self_attn*", TensorRole.KEY, 0, True),
        ("*.mlp.experts.*", TensorRole.EXPERT_UP, 2, True),
        ("gate", TensorRole.ROUTER, 1, True),
        ("gate", TensorRole.GATE, 1, False),
        ("", TensorRole.GATE, 1, False),
    ],
)
def test_listed_modules_cover(pattern: str, role: TensorRole, layer: int, *, covered: bool) -> None:
    assert ListedModules([pattern], "llama").covers(role, layer) is covered


def tensor(name: str, *shape: int, dtype: str = "BF16") -> Tensor:
    kind = by_safetensors(dtype)
    elements = 1
    for size in shape:
        elements *= size
    return Tensor(name=name, type=kind, shape=shape, size_bytes=kind.row_bytes(elements), offset=0)


def stored_model(*extra: Tensor) -> Model:
    """The model of CONFIG with a directory of its tensors and the extra ones."""
    tensors = [tensor("model.embed_tokens.weight", 1000, 512), tensor("lm_head.weight", 1000, 512)]
    tensors.append(tensor("model.norm.weight", 512))
    for layer in range(4):
        shapes = {
            "self_attn.q_proj": (512, 512),
            "self_attn.k_proj": (256, 512),
            "self_attn.v_proj": (256, 512),
            "self_attn.o_proj": (512, 512),
            "mlp.gate_proj": (1024, 512),
            "mlp.up_proj": (1024, 512),
            "mlp.down_proj": (512, 1024),
            "input_layernorm": (512,),
            "post_attention_layernorm": (512,),
        }
        tensors += [
            tensor(f"model.layers.{layer}.{name}.weight", *shape) for name, shape in shapes.items()
        ]
    header = replace(config_header(CONFIG), tensors=(*tensors, *extra))
    return Model(header=header, geometry=read_geometry(header))


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_weights_from_tensors_equal_weights_from_the_config(ranks: int) -> None:
    setup = VllmSetup(tensor_parallel_size=ranks)
    stored = vllm.estimate(stored_model(), Load(context_tokens=1000), setup)
    assert stored.weights_bytes == estimate(tensor_parallel_size=ranks).weights_bytes
    lines = [line for line in stored.lines if line.component is Component.WEIGHTS]
    assert {line.basis for line in lines} == {Basis.EXACT}


@pytest.mark.parametrize("ranks", [1, 2])
def test_online_fp8_from_tensors_equals_online_fp8_from_the_config(ranks: int) -> None:
    flags: dict[str, Any] = {"tensor_parallel_size": ranks, "quantization": "fp8"}
    stored = vllm.estimate(stored_model(), Load(context_tokens=1000), VllmSetup(**flags))
    assert stored.weights_bytes == estimate(**flags).weights_bytes
    # Seven matrices per layer: one byte per weight instead of two, and a scale of four bytes each.
    plain = estimate(tensor_parallel_size=ranks).weights_bytes
    assert plain - stored.weights_bytes == MATRICES // ranks - 4 * 7 * 4
    assert stored.basis is Basis.MODELLED


def test_online_fp8_leaves_a_vision_tower_in_bf16() -> None:
    tower = tensor("vision_tower.embed.weight", 1000, 100)
    setup = VllmSetup(quantization="fp8")
    load = Load(context_tokens=1000)
    with_tower = vllm.estimate(stored_model(tower), load, setup).weights_bytes
    without = vllm.estimate(stored_model(), load, setup).weights_bytes
    assert with_tower - without == 1000 * 100 * 2


def test_weights_exclude_tensors_that_vllm_does_not_load() -> None:
    of_prediction_block = tensor("model.layers.4.eh_proj.weight", 512, 1024)
    rotary = tensor("model.layers.0.self_attn.rotary_emb.inv_freq", 32, dtype="F32")
    with_both = stored_model(of_prediction_block, rotary)
    assert vllm.estimate(with_both, Load(), VllmSetup()).weights_bytes == WEIGHTS


def test_weights_are_cast_to_the_requested_dtype() -> None:
    in_float32 = vllm.estimate(stored_model(), Load(), VllmSetup(dtype="float32"))
    assert in_float32.weights_bytes == 2 * WEIGHTS
