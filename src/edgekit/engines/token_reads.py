"""A model and its bill -> the bytes that one decoded token reads from each pool: active weights, cache and states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from edgekit.bill.types import Component, Load, MemoryEstimate
from edgekit.errors import UnknownArchitectureError
from edgekit.machine.types import Pool, PoolKind
from edgekit.model import Role, block_of, roles_of
from edgekit.model.types import (
    Cached,
    Model,
    ModelGeometry,
    SharedCache,
    Span,
    attention_of,
    stored_layers,
)
from edgekit.sources.types import Container

_KV_CACHES = frozenset({Component.KV_CACHE, Component.SLIDING_KV_CACHE})
PREDICTION = "prediction"  # the part of lines for the model's own prediction blocks
# gpt-oss: experts have four bits and a scale per 32 weights, the rest sixteen.
MXFP4_SHARE = 4.25 / 16


class LayerWeights(NamedTuple):
    """Bytes of a layer's weights; numbers of weights where their bytes are unknown, which gives the same shares."""

    plain: float  # all but the routed experts; every token uses them
    experts: float
    used_share: float  # of the experts, by one token


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveWeights:
    """The weights that one token uses."""

    layers: tuple[LayerWeights, ...]  # of the first round: later rounds use the same weights
    outside: float  # outside the layers, in the unit of the layers
    outside_read: float  # the head; an embedding is only looked up, towers are not used
    parameters: int  # that a prompt token is multiplied by; the head is not included
    has_experts: bool


class CacheRead(NamedTuple):
    """Caches that are full after the same number of tokens. Only the filled part is read."""

    full_bytes: float
    full_tokens: int  # the number of tokens that fills it

    def filled_bytes(self, tokens: int) -> float:
        """Bytes that are read when the context has this many tokens."""
        if tokens >= self.full_tokens:
            return self.full_bytes
        return self.full_bytes * tokens / self.full_tokens


class PoolReads(NamedTuple):
    """What one token reads from one pool."""

    pool: Pool
    weights_bytes: float
    state_bytes: float
    caches: tuple[CacheRead, ...]
    layers: int  # computed there, at least in part; the head counts as one
    held_bytes: int  # all weights in this pool, used or not
    experts_bytes: float = 0.0  # of weights_bytes: routed experts
    held_experts_bytes: float = 0.0  # of held_bytes: routed experts

    @property
    def is_read(self) -> bool:
        return bool(self.weights_bytes or self.state_bytes or self.caches)

    def cache_bytes(self, filled_tokens: int) -> float:
        return sum(cache.filled_bytes(filled_tokens) for cache in self.caches)

    def experts_read_by(self, tokens: int) -> float:
        """Bytes of routed experts that at least one of these tokens uses, if each chooses at random."""
        if not self.held_experts_bytes:
            return 0.0
        used_share = min(1.0, self.experts_bytes / self.held_experts_bytes)
        at_random = self.held_experts_bytes * (1.0 - (1.0 - used_share) ** tokens)
        return max(at_random, self.experts_bytes)


class TokenReads(NamedTuple):
    """What a decoded token of one sequence reads."""

    pools: tuple[PoolReads, ...]
    crossings: int  # how often the token moves from one pool to another
    context_tokens: int  # of one sequence
    weights: ActiveWeights


# Bytes outside the layers in each pool -> those of them that a token reads.
Outside = Callable[[Mapping[Pool, float], ActiveWeights], dict[Pool, float]]


def even_share(sizes: Mapping[Pool, float], weights: ActiveWeights) -> dict[Pool, float]:
    """A token reads the same share of the bytes in every pool."""
    share = weights.outside_read / max(weights.outside, 1.0)
    return {pool: size * share for pool, size in sizes.items()}


def token_reads(
    model: Model,
    load: Load,
    bill: MemoryEstimate,
    *,
    loaded: Model | None = None,
    outside: Outside = even_share,
) -> TokenReads:
    """What one token reads, as sums over the bill. `loaded`: the model after conversion, if the engine needs one."""
    loaded = loaded or model
    active = active_weights(loaded)
    facts = dict(bill.facts)
    stated = (facts.get(name) for name in ("n_ctx_seq", "max_model_len"))
    context = next((tokens for tokens in stated if isinstance(tokens, int)), None)
    if context is None:
        context = load.context_tokens or model.geometry.native_context or 1
    context = max(context, 1)
    weights = _weight_reads(loaded, bill, active, outside)
    caches = _cache_reads(loaded, load, bill, context)
    sequences = facts.get("n_seq_max", load.sequences)
    sequence_count = sequences if isinstance(sequences, int) and sequences > 0 else 1
    states: dict[Pool, float] = defaultdict(float)  # of one sequence, read and written
    for line in bill.lines:
        if line.component is Component.STATE and not line.part:
            states[line.pool] += 2 * line.size_bytes / sequence_count
    pools = tuple(
        PoolReads(
            pool=pool,
            weights_bytes=weights[pool].bytes_read,
            state_bytes=states[pool],
            caches=tuple(caches[pool]),
            layers=len(weights[pool].layers),
            held_bytes=weights[pool].held_bytes,
            experts_bytes=weights[pool].experts_read,
            held_experts_bytes=weights[pool].held_experts,
        )
        for pool in bill.pools
    )
    layers_of = {pool: of_pool.layers for pool, of_pool in weights.items()}
    crossings = _crossings(layers_of, len(active.layers) + 1)
    return TokenReads(pools=pools, crossings=crossings, context_tokens=context, weights=active)


