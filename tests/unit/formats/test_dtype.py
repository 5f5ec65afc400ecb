"""The table of data types, compared with ggml's structs, gguf-py and the safetensors library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import safetensors
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from tests.header_files import safetensors as safetensors_file
from tests.header_files import tensor

from edgekit.errors import HeaderError, UnknownDtypeError
from edgekit.formats import dtype
from edgekit.formats.mixes import all_mixes, mix_by_name, stated_mix
from edgekit.sources.quants import SHORT_MIXES

_DESERIALIZE: Any = safetensors.deserialize  # untyped

# sizeof() of the structs in ggml-common.h, added up by hand: (bytes of a block, weights in it)
STRUCTS = {
    "Q1_0": (2 + 128 // 8, 128),
    "Q2_0": (2 + 64 // 4, 64),
    "Q4_0": (2 + 16, 32),
    "Q4_1": (2 + 2 + 16, 32),
    "Q5_0": (2 + 4 + 16, 32),
    "Q5_1": (2 + 2 + 4 + 16, 32),
    "Q8_0": (2 + 32, 32),
    "Q8_1": (2 + 2 + 32, 32),
    "Q2_K": (16 + 64 + 2 + 2, 256),
    "Q3_K": (32 + 64 + 12 + 2, 256),
    "Q4_K": (2 + 2 + 12 + 128, 256),
    "Q5_K": (2 + 2 + 12 + 32 + 128, 256),
    "Q6_K": (128 + 64 + 16 + 2, 256),
    "Q8_K": (4 + 256 + 16 * 2, 256),
    "IQ1_S": (2 + 32 + 8 * 2, 256),
    "IQ1_M": (32 + 16 + 8, 256),
    "IQ2_XXS": (2 + 32 * 2, 256),
    "IQ2_XS": (2 + 32 * 2 + 8, 256),
    "IQ2_S": (2 + 64 + 8 + 8, 256),
    "IQ3_XXS": (2 + 3 * 32, 256),
    "IQ3_S": (2 + 64 + 8 + 32 + 4, 256),
    "IQ4_NL": (2 + 16, 32),
    "IQ4_XS": (2 + 2 + 4 + 128, 256),
    "TQ1_0": ((256 - 4 * 4) // 5 + 4 + 2, 256),
    "TQ2_0": (64 + 2, 256),
    "MXFP4": (1 + 16, 32),
    "NVFP4": (4 + 32, 64),
}
# gguf-py, constants.py, has Q8_1 as 4 + 4 + 32. In ggml, d and s have been halves since May 2024.
GGUF_PY_ERRORS = {"Q8_1": 40}


@pytest.mark.parametrize("name", STRUCTS)
def test_block_bytes_are_those_of_the_struct(name: str) -> None:
    row = dtype.by_name(name)
    assert (row.block_bytes, row.block_elements) == STRUCTS[name]


def test_every_ggml_block_type_is_checked() -> None:
    blocked = {row.name for row in dtype.TENSOR_TYPES if row.safetensors is None}
    assert blocked == set(STRUCTS)


@pytest.mark.parametrize("kind", list(GGML_QUANT_SIZES), ids=lambda kind: str(kind.name))
def test_tensor_types_equal_gguf_py(kind: GGMLQuantizationType) -> None:
    row = dtype.by_ggml_id(int(kind))
    elements, size_bytes = GGML_QUANT_SIZES[kind]
    assert row.name == kind.name
    assert row.block_elements == elements
    assert GGUF_PY_ERRORS.get(row.name, row.block_bytes) == size_bytes


def test_gguf_py_still_has_its_known_error() -> None:
    """If this fails, gguf-py has fixed the error: empty GGUF_PY_ERRORS."""
    for name, size_bytes in GGUF_PY_ERRORS.items():
        assert GGML_QUANT_SIZES[GGMLQuantizationType[name]][1] == size_bytes


@pytest.mark.parametrize("ggml_id", [4, 5, 31, 32, 33, 36, 37, 38])
def test_removed_type_is_named_in_the_error(ggml_id: int) -> None:
    with pytest.raises(UnknownDtypeError, match="was removed from ggml; requantise the file"):
        dtype.by_ggml_id(ggml_id)


def test_every_ggml_id_is_a_row_or_removed() -> None:
    ids = {row.ggml_id for row in dtype.TENSOR_TYPES if row.ggml_id is not None}
    assert ids | set(dtype.REMOVED_GGML_IDS) == set(range(43))
    assert not ids & set(dtype.REMOVED_GGML_IDS)


@pytest.mark.parametrize(
    ("look_up", "unknown"),
    [(dtype.by_ggml_id, 99), (dtype.by_safetensors, "F5"), (dtype.by_name, "Q9_K")],
)
def test_unknown_type_error_names_the_table(
    look_up: Callable[[Any], object], unknown: object
) -> None:
    with pytest.raises(UnknownDtypeError, match=r"formats/dtype\.py"):
        look_up(unknown)


SAFETENSORS_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip


def test_safetensors_dtypes_are_complete() -> None:
    result = {r.safetensors: r.bits_per_weight for r in dtype.TENSOR_TYPES if r.safetensors}
    assert result == SAFETENSORS_BITS
    assert len(result) == 22


@pytest.mark.parametrize("name", SAFETENSORS_BITS)
def test_safetensors_sizes_agree_with_the_library(name: str) -> None:
    size_bytes = dtype.by_safetensors(name).row_bytes(24)
    valid = safetensors_file({"x": tensor(name, [2, 12], 0, size_bytes)}, data_bytes=size_bytes)
    assert len(_DESERIALIZE(valid)[0][1]["data"]) == size_bytes
    for wrong_bytes in (size_bytes - 1, size_bytes + 1):
        invalid = safetensors_file(
            {"x": tensor(name, [2, 12], 0, wrong_bytes)}, data_bytes=wrong_bytes
        )
        with pytest.raises(safetensors.SafetensorError):
            _DESERIALIZE(invalid)


@pytest.mark.parametrize(
    ("name", "elements", "size_bytes"),
    [
        ("Q4_K", 4096, 4096 // 256 * 144),
        ("Q8_0", 64, 2 * 34),
        ("F4", 6, 3),
        ("F6_E2M3", 8, 6),
        ("BF16", 7, 14),
        ("F32", 0, 0),
        ("Q4_0", 2**70, 2**65 * 18),
    ],
)
def test_row_bytes_is_exact(name: str, elements: int, size_bytes: int) -> None:
    assert dtype.by_name(name).row_bytes(elements) == size_bytes


@pytest.mark.parametrize(("name", "elements"), [("Q4_K", 255), ("F4", 3), ("F6_E3M2", 6)])
def test_row_bytes_of_a_partial_block_is_an_error(name: str, elements: int) -> None:
    with pytest.raises(HeaderError, match="not a multiple"):
        dtype.by_name(name).row_bytes(elements)


# --- named mixes

AVERAGES = {
    "F32": 32.0, "F16": 16.0, "BF16": 16.0, "Q4_0": 4.5, "Q4_1": 5.0, "Q5_0": 5.5, "Q5_1": 6.0,
    "Q8_0": 8.5, "Q2_K": 2.625, "Q3_K_S": 3.4375, "Q3_K_M": 3.91, "Q3_K_L": 4.27, "Q4_K_S": 4.58,
    "Q4_K_M": 4.85, "Q5_K_S": 5.54, "Q5_K_M": 5.69, "Q6_K": 6.5625, "IQ1_S": 1.5625, "IQ1_M": 1.75,
    "IQ2_XXS": 2.0625, "IQ2_XS": 2.3125, "IQ2_S": 2.5625, "IQ2_M": 2.7, "IQ3_XXS": 3.0625,
    "IQ3_XS": 3.3, "IQ3_S": 3.4375, "IQ3_M": 3.66, "IQ4_NL": 4.5, "IQ4_XS": 4.25, "TQ1_0": 1.6875,
    "TQ2_0": 2.0625, "MXFP4_MOE": 4.25, "NVFP4": 4.5, "Q1_0": 1.125, "Q2_0": 2.25, "Q2_K_S": 2.625,
}  # fmt: skip


def test_bits_per_weight_of_mixes() -> None:
    assert {mix.name: mix.bits_per_weight for mix in all_mixes()} == AVERAGES


def test_file_types_of_mixes_equal_gguf_py() -> None:
    from gguf.constants import LlamaFileType

    known = {
        kind.name.removeprefix("MOSTLY_").removeprefix("ALL_"): int(kind) for kind in LlamaFileType
    }
    for mix in all_mixes():
        assert known.get(mix.name, mix.file_type) == mix.file_type
    unlisted = {mix.name for mix in all_mixes()} - set(known)
    assert unlisted <= {"Q2_0"}  # newer than the oldest supported gguf-py


def test_mix_is_found_by_name_alias_and_file_type() -> None:
    q4_k_m = mix_by_name("q4_k_m")
    assert q4_k_m is not None
    assert q4_k_m.file_type == 15
    assert mix_by_name("Q4_K") is q4_k_m
    assert stated_mix({"general.file_type": 15}) == "Q4_K_M"
    assert stated_mix({"general.file_type": 15 + 1024}) == "Q4_K_M"  # LLAMA_FTYPE_GUESSED
    assert mix_by_name("Q4_K_XL") is None
    assert stated_mix({"general.file_type": 4}) is None
    assert all(mix_by_name(alias) for alias in SHORT_MIXES)
