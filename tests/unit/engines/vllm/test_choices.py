"""The repositories that a plan may choose for vLLM."""

from __future__ import annotations

import pytest
from tests.unit.plan.tasks import of_config

from edgekit.engines.vllm.choices import variants


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("qwen3-8b", {"FP8": "Qwen/Qwen3-8B-FP8", "AWQ": "Qwen/Qwen3-8B-AWQ"}),
        (
            "llama-3.1-8b",  # no AWQ and no GPTQ is known
            {
                "FP8": "unsloth/Llama-3.1-8B-Instruct-FP8-Dynamic",
                "NVFP4": "nvidia/Llama-3.1-8B-Instruct-NVFP4",
            },
        ),
        ("no-such-model", {}),
    ],
)
def test_variants_are_the_plain_weights_and_known_repositories(
    label: str, expected: dict[str, str]
) -> None:
    plain, *others = variants(of_config("qwen3-8b"), label)
    assert plain.reference == ""
    assert {variant.name: variant.reference for variant in others} == expected
    sizes = [variant.model.header.quantization for variant in others]
    assert all(quantization is not None for quantization in sizes)


def test_four_bits_only_of_repositories_with_four_bits() -> None:
    """QuantTrio's GPTQ of this model has 8 bits; its AWQ has 4."""
    names = {
        v.name: v.reference for v in variants(of_config("qwen3-8b"), "qwen3-coder-30b-a3b-instruct")
    }
    assert "GPTQ" not in names
    assert names["AWQ"] == "QuantTrio/Qwen3-Coder-30B-A3B-Instruct-AWQ"
