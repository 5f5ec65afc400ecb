"""A model and its bill -> what one decoded token reads, pool by pool: working weights, cache, states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edgekit.bill.types import Component, Load, MemoryEstimate, MemoryLine
from edgekit.machine.types import Pool, PoolKind
from edgekit.model.types import Model, ModelGeometry, SharedCache, Span
from edgekit.plan.working import LayerShare, Working, working_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRead:
    """A line of a cache: it is read up to where it is filled."""

    whole_bytes: float
    whole_tokens: int  # so many tokens fill it

    def at(self, filled_tokens: int) -> float:
        if filled_tokens >= self.whole_tokens:
            return self.whole_bytes
        return self.whole_bytes * filled_tokens / self.whole_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """What one token reads of one pool."""

    pool: Pool
    weights_bytes: float
    state_bytes: float
    caches: tuple[CacheRead, ...]
    layers: int  # that run there, in part or whole; the head counts as one
    held_bytes: int  # weights that lie there, working or not

    @property
    def is_read(self) -> bool:
        return bool(self.weights_bytes or self.state_bytes or self.caches)

    def cache_bytes(self, filled_tokens: int) -> float:
        return sum(one.at(filled_tokens) for one in self.caches)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceWork:
    """What one sequence asks of a machine."""

    pools: tuple[Touched, ...]
    crossings: int  # of a token from one pool to another
    context_tokens: int  # of one sequence
    working: Working


def one_token(model: Model, load: Load, setup: Any, estimate: MemoryEstimate) -> SequenceWork:
    """Sums over the bill; what the weights' directory says is kept with the model."""
    own = _as_loaded(model, setup, estimate)
    working = working_weights(own)
    context = _context_tokens(model, load, estimate)
    weights = _weights(own, estimate, working)
    caches = _caches(own, load, estimate, context)
    states = _states(load, estimate)
    pools = tuple(
        Touched(
            pool=pool,
            weights_bytes=weights.bytes_of[pool],
            state_bytes=states[pool],
            caches=tuple(caches[pool]),
            layers=len(weights.layers_of[pool]),
            held_bytes=weights.held_of[pool],
        )
        for pool in estimate.pools
    )
    crossings = _crossings(weights.layers_of, len(working.layers) + 1)
    return SequenceWork(pools=pools, crossings=crossings, context_tokens=context, working=working)


def _as_loaded(model: Model, setup: Any, estimate: MemoryEstimate) -> Model:
    """llama.cpp's is the GGUF, which may have to be made first."""
    if estimate.engine != "llama.cpp":
        return model
    from edgekit.engines.llamacpp.as_gguf import converted

    found = converted(model, getattr(setup, "mix", None))
    return model if found is None else found.model


