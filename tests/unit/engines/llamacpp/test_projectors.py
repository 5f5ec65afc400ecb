"""Projectors made from a model's config, compared with what llama.cpp reported when it loaded them.

Logged by llama.cpp 0.6.0-dev (b11549, xllamacpp 2026.10.11549) on a CPU, for files with these headers and all weights
zero: "model size" of load_hparams, and the compute buffer of reserve_compute_meta with flash attention.
"""

from __future__ import annotations

from typing import Any

import pytest

from edgekit.bill.types import Load
from edgekit.engines.entries import open_entry
from edgekit.engines.llamacpp.companions import known_projector, projector_lines
from edgekit.engines.llamacpp.projectors import projector_of
from edgekit.engines.llamacpp.setups import default_setup
from edgekit.formats.types import ModelHeader
from edgekit.index.names import find_entry
from edgekit.units import MIB, Basis

QWEN3_2B = {
    "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "deepstack_visual_indexes": [5, 11, 17],
}  # fmt: skip
SO400M = {"hidden_size": 1152, "intermediate_size": 4304}
E4B = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12,
}  # fmt: skip
# model_type, vision_config, audio_config, width of the language model; MiB of weights and of the buffers
LOGGED: list[tuple[str, dict[str, Any], dict[str, Any], int, float, float]] = [
    ("gemma3", {}, {}, 2560, 811.79, 121.25),
    ("mistral3", {}, {}, 5120, 837.36, 64.62),
    ("qwen3_vl", QWEN3_2B, {}, 2048, 781.42, 322.49),
    ("qwen3_5", {**SO400M, "depth": 27, "deepstack_visual_indexes": []}, {}, 5120, 884.62, 248.10),
    ("qwen2_5_vl", {"intermediate_size": 3420}, {}, 3584, 1291.40, 569.70),
    ("qwen2_vl", {}, {}, 1536, 1269.94, 267.08),
    ("gemma4", {**SO400M, "num_hidden_layers": 27}, {}, 5376, 1143.39, 150.63),
    ("gemma4", E4B, {"hidden_size": 1024}, 2560, 942.39, 101.27 + 101.19),
]


def made(
    model_type: str, vision: dict[str, Any], audio: dict[str, Any], hidden: int
) -> ModelHeader:
    config = {"model_type": model_type, "vision_config": vision, "audio_config": audio}
    header = projector_of(config, hidden)
    assert header is not None
    return header


@pytest.mark.parametrize("row", LOGGED, ids=lambda row: f"{row[0]}-{row[3]}")
def test_weights_are_those_that_llama_cpp_loads_and_buffers_are_in_their_bounds(
    row: tuple[str, dict[str, Any], dict[str, Any], int, float, float],
) -> None:
    model_type, vision, audio, hidden, weights_mib, buffer_mib = row
    header = made(model_type, vision, audio, hidden)
    weights, buffer = projector_lines(header, Load(), default_setup())
    assert round(weights.size_bytes / MIB, 2) == weights_mib
    assert weights.basis is Basis.MODELLED
    assert abs(buffer_mib * MIB - buffer.size_bytes) <= (buffer.within or 0) * buffer.size_bytes


@pytest.mark.parametrize(
    ("model_type", "vision", "hidden", "listed_bytes"),
    [
        ("gemma3", {}, 2560, 851_233_996),  # unsloth/gemma-3-4b-it-GGUF
        ("gemma3", {}, 3840, 854_170_009),  # unsloth/gemma-3-12b-it-GGUF
        ("gemma3", {}, 5376, 857_735_168),  # google/gemma-3-27b-it-qat-q4_0-gguf
        ("mistral3", {}, 5120, 878_077_542),  # unsloth/Mistral-Small-3.2-24B-Instruct-2506-GGUF
        ("qwen3_vl", QWEN3_2B, 2048, 819_357_286),  # unsloth/Qwen3-VL-2B-Instruct-GGUF
        ("qwen3_vl", QWEN3_2B, 2560, 836_134_502),  # bartowski/Qwen_Qwen3-VL-4B-Instruct-GGUF
    ],
)
def test_weights_have_the_size_of_published_files(
    model_type: str, vision: dict[str, Any], hidden: int, listed_bytes: int
) -> None:
    """mmproj files at F16, whose sizes are listed to 0.1 MiB; the file's header adds 20 to 40 KB."""
    tensor_bytes = made(model_type, vision, {}, hidden).tensor_bytes or 0
    assert abs(listed_bytes - tensor_bytes) < 0.1 * MIB


def test_arithmetic_of_a_layer() -> None:
    """Gemma 3: 27 layers of 4 x 1152^2 + 2 x 1152 x 4304 weights at 16 bits, and their norms and biases at 32."""
    weights = 4 * 1152 * 1152 + 2 * 1152 * 4304
    small = 2 * 2 * 1152 + 4 * 1152 + 4304 + 1152
    patches = 4 * (1152 * 3 * 14 * 14 + 1152 + (896 // 14) ** 2 * 1152)
    rest = 2 * 1152 * 2560 + 4 * (2 * 1152 + 1152)
    header = made("gemma3", {}, {}, 2560)
    assert header.tensor_bytes == 27 * (2 * weights + 4 * small) + patches + rest


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "llama"},
        {"model_type": "gemma3"},  # text only
        {"model_type": ["gemma3"], "vision_config": {}},
        {"model_type": "gemma3", "vision_config": []},
        {"model_type": "qwen3_vl", "vision_config": {}},  # its sizes are not a matter of the family
    ],
)
def test_no_projector_for_what_is_not_known(config: dict[str, Any]) -> None:
    assert projector_of(config, 2560) is None


def test_a_number_out_of_range_counts_as_missing() -> None:
    assert made("gemma3", {"num_hidden_layers": 10**6}, {}, 2560) == made("gemma3", {}, {}, 2560)
    assert projector_of({"model_type": "qwen3_vl", "vision_config": {"depth": 10**4}}, 64) is None


@pytest.mark.parametrize("name", ["gemma-3-4b", "gemma-3-27b", "mistral-small-3.2-24b"])
def test_a_model_of_the_index_with_gguf_keys_has_the_projector_of_its_family(name: str) -> None:
    opened = open_entry(find_entry(name), "llama.cpp")
    header = known_projector(opened, {})
    assert header is not None
    assert 0.8e9 < (header.tensor_bytes or 0) < 0.9e9
    assert known_projector(opened, {"no_mmproj": True}) is None
    assert known_projector(opened, {"mmproj": "mmproj.gguf"}) is None


@pytest.mark.parametrize("name", ["gemma-3-1b", "llama-3.1-8b", "mistral-7b-v0.1"])
def test_a_text_model_of_the_index_has_none(name: str) -> None:
    assert known_projector(open_entry(find_entry(name), "llama.cpp"), {}) is None
