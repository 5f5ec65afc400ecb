"""What a chunk of the prompt needs in addition to weights and caches.

MLX submits work faster than the GPU does it: up to eleven command buffers wait while the next is filled, and everything
they read and write stays allocated until they are done. A buffer is closed once it touches 50 Mi numbers or holds 50
operations (mlx/transforms.cpp MAX_ACTIVE_TASKS, mlx/backend/metal/device.cpp and eval.cpp @ 0.29.2, unchanged in
0.32.1), so the results of several layers are allocated at once. Eleven public logs of Qwen3-4B and 30B-A3B on an M4
Max, with prompts of 2,048 tokens (mlx_lm/BENCHMARKS.md), show 0.90 to 1.08 times this estimate.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from edgekit.bill.types import Component, MemoryLine, modelled_line
from edgekit.engines.mlx.caches import CacheSettings, LayerCache, TokenCache
from edgekit.model.types import (
    Attention,
    Cell,
    Experts,
    FeedForward,
    HybridLayer,
    LatentAttention,
    LayerKind,
    ModelGeometry,
    NoCache,
    Recurrent,
    SharedCache,
    Span,
)
from edgekit.units import MIB

# Head widths of the fused kernel for prompts of more than 8 tokens, with keys as wide as values. It has 192 and 256
# too, but they run unfused (mlx/backend/metal/scaled_dot_product_attention.cpp:655 and :763 @ 846d176).
_FUSED_HEADS = frozenset({64, 72, 80, 96, 128})
_SCAN_STEP = 256  # ssm.py:129: tokens per piece of a Mamba-2 scan, a matrix for each head
_SCAN_COPIES = 4
BOUND = 0.5
BUFFER_NUMBERS = 51 * 2**20  # on M-series Max and Ultra chips; others close a buffer at 41 Mi
BUFFER_OPERATIONS = 51
WAITING_BUFFERS = 11
MOST_LAYERS = 64  # more layers never fit into twelve buffers of 51 operations
WIRING = 0.15  # share of the overhead that graph compilation wires for a moment
PROCESS_BYTES = 256 * MIB  # Python with mlx-lm takes 73 MiB; the tokenizer and Metal add to it
# A vocabulary of 262,144 tokens takes 200 MiB in Python, and Metal compiles kernels per model: less than twice that.
RUNTIME_BOUND = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKind:
    """One kind of attention, as its kernel sees it."""

    count: int
    width: int = 0  # of keys and values; 0 where they differ
    window: int = 0


@dataclass(frozen=True, slots=True)
class Operation:
    """Numbers that one operation touches: for each token, and the weights for all tokens."""

    writes: int  # allocated; 0: writes in place
    reads: int
    weights: int = 0
    older: int = 0  # of `reads`, what was written long before: the residual, the cache


Operations = tuple[Operation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkWork:
    """The facts about a model that decide how much memory a chunk needs."""

    layer: Operations  # of the kind of layer that writes most
    layers: int
    heads: tuple[AttentionKind, ...]  # of every kind of attention
    vocabulary: int


def read_work(geometry: ModelGeometry) -> ChunkWork:
    """What the model's layers compute for a chunk of the prompt."""
    kinds = dict.fromkeys((layer.mixer, layer.dense, layer.experts) for layer in geometry.layers)
    layers = [tuple(_operations(*kind, geometry.hidden)) for kind in kinds]
    return ChunkWork(
        layer=max(layers, key=lambda layer: sum(operation.writes for operation in layer)),
        layers=len(geometry.layers),
        heads=tuple(dict.fromkeys(_attention_kind(mixer) for mixer, _, _ in kinds)),
        vocabulary=geometry.vocabulary or 0,
    )


