"""A window that rolls -> what turning its keys takes beyond the compute buffer.

llama-kv-cache.cpp @ b21e4de, build_graph_shift: layer by layer the keys of all cells are turned, in their place. Keys
that are quantised are unpacked for it, twice where they were multiplied by a rotation before they were stored. The
allocator has not seen this graph when it reserves: the buffer grows with the first shift, and stays so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgekit.basis import Basis
from edgekit.bill.types import Component, MemoryLine
from edgekit.engines.llamacpp.caches import shares_of
from edgekit.engines.llamacpp.placement import TensorPlacement
from edgekit.engines.llamacpp.types import Context, LlamaCppSetup
from edgekit.machine.types import Pool
from edgekit.model.types import Model

FLOAT_BYTES = 4
COPIES = 2
WITHIN = 1.0  # an upper bound: nothing at all of it is taken before the window rolls


def shift_lines(
    model: Model,
    context: Context,
    placement: TensorPlacement,
    setup: LlamaCppSetup,
    compute: Sequence[MemoryLine],
) -> Iterator[MemoryLine]:
    """Nothing unless the window rolls and its keys are quantised."""
    if not setup.ctx_shift or not context.type_k.is_quantized:
        return
    cells = context.cells * context.streams
    for pool, elements in _widest(model, placement).items():
        size = cells * (COPIES * elements + 1) * FLOAT_BYTES
        reserved = sum(line.size_bytes for line in compute if line.pool == pool)
        if size > reserved:
            yield MemoryLine(
                component=Component.COMPUTE,
                size_bytes=size - reserved,
                pool=pool,
                basis=Basis.MODELLED,
                because=f"K cache unpacked for the context shift: {cells} cells x ({COPIES} x "
                f"{elements} floats + 1) x {FLOAT_BYTES} bytes, minus the {reserved} of "
                "the compute buffer",
                within=WITHIN,
            )


def _widest(model: Model, placement: TensorPlacement) -> dict[Pool, int]:
    """Numbers in a row of keys, of the layer that has most of them in each pool."""
    found: dict[Pool, int] = {}
    for layer in model.geometry.layers:
        widths = [stream.elements for stream in layer.mixer.streams if stream.name != "v"]
        for _, pool in shares_of(layer.mixer, layer.index, placement):
            found[pool] = max(found.get(pool, 0), *widths, 0)
    return found
