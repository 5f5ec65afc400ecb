"""engines/choices.py and the choices of each engine: quantisations, most accurate first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.recorded import config_header
from tests.unit.plan.tasks import LLAMA, gguf, of_config

from edgekit.engines import engine_named
from edgekit.engines.choices import accuracy_of, as_named, stored_accuracy
from edgekit.engines.llamacpp.choices import at_mixes
from edgekit.engines.llamacpp.flags import USUAL_MIXES
from edgekit.engines.llamacpp.quantization import mix_rows
from edgekit.engines.mlx.choices import at_bits
from edgekit.engines.mlx.quantization import Packing, Quantize
from edgekit.model import read_geometry
from edgekit.model.types import Model


def test_at_mixes_come_most_accurate_first() -> None:
    names = [mix.name for mix in at_mixes(gguf(LLAMA))]
    assert names == ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ3_XXS", "Q2_K"]
    assert "F16" in USUAL_MIXES  # but it is never offered: it gains nothing over 8 bits


def test_at_mixes_offers_16_bits_only_if_there_is_nothing_else() -> None:
    assert {mix.name for mix in at_mixes(gguf(LLAMA), ("BF16", "F16"))} == {"F16", "BF16"}
    assert [mix.name for mix in at_mixes(gguf(LLAMA), ("F16", "Q2_K"))] == ["Q2_K"]


@pytest.mark.parametrize(
    ("mix", "is_good"), [("Q8_0", True), ("Q4_K_M", True), ("IQ4_XS", True), ("Q3_K_M", False), ("Q2_K", False)]
)  # fmt: skip
def test_at_mixes_of_four_bits_and_more_are_good(mix: str, *, is_good: bool) -> None:
    (variant,) = at_mixes(gguf(LLAMA), (mix,))
    assert (variant.is_good, variant.changes) == (is_good, {"mix": mix})
    assert variant.reference == ""


def test_at_mixes_of_a_repository_keep_its_spelling() -> None:
    result = at_mixes(gguf(LLAMA), ("q4_k_m", "Q8_0", "IQ9_Z", "mmproj"), repository="acme/x-GGUF")
    assert [(item.name, item.reference) for item in result] == [
        ("Q8_0", "acme/x-GGUF:Q8_0"),
        ("Q4_K_M", "acme/x-GGUF:q4_k_m"),
    ]


def test_at_mixes_of_an_unknown_name_is_empty() -> None:
    assert at_mixes(gguf(LLAMA), ("IQ9_Z",)) == ()


@given(st.lists(st.sampled_from(sorted(mix_rows())), max_size=12))
def test_at_mixes_are_sorted_by_accuracy(mixes: list[str]) -> None:
    result = at_mixes(gguf(LLAMA), mixes)
    assert [item.accuracy for item in result] == sorted(
        (item.accuracy for item in result), reverse=True
    )
    assert {item.name for item in result} <= set(mixes)
    assert bool(result) == bool(mixes)


@pytest.mark.parametrize(
    ("more", "less"),
    [("Q8_0", "Q6_K"), ("Q6_K", "Q5_K_M"), ("Q5_K_M", "Q4_K_M"), ("Q4_K_M", "IQ4_XS"), ("Q3_K_M", "Q2_K")],
)  # fmt: skip
def test_accuracy_of_follows_the_bits(more: str, less: str) -> None:
    assert (accuracy_of(more) or 0) > (accuracy_of(less) or 0) > 0


def test_accuracy_of_an_unknown_mix_is_none() -> None:
    assert accuracy_of("NO_SUCH_MIX") is None


@pytest.mark.parametrize(
    ("mix", "least", "most"), [("F16", 1600, 1600), ("Q8_0", 850, 850), ("Q4_K_M", 480, 500)]
)
def test_stored_accuracy_follows_the_tensors(mix: str, least: int, most: int) -> None:
    assert least <= stored_accuracy(gguf(LLAMA, mix)) <= most  # a block of 32: 34 bytes at Q8_0


def test_stored_accuracy_without_tensors_is_the_default() -> None:
    assert stored_accuracy(of_config("qwen3-8b")) == 500


def test_at_bits_of_mlx() -> None:
    result = at_bits(of_config("qwen3-8b"))
    assert [(item.name, item.accuracy, item.is_good) for item in result] == [
        ("8 bit", 850, True), ("6 bit", 650, True), ("5 bit", 550, True), ("4 bit", 450, True), ("3 bit", 350, False)
    ]  # fmt: skip
    all_bits = (8, 6, 5, 4, 3)
    packings = [Quantize(packing=Packing(bits=bits, group_size=64)) for bits in all_bits]
    assert [item.changes["quantize"] for item in result] == packings


def test_as_named_is_the_only_variant() -> None:
    (variant,) = as_named(gguf(LLAMA), "Q4_K_M", "acme/x-GGUF:Q4_K_M")
    assert (variant.name, variant.reference, variant.changes, variant.is_good) == ("Q4_K_M", "acme/x-GGUF:Q4_K_M", {}, True)  # fmt: skip


def quantised_for_mlx() -> Model:
    config = {**of_config("qwen3-8b").header.config, "quantization": {"bits": 4, "group_size": 64}}
    header = config_header(config)
    return Model(header=header, geometry=read_geometry(header))


@pytest.mark.parametrize(
    ("engine", "names"),
    [
        ("llama.cpp", ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ3_XXS", "Q2_K"]),
        ("vllm", ["as stored"]),
        ("mlx", ["8 bit", "6 bit", "5 bit", "4 bit", "3 bit"]),
        ("stream", ["as stored"]),
    ],
)  # fmt: skip
def test_variants_of_each_engine(engine: str, names: list[str]) -> None:
    result = engine_named(engine).variants(of_config("qwen3-8b"))
    assert [item.name for item in result] == names


def test_variants_of_a_model_quantised_for_mlx_are_as_stored() -> None:
    assert [variant.name for variant in engine_named("mlx").variants(quantised_for_mlx())] == [
        "as stored"
    ]
