"""A load and a setup -> the resolved llama_context, or the reason it refuses.

Follows llama-context.cpp (constructor and llama_init_from_model) @ 0c1e570.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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
    CachedLayer,
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
    """The options of llama_context with all defaults filled in. Raises RefusedError if llama.cpp would not start,
    UsageError if the load is invalid.
    """
    geometry, heads = model.geometry, head_sizes(model)
    _check_numbers(load)
    _check_split(model, load, setup)
    type_k, type_v = load.cache_k or F16, load.cache_v or F16
    architecture = known_architecture(geometry.architecture)
    # Without -fa it is auto: on, unless a check below finds that a device lacks a kernel.
    flash_attn = not architecture.no_flash_attention and load.flash_attention is not False
    v_trans = not flash_attn
    if not flash_attn and type_v.is_quantized:
        raise RefusedError(
            "llama.cpp: a quantised V cache requires flash attention (-fa on); "
            "without it only f32, f16 and bf16 work"
        )
    if flash_attn and load.flash_attention is None and not type_v.is_quantized:
        # llama.cpp checks this after it has allocated the cache, so v_trans is already decided. With one layer on the
        # GPU, which is the output, attention runs on the CPU.
        is_always_on = setup.backend is not Backend.CUDA or setup.split_mode is SplitMode.TENSOR
        flash_attn = heads.flashes or is_always_on or setup.n_gpu_layers <= 1
    _check_types(heads, type_k, type_v)

    requested = load.context_tokens or geometry.trained_context or 0
    if not requested:
        raise UsageError("the model's context length is unknown; set one (-c)")
    is_server = setup.mode is LlamaMode.SERVER
    sequences, unified = max(1, load.sequences or 1), bool(load.unified)
    if is_server and not load.sequences:  # by default four, sharing one cache
        sequences, unified = SERVER_SLOTS, load.unified is not False
    n_ctx = pad(requested, CELL_PADDING)
    n_ctx_seq = n_ctx if unified else pad(n_ctx // sequences, CELL_PADDING)
    if not n_ctx_seq:
        raise RefusedError(
            "llama.cpp: the context has no tokens left for each sequence; use a longer "
            "context (-c) or fewer sequences (-np)"
        )
    streams = sequences if not unified or heads.apart else 1

    n_batch = load.batch_tokens or DEFAULT_BATCH
    n_ubatch = DEFAULT_UBATCH if load.microbatch_tokens is None else load.microbatch_tokens
    n_ubatch = n_ubatch or n_batch  # -ub 0: as large as the logical batch
    if is_server and setup.embeddings:
        n_batch = min(n_batch, n_ubatch)  # server.cpp:150: a text must fit in one micro-batch
    if geometry.causal:
        n_batch = min(requested, n_batch)  # the context as requested, before padding
    n_ubatch = min(n_batch, n_ubatch)
    n_outputs_max = n_batch
    if not architecture.has_encoder and setup.rules >= Rules.ROW_PER_SEQUENCE:
        if load.output_rows:
            n_outputs_max = load.output_rows
        elif is_server and not setup.embeddings:
            n_outputs_max = min(n_batch, sequences * (1 + setup.draft_max))  # speculative.cpp
    swa_cells = n_ctx_seq if heads.window else 0
    if swa_cells and not load.full_window:  # llama-kv-cache-iswa.cpp:76
        window = heads.window * (sequences // streams)
        swa_cells = pad(min(n_ctx_seq, window + n_ubatch), CELL_PADDING)
    context = Context(
        n_ctx=n_ctx if unified else n_ctx_seq * sequences,
        n_ctx_seq=n_ctx_seq,
        n_seq_max=sequences,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_outputs_max=n_outputs_max,
        flash_attn=flash_attn,
        kv_cells=n_ctx_seq,
        kv_swa_cells=swa_cells,
        kv_streams=streams,
        v_trans=v_trans,
        type_k=type_k,
        type_v=type_v,
        embeddings=setup.embeddings,
        rules=setup.rules,
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
    architecture = known_architecture(name)
    has_states = any(isinstance(layer.mixer, Recurrent) for layer in model.geometry.layers)
    slices_states = architecture.delta_net or architecture.mirrored_states
    if architecture.unsliced or (has_states and not slices_states):
        raise RefusedError(
            f"llama.cpp does not have -sm tensor for the architecture {name!r}; use -sm layer"
        )
    if load.flash_attention is False:
        raise RefusedError("llama.cpp: -sm tensor requires flash attention (-fa on)")
    quantised = any(kind is not None and kind.is_quantized for kind in (load.cache_k, load.cache_v))
    if quantised and setup.rules < Rules.SLICED_QUANTISED:
        raise RefusedError(
            f"llama.cpp {setup.version_name}: -sm tensor with a quantised cache came with "
            f"b{Rules.SLICED_QUANTISED.value}"
        )
    if any(override.buffer != "CPU" for override in setup.overrides):
        raise RefusedError(
            "llama.cpp: with -sm tensor every device holds a slice of every tensor; "
            "--override-tensor can only move one to the CPU"
        )


def _check_numbers(load: Load) -> None:
    """Raises UsageError for numbers out of range, RefusedError for more sequences than llama.cpp supports."""
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


def _check_types(heads: HeadSizes, type_k: CacheType, type_v: CacheType) -> None:
    """Raises RefusedError for cache types that llama.cpp lacks, or that do not suit the model's heads."""
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
    """Raises RefusedError for options on which llama.cpp aborts without a message."""
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