def prediction_reads(reads: TokenReads, bill: MemoryEstimate, *, outside: Outside) -> TokenReads:
    """What a token reads that one of the model's own prediction blocks drafts: the block, its cache and the head.

    Its experts are taken to be used like those of the last layer.
    """
    active = reads.weights
    last = active.layers[-1]
    experts_share = last.experts / (last.plain + last.experts or 1.0)
    count = len({line.layer for line in bill.lines if (line.layer or 0) >= len(active.layers)}) or 1
    held: dict[Pool, float] = defaultdict(float)  # by a block
    outside_bytes: dict[Pool, float] = defaultdict(float)
    caches: dict[Pool, list[CacheRead]] = defaultdict(list)
    streams = dict(bill.facts).get("kv_streams")
    stream_count = streams if isinstance(streams, int) and streams > 0 else 1
    for line in bill.lines:
        if line.component is Component.WEIGHTS and not line.part:
            if line.layer is None:
                outside_bytes[line.pool] += line.size_bytes
            elif line.layer >= len(active.layers):
                held[line.pool] += line.size_bytes / count
        elif line.component in _KV_CACHES and line.part == PREDICTION:
            caches[line.pool].append(
                CacheRead(line.size_bytes / stream_count / count, reads.context_tokens)
            )
    head = outside(outside_bytes, active)
    block_bytes, pools = sum(held.values()), []
    for pool in reads.pools:
        experts = held[pool.pool] * experts_share
        used = experts * last.used_share
        pools.append(
            PoolReads(
                pool=pool.pool,
                weights_bytes=held[pool.pool] - experts + used + head.get(pool.pool, 0.0),
                state_bytes=0.0,
                caches=tuple(caches[pool.pool]),
                layers=bool(held[pool.pool]) + bool(head.get(pool.pool)),
                held_bytes=int(held[pool.pool] + head.get(pool.pool, 0.0)),
                experts_bytes=used,
                held_experts_bytes=experts,
            )
        )
    layer_bytes = sum(layer.plain + layer.experts for layer in active.layers) or 1.0
    weights = replace(
        active,
        layers=active.layers[-1:],
        parameters=int(active.parameters * min(1.0, block_bytes / layer_bytes)),
    )
    return reads._replace(pools=tuple(pools), crossings=0, weights=weights)


class _WeightReads:
    """The weights of a pool: bytes that one token reads, layers computed there, and all bytes."""

    __slots__ = ("bytes_read", "experts_read", "held_bytes", "held_experts", "layers")

    def __init__(self) -> None:
        self.bytes_read = self.experts_read = self.held_experts = 0.0
        self.held_bytes = 0
        self.layers: set[int] = set()


def _weight_reads(
    model: Model, bill: MemoryEstimate, active: ActiveWeights, outside: Outside
) -> dict[Pool, _WeightReads]:
    """The weights that one token reads from each pool."""
    lines = [line for line in bill.lines if line.component is Component.WEIGHTS and not line.part]
    reads: dict[Pool, _WeightReads] = defaultdict(_WeightReads)
    outside_bytes: dict[Pool, float] = defaultdict(float)
    kinds: dict[int, set[PoolKind]] = defaultdict(set)  # where each layer is
    for line in lines:
        if line.layer is not None:
            kinds[line.layer].add(line.pool.kind)
    for line in lines:
        if line.layer is None:
            outside_bytes[line.pool] += line.size_bytes
            continue
        of_pool = reads[line.pool]
        of_pool.held_bytes += line.size_bytes
        if line.layer >= len(active.layers):
            continue
        layer = active.layers[line.layer]
        if len(kinds[line.layer]) == 1:
            experts = line.size_bytes * layer.experts / (layer.plain + layer.experts or 1.0)
        elif line.pool.kind is PoolKind.HOST:  # the host has only experts of a split layer
            experts = line.size_bytes
        else:
            experts = max(0.0, line.size_bytes - layer.plain)
        used = experts * layer.used_share
        of_pool.held_experts += experts
        of_pool.experts_read += used * model.geometry.loops
        of_pool.bytes_read += (line.size_bytes - experts + used) * model.geometry.loops
        of_pool.layers.add(line.layer)
    outside_read = outside(outside_bytes, active)
    for pool, size in outside_read.items():
        reads[pool].bytes_read += size
        reads[pool].held_bytes += int(size)
    if active.outside_read:  # the head comes after the last layer
        reads[max(outside_read, key=outside_read.__getitem__)].layers.add(len(active.layers))
    return reads


