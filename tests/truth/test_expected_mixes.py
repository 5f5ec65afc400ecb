"""Quantisation mixes compared with llama.cpp's choice of types and with files that it quantised."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
from tests.recorded import config_header, model_header, models, rows
from tests.thoroughness import LONG, sampled

from edgekit.engines.llamacpp.conversion import source_model
from edgekit.engines.llamacpp.quantization import (
    MixFacts,
    directory_tensors,
    facts_of_header,
    in_order,
    quantize,
)
from edgekit.errors import RefusedError
from edgekit.formats.types import GgufTensor, ModelHeader
from edgekit.model import read_geometry


@cache
def header_at(model: str, quant: str = "F16") -> ModelHeader:
    (index,) = (i for i, m in enumerate(models()) if (m["model"], m["quant"]) == (model, quant))
    return model_header(index)


@cache
def plain_tensors(model: str) -> tuple[tuple[GgufTensor, ...], MixFacts]:
    header = header_at(model)
    return directory_tensors(header), facts_of_header(header)


def test_mix_gives_every_tensor_the_type_of_llama_cpp() -> None:
    """47 models, 35 mixes, by llama_quant_compute_types (without an importance matrix).

    The normal run takes every eighth row, and all refusals.
    """
    checked = 0
    for place, row in enumerate(rows("mixes.jsonl.gz")):
        if not LONG and place % 8 and "refused" not in row:
            continue
        tensors, facts = plain_tensors(row["model"])
        if "refused" in row:
            with pytest.raises(RefusedError, match="no fallback for"):
                quantize(in_order(tensors), row["mix"], facts, imatrix=False)
            continue
        mixed = quantize(in_order(tensors), row["mix"], facts, imatrix=False)
        assert sum(tensor.size_bytes for tensor in mixed) == row["bytes"], row
        assert Counter(tensor.type.name for tensor in mixed) == row["types"], row
        checked += 1
    assert checked == (1_641 if LONG else 206)


def quantised_files() -> list[Any]:
    twins = {model["model"] for model in models() if model["quant"] == "F16"}
    return [
        pytest.param(index, id=f"{model['model']} {model['quant']}")
        for index, model in enumerate(models())
        if model["quant"] != "F16" and model["model"] in twins
    ]


@pytest.mark.parametrize("index", sampled(tuple(quantised_files()), each=4))
def test_size_of_a_quantised_file_follows_from_the_f16_file(index: int) -> None:
    model, recorded = models()[index], model_header(index)
    plain = header_at(model["model"])
    mixed = source_model(plain, read_geometry(plain)).at_mix(model["quant"])
    assert mixed.tensor_bytes == sum(tensor.size_bytes for tensor in recorded.tensors or ())
    types = {tensor.name: tensor.type.name for tensor in recorded.tensors or ()}
    assert {tensor.name: tensor.type.name for tensor in mixed.tensors} == types


def config_twins() -> list[Any]:
    configs = {
        row["model"]: row["config"] for file in ("mlx", "vllm") for row in rows(f"{file}.jsonl.gz")
    }
    return [
        pytest.param(index, configs[model["model"]], id=f"{model['model']} {model['quant']}")
        for index, model in enumerate(models())
        if model["model"] in configs
    ]


@pytest.mark.parametrize(("index", "config"), sampled(tuple(config_twins()), each=4))
def test_size_of_a_gguf_follows_from_the_config(index: int, config: dict[str, Any]) -> None:
    """Names, shapes and types of all tensors are equal, rope factors included."""
    header = config_header(config)
    mixed = source_model(header, read_geometry(header)).at_mix(models()[index]["quant"])
    recorded = model_header(index).tensors or ()
    tensors = {tensor.name: (tensor.shape, tensor.type.name) for tensor in mixed.tensors}
    assert tensors == {tensor.name: (tensor.shape, tensor.type.name) for tensor in recorded}
