"""A resolved context -> the bill's lines for KV caches and recurrent states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from edgekit.bill.types import CacheType, Component, MemoryLine
from edgekit.engines.llamacpp.architectures import known_architecture
from edgekit.engines.llamacpp.context import head_sizes, pad
from edgekit.engines.llamacpp.placement import device_bytes
from edgekit.engines.llamacpp.prepared import prepare
from edgekit.engines.llamacpp.types import CELL_PADDING, Context, HeadSizes, TensorPlacement
from edgekit.engines.llamacpp.versions import OLDEST
from edgekit.machine.types import Pool, PoolKind
from edgekit.model.types import Attention, LatentAttention, LayerKind, Model, Span, Stream

HOST_ALIGNMENT = 32
STATE_BYTES = 4  # states are f32 regardless of the cache type

INDEX_V = "index v"

# Builds that allocate a cache for multi-token prediction blocks in the main context: from a loop over all blocks
# (llama-kv-cache.cpp @ 7acb4e8) to a filter in create_memory of llama-model.cpp, added for single architectures and
# then for all.
_CACHED, _FILTERED = 9523, 11063
PREDICTION_CACHED = {
    "bailingmoe2": (_CACHED, _FILTERED),
    "cohere2moe": (_CACHED, _FILTERED),
    "deepseek2": (10251, _FILTERED),
    "exaone-moe": (OLDEST, _FILTERED),
    "exaone4": (_CACHED, _FILTERED),
    "glm4": (_CACHED, _FILTERED),
    "glm4moe": (_CACHED, _FILTERED),
    "glm-dsa": (_CACHED, 10174),  # @ 7be2c65
    "mimo2": (_CACHED, 10184),  # @ 64d528b
}

INDEXER_SINCE = {"glm-dsa": 10119}  # glm-dsa.cpp @ 88bfee1

_Entry = tuple[Component, int, str]


class _ValuesOnly(LayerKind):
    """An empty V cache as wide as that of other layers."""

    __slots__ = ()

    @property
    def streams(self) -> tuple[Stream, ...]:
        return (Stream(name="v", elements=0),)


_EMPTY = _ValuesOnly()


@dataclass(frozen=True, slots=True)
class _IndexedValues(LayerKind):
    """Attention whose indexer caches values as well as keys."""

    attention: Attention

    @property
    def streams(self) -> tuple[Stream, ...]:
        own = self.attention.streams
        return (*own, Stream(name=INDEX_V, elements=self.attention.index_dim))


def cache_lines(
    model: Model, context: Context, placement: TensorPlacement
) -> tuple[MemoryLine, ...]:
    """The lines of all caches; equal layers in the same pool are computed once."""
    heads = head_sizes(model)
    lines: list[MemoryLine] = []
    for (mixer, pool), layers in _kept_groups(model, context, placement).items():
        for component, size_bytes, because in _entries(mixer, context, pool, heads):
            lines.extend(
                MemoryLine(
                    component=component,
                    size_bytes=size_bytes,
                    pool=pool,
                    layer=layer,
                    because=because,
                )
                for layer in layers
            )
    return tuple(lines)


def cache_sums(model: Model, context: Context, placement: TensorPlacement) -> dict[Pool, int]:
    """Total cache bytes per pool."""
    sums: dict[Pool, int] = {}
    for (mixer, pool), layers in _kept_groups(model, context, placement).items():
        size_bytes = layer_cache_bytes(model, mixer, context, pool) * len(layers)
        sums[pool] = sums.get(pool, 0) + size_bytes
    return sums


def _kept_groups(
    model: Model, context: Context, placement: TensorPlacement
) -> dict[tuple[LayerKind, Pool], list[int]]:
    return prepare(model).cache_groups.get(
        (placement, context.rules),
        lambda: _groups(model, placement, context.rules),
    )


def layer_cache_bytes(model: Model, mixer: LayerKind, context: Context, pool: Pool) -> int:
    """The cache bytes of one layer of this kind in this pool."""
    heads = head_sizes(model)
    return sum(size for _, size, _ in _entries(mixer, context, pool, heads))


def _groups(
    model: Model, placement: TensorPlacement, rules: int
) -> dict[tuple[LayerKind, Pool], list[int]]:
    """The layers with a cache, including multi-token prediction blocks that get one."""
    found: dict[tuple[LayerKind, Pool], list[int]] = {}
    attending: dict[tuple[LayerKind, Pool], LayerKind] = {}
    for layer in model.geometry.layers:
        mixer = _as_cached(layer.mixer, model.geometry.architecture, rules)
        if mixer.streams or mixer.states:
            for own, pool in shares_of(mixer, layer.index, placement):
                found.setdefault((own, pool), []).append(layer.index)
        if mixer.streams:
            attending.setdefault((mixer, placement.cache_pool(layer.index)), mixer)
    # Multi-token prediction blocks that have a cache although they are not run.
    first, end = PREDICTION_CACHED.get(model.geometry.architecture, (0, 0))
    predicting = model.geometry.mtp_layers if first <= rules < end else 0
    layers = len(model.geometry.layers)
    for index in range(layers, layers + predicting):
        last = next(reversed(attending.values()), None)
        for own, pool in shares_of(last, index, placement) if last is not None else ():
            found.setdefault((own, pool), []).append(index)
    return found


def shares_of(
    mixer: LayerKind, layer: int, placement: TensorPlacement
) -> Iterator[tuple[LayerKind, Pool]]:
    """A layer's caches and their pools: on one device, or a slice on each."""
    pool = placement.cache_pool(layer)
    if placement.slicer is None or pool.kind is PoolKind.HOST:
        yield mixer, pool
        return
    for i, own in enumerate(placement.slicer.remembered(mixer, layer)):
        yield own, Pool(PoolKind.DEVICE, i)