def compute_lines(
    work: ChunkWork,
    caches: Iterable[tuple[int, LayerCache]],
    settings: CacheSettings,
    *,
    words_per_weight: float,
) -> tuple[MemoryLine, ...]:
    """Memory that the largest chunk of the prompt needs in addition to weights and caches.

    `words_per_weight`: 1 for plain weights; for packed ones the share of a 32-bit word, with scales and biases.
    """
    counts = Counter(cache for _, cache in caches if isinstance(cache, TokenCache))
    session, item_bytes = settings.session, settings.item_bytes
    chunk = session.widest_chunk
    copied_bytes = transient_bytes = 0
    for cache, count in counts.items():
        row_bytes = cache.row_numbers * item_bytes
        transient_bytes += cache.transient_rows(session) * row_bytes * count
        if cache.span is not Span.WINDOW:
            copied_bytes = max(copied_bytes, cache.rows(session) * row_bytes)
    lines = (
        (
            item_bytes * held_numbers(work.layer, work.layers, chunk, words_per_weight),
            f"intermediate results of a {chunk}-token chunk, held by {WAITING_BUFFERS + 1} command buffers",
        ),
        (
            _score_bytes(work, settings),
            "attention scores and mask of one layer, where attention is not fused",
        ),
        (copied_bytes, "copy of one layer's cache while it grows"),
        (
            transient_bytes,
            "sliding-window caches hold window - 1 + chunk rows until the prompt is processed",
        ),
        (work.vocabulary * (item_bytes + 8), "logits of the last token and their logarithms"),
    )
    return tuple(
        modelled_line(Component.COMPUTE, size * settings.sequences, BOUND, because)
        for size, because in lines
        if size
    )


def runtime_lines(compute: Iterable[MemoryLine]) -> tuple[MemoryLine, ...]:
    """The process itself, and a share of the overhead that MLX wires for a moment."""
    overhead = PROCESS_BYTES + sum(line.size_bytes for line in compute)
    sizes = (
        (PROCESS_BYTES, "Python, mlx-lm, the tokenizer and Metal"),
        (int(overhead * WIRING), "wiring spike: 15 % of the overhead"),
    )
    return tuple(
        modelled_line(Component.RUNTIME, size, RUNTIME_BOUND, because) for size, because in sizes
    )


@lru_cache(maxsize=1024)
def held_numbers(layer: Operations, layers: int, tokens: int, words_per_weight: float) -> int:
    """The most numbers that the waiting buffers and the one being filled have allocated."""
    waiting: deque[int] = deque()
    waiting_numbers = peak = buffer_numbers = touched_numbers = operation_count = 0
    for operation in layer * min(layers, MOST_LAYERS):
        # later operations of a buffer read again what it has already written or read, except older numbers
        reads = operation.older if operation_count else operation.reads
        buffer_numbers += operation.writes * tokens
        touched_numbers += (operation.writes + reads) * tokens
        touched_numbers += int(operation.weights * words_per_weight)
        operation_count += 1
        peak = max(peak, waiting_numbers + buffer_numbers)
        if touched_numbers >= BUFFER_NUMBERS or operation_count >= BUFFER_OPERATIONS:
            waiting.append(buffer_numbers)
            waiting_numbers += buffer_numbers
            buffer_numbers = touched_numbers = operation_count = 0
            if len(waiting) > WAITING_BUFFERS:
                waiting_numbers -= waiting.popleft()
    return peak


def _operations(
    mixer: LayerKind, dense: FeedForward | None, experts: Experts | None, hidden: int
) -> Iterator[Operation]:
    """The operations of one layer, in order."""
    norm = Operation(hidden, hidden)
    residual_add = Operation(0, 2 * hidden, older=hidden)
    yield norm
    yield from _mixer(mixer, hidden)
    yield residual_add
    yield norm
    if dense is not None:
        yield from _feed_forward(hidden, dense.width)
    if experts is not None:  # every token is copied for each of its experts
        expert_input = experts.latent or hidden
        copied, activated = experts.used * expert_input, experts.used * experts.width
        weights = experts.count * expert_input * experts.width
        yield Operation(experts.count, hidden, hidden * experts.count)
        yield Operation(2 * experts.count, experts.count)  # sorted, as 32-bit numbers
        yield Operation(copied, expert_input)
        for _ in ("gate", "up"):
            yield Operation(activated, copied, weights)
        yield Operation(0, 2 * activated)
        yield Operation(copied, activated, weights)
        yield Operation(copied, copied)  # back in the order of the tokens
        yield Operation(hidden, copied)
        if experts.shared_width:
            yield from _feed_forward(hidden, experts.shared_width)
    yield residual_add


