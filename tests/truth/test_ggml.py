"""The table of tensor types compared with ggml in the shared library of xllamacpp."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import pytest

from edgekit.formats.dtype import REMOVED_GGML_IDS, TENSOR_TYPES


@pytest.fixture(scope="module")
def ggml() -> ctypes.CDLL:
    spec = importlib.util.find_spec("xllamacpp")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    results = [path for folder in folders for path in Path(folder).glob("xllamacpp*.so")]
    if not results:
        pytest.skip("xllamacpp is not installed, or has no shared library here")
    library = ctypes.CDLL(str(results[0]))
    if not hasattr(library, "ggml_blck_size"):
        pytest.skip("this build of xllamacpp does not export ggml's functions")
    library.ggml_blck_size.restype = ctypes.c_int64
    library.ggml_type_size.restype = ctypes.c_size_t
    library.ggml_type_name.restype = ctypes.c_char_p
    return library


def test_block_sizes_are_those_of_ggml(ggml: ctypes.CDLL) -> None:
    ours = {kind.ggml_id: kind for kind in TENSOR_TYPES if kind.ggml_id is not None}
    assert len(ours) >= 34
    for number, kind in ours.items():
        assert ggml.ggml_blck_size(number) == kind.block_elements, kind.name
        assert ggml.ggml_type_size(number) == kind.block_bytes, kind.name
        assert ggml.ggml_type_name(number).decode().upper() == kind.name.upper()


def test_removed_types_are_empty_in_ggml(ggml: ctypes.CDLL) -> None:
    for number in REMOVED_GGML_IDS:
        assert ggml.ggml_type_size(number) == 0
