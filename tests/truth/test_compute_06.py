"""Every buffer of the rows recorded with llama.cpp 0.6.0-dev (b11549), CPU and CUDA: 0 bytes off.

The normal run takes every fourth row of a model and every set of options at least once, EDGEKIT_LONG=1 all of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from tests.recorded import engine_models, rows
from tests.thoroughness import sampled_rows

from edgekit.engine import llamacpp
from edgekit.engine.llamacpp.rows import read_row
from edgekit.memory.types import CACHES, Component, MemoryEstimate, PoolKind

# CPU_REPACK: weights that are held in another order. Read from the file, they are counted there once.
BUFFERS = {
    PoolKind.DEVICE: ("CUDA0",),
    PoolKind.HOST: ("CUDA_Host", "CPU", "CPU_Mapped", "CPU_REPACK"),
}
PARTS: tuple[Collection[Component], ...] = ({Component.WEIGHTS}, CACHES, {Component.COMPUTE})


def _by_model() -> list[Any]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows("llama_cpp_06.jsonl.gz"):
        found.setdefault(row["model"], []).append(row)
    chosen = sampled_rows(found.values(), each=4)
    return [pytest.param(own, id=name) for name, own in zip(found, chosen, strict=True)]


@pytest.mark.parametrize("recorded", _by_model())
def test_every_buffer(recorded: list[dict[str, Any]]) -> None:
    for row in recorded:
        model = engine_models()[row["model"], row["quant"]]
        options = {**row["options"], "llama_version": "0.6"}
        bill = llamacpp.estimate(model, *read_row(options, row["backend"]))
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
