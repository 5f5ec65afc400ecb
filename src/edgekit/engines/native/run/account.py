"""The arrays of an engine -> bytes by the line of the bill that pays for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from edgekit.engines.native.run.pages import PagedCache

if TYPE_CHECKING:
    from edgekit.bill.types import MemoryLine
    from edgekit.engines.native.encoder.crew import CrewMember
    from edgekit.engines.native.encoder.weights import EncoderWeights
    from edgekit.engines.native.run.cache import LayerCache
    from edgekit.engines.native.run.forward import StreamBuffers

SAMPLER = "sampler"  # the line that is not the engine's to allocate: runtime/sampling does
CACHES = ("cache", "page read back")


def line_key(line: MemoryLine) -> str:
    """The array that a line pays for: the words before its arithmetic, and its layer."""
    return _key(line.because.partition(":")[0], line.layer)


def _key(name: str, layer: int | None) -> str:
    return name if layer is None else f"{name}, layer {layer}"


def allocated_bytes(
    *,
    workers: Sequence[CrewMember],
    weights: EncoderWeights,
    buffers: StreamBuffers,
    caches: Sequence[LayerCache],
) -> Mapping[str, int]:
    """What numpy says of each array, under the key of its line."""
    common = buffers.common
    sink_query = buffers.sink_query
    found = {
        "norms and biases": sum(vector.nbytes for vector in weights.held.values()),
        **_kept(weights),
        **{_key("cache", layer): cache.size_bytes for layer, cache in enumerate(caches)},
        "page read back": max(
            (cache.cold_bytes for cache in caches if isinstance(cache, PagedCache)), default=0
        ),
        "logits": buffers.logits.nbytes,
        "tokens": common.x.nbytes,
        "chunk": common.chunk.nbytes,
        "queries": common.query.nbytes,
        "queries of sinks": 0 if sink_query is None else sink_query.nbytes,
        "attention": buffers.mixed.nbytes + buffers.state.nbytes,
        "keys and values, then feed-forward": common.arena.nbytes,
        "staging": buffers.keys.nbytes + buffers.values.nbytes,
        "rotary": sum(turning.size_bytes for turning in buffers.turnings),
        "tiles": sum(
            worker.packed.nbytes + worker.scratch.nbytes + worker.side.nbytes for worker in workers
        ),
    }
    return {key: size_bytes for key, size_bytes in found.items() if size_bytes}


def _kept(weights: EncoderWeights) -> dict[str, int]:
    """Of each layer, and of what is outside of them."""
    found: dict[str, int] = {}
    for name, rows in weights.rows.items():
        if rows.kept is not None:
            place = int(name.split(".")[1]) if name.startswith("blk.") else None
            key = _key("weights kept", place)
            found[key] = found.get(key, 0) + rows.kept.nbytes
    return found
