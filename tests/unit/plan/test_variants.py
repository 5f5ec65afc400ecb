"""What there is to choose among, and its order."""

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


def test_the_usual_mixes_from_the_most_accurate_on() -> None:
    names = [mix.name for mix in at_mixes(gguf(LLAMA))]
    assert names == ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ3_XXS", "Q2_K"]
    assert "F16" in USUAL_MIXES  # and is no choice: nothing is gained over 8 bits


def test_sixteen_bits_where_there_is_nothing_else() -> None:
    assert {mix.name for mix in at_mixes(gguf(LLAMA), ("BF16", "F16"))} == {"F16", "BF16"}
    assert [mix.name for mix in at_mixes(gguf(LLAMA), ("F16", "Q2_K"))] == ["Q2_K"]


@pytest.mark.parametrize(
    ("mix", "is_good"), [("Q8_0", True), ("Q4_K_M", True), ("IQ4_XS", True), ("Q3_K_M", False), ("Q2_K", False)]
)  # fmt: skip
def test_four_bits_are_good(mix: str, *, is_good: bool) -> None:
    (one,) = at_mixes(gguf(LLAMA), (mix,))
    assert (one.is_good, one.changes) == (is_good, {"mix": mix})
    assert one.reference == ""


def test_files_of_a_repository_are_asked_for_as_it_names_them() -> None:
    result = at_mixes(gguf(LLAMA), ("q4_k_m", "Q8_0", "IQ9_Z", "mmproj"), repository="acme/x-GGUF")
    assert [(item.name, item.reference) for item in result] == [
        ("Q8_0", "acme/x-GGUF:Q8_0"),
        ("Q4_K_M", "acme/x-GGUF:q4_k_m"),
    ]


def test_a_repository_of_nothing_known_offers_nothing() -> None:
    assert at_mixes(gguf(LLAMA), ("IQ9_Z",)) == ()


@given(st.lists(st.sampled_from(sorted(mix_rows())), max_size=12))
def test_more_bits_never_come_later(mixes: list[str]) -> None:
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
def test_accuracy_follows_the_bits(more: str, less: str) -> None:
    assert (accuracy_of(more) or 0) > (accuracy_of(less) or 0) > 0


def test_an_unknown_mix_is_not_known() -> None:
    assert accuracy_of("NOBODY_KNOWS") is None


@pytest.mark.parametrize(
    ("mix", "least", "most"), [("F16", 1600, 1600), ("Q8_0", 850, 850), ("Q4_K_M", 480, 500)]
)
def test_a_file_has_the_bits_of_its_tensors(mix: str, least: int, most: int) -> None:
    assert least <= stored_accuracy(gguf(LLAMA, mix)) <= most  # a block of 32: 34 bytes at Q8_0


def test_the_usual_where_no_tensor_was_read() -> None:
    assert stored_accuracy(of_config("qwen3-8b")) == 500


def test_mlx_writes_any_number_of_bits() -> None:
    result = at_bits(of_config("qwen3-8b"))
    assert [(item.name, item.accuracy, item.is_good) for item in result] == [
        ("8 bit", 850, True), ("6 bit", 650, True), ("5 bit", 550, True), ("4 bit", 450, True), ("3 bit", 350, False)
    ]  # fmt: skip
    every = (8, 6, 5, 4, 3)
    packings = [Quantize(packing=Packing(bits=bits, group_size=64)) for bits in every]
    assert [item.changes["quantize"] for item in result] == packings


def test_a_file_that_was_named_is_the_only_one() -> None:
    (one,) = as_named(gguf(LLAMA), "Q4_K_M", "acme/x-GGUF:Q4_K_M")
    assert (one.name, one.reference, one.changes, one.is_good) == ("Q4_K_M", "acme/x-GGUF:Q4_K_M", {}, True)  # fmt: skip


def packed() -> Model:
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
def test_what_each_engine_can_make_of_a_repository(engine: str, names: list[str]) -> None:
    result = engine_named(engine).variants(of_config("qwen3-8b"))
    assert [item.name for item in result] == names


def test_what_mlx_packed_already_stays() -> None:
    assert [variant.name for variant in engine_named("mlx").variants(packed())] == ["as stored"]
