"""Expected tensors compared with those of engines and libraries."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.recorded import TRUTH, config_header, model_header, models, rows
from tests.thoroughness import LONG, sampled

from edgekit.errors import EdgekitError
from edgekit.model import read_geometry
from edgekit.model.tensor_recipes import ExpectedTensor, TensorRole
from edgekit.model.tensors import expected_tensors

BF16_BYTES = 2


def of_config(config: dict[str, Any]) -> tuple[ExpectedTensor, ...]:
    return expected_tensors(read_geometry(config_header(config)), config)


def count(tensors: tuple[ExpectedTensor, ...]) -> int:
    return sum(tensor.elements for tensor in tensors)


def mlx_rows() -> list[Any]:
    return [
        pytest.param(row, id=row["model"])
        for row in rows("mlx.jsonl.gz")
        if row["kind"] == "weights" and row["options"]["quantization"] == "bf16"
    ]


# 32-bit numbers in MLX: A of the delta nets, the bias of the router.
WIDE = {"qwen3.5-9b-text": 24 * 32, "qwen3.5-27b-text": 48 * 48, "deepseek-v3": 58 * 256}


@pytest.mark.parametrize("row", mlx_rows())
def test_expected_tensors_are_those_of_mlx(row: dict[str, Any]) -> None:
    extra_bytes = BF16_BYTES * WIDE.get(row["model"], 0)
    assert BF16_BYTES * count(of_config(row["config"])) + extra_bytes == row["actual"]["bytes"]


# Models whose vocabulary vLLM pads to a multiple of 64, and models with 32-bit numbers in vLLM.
VOCABULARY_PADDING = {"falcon-h1-0.5b", "mamba2-2.7b", "minicpm3-4b"}
WIDE_STATES = {
    "falcon-h1-0.5b",
    "granite-4.0-h-tiny",
    "jamba-v0.1",
    "mamba2-2.7b",
    "qwen3-next-80b-a3b",
    "qwen3.5-9b-text",
    "qwen3.5-27b-text",
}


def vllm_rows() -> list[Any]:
    plain = {
        row["model"]: row
        for row in rows("vllm.jsonl.gz")
        if row["kind"] == "spec"
        and row["options"]["quantization"] is None
        and row["options"]["tensor_parallel_size"] == 1
        and row["options"]["dtype"] != "float32"
        and "weights_param_bytes" in row["actual"]
    }
    return [pytest.param(row, id=model) for model, row in plain.items()]


@pytest.mark.parametrize("row", vllm_rows())
def test_expected_tensors_are_those_of_vllm_up_to_padding(row: dict[str, Any]) -> None:
    expected, actual = BF16_BYTES * count(of_config(row["config"])), row["actual"]
    difference = actual["weights_param_bytes"] - expected
    if row["model"] in VOCABULARY_PADDING | WIDE_STATES:
        assert 0 < difference <= expected * 0.0005
    else:
        assert difference == 0


def test_expected_tensors_are_those_of_gguf_directories() -> None:
    """From the keys of a GGUF. Tables of rope factors do not count.

    Files of one model differ only in their types: the first of each, with LONG all.
    """
    first = {model["model"]: index for index, model in reversed(list(enumerate(models())))}
    for index, model in enumerate(models()):
        if not LONG and index != first[model["model"]]:
            continue
        header = model_header(index)
        elements = sum(t.elements for t in header.tensors or () if not t.name.startswith("rope_"))
        # V2 and V3 have one architecture name, and no recorded key says that V3 has a router bias.
        missing = 58 * 256 if model["model"] == "deepseek-v3" else 0
        assert count(expected_tensors(read_geometry(header))) + missing == elements, model["model"]


def test_expected_tensors_are_those_of_the_library_classes() -> None:
    """149 model types of transformers and mlx-lm, with defaults and with each switch on and off.

    A third of the rows and one of each type; with LONG all. Left out because the two sides count differently: Gemma 3n and 4 with shared caches (files carry keys and
    values that transformers drops), LongCat (transformers has matrices for experts that do nothing), heads of encoders.
    """
    checked = set()
    for index, row in enumerate(rows("parameters.jsonl.gz")):
        if not LONG and index % 3 and row["config"]["model_type"] in checked:
            continue
        tensors = of_config(row["config"])
        counted = tuple(t for t in tensors if row["head"] or t.role is not TensorRole.HEAD)
        assert count(counted) == row["parameters"], row["config"]["model_type"]
        checked.add(row["config"]["model_type"])
    assert len(checked) == 149


@pytest.mark.skipif(
    not (TRUTH / "configs").is_dir(), reason="needs the collection of configs in EDGEKIT_TRUTH"
)
def test_every_collected_config_has_expected_tensors() -> None:
    for path in sampled(sorted((TRUTH / "configs").glob("*.json")), each=4):
        config = json.loads(path.read_text(encoding="utf-8"))
        try:
            geometry = read_geometry(config_header(config, path.name))
        except EdgekitError:
            continue  # covered by test_geometry_rows.py
        assert 10**7 < count(expected_tensors(geometry, config)) < 3 * 10**12, path.name