def _context_tokens(model: Model, load: Load, estimate: MemoryEstimate) -> int:
    facts = dict(estimate.facts)
    for name in ("n_ctx_seq", "max_model_len"):
        found = facts.get(name)
        if isinstance(found, int):
            return max(found, 1)
    return max(load.context_tokens or model.geometry.native_context or 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    bytes_of: Mapping[Pool, float]
    layers_of: Mapping[Pool, set[int]]
    held_of: Mapping[Pool, int]


def _weights(model: Model, estimate: MemoryEstimate, working: Working) -> _Weights:
    lines = [
        line for line in estimate.lines if line.component is Component.WEIGHTS and not line.part
    ]
    sums: dict[Pool, float] = defaultdict(float)
    layers: dict[Pool, set[int]] = defaultdict(set)
    held: dict[Pool, int] = defaultdict(int)
    divided = _divided(lines)
    rounds = max(model.geometry.loops, 1)
    for line in lines:
        if line.layer is None:
            continue
        held[line.pool] += line.size_bytes
        if line.layer < len(working.layers):
            share = working.layers[line.layer]
            ratio = _ratio(share, line, apart=line.layer in divided)
            sums[line.pool] += line.size_bytes * ratio * rounds
            layers[line.pool].add(line.layer)
    outside = _outside(lines, working, estimate)
    for pool, size in outside.items():
        sums[pool] += size
        held[pool] += int(size)
    if outside:  # the head comes after the last layer
        layers[max(outside, key=outside.__getitem__)].add(len(working.layers))
    return _Weights(bytes_of=sums, layers_of=layers, held_of=held)


def _divided(lines: Iterable[MemoryLine]) -> frozenset[int]:
    """Layers that are on a device but for their experts, or some of them."""
    places: dict[int, set[PoolKind]] = defaultdict(set)
    for line in lines:
        if line.layer is not None:
            places[line.layer].add(line.pool.kind)
    return frozenset(layer for layer, kinds in places.items() if len(kinds) > 1)


def _ratio(share: LayerShare, line: MemoryLine, *, apart: bool) -> float:
    if not apart or not line.size_bytes:
        return share.ratio
    if line.pool.kind is PoolKind.HOST:
        return share.experts_ratio
    rest = min(share.whole - share.experts, line.size_bytes)
    experts = line.size_bytes - rest
    return (rest * share.rest_ratio + experts * share.experts_ratio) / line.size_bytes


def _outside(
    lines: Iterable[MemoryLine], working: Working, estimate: MemoryEstimate
) -> dict[Pool, float]:
    sizes: dict[Pool, float] = defaultdict(float)
    for line in lines:
        if line.layer is None:
            sizes[line.pool] += line.size_bytes
    if estimate.engine != "llama.cpp":
        return {pool: size * working.outside.ratio for pool, size in sizes.items()}
    # llama.cpp leaves tables on the host and puts the head, and nothing else that is large, where the last layer is.
    head = working.outside.working
    devices = {pool: size for pool, size in sizes.items() if pool.kind is PoolKind.DEVICE}
    host = {pool: min(size, head) for pool, size in sizes.items() if pool not in devices}
    if any(size >= head / 2 for size in devices.values()):
        return {**devices, **dict.fromkeys(host, 0.0)}
    return {**devices, **host}


def _caches(
    model: Model, load: Load, estimate: MemoryEstimate, context: int
) -> dict[Pool, list[CacheRead]]:
    facts = dict(estimate.facts)
    request = facts.get("request_bytes")  # vLLM's line is the whole pool
    streams = facts.get("kv_streams", load.sequences)
    share = streams if isinstance(streams, int) and streams > 0 else 1
    readers = _readers(model.geometry)
    found: dict[Pool, list[CacheRead]] = defaultdict(list)
    kinds: dict[tuple[Pool, int], float] = defaultdict(float)
    for line in estimate.lines:
        if line.component not in _GROWING or line.part:
            continue
        size = float(line.size_bytes) / share
        if line.layer is None and isinstance(request, int):
            size = request
        times = 1 if line.layer is None else readers.get(line.layer, 1)
        kinds[line.pool, _span(model.geometry, line, context)] += size * times
    for (pool, tokens), size in kinds.items():
        found[pool].append(CacheRead(whole_bytes=size, whole_tokens=tokens))
    return found


_GROWING = frozenset({Component.KV_CACHE, Component.SLIDING_KV_CACHE})


def _span(geometry: ModelGeometry, line: MemoryLine, context: int) -> int:
    """After so many tokens the whole line is read."""
    if line.component is not Component.SLIDING_KV_CACHE or line.layer is None:
        return context
    if line.layer >= len(geometry.layers):
        return context
    streams = geometry.layers[line.layer].mixer.streams
    spans = [one.span_tokens for one in streams if one.span is not Span.ALL]
    return max(1, min([context, *spans]))


def _readers(geometry: ModelGeometry) -> dict[int, int]:
    """How many layers read the cache of a layer, where that is more than itself."""
    found: dict[int, int] = {}
    for layer in geometry.layers:
        if isinstance(layer.mixer, SharedCache):
            found[layer.mixer.source_layer] = found.get(layer.mixer.source_layer, 1) + 1
    return found


def _states(load: Load, estimate: MemoryEstimate) -> dict[Pool, float]:
    """Read and written, of one sequence."""
    sequences = dict(estimate.facts).get("n_seq_max", load.sequences)
    share = sequences if isinstance(sequences, int) and sequences > 0 else 1
    found: dict[Pool, float] = defaultdict(float)
    for line in estimate.lines:
        if line.component is Component.STATE and not line.part:
            found[line.pool] += 2 * line.size_bytes / share
    return found


def _crossings(layers_of: Mapping[Pool, set[int]], count: int) -> int:
    """How often a token changes its place: there and back where experts lie elsewhere."""
    crossed, last = 0, None
    for layer in range(count):
        places = [pool for pool, layers in layers_of.items() if layer in layers]
        if len(places) > 1:
            crossed += 2
            last = next(pool for pool in places if pool.kind is PoolKind.DEVICE)
        elif places:
            crossed += last is not None and last != places[0]
            last = places[0]
    return crossed