def cache_lines(
    model: Model, context: Context, placement: TensorPlacement
) -> tuple[MemoryLine, ...]:
    """The lines of all caches; equal layers in the same pool are computed once."""
    heads = head_sizes(model)
    return tuple(
        MemoryLine(
            component=component, size_bytes=size_bytes, pool=pool, layer=layer, because=because
        )
        for (mixer, pool), layers in _groups(model, context, placement).items()
        for component, size_bytes, because in _entries(mixer, context, pool, heads)
        for layer in layers
    )


def cache_sums(model: Model, context: Context, placement: TensorPlacement) -> dict[Pool, int]:
    """Total cache bytes per pool."""
    sums: dict[Pool, int] = {}
    for (mixer, pool), layers in _groups(model, context, placement).items():
        size_bytes = layer_cache_bytes(model, mixer, context, pool) * len(layers)
        sums[pool] = sums.get(pool, 0) + size_bytes
    return sums


def layer_cache_bytes(model: Model, mixer: LayerKind, context: Context, pool: Pool) -> int:
    """The cache bytes of one layer of this kind in this pool."""
    heads = head_sizes(model)
    return sum(size for _, size, _ in _entries(mixer, context, pool, heads))


def _groups(
    model: Model, context: Context, placement: TensorPlacement
) -> dict[tuple[LayerKind, Pool], list[int]]:
    """The indices of layers with a cache, by kind of cache and pool. Some builds also cache multi-token prediction
    blocks that are not run.
    """
    geometry, rules = model.geometry, context.rules

    def compute() -> dict[tuple[LayerKind, Pool], list[int]]:
        groups: dict[tuple[LayerKind, Pool], list[int]] = {}
        attending: dict[tuple[LayerKind, Pool], LayerKind] = {}
        for layer in geometry.layers:
            mixer = _as_cached(layer.mixer, geometry.architecture, rules)
            if mixer.streams or mixer.states:
                for share, pool in shares_of(mixer, layer.index, placement):
                    groups.setdefault((share, pool), []).append(layer.index)
            if mixer.streams:
                attending.setdefault((mixer, placement.cache_pool(layer.index)), mixer)
        if known_architecture(geometry.architecture).caches_router:
            after = len(geometry.layers)
            for mixer in [*attending.values()][-1:]:
                router = (
                    replace(mixer, heads=1, kv_heads=1) if isinstance(mixer, Attention) else mixer
                )
                for share, pool in shares_of(router, after, placement):
                    groups.setdefault((share, pool), []).append(after)
        # Multi-token prediction blocks that have a cache although they are not run.
        first_build, end_build = PREDICTION_CACHED.get(geometry.architecture, (0, 0))
        last = next(reversed(attending.values()), None)
        if last is not None and first_build <= rules < end_build:
            layers = len(geometry.layers)
            for index in range(layers, layers + geometry.mtp_layers):
                for share, pool in shares_of(last, index, placement):
                    groups.setdefault((share, pool), []).append(index)
        return groups

    return prepare(model).cache_groups.get((placement, rules), compute)


