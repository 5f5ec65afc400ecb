"""Unsloth's dynamic quantisations, whose sizes follow from the mixes that they are like."""

from __future__ import annotations

import pytest

from edgekit.app.check import Check, check
from edgekit.app.open import open_named
from edgekit.engines.llamacpp.choices import sizes
from edgekit.formats.mixes import dynamic_mix, mix_by_name, plain_mix
from edgekit.index.repositories import Form, repository_at
from edgekit.request import Request, Session, read_quant
from edgekit.sources.types import Reach
from edgekit.units import Basis


@pytest.mark.parametrize("name", ["UD-Q4_K_XL", "ud-q4_k_xl", "UD_Q4_K_XL", "Q4_K_XL"])
def test_read_quant_of_a_dynamic_quantisation_is_its_name(name: str) -> None:
    assert read_quant("llama.cpp", name) == "UD-Q4_K_XL"


@pytest.mark.parametrize("name", ["Q4_K_M", "UD-Q9_K_XL", "XL", ""])
def test_dynamic_mix_of_another_name_is_none(name: str) -> None:
    assert dynamic_mix(name) is None
    assert plain_mix(name) == name


def test_dynamic_mix_is_like_a_mix_that_llama_quantize_makes() -> None:
    for name in ("UD-IQ1_S", "UD-IQ2_M", "UD-Q2_K_XL", "UD-Q6_K_XL", "UD-Q8_K_XL"):
        dynamic = dynamic_mix(name)
        assert dynamic is not None
        assert mix_by_name(dynamic.like) is not None
        assert dynamic.least <= dynamic.usual <= dynamic.most


def test_dynamic_mix_of_a_model_released_in_four_bits_is_like_that_release() -> None:
    dynamic = dynamic_mix("UD-Q6_K_XL", "MXFP4_MOE")
    assert dynamic is not None
    assert (dynamic.like, dynamic.usual) == ("MXFP4_MOE", 1.0)


def test_size_at_a_dynamic_mix_is_assumed_from_the_mix_like_it() -> None:
    model = open_named("catalog:qwen3-8b").opened("llama.cpp").model
    found = {size.mix: size for size in sizes(model, ("UD-Q4_K_XL", "Q4_K_M"))}
    dynamic, plain = found["UD-Q4_K_XL"], found["Q4_K_M"]
    assert dynamic.tensor_bytes == round(plain.tensor_bytes * 1.02)
    assert dynamic.basis is Basis.ASSUMED


def test_check_at_a_dynamic_mix_says_so_and_names_the_repository_that_has_it() -> None:
    request = Request(devices=("RTX 4090",), ram="64G")
    (answer,) = check("qwen3-8b:UD-Q4_K_XL", request, Session(reach=Reach(network=False)))
    assert isinstance(answer, Check)
    estimate = answer.result.estimate
    weights = [line for line in estimate.lines if line.component.value == "weights"]
    caches = [line for line in estimate.lines if "cache" in line.component.value and line.reserved]
    assert {line.basis for line in weights} == {Basis.ASSUMED}
    assert {line.basis for line in caches} == {Basis.EXACT}
    assert any(note.startswith("UD-Q4_K_XL is assumed to be 1.02 times") for note in estimate.notes)
    assert "unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL" in answer.bill.command


def test_repository_of_a_dynamic_mix_has_exactly_that_one() -> None:
    repository = repository_at("qwen3-8b", Form.GGUF, "UD-Q4_K_XL")
    assert repository is not None
    assert (repository.owner, repository.tag("UD-Q4_K_XL")) == ("unsloth", "UD-Q4_K_XL")
    assert repository.tag("UD-Q4_K_M") is None


def test_dynamic_mix_that_nobody_measured_has_the_range_of_all_others() -> None:
    dynamic = dynamic_mix("UD-IQ4_XS")
    assert dynamic is not None
    assert (dynamic.like, dynamic.usual) == ("IQ4_XS", 1.1)
    assert "other dynamic quantisations are" in dynamic.because
    assert dynamic_mix("UD-TQ1_0") is not None


def test_dynamic_mix_is_larger_in_every_memory() -> None:
    """With all experts in RAM, that is where the file is larger."""
    request = Request(devices=("RTX 4090",), ram="64G", options={"cpu_moe": True, "n_ctx": 16384})
    session = Session(reach=Reach(network=False))

    def ram_bytes(name: str) -> int:
        (answer,) = check(name, request, session)
        assert isinstance(answer, Check)
        lines = answer.result.estimate.lines
        in_ram = [line for line in lines if line.pool.kind.value == "host"]
        return sum(line.size_bytes for line in in_ram if line.component.value == "weights")

    plain, dynamic = ram_bytes("qwen3-30b-a3b:Q8_0"), ram_bytes("qwen3-30b-a3b:UD-Q8_K_XL")
    assert dynamic == pytest.approx(plain * 1.2, rel=1e-6)
