"""A resolved context -> the lines of the compute buffers: one for each pool a node of the graph runs in."""

from __future__ import annotations

from edgekit.basis import Basis
from edgekit.engine.llamacpp.closed import WITHIN, bound_bytes
from edgekit.engine.llamacpp.placement import Placement
from edgekit.engine.llamacpp.types import Context, LlamaCppSetup
from edgekit.engine.types import Model
from edgekit.memory.types import HOST, Component, MemoryLine, Pool


def compute_lines(
    model: Model, context: Context, placement: Placement, setup: LlamaCppSetup
) -> tuple[MemoryLine, ...]:
    return tuple(_bounds(model, context, placement))


def _bounds(model: Model, context: Context, placement: Placement) -> list[MemoryLine]:
    size = bound_bytes(model, context)
    pools: list[Pool] = list(dict.fromkeys((*placement.blocks, placement.output, HOST)))
    return [
        MemoryLine(
            component=Component.COMPUTE,
            size_bytes=size,
            pool=pool,
            basis=Basis.MODELLED,
            because="what is alive at once in the widest step of a layer, as an upper bound",
            within=WITHIN,
        )
        for pool in pools
    ]