def _feed_forward(hidden: int, width: int) -> Iterator[Operation]:
    for _ in ("gate", "up"):
        yield Operation(width, hidden, hidden * width)
    yield Operation(0, 2 * width)  # activated and multiplied in place
    yield Operation(hidden, width, hidden * width)


def _mixer(kind: LayerKind, hidden: int) -> Iterator[Operation]:
    """The operations of attention or of a recurrence."""
    match kind:
        case Attention():  # Q, K, V, both rotated, the output; a gate is as wide as the queries
            queries, keys = kind.heads * kind.key_dim, kind.kv_heads * kind.key_dim
            values, out = kind.kv_heads * kind.value_dim, kind.heads * kind.value_dim
            for width in (queries, keys, values):
                yield Operation(width, hidden, hidden * width)
            if kind.gated:
                yield Operation(queries, hidden, hidden * queries)
                yield Operation(queries, queries)
            yield Operation(queries, queries)
            yield Operation(keys, keys)
            yield Operation(0, 2 * (keys + values), older=keys + values)  # into the cache
            yield Operation(out, queries + keys + values)
            yield Operation(hidden, out, out * hidden)
        case LatentAttention():
            keys, latent = kind.heads * kind.key_dim, kind.heads * kind.latent_dim
            yield Operation(kind.query_rank, hidden)
            for width in (keys, latent, keys, latent, latent):  # queries against the latent
                yield Operation(width, keys)
            yield Operation(kind.heads * kind.value_dim, latent)
            yield Operation(hidden, kind.heads * kind.value_dim)
        case Recurrent():  # projection, convolution, activation, output
            inner, keys = kind.inner, kind.groups * kind.state_size
            yield Operation(2 * inner, hidden)
            for _ in range(3):
                yield Operation(inner + 2 * keys, inner)
            for _ in range(4):
                yield Operation(inner, inner)
            if kind.cell is Cell.MAMBA2 and kind.heads:  # a scan in pieces
                yield Operation(_SCAN_COPIES * kind.heads * 2 * _SCAN_STEP, inner)
            yield Operation(hidden, inner)
        case HybridLayer():
            yield from _mixer(kind.attention, hidden)
            yield from _mixer(kind.recurrent, hidden)
        case SharedCache() | NoCache() if kind.attention is not None:
            yield from _mixer(kind.attention, hidden)


def _score_bytes(work: ChunkWork, settings: CacheSettings) -> int:
    """Bytes of scores, their softmax and the mask, for the kind of attention and the chunk that need most."""
    most_bytes = 0
    for heads in work.heads:
        is_fused = heads.width in _FUSED_HEADS and not settings.quantizes
        for tokens, tokens_so_far in settings.session.chunks:
            rows = min(tokens_so_far, heads.window - 1 + tokens) if heads.window else tokens_so_far
            element_bytes = 0  # of one query token and one row
            if tokens > 1 and not is_fused:  # scores and softmax of every head, and the mask
                element_bytes = 2 * heads.count * settings.item_bytes + 1
            elif heads.window:  # only the mask: the fused kernel makes a plain causal one itself
                element_bytes = 1
            most_bytes = max(most_bytes, tokens * rows * element_bytes)
    return most_bytes


def _attention_kind(kind: LayerKind) -> AttentionKind:
    """The heads of a layer as its attention kernel sees them; no heads for a recurrence."""
    match kind:
        case Attention():
            return AttentionKind(
                count=kind.heads,
                width=kind.key_dim if kind.key_dim == kind.value_dim else 0,
                window=kind.span_tokens if kind.span is Span.WINDOW else 0,
            )
        case LatentAttention():
            return AttentionKind(count=kind.heads)
        case HybridLayer() | SharedCache():
            return _attention_kind(kind.attention)
        case _:
            return AttentionKind(count=0)
