"""A plan -> its bill. Each line is one allocation, or as many as there are layers, and EXACT.

The word before the colon names the array; interpreter, libraries, vocabulary and the threads' stacks are no arrays of
the engine: they are the reserve that a budget sets aside (engines/budgets.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.bill.spill import PAGE_TOKENS
from edgekit.bill.types import Component, MemoryLine
from edgekit.engines.native.sampler_size import sampler_bytes
from edgekit.engines.native.setup import StreamPlan
from edgekit.engines.native.tensors import arena_floats, matrices, vectors
from edgekit.machine.types import HOST

FLOAT_BYTES = 4


def bill_lines(plan: StreamPlan) -> Iterator[MemoryLine]:
    yield from _weight_lines(plan)
    yield from _cache_lines(plan)
    yield from _output_lines(plan)
    yield from _chunk_lines(plan)
    yield from _thread_lines(plan)


def _line(
    component: Component, size_bytes: int, because: str, layer: int | None = None
) -> MemoryLine:
    return MemoryLine(
        component=component, size_bytes=size_bytes, pool=HOST, layer=layer, because=because
    )


def _floats(what: str, count: int, told: str) -> MemoryLine:
    return _line(Component.COMPUTE, count * FLOAT_BYTES, f"{what}: {told} x {FLOAT_BYTES}")


def _weight_lines(plan: StreamPlan) -> Iterator[MemoryLine]:
    held = sum(tensor.shape[-1] for tensor in vectors(plan.model))
    yield _line(
        Component.WEIGHTS,
        held * FLOAT_BYTES,
        f"norms and biases: {held:,} x {FLOAT_BYTES}, held as float32",
    )
    for place, layer in enumerate(plan.model.layers):
        sizes = [tensor.size_bytes for tensor in layer.values() if tensor.name in plan.kept]
        if sizes:
            yield _kept_line(sizes, place)
    inside = {tensor.name for layer in plan.model.layers for tensor in layer.values()}
    outside = [tensor for tensor in matrices(plan.model) if tensor.name not in inside]
    sizes = [tensor.size_bytes for tensor in outside if tensor.name in plan.kept]
    if sizes:
        yield _kept_line(sizes, None)


def _kept_line(sizes: list[int], layer: int | None) -> MemoryLine:
    count = "1 matrix" if len(sizes) == 1 else f"{len(sizes)} matrices"
    told = f"weights kept: {count} as in the file"
    return _line(Component.WEIGHTS, sum(sizes), told, layer)


def _cache_lines(plan: StreamPlan) -> Iterator[MemoryLine]:
    each = (
        f"({plan.k_row_bytes:,} of {plan.cache_k.name} keys + {plan.v_row_bytes:,} of"
        f" {plan.cache_v.name} values)"
    )
    for layer in range(len(plan.cells)):
        cells = plan.resident_cells(layer)
        slides = plan.slides(layer) and cells < plan.context_tokens
        pages = "" if cells == plan.cells[layer] else f" of {plan.cells[layer]:,}"
        yield _line(
            Component.SLIDING_KV_CACHE if slides else Component.KV_CACHE,
            cells * plan.cell_bytes,
            f"cache: {cells:,}{pages} cells x {each}",
            layer,
        )
    if plan.resident_pages is not None:
        yield _line(
            Component.KV_CACHE,
            PAGE_TOKENS * plan.cell_bytes,
            f"page read back: {PAGE_TOKENS} cells x {each}",
        )


def _output_lines(plan: StreamPlan) -> Iterator[MemoryLine]:
    tokens = plan.model.dimensions.vocabulary
    yield _line(Component.OUTPUT, tokens * FLOAT_BYTES, f"logits: {tokens:,} x {FLOAT_BYTES}")
    yield _line(
        Component.COMPUTE, sampler_bytes(tokens), f"sampler: workspace for {tokens:,} tokens"
    )


def _chunk_lines(plan: StreamPlan) -> Iterator[MemoryLine]:
    size, tokens = plan.model.dimensions, plan.chunk_tokens
    of = f"{tokens:,} tokens x"
    yield _floats("tokens", tokens * size.width, f"{of} {size.width:,}")
    yield _floats("chunk", tokens * size.width, f"{of} {size.width:,}")
    yield _floats("queries", tokens * size.query, f"{of} {size.query:,}")
    if plan.has_sinks:
        yield _floats("queries of sinks", tokens * size.query, f"{of} {size.query:,}")
    mixed = size.query + 2 * size.heads
    yield _floats(
        "attention", tokens * mixed, f"{of} ({size.query:,} + {size.heads} heads x 2 of its sums)"
    )
    yield _floats(
        "keys and values, then feed-forward",
        arena_floats(plan.model, tokens, tokens),
        f"{of} the larger of 2 x {size.key:,} and {size.inner:,}",
    )
    yield _line(
        Component.COMPUTE, tokens * plan.cell_bytes, f"staging: {of} {plan.cell_bytes:,} of cache"
    )
    if tables := plan.rotary_tables:
        yield _floats(
            "rotary", tables * tokens * (size.rotary // 2), f"{tables} x {of} {size.rotary // 2}"
        )


def _thread_lines(plan: StreamPlan) -> Iterator[MemoryLine]:
    floats = plan.side_floats + plan.scratch_floats
    yield _line(
        Component.COMPUTE,
        plan.threads * (plan.tile_bytes + floats * FLOAT_BYTES),
        f"tiles: {plan.threads} threads x ({plan.tile_bytes:,} packed + {plan.side_floats:,} x 4"
        f" for the gate + {plan.scratch_floats:,} x 4 unpacked)",
    )
