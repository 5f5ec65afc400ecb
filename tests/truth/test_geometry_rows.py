"""Geometry compared with allocations of engines: the cache elements of a layer are those of llama.cpp."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from tests.recorded import TRUTH, config_header, model_header, models, rows

from edgekit.errors import EdgekitError
from edgekit.model import read_geometry
from edgekit.model.inspect import count_parameters
from edgekit.model.types import ModelGeometry, Span

F16_BYTES, F32_BYTES = 2, 4


@cache
def geometry_of(model: str) -> ModelGeometry:
    index = next(i for i, m in enumerate(models()) if m["model"] == model)
    return read_geometry(model_header(index))


def plain_rows() -> list[dict[str, Any]]:
    """Rows with f16 caches."""
    return [
        row
        for row in rows("llama_cpp_cpu.jsonl.gz")
        if row["options"]["type_k"] == row["options"]["type_v"] == "f16"
        and "error" not in row["actual"]
    ]


@cache
def stored_elements(model: str, *, bounded: bool) -> int:
    """Elements that a token adds to llama.cpp's full or sliding cache."""
    geometry = geometry_of(model)
    streams = [s for layer in geometry.layers for s in layer.mixer.streams]
    return sum(s.elements for s in streams if (s.span is not Span.ALL) is bounded)


@cache
def state_elements(model: str) -> int:
    return sum(s.elements for x in geometry_of(model).layers for s in x.mixer.states)


def test_cache_and_state_elements_are_those_of_llama_cpp() -> None:
    checked = 0
    for row in plain_rows():
        model, actual = row["model"], row["actual"]
        full = actual["kv_streams"] * actual["kv_cells"] * stored_elements(model, bounded=False)
        assert full * F16_BYTES == actual["kv_bytes"], row
        streams = 1 if row["options"]["kv_unified"] else row["options"]["n_seq_max"]
        window = streams * actual["kv_swa_cells"] * stored_elements(model, bounded=True)
        assert window * F16_BYTES == actual["kv_swa_bytes"], row
        expected = state_elements(model) * row["options"]["n_seq_max"] * F32_BYTES
        assert expected == actual["recurrent_bytes"], row
        checked += 1
    assert checked == 3_006


def weight_rows() -> list[Any]:
    return [
        pytest.param(row, id=row["model"])
        for row in rows("mlx.jsonl.gz")
        if row["kind"] == "weights" and row["options"]["quantization"] == "bf16"
    ]


@pytest.mark.parametrize("row", weight_rows())
def test_parameters_from_the_config_are_within_a_twentieth_of_a_percent(
    row: dict[str, Any],
) -> None:
    counted = count_parameters(read_geometry(config_header(row["config"])))
    assert counted is not None
    total, active = counted
    assert abs(total - row["actual"]["params"]) <= row["actual"]["params"] * 0.0005
    assert 0 < active <= total


# Their GGUF has no usable window, or stores the latent as full heads.
NOT_ALIKE = {"mistral-7b-v0.1", "minicpm3-4b", "phi-3-mini-4k"}


def test_geometry_is_the_same_from_gguf_and_from_config() -> None:
    """The caches and states of each layer agree in both formats."""
    configs = {row["model"]: row["config"] for row in rows("mlx.jsonl.gz")}
    both = sorted(configs.keys() & {m["model"] for m in models()} - NOT_ALIKE)
    assert len(both) > 20
    for name in both:
        from_gguf, from_config = geometry_of(name), read_geometry(config_header(configs[name]))
        assert from_gguf.hidden == from_config.hidden, name
        assert len(from_gguf.layers) == len(from_config.layers), name
        for gguf_layer, config_layer in zip(from_gguf.layers, from_config.layers, strict=True):
            assert gguf_layer.mixer.streams == config_layer.mixer.streams, (name, gguf_layer.index)
            assert gguf_layer.mixer.states == config_layer.mixer.states, (name, gguf_layer.index)


# Files of the 200 that do not describe a language model completely, with the error.
INCOMPLETE = {"lukealonso_glm_5_1_nvfp4_quant.json": "does not state its heads"}


@pytest.mark.skipif(
    not (TRUTH / "configs").is_dir(), reason="needs the collection of configs in EDGEKIT_TRUTH"
)
def test_every_collected_config_has_a_geometry_or_a_reason() -> None:
    names = sorted(path.name for path in (TRUTH / "configs").glob("*.json"))
    assert len(names) == 200
    for name in names:
        config = json.loads((TRUTH / "configs" / name).read_text(encoding="utf-8"))
        if name in INCOMPLETE:
            with pytest.raises(EdgekitError, match=INCOMPLETE[name]):
                read_geometry(config_header(config, name))
        else:
            geometry = read_geometry(config_header(config, name))
            assert geometry.basis.value != "assumed", (name, geometry.because)
