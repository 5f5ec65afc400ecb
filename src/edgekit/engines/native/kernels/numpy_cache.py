"""A KV cache in numpy: numbers are rounded into cells, and queries attend to spans of them.

The softmax stays open: a query's largest score and its sum of exponentials are in `state`, and what it has gathered in
`out` is divided by the sum after the last span. Cells are unpacked a few at a time: no buffer grows with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby, product

import numpy as np

from edgekit.bill.types import cache_type
from edgekit.engines.native.kernels.numpy_blocks import (
    NOT_A_HALF,
    U8,
    first_of,
    parts,
    refuse,
    row_parts,
    widen_halves,
)
from edgekit.engines.native.kernels.types import (
    BlockError,
    Bytes,
    CacheAttention,
    CacheKind,
    Floats,
)
from edgekit.engines.native.stream_plan import (
    CELLS_TOGETHER,
    QUERY_ROWS,
    ROW_FLOATS,
    UNPACKED_FLOATS,
)

LARGEST_HALF = 65504.0
LARGEST_CODE = 127.0
NO_RECIPROCAL = 3e-39  # 1 / d overflows float32; as a half, d is 0 anyway

Pack = Callable[[Floats, U8], None]
Unpack = Callable[[U8, Floats], None]


def row_bytes(kind: CacheKind, elements: int) -> int:
    """Raises ValueError unless they are whole blocks."""
    stored = cache_type(kind)
    refuse(not stored.divides(elements), f"{elements:,} numbers are not whole blocks of {kind}")
    return stored.row_bytes(elements)


def as_rows(cells: Bytes, rows: int, size_bytes: int) -> U8:
    """[rows, bytes] over the same memory. Raises ValueError for another size."""
    flat = np.frombuffer(cells, np.uint8)
    expected = rows * size_bytes
    refuse(flat.size != expected, f"{flat.size:,} bytes are not {rows:,} rows of {size_bytes:,}")
    return flat.reshape(rows, size_bytes)


# ---- into cells


def store(kind: CacheKind, x: Floats, into: Bytes) -> None:
    rows = as_rows(into, len(x), row_bytes(kind, x.shape[1]))
    for some, columns in parts(*x.shape):
        numbers = x[some, columns]
        fine = np.isfinite(numbers)
        if not fine.all():  # the number of the first block, counted over all rows
            down, across = divmod(int(fine.argmin()), numbers.shape[1])
            before = (some.start + down) * x.shape[1] + columns.start + across
            raise BlockError(before // cache_type(kind).block_elements)
        first = row_bytes(kind, columns.start)
        PACK[kind](numbers, rows[some, first : first + row_bytes(kind, numbers.shape[1])])


def _pack_f32(x: Floats, packed: U8) -> None:
    np.copyto(packed, x.view(np.uint8))


def _pack_f16(x: Floats, packed: U8) -> None:
    halves = np.clip(x, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)
    np.copyto(packed, halves.view(np.uint8))


def _pack_q8_0(x: Floats, packed: U8) -> None:
    """As ggml-quants.c's quantize_row_q8_0_ref @ b21e4de: codes are made with d as a float."""
    numbers, blocks = x.reshape(len(x), -1, 32), packed.reshape(len(x), -1, 34)
    d = np.abs(numbers).max(axis=2, keepdims=True, initial=0) / np.float32(LARGEST_CODE)
    np.minimum(d, LARGEST_HALF, out=d)
    usable = d >= NO_RECIPROCAL
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=usable)
    scaled = numbers * inverse
    size = np.abs(scaled)
    whole = np.floor(size)  # half away from zero, as roundf; np.round goes to even
    whole += size - whole >= np.float32(0.5)
    codes = np.clip(np.copysign(whole, scaled), -LARGEST_CODE, LARGEST_CODE)
    blocks[..., :2] = d.astype(np.float16).view(np.uint8)
    blocks[..., 2:] = codes.astype(np.int8).view(np.uint8)


PACK: Mapping[CacheKind, Pack] = {"f32": _pack_f32, "f16": _pack_f16, "q8_0": _pack_q8_0}


# ---- out of cells: [cells, bytes of a head] -> [cells, head_dim]


def _unpack_f32(packed: U8, out: Floats) -> None:
    np.copyto(out.view(np.uint8), packed)


def _unpack_f16(packed: U8, out: Floats) -> None:
    """As numpy_blocks.f16, but a value that is not finite becomes NaN instead of an error."""
    words = out.view(np.int32)
    np.copyto(words, packed.view(np.int16))  # keeps the sign on top
    widen_halves(words, out)
    if max(out.max(initial=0), -out.min(initial=0)) >= NOT_A_HALF:
        out[np.abs(out) >= NOT_A_HALF] = np.nan


def _unpack_q8_0(packed: U8, out: Floats) -> None:
    blocks = packed.reshape(len(packed), -1, 34)
    numbers = out.reshape(len(packed), -1, 32)
    np.copyto(numbers, blocks[..., 2:].view(np.int8))
    numbers *= blocks[..., :2].view(np.float16).astype(np.float32)


UNPACK: Mapping[CacheKind, Unpack] = {
    "f32": _unpack_f32,
    "f16": _unpack_f16,
    "q8_0": _unpack_q8_0,
}


# ---- a span


