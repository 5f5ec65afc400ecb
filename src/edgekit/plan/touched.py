"""A model and its bill -> what one decoded token reads, pool by pool: working weights, cache, states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edgekit.engine.types import Model
from edgekit.errors import UnknownArchitectureError
from edgekit.geometry.types import (
    LatentAttention,
    Layer,
    ModelGeometry,
    SharedCache,
    Span,
    attention_of,
)
from edgekit.memory.types import (
    Component,
    Load,
    MemoryEstimate,
    MemoryLine,
    Pool,
    PoolKind,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Bytes of one layer, or of what stands outside them: those that every token needs, and all."""

    working: float
    whole: float
    experts: float = 0.0  # of the whole: routed ones
    experts_working: float = 0.0

    @property
    def ratio(self) -> float:
        return self.working / self.whole if self.whole else 1.0

    @property
    def experts_ratio(self) -> float:
        return self.experts_working / self.experts if self.experts else self.ratio

    @property
    def rest_ratio(self) -> float:
        rest = self.whole - self.experts
        return (self.working - self.experts_working) / rest if rest > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """Which weights work on one token."""

    layers: tuple[Share, ...]  # those with weights of their own
    outside: Share  # of it the head; an embedding is looked up, towers stand by
    parameters: int  # that multiply a token of a prompt: without the head
    has_experts: bool


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
    layers: int  # that run there, in part or whole
    held_bytes: int  # weights that lie there, working or not

    @property
    def is_read(self) -> bool:
        return bool(self.weights_bytes or self.state_bytes or self.caches)

    def cache_bytes(self, filled_tokens: int) -> float:
        return sum(one.at(filled_tokens) for one in self.caches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one sequence asks of a machine."""

    pools: tuple[Touched, ...]
    crossings: int  # of a token from one pool to another
    context_tokens: int  # of one sequence
    working: Working


def one_token(model: Model, load: Load, setup: Any, estimate: MemoryEstimate) -> Work:
    """Sums over the bill; what the weights' directory says is kept with the model."""
    own = _as_loaded(model, setup, estimate)
    working = own.keep("working weights", lambda: _working(own))
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
    crossings = _crossings(weights.layers_of, len(working.layers))
    return Work(pools=pools, crossings=crossings, context_tokens=context, working=working)


def _as_loaded(model: Model, setup: Any, estimate: MemoryEstimate) -> Model:
    """llama.cpp's is the GGUF, which may have to be made first."""
    if estimate.engine != "llama.cpp":
        return model
    from edgekit.engine.llamacpp.as_gguf import converted

    found = converted(model, getattr(setup, "mix", None))
    return model if found is None else found.model


def _context_tokens(model: Model, load: Load, estimate: MemoryEstimate) -> int:
    facts = dict(estimate.facts)
    for name in ("n_ctx_seq", "max_model_len"):
        found = facts.get(name)
        if isinstance(found, int):
            return max(found, 1)
    return max(load.context_tokens or model.geometry.native_context or 1, 1)


# -- which weights work ----------------------------------------------------------------------


def _working(model: Model) -> Working:
    if model.header.tensors:
        return _by_directory(model)
    try:
        return _by_architecture(model)
    except UnknownArchitectureError:
        return _by_shape(model.geometry)


class _Sums:
    """Bytes and parameters, layer by layer."""

    def __init__(self, geometry: ModelGeometry) -> None:
        self.geometry = geometry
        self.own = own_layers(geometry)
        self.plain: dict[int, float] = defaultdict(float)
        self.experts: dict[int, float] = defaultdict(float)
        self.outside = 0.0
        self.looked_up = 0.0
        self.parameters = 0.0

    def add(self, layer: int | None, size: float, elements: int, *, experts: bool) -> None:
        if layer is None:
            self.outside += size
        elif layer < len(self.own):
            (self.experts if experts else self.plain)[layer] += size
            used = self._used(layer) if experts else 1.0
            self.parameters += elements * used * self.geometry.loops

    def _used(self, layer: int) -> float:
        found = self.own[layer].experts
        return 1.0 if found is None or not found.count else min(1.0, found.used / found.count)

    def working(self) -> Working:
        return Working(
            layers=tuple(self._share(layer) for layer in range(len(self.own))),
            outside=Share(
                working=max(0.0, self.outside - self.looked_up), whole=max(self.outside, 1.0)
            ),
            parameters=int(self.parameters),
            has_experts=any(self.experts.values()),
        )

    def _share(self, layer: int) -> Share:
        plain, experts = self.plain[layer], self.experts[layer]
        active = experts * self._used(layer)
        return Share(
            working=plain + active,
            whole=plain + experts,
            experts=experts,
            experts_working=active,
        )


def own_layers(geometry: ModelGeometry) -> tuple[Layer, ...]:
    """Those with weights of their own: rounds after the first use the same."""
    return geometry.layers[: len(geometry.layers) // max(geometry.loops, 1)]


def _by_directory(model: Model) -> Working:
    from edgekit.geometry.roles import Role, block_of, roles_of

    tensors = model.header.tensors or ()
    sums = _Sums(model.geometry)
    roles = roles_of(tensors, layers=len(sums.own))
    tied = Role.OUTPUT not in roles
    head = _head_name(tensors) if tied else ""
    for tensor, role in zip(tensors, roles, strict=True):
        if role is Role.MTP:
            continue
        layer = None if role is Role.TOWER else block_of(tensor.name)
        sums.add(layer, tensor.size_bytes, tensor.elements, experts=role is Role.EXPERTS)
        stands_by = role is Role.TOWER or (role is Role.EMBEDDING and tensor.name != head)
        if layer is None and stands_by:
            sums.looked_up += tensor.size_bytes
    return sums.working()


def _head_name(tensors: Iterable[Any]) -> str:
    """Of a tied model the token embedding is the head: not that of positions, nor that of every layer."""
    from edgekit.geometry.roles import Role, roles_of

    others = ("per_layer", "position", "wpe", "type")
    likely = [
        one
        for one in tensors
        if "emb" in one.name or "wte" in one.name
        if not any(part in one.name for part in others)
    ]
    found = [
        one for one, role in zip(likely, roles_of(likely), strict=True) if role is Role.EMBEDDING
    ]
    return max(found, key=lambda one: one.elements).name if found else ""


def _by_architecture(model: Model) -> Working:
    from edgekit.geometry.expected import expected_tensors
    from edgekit.geometry.tensor_roles import TensorKind, TensorRole

    geometry = model.geometry
    sums = _Sums(geometry)
    tables = {TensorRole.POSITION, TensorRole.SEGMENT, TensorRole.LAYER_EMBEDDING}
    if not geometry.tied_embeddings:
        tables.add(TensorRole.EMBEDDING)
    for tensor in expected_tensors(geometry, model.header.config):
        size = tensor.elements
        sums.add(tensor.layer, size, size, experts=tensor.kind is TensorKind.EXPERT)
        if tensor.layer is None and tensor.role in tables:
            sums.looked_up += size
    return sums.working()


def _by_shape(geometry: ModelGeometry) -> Working:
    """By widths alone: close enough for shares of a layer."""
    sums = _Sums(geometry)
    hidden = geometry.hidden
    for place, layer in enumerate(sums.own):
        attention = attention_of(layer.mixer)
        inner = hidden if attention is None else attention.heads * attention.key_dim
        sums.add(place, size := 4 * hidden * inner, size, experts=False)
        if layer.dense is not None:
            size = (3 if layer.dense.gated else 2) * hidden * layer.dense.width
            sums.add(place, size, size, experts=False)
        if (experts := layer.experts) is not None:
            matrices = (3 if experts.gated else 2) * (experts.latent or hidden)
            sums.add(place, size := matrices * experts.shared_width, size, experts=False)
            sums.add(place, size := matrices * experts.width * experts.count, size, experts=True)
    table = hidden * (geometry.vocabulary or 0)
    sums.add(None, table if geometry.tied_embeddings else 2 * table, 0, experts=False)
    sums.looked_up = 0 if geometry.tied_embeddings else table
    return sums.working()


# -- sums over the bill ----------------------------------------------------------------------


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
    for pool, size in _outside(lines, working, estimate).items():
        sums[pool] += size
        held[pool] += int(size)
    return _Weights(bytes_of=sums, layers_of=layers, held_of=held)


def _divided(lines: Iterable[MemoryLine]) -> frozenset[int]:
    """Layers that lie on a device but for their experts."""
    places: dict[int, set[PoolKind]] = defaultdict(set)
    for line in lines:
        if line.layer is not None:
            places[line.layer].add(line.pool.kind)
    return frozenset(layer for layer, kinds in places.items() if len(kinds) > 1)


def _ratio(share: Share, line: MemoryLine, *, apart: bool) -> float:
    if not apart:
        return share.ratio
    return share.experts_ratio if line.pool.kind is PoolKind.HOST else share.rest_ratio


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


def attention_flops(geometry: ModelGeometry, tokens: int) -> float:
    """Of one token that looks back on so many: scores and values of every head."""
    total = 0.0
    for layer in geometry.layers:
        attention = attention_of(layer.mixer)
        if attention is None:
            continue
        span = attention.span_tokens if attention.span is not Span.ALL else tokens
        width = attention.key_dim + attention.value_dim
        if isinstance(attention, LatentAttention) and attention.absorbed:
            width = 2 * attention.latent_dim + attention.rope_dim
        total += 2.0 * attention.heads * width * min(tokens, span or tokens)
    return total
