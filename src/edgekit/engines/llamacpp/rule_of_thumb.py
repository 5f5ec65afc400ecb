"""A line of a rule of thumb -> the same, divided among the pools as llama.cpp divides blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgekit.bill.types import CACHES, Component, MemoryLine
from edgekit.engines.llamacpp.placement import place
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.machine.types import HOST, Pool
from edgekit.model.types import Model


def divided(line: MemoryLine, model: Model, setup: LlamaCppSetup) -> Iterator[MemoryLine]:
    """Every block is assumed to be of the same size."""
    placement = place(model, setup)
    blocks = range(len(placement.blocks))
    pools: list[Pool] = [placement.output]
    if line.component in CACHES:
        pools = [placement.cache_pool(block) for block in blocks]
    elif line.component is Component.WEIGHTS:
        pools = [*placement.blocks, placement.output]
    elif setup.has_device:  # buffers and the driver are on the device, wherever the layers are
        pools = [pool for pool in placement.blocks if pool != HOST][-1:] or [HOST]
    left = line.size_bytes
    for number, pool in enumerate(counted := sorted(set(pools), key=lambda one: one.label)):
        share = line.size_bytes * pools.count(pool) // len(pools)
        size = left if number == len(counted) - 1 else share
        left -= size
        yield replace(line, size_bytes=size, pool=pool)
