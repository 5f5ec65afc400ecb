"""Multi-token prediction: the second context that drafts with the model's own prediction blocks.

server-context.cpp and common.cpp @ 0c1e570: it has a cache for those blocks alone, an output and a compute buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from edgekit.basis import Basis
from edgekit.bill.cache_types import F16
from edgekit.bill.types import Component, MemoryLine
from edgekit.engines.llamacpp.caches import layer_cache_bytes, shares_of
from edgekit.engines.llamacpp.compute import output_line
from edgekit.engines.llamacpp.tensor_placement import TensorPlacement
from edgekit.engines.llamacpp.types import Context, LlamaCppSetup
from edgekit.errors import RefusedError
from edgekit.model.types import Model

PART = "prediction"
WITHIN = 1.0


def prediction_lines(
    model: Model,
    context: Context,
    placement: TensorPlacement,
    setup: LlamaCppSetup,
    compute: Sequence[MemoryLine],
) -> Iterator[MemoryLine]:
    """Nothing unless it is asked for. Raises RefusedError for a model without such blocks."""
    if not setup.load_mtp:
        return
    count, layers = model.geometry.mtp_layers, len(model.geometry.layers)
    if not count:
        raise RefusedError("llama.cpp: this model has no layers for multi-token prediction (MTP)")
    # speculative.cpp @ b21e4de: its cache has the types of a drafter, f16 unless it is told otherwise.
    context = replace(context, type_k=F16, type_v=F16)
    attending = next((one for one in reversed(model.geometry.layers) if one.mixer.streams), None)
    for block in range(layers, layers + count):
        shares = shares_of(attending.mixer, block, placement) if attending is not None else ()
        for mixer, pool in shares:
            yield MemoryLine(
                component=Component.KV_CACHE,
                size_bytes=layer_cache_bytes(model, mixer, context, pool),
                pool=pool,
                layer=block,
                basis=Basis.MODELLED,
                because="a cache like that of the last layer with attention",
                within=WITHIN,
                part=PART,
            )
    yield replace(output_line(model, context), part=PART, basis=Basis.MODELLED, within=WITHIN)
    told = "one layer and the output head: never more than the main graph"
    for line in compute:
        yield replace(line, part=PART, basis=Basis.MODELLED, within=WITHIN, because=told)
