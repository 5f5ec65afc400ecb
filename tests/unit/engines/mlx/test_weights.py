"""MLX weights: converted to a format, or as stored in the files."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.engines.mlx.small_models import LLAMA, MLA, bill_of, model_of

from edgekit.bill.types import Component, Load, MemoryEstimate
from edgekit.engines.mlx.estimate import estimate
from edgekit.engines.mlx.quantization import (
    AS_STORED,
    PLAIN,
    AsStored,
    Packing,
    PackingMode,
    Quantize,
)
from edgekit.engines.mlx.setups import MlxSetup
from edgekit.formats.dtype import by_name
from edgekit.formats.types import Tensor
from edgekit.units import Basis

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
def test_weights_from_the_config(quantize: Quantize | AsStored | None, weights: int) -> None:
    assert bill_of(LLAMA, quantize=quantize).weights_bytes == weights


def test_unquantised_model_is_billed_as_if_converted_to_four_bits() -> None:
    bill = bill_of(LLAMA)
    lines = [line for line in bill.lines if line.component is Component.WEIGHTS]
    assert all("as if converted" in line.because for line in lines)
    assert all(line.basis is Basis.MODELLED and line.within == 0.005 for line in lines)
    assert "as if" in bill.notes[0]
    assert bill_of(LLAMA, quantize=AS_STORED).notes == ()


def test_matrices_with_rows_that_no_group_divides_stay_in_bf16() -> None:
    odd = {**LLAMA, "intermediate_size": 1000}  # rows of down_proj: 1000 % 64 = 40
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


def test_stored_weights_exclude_tensors_that_mlx_lm_drops() -> None:
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


def test_stored_packed_tensors_keep_their_size() -> None:
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


def test_stored_fp8_becomes_bf16_for_a_model_that_unpacks_it() -> None:
    config = {**MLA, "quantization_config": {"quant_method": "fp8"}}
    bill = stored_bill(
        config,
        tensor("model.layers.0.mlp.up_proj.weight", "F8_E4M3", 1024, 512),
        tensor("model.layers.0.mlp.up_proj.weight_scale_inv", "F32", 8, 4),
    )
    assert bill.weights_bytes == 1024 * 512 * 2


def test_stored_zero_points_of_awq_become_biases_in_f16() -> None:
    config = {**LLAMA, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    bill = stored_bill(
        config,
        tensor(f"{LAYER}.qweight", "I32", 512, 64),
        tensor(f"{LAYER}.scales", "F16", 4, 512),
        tensor(f"{LAYER}.qzeros", "I32", 4, 64),
    )
    assert bill.weights_bytes == 512 * 64 * 4 + 2 * (4 * 512 * 2)
