"""Names and settings of MLX quantisation formats."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.engines.mlx.small_models import LLAMA, bill_of

from edgekit.engines.mlx.quantization import (
    AS_STORED,
    FOUR_BIT,
    PLAIN,
    BitsRecipe,
    Packing,
    PackingMode,
    Quantize,
    read_quantize,
)
from edgekit.errors import (
    HeaderError,
    UsageError,
)


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
def test_read_quantize(name: str, quantize: object) -> None:
    assert read_quantize(name) == quantize


@pytest.mark.parametrize("name", ["q7_g64", "q4_g48", "gguf", "q9"])
def test_read_quantize_rejects_an_unknown_name(name: str) -> None:
    with pytest.raises(UsageError):
        read_quantize(name)