def _as_cached(mixer: LayerKind, architecture: str, rules: int) -> LayerKind:
    """What llama.cpp caches for a layer, which may be more or less than the layer needs."""
    if isinstance(mixer, LatentAttention) and rules < INDEXER_SINCE.get(architecture, 0):
        return replace(mixer, index_dim=0)
    if (
        known_architecture(architecture).index_values
        and isinstance(mixer, Attention)
        and mixer.index_dim
    ):
        return _IndexedValues(mixer)
    if known_architecture(architecture).caches_empty_layers and not mixer.streams:
        return _EMPTY
    return mixer


def _entries(mixer: LayerKind, context: Context, pool: Pool, heads: HeadSizes) -> Iterator[_Entry]:
    for component, streams in _by_component(mixer.streams).items():
        size = sum(_stream_bytes(stream, context, pool, heads) for stream in streams)
        if not size:
            continue
        yield component, size, _reason(component, streams, context, heads)
    if mixer.states:
        sizes = [STATE_BYTES * state.elements * context.n_seq_max for state in mixer.states]
        on_host = pool.kind is PoolKind.HOST
        size = sum(
            pad(one, HOST_ALIGNMENT) if on_host else device_bytes(one, 1, 1, 4) for one in sizes
        )
        parts = " + ".join(f"{state.name} {state.elements}" for state in mixer.states)
        because = f"{context.n_seq_max} sequences x ({parts}) x {STATE_BYTES} bytes"
        yield Component.STATE, size, because


def _by_component(streams: tuple[Stream, ...]) -> dict[Component, list[Stream]]:
    found: dict[Component, list[Stream]] = {}
    for stream in streams:
        sliding = stream.span is not Span.ALL
        key = Component.SLIDING_KV_CACHE if sliding else Component.KV_CACHE
        found.setdefault(key, []).append(stream)
    return found


def _cells(stream: Stream, context: Context) -> int:
    cells = context.cells if stream.span is Span.ALL else context.swa_cells
    if stream.tokens_per_row == 1:
        return cells
    return pad(-(-cells // stream.tokens_per_row), CELL_PADDING)  # llama-kv-cache-dsv4.cpp:1294


def _stored_type(stream: Stream, context: Context) -> CacheType:
    return context.type_v if stream.name in {"v", INDEX_V} else context.type_k


def _width(stream: Stream, context: Context, heads: HeadSizes) -> int:
    if stream.name == "v" and context.v_trans:
        return heads.widest_value  # stored transposed: every layer is as wide as the widest
    return stream.elements


def _stream_bytes(stream: Stream, context: Context, pool: Pool, heads: HeadSizes) -> int:
    width, stored_type = _width(stream, context, heads), _stored_type(stream, context)
    size = stored_type.row_bytes(width) * _cells(stream, context) * context.streams
    if pool.kind is PoolKind.HOST:
        return pad(size, HOST_ALIGNMENT)
    return device_bytes(size, width, stored_type.block_elements, stored_type.block_bytes)


def _reason(component: Component, streams: list[Stream], context: Context, heads: HeadSizes) -> str:
    cells = _cells(streams[0], context)
    rows = " + ".join(
        f"{stream.name.upper()} {_stored_type(stream, context).name} {_width(stream, context, heads)}"
        for stream in streams
    )
    sharing = f"{context.streams} streams x " if context.streams > 1 else ""
    slid = " of its window" if component is Component.SLIDING_KV_CACHE else ""
    return f"{sharing}{cells} cells{slid} x ({rows})"
