"""Compute buffers on device and host of the recorded CUDA rows: 0 bytes off, partial offload included."""

from __future__ import annotations

from typing import Any

import pytest
from tests.recorded import engine_models, rows
from tests.thoroughness import LONG, sampled_rows

from edgekit.bill.types import Component, MemoryEstimate
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.graph.plan import family_of
from edgekit.engines.llamacpp.setups import read_row
from edgekit.machine.types import PoolKind
from edgekit.units import Basis

HOST_BUFFERS = ("CUDA_Host", "CPU", "CPU_Mapped")
# Of the rows with layers in RAM, whose graphs take long to compute: every 18th.
SAMPLED = 1 if LONG else 18
# Of the rows with all layers on the GPU: every sixth of each model, with another start per model.
SAMPLED_FULL = 6


def _rows() -> list[Any]:
    by_model: dict[str, list[dict[str, Any]]] = {}
    for i, row in enumerate(rows("llama_cpp_cuda.jsonl.gz")):
        if (
            "breakdown" in row
            and family_of(row["arch"]) is not None
            and (row["tag"] == "full" or i % SAMPLED == 0)
        ):
            by_model.setdefault(row["model"], []).append(row)
    chosen = sampled_rows(
        by_model.values(), each=SAMPLED_FULL, always=lambda row: row["tag"] != "full"
    )
    return [
        pytest.param(model_rows, id=name) for name, model_rows in zip(by_model, chosen, strict=True)
    ]


@pytest.mark.parametrize("recorded", _rows())
def test_recorded_compute_buffers_are_exact(recorded: list[dict[str, Any]]) -> None:
    for row in recorded:
        model = engine_models()[row["model"], row["quant"]]
        bill = llamacpp.estimate(model, *read_row(row["options"], "cuda"))
        breakdown = row["breakdown"]
        assert _compute(bill, PoolKind.DEVICE) == breakdown.get("CUDA0", [0, 0, 0])[2], row[
            "options"
        ]
        host = sum(breakdown.get(name, [0, 0, 0])[2] for name in HOST_BUFFERS)
        assert _compute(bill, PoolKind.HOST) == host, row["options"]


def _compute(bill: MemoryEstimate, kind: PoolKind) -> int:
    return bill.total(lambda line: line.component is Component.COMPUTE and line.pool.kind is kind)


def _real_rows() -> list[Any]:
    result: list[Any] = []
    for row in rows("llama_cpp_cuda.jsonl.gz"):
        if row["tag"] == "real" and "breakdown" in row:
            result.append(
                pytest.param(
                    row,
                    id=f"{row['model']}-{row['n_ctx']}-{row['options']['type_k']}-{len(result)}",
                )
            )
    return result


@pytest.mark.parametrize("row", _real_rows())
def test_driver_memory_is_within_its_bound(row: dict[str, Any]) -> None:
    """Within 2 % or 150 MB: weights, cache, compute, CUDA context and what the first decode loads."""
    model = engine_models()[row["model"], row["quant"]]
    bill = llamacpp.estimate(model, *read_row(row["options"], "cuda"))
    free, total = row["free_decoded"]["CUDA0"]
    predicted, used = bill.in_pool(PoolKind.DEVICE), total - free
    assert abs(predicted - used) <= max(0.02 * used, 150e6)
    assert predicted >= used - 0.005 * used - 8e6  # hardly ever below


def test_only_split_graphs_are_modelled() -> None:
    model = engine_models()["llama-3.1-8b", "Q4_K_M"]
    for options, basis in (
        ({"n_ctx": 4096}, Basis.EXACT),
        ({"n_ctx": 4096, "n_gpu_layers": 10}, Basis.MODELLED),
        ({"n_ctx": 4096, "offload_kqv": False}, Basis.MODELLED),
        ({"n_ctx": 4096, "tensor_split": [1, 1]}, Basis.MODELLED),
    ):
        bill = llamacpp.estimate(model, *read_row(options, "cuda"))
        assert {line.basis for line in bill.lines if line.component is Component.COMPUTE} == {basis}


def test_every_recorded_architecture_has_a_graph() -> None:
    recorded = {row["arch"] for row in rows("llama_cpp_cuda.jsonl.gz")}
    assert [item for item in recorded if family_of(item) is None] == []
