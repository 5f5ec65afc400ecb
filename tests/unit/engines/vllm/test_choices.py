"""The repositories that a plan may choose for vLLM."""

from __future__ import annotations

import pytest
from tests.unit.plan.tasks import of_config

from edgekit.app.check import Check, Unanswered, check
from edgekit.engines.vllm.choices import checkpoint, variants
from edgekit.request import Request, Session
from edgekit.sources.types import Reach
from edgekit.units import GIB


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


@pytest.mark.parametrize(
    ("quant", "typed", "expected"),
    [
        ("AWQ", "qwen3-8b:AWQ", "Qwen/Qwen3-8B-AWQ"),
        ("fp8", "qwen/qwen3-8b-fp8", "Qwen/Qwen3-8B-FP8"),
        ("GPTQ", "Qwen/Qwen3-8B-GPTQ-Int8", None),  # not the one with 4 bits
        ("Q4_K_M", "qwen3-8b:Q4_K_M", None),
    ],
)
def test_checkpoint_is_the_published_repository(
    quant: str, typed: str, expected: str | None
) -> None:
    found = checkpoint(of_config("qwen3-8b"), "qwen3-8b", quant, typed)
    assert (None if found is None else found.reference) == expected


def test_check_of_a_published_checkpoint_by_name() -> None:
    """8.2 B parameters at 4 bits, with scales and embeddings at 16: below 6 GiB."""
    request = Request(devices=("RTX 4090",), ram="64G")
    session = Session(reach=Reach(network=False))
    for name in ("Qwen/Qwen3-8B-AWQ", "qwen3-8b:AWQ"):
        (answer,) = check(name, request, session)
        assert isinstance(answer, Check)
        assert answer.result.engine == "vllm"
        assert "vllm serve Qwen/Qwen3-8B-AWQ " in answer.bill.command
        lines = answer.result.estimate.lines
        weights = sum(line.size_bytes for line in lines if line.component.value == "weights")
        assert 5 * GIB < weights < 6 * GIB
    (refused,) = check("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8", request, session)
    assert isinstance(refused, Unanswered)
    assert "give its repository" in str(refused.error)