def _cache_reads(
    model: Model, load: Load, bill: MemoryEstimate, context: int
) -> dict[Pool, list[CacheRead]]:
    """The caches that one token reads from each pool, grouped by the number of tokens that fills them."""
    facts = dict(bill.facts)
    request_bytes = facts.get("request_bytes")  # of vLLM: the line is a pool of blocks for all
    streams = facts.get("kv_streams", load.sequences)
    stream_count = streams if isinstance(streams, int) and streams > 0 else 1
    cells = facts.get("kv_swa_cells")  # of llama.cpp's cache for windows
    layers = model.geometry.layers
    readers: dict[int, int] = {}  # how many layers read the cache of a layer, if more than one
    for layer in layers:
        if isinstance(layer.mixer, SharedCache):
            readers[layer.mixer.source_layer] = readers.get(layer.mixer.source_layer, 1) + 1
    sizes: dict[tuple[Pool, int], float] = defaultdict(float)
    for line in bill.lines:
        if line.component not in _KV_CACHES or line.part:
            continue
        if line.layer is None and isinstance(request_bytes, int):
            for span, size in _group_reads(facts, context):
                sizes[line.pool, span] += size
            continue
        size = float(line.size_bytes) / stream_count
        times = 1 if line.layer is None else readers.get(line.layer, 1)
        span = context  # the number of tokens that fill the cache of this line
        is_sliding = line.component is Component.SLIDING_KV_CACHE
        if is_sliding and line.layer is not None and line.layer < len(layers):
            mixer = layers[line.layer].mixer
            spans = [stream.span_tokens for stream in mixer.streams if stream.span is not Span.ALL]
            span = max(1, min([context, *spans]))
            if (
                isinstance(cells, int) and cells > 0
            ):  # also of other sequences, and of the tokens of a batch
                size *= min(1.0, span / cells)
        sizes[line.pool, span] += size * times
    caches: dict[Pool, list[CacheRead]] = defaultdict(list)
    for (pool, tokens), size in sizes.items():
        caches[pool].append(CacheRead(full_bytes=size, full_tokens=tokens))
    return caches


def _group_reads(facts: Mapping[str, Any], context: int) -> Iterator[tuple[int, float]]:
    """The tokens that fill each of vLLM's groups of layers for one request, and its bytes then."""
    block_bytes = facts["bytes_per_block"]
    for blocks, span in zip(facts["blocks_per_group"], facts["group_spans"], strict=True):
        if span is None:  # a state has its size from the first token on
            yield 1, float(blocks * block_bytes)
        else:
            tokens = min(context, span or context)
            yield tokens, tokens / facts["block_size"] * block_bytes


def _crossings(layers_of: Mapping[Pool, set[int]], count: int) -> int:
    """How often a token moves to another pool: twice in a layer that is on a card and in RAM, never between cards that
    compute a layer together.
    """
    crossings, last = 0, None
    for layer in range(count):
        places = [pool for pool, layers in layers_of.items() if layer in layers]
        if len({pool.kind for pool in places}) > 1:
            crossings += 2
            last = next(pool for pool in places if pool.kind is PoolKind.DEVICE)
        elif places:
            crossings += last is not None and last not in places
            last = places[0]
    return crossings


class _Prepared:
    """Results that are cached with a model, the same for all engines."""

    def __init__(self) -> None:
        self.weights: Cached[ActiveWeights] = Cached()


def active_weights(model: Model) -> ActiveWeights:
    """The weights that one token uses, by the header's tensors, else by the architecture's recipe, else by widths."""

    def make() -> ActiveWeights:
        # In a GGUF the elements of the tensors are the weights.
        counts_elements = model.header.tensors and model.header.container is Container.GGUF
        try:
            expected = None if counts_elements else _active(geometry, _weights_by_recipe(model))
        except UnknownArchitectureError:
            expected = None
        if not model.header.tensors:
            return expected or _active(geometry, _weights_by_widths(geometry))
        stored = _active(geometry, _stored_weights(model))
        # Packed safetensors store several weights in one number, so their tensors have too few elements.
        return stored if expected is None else replace(stored, parameters=expected.parameters)

    geometry = model.geometry
    return model.prepared(_Prepared).weights.get(make)