def cells_at_a_time(head_dim: int) -> int:
    return min(CELLS_TOGETHER, max(1, UNPACKED_FLOATS // head_dim))


def attend_floats(head_dim: int) -> int:
    """Keys and values of some cells; scores of some queries, their results, and ROW_FLOATS each."""
    cells = cells_at_a_time(head_dim)
    return 2 * cells * head_dim + QUERY_ROWS * (cells + head_dim + ROW_FLOATS)


def attend(span: CacheAttention, scratch: Floats, first_head: int, last_head: int) -> None:
    """Some cells at a time; queries that see the same part of these are computed together."""
    q, heads, kv_heads, width = span.q, span.heads, span.kv_heads, span.head_dim
    places = (span.cells, span.first_position, span.query_position, span.reach or 0)
    refuse(min(kv_heads, width) < 1, "a number of heads or of their values is not positive")
    refuse(heads % kv_heads != 0, f"{heads} heads do not share {kv_heads} evenly")
    refuse(q.shape[1] != heads * width or q.shape != span.out.shape, "q or out is not the heads")
    refuse(span.state.shape != (len(q), heads, 2), "state has the wrong shape")
    refuse(not 0 <= first_head <= last_head <= kv_heads, "there are no such key heads")
    refuse(min(places) < 0, "a place is negative")
    refuse(scratch.size < attend_floats(width), "scratch is too small")
    step, rows = cells_at_a_time(width), span.cells * kv_heads
    k_bytes, v_bytes = (row_bytes(kind, width) for kind in (span.k_kind, span.v_kind))
    all_k = as_rows(span.k, rows, k_bytes).reshape(span.cells, kv_heads, k_bytes)
    all_v = as_rows(span.v, rows, v_bytes).reshape(span.cells, kv_heads, v_bytes)
    with np.errstate(all="ignore"):  # what is not a number comes out as not a number
        for head, first in product(range(first_head, last_head), range(0, span.cells, step)):
            cells = range(first, min(first + step, span.cells))
            views = [(seen, queries) for seen, queries in _views(span, cells) if seen]
            if not views:
                continue
            size, block = len(cells) * width, slice(cells.start, cells.stop)
            k, v = scratch[: 2 * size].reshape(2, len(cells), width)
            UNPACK[span.k_kind](all_k[block, head], k)
            UNPACK[span.v_kind](all_v[block, head], v)
            for seen, queries in views:
                these = slice(seen.start - first, seen.stop - first)
                for some, own_heads in _rows(heads // kv_heads, head, queries):
                    columns = slice(own_heads.start * width, own_heads.stop * width)
                    _attend_rows(
                        q[some, columns].reshape(-1, width),
                        span.out[some, columns].reshape(-1, width),
                        span.state[some, own_heads].reshape(-1, 2),
                        k[these],
                        v[these],
                        scale=span.scale,
                        scratch=scratch[2 * size :],
                    )


def settle(out: Floats, state: Floats, heads: int, head_dim: int) -> None:
    refuse(out.shape[1] != heads * head_dim, "out is not the heads")
    refuse(state.shape != (len(out), heads, 2), "state has the wrong shape")
    gathered = out.reshape(len(out), heads, head_dim)
    with np.errstate(all="ignore"):
        for row, sums in zip(gathered, state[..., 1:], strict=True):
            np.divide(row, sums, out=row, where=sums != 0)
            np.copyto(row, 0, where=sums == 0)


def _views(span: CacheAttention, cells: range) -> Iterator[tuple[range, range]]:
    """The cells that are seen, and the consecutive queries that see exactly these."""

    def seen_by(query: int) -> range:
        after = span.query_position - span.first_position + query + 1
        start = cells.start if span.reach is None else max(cells.start, after - span.reach)
        return range(start, min(after, cells.stop))

    for seen, group in groupby(range(len(span.q)), seen_by):
        queries = tuple(group)
        yield seen, range(queries[0], queries[-1] + 1)


def _rows(group: int, head: int, queries: range) -> Iterator[tuple[slice, slice]]:
    """Some queries of a head, or some heads of a query, whichever makes fewer calls. A key head has `group` heads."""
    heads = range(head * group, (head + 1) * group)
    if len(queries) >= group:
        for own in heads:
            for some in row_parts(len(queries), QUERY_ROWS):
                start = queries.start
                yield slice(start + some.start, start + some.stop), slice(own, own + 1)
    else:
        for query in queries:
            for some in row_parts(group, QUERY_ROWS):
                start = heads.start
                yield slice(query, query + 1), slice(start + some.start, start + some.stop)


def _attend_rows(
    q: Floats, out: Floats, state: Floats, k: Floats, v: Floats, *, scale: float, scratch: Floats
) -> None:
    """Adds what the queries see in these cells. All rows are [rows, ...]."""
    count = len(q)
    most_before, sums_before = state[:, :1], state[:, 1:]
    most, sums, shrink = first_of(scratch, ROW_FLOATS, count, 1)
    added = first_of(scratch[ROW_FLOATS * count :], *out.shape)
    scores = first_of(scratch[ROW_FLOATS * count + added.size :], count, len(k))
    np.matmul(q, k.T, out=scores)
    np.multiply(scores, scale, out=scores)
    np.max(scores, axis=1, keepdims=True, out=most)
    np.maximum(most, most_before, out=most)
    np.subtract(scores, most, out=scores)
    np.exp(scores, out=scores)
    np.sum(scores, axis=1, keepdims=True, out=sums)
    # Scale down what was gathered before, where a larger score was found.
    np.subtract(most_before, most, out=shrink)
    np.exp(shrink, out=shrink)
    np.copyto(shrink, 0, where=np.isneginf(most_before))
    np.copyto(most_before, most)
    np.multiply(sums_before, shrink, out=sums_before)
    np.multiply(out, shrink, out=out)
    np.add(sums_before, sums, out=sums_before)
    np.matmul(scores, v, out=added)
    np.add(out, added, out=out)
