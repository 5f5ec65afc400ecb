"""What a chunk of the prompt needs beside weights and caches. MODELLED: no Mac was measured.

MLX hands the GPU up to ten command buffers before it waits (mlx/transforms.cpp:25 @ 846d176, MAX_ACTIVE_TASKS), and
what they read and write is held until they are done. With thousands of tokens in a chunk a buffer holds a few
operations, so about one layer's intermediate results are alive at once: all of them are counted, none is reused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from edgekit.basis import Basis
from edgekit.engine.mlx.cache_lines import Prices
from edgekit.engine.mlx.caches import Growth, Holding, Slot
from edgekit.engine.mlx.growth import Session
from edgekit.geometry.types import (
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
from edgekit.memory.types import DEVICE, Component, MemoryLine
from edgekit.units import MIB

# Prompts of more than 8 tokens: the fused kernel has these widths, with keys as wide as values; 192 and 256 are run
# unfused though it has them (mlx/backend/metal/scaled_dot_product_attention.cpp:655 and :763 @ 846d176).
_FUSED_HEADS = frozenset({64, 72, 80, 96, 128})
_SCAN_STEP = 256  # ssm.py:129: Mamba-2 works on pieces of so many tokens, as a matrix for each head
_SCAN_COPIES = 4
BOUND = 0.5
WIRING = 0.15  # graph compilation wires that much of the overhead for a moment
PROCESS_BYTES = 256 * MIB  # Python with mlx-lm takes 73 MiB; a tokenizer and Metal come to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """One kind of attention, as its kernel sees it."""

    count: int
    width: int = 0  # where keys and values have the same
    window: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a chunk's memory depends on in a model."""

    layer_width: int  # numbers per token that one layer writes, at most
    heads: tuple[Heads, ...]  # of every kind of attention
    vocabulary: int


def read_work(geometry: ModelGeometry) -> Work:
    kinds = dict.fromkeys((x.mixer, x.dense, x.experts) for x in geometry.layers)
    return Work(
        layer_width=max(_layer_width(*kind, geometry.hidden) for kind in kinds),
        heads=tuple(dict.fromkeys(_heads_of(mixer) for mixer, _, _ in kinds)),
        vocabulary=geometry.vocabulary or 0,
    )


def compute_lines(
    work: Work, holdings: Iterable[tuple[int, Holding]], prices: Prices
) -> tuple[MemoryLine, ...]:
    counts = Counter(one for _, one in holdings if isinstance(one, Slot))
    session, item_bytes = prices.session, prices.item_bytes
    chunk = session.widest_chunk
    lines = (
        (
            chunk * item_bytes * work.layer_width,
            f"intermediate results of one layer for a chunk of {chunk} tokens",
        ),
        (_scores(work, prices), "attention scores and mask of one layer, where they are not fused"),
        (
            max((_copied(one, session, item_bytes) for one in counts), default=0),
            "one layer's cache is copied when it grows",
        ),
        (
            sum(
                one.transient_rows(session) * _row(one, item_bytes) * n for one, n in counts.items()
            ),
            "sliding caches hold window - 1 + chunk rows until the prompt is through",
        ),
        (work.vocabulary * (item_bytes + 8), "logits of the last token and their logarithms"),
    )
    times = prices.sequences
    return tuple(_modelled(size * times, because) for size, because in lines if size)


def runtime_lines(compute: Iterable[MemoryLine]) -> tuple[MemoryLine, ...]:
    overhead = PROCESS_BYTES + sum(line.size_bytes for line in compute)
    return (
        _assumed(PROCESS_BYTES, "Python, mlx-lm, a tokenizer and Metal"),
        _assumed(int(overhead * WIRING), "wiring spike: 15 % of the overhead"),
    )


def _modelled(size: int, because: str) -> MemoryLine:
    return MemoryLine(
        component=Component.COMPUTE,
        size_bytes=size,
        pool=DEVICE,
        basis=Basis.MODELLED,
        because=because,
        within=BOUND,
    )