def shares_of(
    mixer: LayerKind, layer: int, placement: TensorPlacement
) -> Iterator[tuple[LayerKind, Pool]]:
    """The pools of a layer's caches: all of them in one pool, or with -sm tensor a slice on each device."""
    pool = placement.cache_pool(layer)
    if placement.slicer is None or pool.kind is PoolKind.HOST:
        yield mixer, pool
        return
    for index, part in enumerate(placement.slicer.cache_slices(mixer, layer)):
        yield part, Pool(PoolKind.DEVICE, index)


def _as_cached(mixer: LayerKind, architecture: str, rules: int) -> LayerKind:
    """What llama.cpp caches for a layer, which may be more or less than the layer needs."""
    facts = known_architecture(architecture)
    if isinstance(mixer, LatentAttention) and rules < INDEXER_SINCE.get(architecture, 0):
        return replace(mixer, index_dim=0)
    if facts.index_parts > 1 and isinstance(mixer, (Attention, LatentAttention)):
        return replace(mixer, index_dim=mixer.index_dim * facts.index_parts)
    if facts.index_values and isinstance(mixer, Attention) and mixer.index_dim:
        return CachedLayer((*mixer.streams, Stream(name=INDEX_V, elements=mixer.index_dim)))
    if facts.caches_empty_layers and not mixer.streams:
        return CachedLayer((Stream(name="v", elements=0),))  # V may be as wide as in other layers
    return mixer


def _entries(
    mixer: LayerKind, context: Context, pool: Pool, heads: HeadSizes
) -> Iterator[tuple[Component, int, str]]:
    """The lines of a layer's caches and states: component, bytes and explanation."""
    on_host = pool.kind is PoolKind.HOST
    by_component: dict[Component, list[Stream]] = {}
    for stream in mixer.streams:
        sliding = stream.span is not Span.ALL
        component = Component.SLIDING_KV_CACHE if sliding else Component.KV_CACHE
        by_component.setdefault(component, []).append(stream)
    for component, streams in by_component.items():
        size, rows = 0, []
        for stream in streams:
            stored = context.type_v if stream.name in {"v", INDEX_V} else context.type_k
            # Stored transposed, V is as wide in every layer as in the widest.
            transposed = stream.name == "v" and context.v_trans
            width = heads.widest_value if transposed else stream.elements
            stream_bytes = stored.row_bytes(width) * _cells(stream, context) * context.kv_streams
            size += (
                pad(stream_bytes, HOST_ALIGNMENT)
                if on_host
                else device_bytes(stream_bytes, width, stored.block_elements, stored.block_bytes)
            )
            rows.append(f"{stream.name.upper()} {stored.name} {width}")
        if size:
            sharing = f"{context.kv_streams} streams x " if context.kv_streams > 1 else ""
            slid = " of its window" if component is Component.SLIDING_KV_CACHE else ""
            cells = f"{_cells(streams[0], context)} cells{slid}"
            yield component, size, f"{sharing}{cells} x ({' + '.join(rows)})"
    if mixer.states:
        sizes = [STATE_BYTES * state.elements * context.n_seq_max for state in mixer.states]
        size = sum(
            pad(state_bytes, HOST_ALIGNMENT) if on_host else device_bytes(state_bytes, 1, 1, 4)
            for state_bytes in sizes
        )
        parts = " + ".join(f"{state.name} {state.elements}" for state in mixer.states)
        because = f"{context.n_seq_max} sequences x ({parts}) x {STATE_BYTES} bytes"
        yield Component.STATE, size, because


def _cells(stream: Stream, context: Context) -> int:
    """The number of cache rows of a stream."""
    cells = context.kv_cells if stream.span is Span.ALL else context.kv_swa_cells
    if stream.tokens_per_row == 1:
        return cells
    return pad(-(-cells // stream.tokens_per_row), CELL_PADDING)  # llama-kv-cache-dsv4.cpp:1294
