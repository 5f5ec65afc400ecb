"""Placed tensors -> the lines of the weights, one for each block and pool."""

from __future__ import annotations

from edgekit.engine.llamacpp.placement import Placement, placed_tensors
from edgekit.engine.llamacpp.types import LlamaCppSetup
from edgekit.engine.types import Model
from edgekit.memory.types import Component, MemoryLine, Pool


def weight_lines(
    model: Model, placement: Placement, setup: LlamaCppSetup
) -> tuple[MemoryLine, ...]:
    return model.keep(
        ("weights", placement), lambda: _lines(model, placement, load_mtp=setup.load_mtp)
    )


def _lines(model: Model, placement: Placement, *, load_mtp: bool) -> tuple[MemoryLine, ...]:
    sums: dict[tuple[int, Pool], tuple[int, int]] = {}
    for placed in placed_tensors(model, placement, load_mtp=load_mtp):
        key = (-1 if placed.block is None else placed.block, placed.pool)
        size, count = sums.get(key, (0, 0))
        sums[key] = (size + placed.size_bytes, count + 1)
    return tuple(
        MemoryLine(
            component=Component.WEIGHTS,
            size_bytes=size,
            pool=pool,
            layer=None if block < 0 else block,
            because=f"{count} tensors of the directory, each padded to its buffer's alignment",
        )
        for (block, pool), (size, count) in sorted(
            sums.items(), key=lambda item: (item[0][0], item[0][1].label)
        )
    )
