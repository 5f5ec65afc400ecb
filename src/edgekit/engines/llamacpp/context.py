"""A load and a setup -> the resolved llama_context, or the reason it refuses.

Follows llama-context.cpp (constructor and llama_init_from_model) @ 0c1e570.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from edgekit.bill.types import F16, CacheType, Component, Load, MemoryLine
from edgekit.engines.llamacpp.architectures import known_architecture
from edgekit.engines.llamacpp.flags import CACHE_TYPES
from edgekit.engines.llamacpp.prepared import prepare
from edgekit.engines.llamacpp.types import (
    CELL_PADDING,
    DEFAULT_BATCH,
    DEFAULT_UBATCH,
    OLDEST,
    SERVER_SLOTS,
    Backend,
    Context,
    HeadSizes,
    LlamaCppSetup,
    LlamaMode,
    Rules,
    SplitMode,
    TensorPlacement,
    pad,
)
from edgekit.engines.llamacpp.weights import device_bytes
from edgekit.errors import RefusedError, UsageError
from edgekit.machine.types import Pool, PoolKind
from edgekit.model.types import (
    Attention,
    LatentAttention,
    LayerKind,
    Model,
    ModelGeometry,
    Recurrent,
    Span,
    Stream,
)

MAX_SEQUENCES = 256  # llama-cparams.h: LLAMA_MAX_SEQ
MAX_TOKENS = 2**31 - 1  # contexts and batches are 32-bit numbers in llama.cpp


def head_sizes(model: Model) -> HeadSizes:
    return prepare(model).heads.get(lambda: HeadSizes.of(model.geometry))


def resolve(model: Model, load: Load, setup: LlamaCppSetup) -> Context:
    """Raises RefusedError if llama.cpp would not start, UsageError if the load is invalid."""
    geometry = model.geometry
    heads = head_sizes(model)
    _check_numbers(load)
    _check_split(model, load, setup)
    type_k, type_v = load.cache_k or F16, load.cache_v or F16
    flash_attn = _flash_attention(geometry, load, type_v)
    v_trans = not flash_attn
    if flash_attn and load.flash_attention is None and not type_v.is_quantized:
        # llama.cpp allocates the cache before it finds that a device lacks a kernel for these heads.
        sure = setup.backend is not Backend.CUDA or setup.split_mode is SplitMode.TENSOR
        flash_attn = heads.flashes or sure or setup.n_gpu_layers <= 1
    _check_types(heads, type_k, type_v)
    context = _sized(
        geometry, heads, load, setup, type_k, type_v, flash_attn=flash_attn, v_trans=v_trans
    )
    _check_rows(geometry, context)
    return context


def _check_split(model: Model, load: Load, setup: LlamaCppSetup) -> None:
    """Raises RefusedError for a split mode that this llama.cpp lacks, UsageError without several GPUs."""
    mode, count = setup.split_mode, len(setup.devices) if setup.has_device else 0
    if mode in {SplitMode.ROW, SplitMode.TENSOR} and count < 2:
        raise UsageError(
            f"-sm {mode.value} divides a model among several GPUs, but there is {count or 'none'}; "
            "add more (estimate: --device-memory 24G,24G; other commands: --device), or leave it out"
        )
    if setup.split_mode is SplitMode.ROW and (
        setup.rules >= Rules.WITHOUT_ROWS or setup.backend is not Backend.CUDA
    ):
        raise RefusedError(
            f"llama.cpp {setup.version_name} does not load with -sm row: it was removed in July 2026 "
            f"(b{Rules.WITHOUT_ROWS.value}), and only CUDA had it; use -sm layer or -sm tensor"
        )
    if setup.split_mode is not SplitMode.TENSOR:
        return
    if setup.rules < Rules.EXPERTS_FIRST:
        raise RefusedError(
            f"llama.cpp {setup.version_name} has no -sm tensor: it came with b{Rules.EXPERTS_FIRST.value}"
        )
    name = model.geometry.architecture
    known = known_architecture(name)
    has_states = any(isinstance(layer.mixer, Recurrent) for layer in model.geometry.layers)
    if known.unsliced or (has_states and not (known.delta_net or known.mirrored_states)):
        raise RefusedError(
            f"llama.cpp does not have -sm tensor for the architecture {name!r}; use -sm layer"
        )
    if load.flash_attention is False:
        raise RefusedError("llama.cpp: -sm tensor requires flash attention (-fa on)")
    quantised = any(one is not None and one.is_quantized for one in (load.cache_k, load.cache_v))
    if quantised and setup.rules < Rules.SLICED_QUANTISED:
        raise RefusedError(
            f"llama.cpp {setup.version_name}: -sm tensor with a quantised cache came with "
            f"b{Rules.SLICED_QUANTISED.value}"
        )
    if any(one.buffer != "CPU" for one in setup.overrides):
        raise RefusedError(
            "llama.cpp: with -sm tensor every device holds a slice of every tensor; "
            "--override-tensor can only move one to the CPU"
        )


def _check_numbers(load: Load) -> None:
    for name, value in (
        ("context", load.context_tokens),
        ("sequences", load.sequences),
        ("batch", load.batch_tokens),
        ("micro-batch", load.microbatch_tokens),
        ("output rows", load.output_rows),
    ):
        if value is not None and not 0 <= value <= MAX_TOKENS:
            raise UsageError(f"{name} {value} is not between 0 and {MAX_TOKENS:,}")
    if load.sequences is not None and load.sequences > MAX_SEQUENCES:
        raise RefusedError(f"llama.cpp: n_seq_max must be <= {MAX_SEQUENCES}")


def _flash_attention(geometry: ModelGeometry, load: Load, type_v: CacheType) -> bool:
    able = not known_architecture(geometry.architecture).no_flash_attention
    is_on = able and load.flash_attention is not False  # None: auto, which is on if possible
    if not is_on and type_v.is_quantized:
        raise RefusedError(
            "llama.cpp: a quantised V cache requires flash attention (-fa on); "
            "without it only f32, f16 and bf16 work"
        )
    return is_on


def _check_types(heads: HeadSizes, type_k: CacheType, type_v: CacheType) -> None:
    for side, kind in (("K", type_k), ("V", type_v)):
        if kind.name not in CACHE_TYPES:
            raise RefusedError(
                f"llama.cpp has no cache type {kind.name} for {side}; it has {', '.join(CACHE_TYPES)}"
            )
    if heads.latent and type_k != type_v:
        raise RefusedError(
            f"llama.cpp: this model does not support different K ({type_k.name}) and V "
            f"({type_v.name}) cache types: it has a K cache only, which also serves as V",
            about="cache_types",
        )
    for side, kind, dims in (("K", type_k, heads.key_dims), ("V", type_v, heads.value_dims)):
        for dim in sorted(dims):
            if not kind.divides(dim):
                raise RefusedError(
                    f"llama.cpp: the block size {kind.block_elements} of {side} cache "
                    f"type {kind.name} does not divide the head size {dim}"
                )


def _check_rows(geometry: ModelGeometry, context: Context) -> None:
    """Refuses options on which llama.cpp aborts without a message."""
    if context.n_outputs_max < context.n_seq_max:
        raise RefusedError(
            f"llama.cpp aborts: {context.n_outputs_max} output rows for {context.n_seq_max} sequences;"
            " each sequence needs one"
        )
    pooled = context.embeddings and geometry.pooling == "mean"
    if pooled and context.n_outputs != context.n_tokens:
        raise RefusedError(
            f"llama.cpp aborts: mean pooling over {context.n_tokens} tokens needs that "
            f"many output rows, not {context.n_outputs}; choose a micro-batch size (-ub) "
            f"that is a multiple of the {context.n_seq_max} sequences"
        )


def _sized(  # noqa: PLR0917 - each worked out by the one caller
    geometry: ModelGeometry,
    heads: HeadSizes,
    load: Load,
    setup: LlamaCppSetup,
    type_k: CacheType,
    type_v: CacheType,
    *,
    flash_attn: bool,
    v_trans: bool,
) -> Context:
    requested = load.context_tokens or geometry.trained_context or 0
    if not requested:
        raise UsageError("the model's context length is unknown; set one (-c)")
    sequences, unified = max(1, load.sequences or 1), bool(load.unified)
    if setup.mode is LlamaMode.SERVER and not load.sequences:  # by default four, sharing one cache
        sequences, unified = SERVER_SLOTS, load.unified is not False
    apart = not unified or heads.apart
    n_batch, n_ubatch = _batches(geometry, load, setup, requested)
    padded = pad(requested, CELL_PADDING)
    per_sequence = padded if unified else pad(padded // sequences, CELL_PADDING)
    if not per_sequence:
        raise RefusedError(
            "llama.cpp: the context has no tokens left for each sequence; use a longer "
            "context (-c) or fewer sequences (-np)"
        )
    return Context(
        n_ctx=padded if unified else per_sequence * sequences,
        n_ctx_seq=per_sequence,
        n_seq_max=sequences,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_outputs_max=n_batch
        if known_architecture(geometry.architecture).has_encoder
        else _output_rows(load, setup, n_batch, sequences),
        streams=sequences if apart else 1,
        cells=per_sequence,
        swa_cells=_sliding_cells(
            heads.window, per_sequence, n_ubatch, 1 if apart else sequences, full=load.full_window
        ),
        flash_attn=flash_attn,
        v_trans=v_trans,
        type_k=type_k,
        type_v=type_v,
        embeddings=setup.embeddings,
        rules=setup.rules,
    )


def _batches(
    geometry: ModelGeometry, load: Load, setup: LlamaCppSetup, requested: int
) -> tuple[int, int]:
    n_batch = load.batch_tokens or DEFAULT_BATCH
    n_ubatch = load.microbatch_tokens or (
        n_batch if load.microbatch_tokens == 0 else DEFAULT_UBATCH
    )
    if setup.mode is LlamaMode.SERVER and setup.embeddings:
        n_batch = min(n_batch, n_ubatch)  # server.cpp:150: a text must fit in one micro-batch
    if geometry.causal:
        n_batch = min(requested, n_batch)  # the context as requested, before padding
    return n_batch, min(n_batch, n_ubatch)


def _output_rows(load: Load, setup: LlamaCppSetup, n_batch: int, sequences: int) -> int:
    if setup.rules < Rules.ROW_PER_SEQUENCE:
        return n_batch
    if load.output_rows:
        return load.output_rows
    if setup.mode is LlamaMode.SERVER and not setup.embeddings:
        return min(n_batch, sequences * (1 + setup.draft_max))  # speculative.cpp
    return n_batch


def _sliding_cells(window: int, cells: int, n_ubatch: int, sharing: int, *, full: bool) -> int:
    if not window:
        return 0
    if full:
        return cells
    return pad(min(cells, window * sharing + n_ubatch), CELL_PADDING)  # llama-kv-cache-iswa.cpp:76


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
