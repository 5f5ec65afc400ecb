"""Weights, caches, states and output of every recorded llama.cpp row: 0 bytes off."""

from __future__ import annotations

from typing import Any

import pytest
from tests.recorded import engine_models, rows

from edgekit.bill.types import CACHES, Component, MemoryLine
from edgekit.engines.llamacpp.compute import output_line
from edgekit.engines.llamacpp.context import cache_lines, resolve
from edgekit.engines.llamacpp.setups import read_row
from edgekit.engines.llamacpp.weights import place, weight_lines
from edgekit.errors import RefusedError
from edgekit.machine.types import PoolKind
from edgekit.model.types import Model

PARTS = {
    "model_buffer_bytes": Component.WEIGHTS,
    "kv_bytes": Component.KV_CACHE,
    "kv_swa_bytes": Component.SLIDING_KV_CACHE,
    "recurrent_bytes": Component.STATE,
    "output_bytes": Component.OUTPUT,
}
HOST_BUFFERS = ("CUDA_Host", "CPU", "CPU_Mapped")


def _lines(model: Model, options: dict[str, Any], backend: str) -> list[MemoryLine]:
    load, setup = read_row(options, backend)
    context = resolve(model, load, setup)
    placement = place(model, setup)
    return [
        *weight_lines(model, placement, setup),
        *cache_lines(model, context, placement),
        output_line(model, context),
    ]


def _by_model(file: str) -> list[Any]:
    result: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows(file):
        result.setdefault((row["model"], row["quant"]), []).append(row)
    return [
        pytest.param(name, model_rows, id="-".join(name)) for name, model_rows in result.items()
    ]


@pytest.mark.parametrize(("name", "recorded"), _by_model("llama_cpp_cpu.jsonl.gz"))
def test_cpu_rows_are_exact(name: tuple[str, str], recorded: list[dict[str, Any]]) -> None:
    model = engine_models()[name]
    for row in recorded:
        actual = row["actual"]
        if "error" in actual:
            continue
        lines = _lines(model, row["options"], "cpu")
        predicted = {
            part: sum(line.size_bytes for line in lines if line.component is component)
            for part, component in PARTS.items()
        }
        assert predicted == {part: actual[part] for part in PARTS}, row["options"]


@pytest.mark.parametrize(("name", "recorded"), _by_model("llama_cpp_cuda.jsonl.gz"))
def test_cuda_rows_are_exact(name: tuple[str, str], recorded: list[dict[str, Any]]) -> None:
    model = engine_models()[name]
    for row in recorded:
        breakdown = row.get("breakdown")
        if breakdown is None:
            continue
        lines = _lines(model, row["options"], "cuda")
        assert _pool(lines, PoolKind.DEVICE) == breakdown.get("CUDA0", [0, 0])[:2], row["options"]
        if row["tag"] != "real":  # in "real" rows the host's weights are a range of the mapped file
            host = [sum(breakdown.get(name, [0, 0])[i] for name in HOST_BUFFERS) for i in (0, 1)]
            assert _pool(lines, PoolKind.HOST) == host, row["options"]


def _pool(lines: list[MemoryLine], kind: PoolKind) -> list[int]:
    model_rows = [line for line in lines if line.pool.kind is kind]
    return [
        sum(line.size_bytes for line in model_rows if line.component is Component.WEIGHTS),
        sum(line.size_bytes for line in model_rows if line.component in CACHES),
    ]


def test_loads_that_the_engine_refuses_are_refused() -> None:
    refused = [
        row
        for row in rows("llama_cpp_cpu.jsonl.gz")
        if "cache types" in row["actual"].get("error", "")
    ]
    assert len(refused) == 6
    for row in refused:
        load, setup = read_row(row["options"], "cpu")
        with pytest.raises(RefusedError, match="does not support different K"):
            resolve(engine_models()[row["model"], row["quant"]], load, setup)
