"""Every recorded header: bytes, parameters and hyper-parameters equal the recorded facts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.recorded import TRUTH, gguf_files, header_bytes, model_header, models

from edgekit.formats import read_header
from edgekit.formats.quantization import count_weights
from edgekit.formats.types import ModelHeader

INDICES = [pytest.param(i, id=f"{m['model']}.{m['quant']}") for i, m in enumerate(models())]


def check(header: ModelHeader, model: dict[str, Any]) -> None:
    assert header.tensor_bytes == model["tensor_bytes"]
    assert header.tensor_count == model["n_tensors"]
    assert header.tensors is not None
    assert count_weights(header.tensors, header.quantization) == model["n_params"]
    assert Counter(tensor.type.name for tensor in header.tensors) == model["types"]


@pytest.mark.parametrize("index", INDICES)
def test_header_without_vocabulary_equals_the_recorded_facts(index: int) -> None:
    model, header = models()[index], model_header(index)
    check(header, model)
    for key, value in model["hyper_parameters"].items():
        expected = tuple(value) if isinstance(value, list) else value
        assert header.keys[key] == (
            pytest.approx(value) if isinstance(value, float) else expected
        ), key


def test_140_headers_are_recorded() -> None:
    assert len(models()) == 140


WITH_VOCABULARY = [
    pytest.param(i, id=m["header_with_vocabulary"])
    for i, m in enumerate(models())
    if m.get("header_with_vocabulary")
]


@pytest.mark.skipif(
    not (TRUTH / "headers").is_dir(), reason="needs the collection of headers in EDGEKIT_TRUTH"
)
@pytest.mark.parametrize("index", WITH_VOCABULARY)
def test_header_with_vocabulary_equals_the_recorded_facts(index: int) -> None:
    model = models()[index]
    name = model["header_with_vocabulary"]
    raw = header_bytes(name, TRUTH / "headers")
    header = read_header(gguf_files(name, raw, model["data_section_bytes"]))
    check(header, model)
    assert header.header_bytes is not None
    assert abs(header.header_bytes - model["real_layout"]["ti_end"]) < 32
    assert header.arrays["tokenizer.ggml.tokens"].count == model["real_layout"]["n_vocab"]
    assert "tokenizer.ggml.tokens" not in header.keys
