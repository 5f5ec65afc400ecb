"""Every buffer of the rows recorded with llama.cpp 0.6.0-dev (b11549), CPU and CUDA: 0 bytes off.

The normal run takes some rows of each model and every set of options at least once, EDGEKIT_LONG=1 all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
from tests.recorded import engine_models, further_model, rows
from tests.thoroughness import sampled_rows

from edgekit.bill.types import CACHES, Component, MemoryEstimate
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.architectures import architecture_names
from edgekit.engines.llamacpp.graph.plan import family_of
from edgekit.engines.llamacpp.setups import read_row
from edgekit.errors import RefusedError
from edgekit.machine.types import PoolKind
from edgekit.model.types import Model
from edgekit.units import Basis

# CPU_REPACK: weights that an ARM build repacks.
BUFFERS = {
    PoolKind.DEVICE: ("CUDA0",),
    PoolKind.HOST: ("CUDA_Host", "CPU", "CPU_Mapped", "CPU_REPACK"),
}
PARTS: tuple[Collection[Component], ...] = ({Component.WEIGHTS}, CACHES, {Component.COMPUTE})
RECORDED, FURTHER = "llama_cpp_06.jsonl.gz", "llama_cpp_06_more.jsonl.gz"

Row = dict[str, Any]


def _sampled_by(key: Callable[[Row], str], file: str, *, each: int) -> list[Any]:
    result: dict[str, list[Row]] = {}
    for row in rows(file):
        result.setdefault(key(row), []).append(row)
    chosen = sampled_rows(result.values(), each=each)
    return [
        pytest.param(model_rows, id=name) for name, model_rows in zip(result, chosen, strict=True)
    ]


@pytest.mark.parametrize("recorded", _sampled_by(lambda row: str(row["model"]), RECORDED, each=4))
def test_recorded_buffers_are_exact(recorded: list[Row]) -> None:
    for row in recorded:
        _check(engine_models()[row["model"], row["quant"]], row)


@pytest.mark.parametrize("recorded", _sampled_by(lambda row: str(row["file"]), FURTHER, each=18))
def test_recorded_buffers_of_further_models_are_exact(recorded: list[Row]) -> None:
    """With more options: full-size window caches, caches in RAM, 3 layers offloaded, micro-batches of 1 to 2,048."""
    model = further_model(recorded[0]["file"], recorded[0]["data_bytes"])
    for row in recorded:
        if "error" in row:  # the engine refuses, or fails an assertion
            with pytest.raises(RefusedError):
                _bill(model, row)
        else:
            _check(model, row)


def _bill(model: Model, row: Row) -> MemoryEstimate:
    options = {**row["options"], "llama_version": "0.6"}
    return llamacpp.estimate(model, *read_row(options, row["backend"]))


def _check(model: Model, row: Row) -> None:
    bill = _bill(model, row)
    for kind, names in BUFFERS.items():
        allocated = [
            sum(row["breakdown"].get(name, [0, 0, 0])[part] for name in names)
            for part in range(len(PARTS))
        ]
        assert _predicted(bill, kind) == allocated, (row["tag"], kind, row["options"])


def _predicted(bill: MemoryEstimate, kind: PoolKind) -> list[int]:
    return [
        sum(
            line.size_bytes
            for line in bill.lines
            if line.component in components and line.pool.kind is kind
        )
        for components in PARTS
    ]


def test_every_architecture_with_a_graph_is_recorded() -> None:
    """EdgeKit calls the compute buffers of these architectures exact."""
    result = {row["arch"] for file in (RECORDED, FURTHER) for row in rows(file)}
    assert result == {name for name in architecture_names() if family_of(name) is not None}


@pytest.mark.parametrize(
    ("backend", "more", "basis"),
    [
        ("cpu", {}, Basis.EXACT),
        ("cuda", {}, Basis.EXACT),
        ("cuda", {"n_gpu_layers": 10}, Basis.MODELLED),
    ],
)
def test_compute_is_exact_unless_it_is_split(
    backend: str, more: dict[str, Any], basis: Basis
) -> None:
    model = engine_models()["llama-3.1-8b", "Q4_K_M"]
    options = {"n_ctx": 4096, "llama_version": "0.6", **more}
    bill = llamacpp.estimate(model, *read_row(options, backend))
    assert {line.basis for line in bill.lines if line.component is Component.COMPUTE} == {basis}