class _Weights(NamedTuple):
    """Weights of one tensor, or of several tensors that are read alike."""

    layer: int | None  # None: outside the layers
    size: float  # in bytes, or the number of weights where their bytes are unknown
    elements: int
    are_experts: bool = False
    # Outside the layers: a table or a tower, which a token does not read.
    are_looked_up: bool = False


def _active(geometry: ModelGeometry, weights: Iterable[_Weights]) -> ActiveWeights:
    """Adds up the weights of each layer. Later loops use the same layers; prediction blocks are not counted."""
    layers = stored_layers(geometry)
    used_shares = [
        min(1.0, layer.experts.used / layer.experts.count)
        if layer.experts is not None and layer.experts.count
        else 1.0
        for layer in layers
    ]
    plain, experts = [0.0] * len(layers), [0.0] * len(layers)
    outside = looked_up = parameters = 0.0
    for part in weights:
        if part.layer is None:
            outside += part.size
            looked_up += part.size if part.are_looked_up else 0.0
        elif part.layer < len(layers):
            (experts if part.are_experts else plain)[part.layer] += part.size
            used_share = used_shares[part.layer] if part.are_experts else 1.0
            parameters += part.elements * used_share * geometry.loops
    return ActiveWeights(
        layers=tuple(
            LayerWeights(plain=in_plain, experts=in_experts, used_share=used if in_experts else 1.0)
            for in_plain, in_experts, used in zip(plain, experts, used_shares, strict=True)
        ),
        outside=outside,
        outside_read=max(0.0, outside - looked_up),
        parameters=int(parameters),
        has_experts=any(experts),
    )


def _stored_weights(model: Model) -> Iterator[_Weights]:
    """The tensors in the header."""
    tensors = model.header.tensors or ()
    roles = roles_of(tensors, layers=len(stored_layers(model.geometry)))
    is_tied = Role.OUTPUT not in roles and not model.geometry.embeds  # no head is computed
    # In a tied model the token embedding is also the head; tables of positions or of every layer are not.
    other_tables = ("per_layer", "position", "wpe", "type")
    tables = [
        tensor
        for tensor, role in zip(tensors, roles, strict=True)
        if role is Role.EMBEDDING and not any(part in tensor.name for part in other_tables)
    ]
    head = max(tables, key=lambda tensor: tensor.elements).name if is_tied and tables else ""
    for tensor, role in zip(tensors, roles, strict=True):
        if role is not Role.MTP:
            yield _Weights(
                layer=None if role is Role.TOWER else block_of(tensor.name),
                size=tensor.size_bytes,
                elements=tensor.elements,
                are_experts=role is Role.EXPERTS,
                are_looked_up=role is Role.TOWER
                or (role is Role.EMBEDDING and tensor.name != head),
            )


def _weights_by_recipe(model: Model) -> Iterator[_Weights]:
    """The tensors that the architecture has by its recipe. Raises UnknownArchitectureError."""
    # Imported here: a file that lists its tensors does not need the recipes.
    from edgekit.model.tensor_recipes import TensorKind, TensorRole
    from edgekit.model.tensors import expected_tensors

    tables = {TensorRole.POSITION, TensorRole.SEGMENT, TensorRole.LAYER_EMBEDDING}
    if not model.geometry.tied_embeddings or model.geometry.embeds:
        tables.add(TensorRole.EMBEDDING)
    stored = model.header.quantization
    expert_scale = MXFP4_SHARE if stored is not None and stored.method == "mxfp4" else 1.0
    for tensor in expected_tensors(model.geometry, model.header.config):
        are_experts = tensor.kind is TensorKind.EXPERT
        yield _Weights(
            layer=tensor.layer,
            size=tensor.elements * (expert_scale if are_experts else 1.0),
            elements=tensor.elements,
            are_experts=are_experts,
            are_looked_up=tensor.role in tables,
        )


def _weights_by_widths(geometry: ModelGeometry) -> Iterator[_Weights]:
    """From widths alone: close enough for the shares of a layer."""
    hidden = geometry.hidden
    for index, layer in enumerate(stored_layers(geometry)):
        attention = attention_of(layer.mixer)
        inner = hidden if attention is None else attention.heads * attention.key_dim
        yield _Weights(index, size := 4 * hidden * inner, size)
        if layer.dense is not None:
            size = (3 if layer.dense.gated else 2) * hidden * layer.dense.width
            yield _Weights(index, size, size)
        if (experts := layer.experts) is not None:
            matrices = (3 if experts.gated else 2) * (experts.latent or hidden)
            yield _Weights(index, size := matrices * experts.shared_width, size)
            size = matrices * experts.width * experts.count
            yield _Weights(index, size, size, are_experts=True)
    table = hidden * (geometry.vocabulary or 0)
    if not geometry.embeds:
        yield _Weights(None, table, 0)  # the head
    if not geometry.tied_embeddings or geometry.embeds:
        yield _Weights(None, table, 0, are_looked_up=True)