def _assumed(size: int, because: str) -> MemoryLine:
    return MemoryLine(
        component=Component.RUNTIME,
        size_bytes=size,
        pool=DEVICE,
        basis=Basis.ASSUMED,
        because=because,
    )


def _layer_width(
    mixer: LayerKind, dense: FeedForward | None, experts: Experts | None, hidden: int
) -> int:
    around = 6 * hidden  # two norms, two outputs, two sums with the residual
    fed = 0 if dense is None else 3 * dense.width
    return around + _mixed(mixer) + fed + (0 if experts is None else _routed(experts, hidden))


def _routed(experts: Experts, hidden: int) -> int:
    """Every token is copied for each expert that it goes to, and brought back."""
    within = experts.latent or hidden
    return (
        experts.used * (3 * experts.width + 3 * within)
        + 3 * experts.shared_width
        + 3 * experts.count
    )


def _mixed(kind: LayerKind) -> int:
    match kind:
        case Attention():
            return _attended(kind)
        case SharedCache():
            return _attended(kind.attention)
        case HybridLayer():
            return _attended(kind.attention) + _scanned(kind.recurrent)
        case LatentAttention():
            keys = kind.heads * (kind.key_dim + kind.latent_dim)  # queries meet the latent
            return 2 * keys + kind.heads * (kind.latent_dim + kind.value_dim) + kind.query_rank
        case Recurrent():
            return _scanned(kind)
        case NoCache() if kind.attention is not None:
            return _attended(kind.attention)
        case _:
            return 0


def _attended(kind: Attention) -> int:
    """Q, K, V, both rotated, the output; a gate is as wide as the queries."""
    queries, keys = kind.heads * kind.key_dim, kind.kv_heads * kind.key_dim
    gate = queries if kind.gated else 0
    return (
        2 * (queries + keys + gate) + kind.kv_heads * kind.value_dim + kind.heads * kind.value_dim
    )


def _scanned(kind: Recurrent) -> int:
    """Into the cell, convolved, activated, out of it; Mamba-2 in pieces of 256 besides."""
    inner, keys = kind.inner, kind.groups * kind.state_size
    pieces = _SCAN_COPIES * kind.heads * 2 * _SCAN_STEP if kind.cell is Cell.MAMBA2 else 0
    return 2 * inner + 3 * (inner + 2 * keys) + 4 * inner + pieces


def _scores(work: Work, prices: Prices) -> int:
    """Scores and their softmax for the layer and the chunk with the most, and the mask."""
    setup, session = prices.setup, prices.session
    quantized = setup.kv_bits is not None and session.tokens >= setup.quantized_kv_start
    return max(
        _unfused(heads, chunk, prices.item_bytes, quantized=quantized)
        for heads in work.heads
        for chunk in session.chunks
    )


def _unfused(heads: Heads, chunk: tuple[int, int], item_bytes: int, *, quantized: bool) -> int:
    tokens, end = chunk
    rows = min(end, heads.window - 1 + tokens) if heads.window else end
    mask = tokens * rows if heads.window else 0  # a causal mask over all is made in the kernel
    if tokens == 1 or (heads.width in _FUSED_HEADS and not quantized):
        return mask
    return tokens * rows * (2 * heads.count * item_bytes + 1)


def _heads_of(kind: LayerKind) -> Heads:
    match kind:
        case Attention():
            return Heads(
                count=kind.heads,
                width=kind.key_dim if kind.key_dim == kind.value_dim else 0,
                window=kind.span_tokens if kind.span is Span.WINDOW else 0,
            )
        case LatentAttention():
            return Heads(count=kind.heads)
        case HybridLayer() | SharedCache():
            return _heads_of(kind.attention)
        case _:
            return Heads(count=0)


def _row(one: Slot, item_bytes: int) -> int:
    return one.heads * (one.key_dim + one.value_dim) * item_bytes


def _copied(one: Slot, session: Session, item_bytes: int) -> int:
    return 0 if one.growth is Growth.ROTATING else one.rows(session) * _row(one, item_bytes)
