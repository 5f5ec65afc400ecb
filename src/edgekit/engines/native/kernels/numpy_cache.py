"""A KV cache in numpy: rounds numbers into cells, and lets queries attend to spans of them.

The softmax is computed span by span: `state` has a query's largest score and its sum of exponentials so far, and `out`
has the weighted sum of values, which is divided by that sum after the last span. Cells are unpacked a few at a time, so
no buffer grows with their number.
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
    """The size of this many numbers in a cell. Raises ValueError unless they are whole blocks."""
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
    for part_rows, columns in parts(*x.shape):
        numbers = x[part_rows, columns]
        finite = np.isfinite(numbers)
        if not finite.all():
            row, column = divmod(int(finite.argmin()), numbers.shape[1])
            numbers_before = (part_rows.start + row) * x.shape[1] + columns.start + column
            raise BlockError(numbers_before // cache_type(kind).block_elements)
        first = row_bytes(kind, columns.start)
        last = first + row_bytes(kind, numbers.shape[1])
        PACK[kind](numbers, rows[part_rows, first:last])


def _pack_f32(x: Floats, packed: U8) -> None:
    np.copyto(packed, x.view(np.uint8))


def _pack_f16(x: Floats, packed: U8) -> None:
    halves = np.clip(x, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)
    np.copyto(packed, halves.view(np.uint8))


def _pack_q8_0(x: Floats, packed: U8) -> None:
    """As quantize_row_q8_0_ref in ggml-quants.c @ b21e4de: codes are computed with d before it is rounded to a half."""
    numbers, blocks = x.reshape(len(x), -1, 32), packed.reshape(len(x), -1, 34)
    d = np.abs(numbers).max(axis=2, keepdims=True, initial=0) / np.float32(LARGEST_CODE)
    np.minimum(d, LARGEST_HALF, out=d)
    usable = d >= NO_RECIPROCAL
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=usable)
    scaled = numbers * inverse
    size = np.abs(scaled)
    # Halves are rounded away from zero, as in roundf; np.round goes to even.
    rounded = np.floor(size)
    rounded += size - rounded >= np.float32(0.5)
    codes = np.clip(np.copysign(rounded, scaled), -LARGEST_CODE, LARGEST_CODE)
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
    """Keys and values of a few cells; scores of a few queries, their results, and ROW_FLOATS each."""
    cells = cells_at_a_time(head_dim)
    return 2 * cells * head_dim + QUERY_ROWS * (cells + head_dim + ROW_FLOATS)


def attend(span: CacheAttention, scratch: Floats, first_head: int, last_head: int) -> None:
    """Unpacks a few cells of one key head at a time. Queries that see the same ones of them are computed together."""
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
        for kv_head, first in product(range(first_head, last_head), range(0, span.cells, step)):
            cells = slice(first, min(first + step, span.cells))
            views = [(seen, queries) for seen, queries in _views(span, cells) if seen]
            if not views:
                continue
            size = (cells.stop - first) * width
            k, v = scratch[: 2 * size].reshape(2, -1, width)
            UNPACK[span.k_kind](all_k[cells, kv_head], k)
            UNPACK[span.v_kind](all_v[cells, kv_head], v)
            for seen, queries in views:
                seen_rows = slice(seen.start - first, seen.stop - first)
                for query_rows, query_heads in _query_blocks(heads // kv_heads, kv_head, queries):
                    columns = slice(query_heads.start * width, query_heads.stop * width)
                    _attend_rows(
                        q[query_rows, columns].reshape(-1, width),
                        span.out[query_rows, columns].reshape(-1, width),
                        span.state[query_rows, query_heads].reshape(-1, 2),
                        k[seen_rows],
                        v[seen_rows],
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


def _views(span: CacheAttention, cells: slice) -> Iterator[tuple[range, range]]:
    """Divides the queries by the part of these cells that they see. Yields each part and its consecutive queries."""

    def seen_by(query: int) -> range:
        end = span.query_position - span.first_position + query + 1
        start = cells.start if span.reach is None else max(cells.start, end - span.reach)
        return range(start, min(end, cells.stop))

    for seen, group in groupby(range(len(span.q)), seen_by):
        queries = tuple(group)
        yield seen, range(queries[0], queries[-1] + 1)


def _query_blocks(group: int, kv_head: int, queries: range) -> Iterator[tuple[slice, slice]]:
    """Queries and heads to compute together, at most QUERY_ROWS pairs; `group` heads share the key head.

    A block is several queries of one head, or several heads of one query, whichever makes fewer blocks.
    """
    heads = range(kv_head * group, (kv_head + 1) * group)
    if len(queries) >= group:
        for head in heads:
            for block in row_parts(len(queries), QUERY_ROWS):
                yield _shifted(block, queries.start), slice(head, head + 1)
    else:
        for query in queries:
            for block in row_parts(group, QUERY_ROWS):
                yield slice(query, query + 1), _shifted(block, heads.start)


def _shifted(part: slice, start: int) -> slice:
    return slice(start + part.start, start + part.stop)


def _attend_rows(
    q: Floats, out: Floats, state: Floats, k: Floats, v: Floats, *, scale: float, scratch: Floats
) -> None:
    """Adds what the queries see in these cells, one query per row of `q`, `out` and `state`."""
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
    # Where a larger score was found, scale down the sums of the cells before.
    np.subtract(most_before, most, out=shrink)
    np.exp(shrink, out=shrink)
    np.copyto(shrink, 0, where=np.isneginf(most_before))
    np.copyto(most_before, most)
    np.multiply(sums_before, shrink, out=sums_before)
    np.multiply(out, shrink, out=out)
    np.add(sums_before, sums, out=sums_before)
    np.matmul(scores, v, out=added)
    np.add(out, added, out=out)
