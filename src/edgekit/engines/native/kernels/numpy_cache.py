"""A KV cache in numpy: numbers are rounded into cells, and queries attend to spans of them.

The softmax stays open: a query's largest score and its sum of exponentials are in `state`, and what it has gathered in
`out` is divided by the sum after the last span. Cells are unpacked a few at a time: no buffer grows with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, product

import numpy as np

from edgekit.bill.types import cache_type
from edgekit.engines.native.kernels.numpy_blocks import (
    HALF_BITS,
    HALF_TO_FLOAT,
    NOT_A_HALF,
    U8,
    Workspace,
    first_of,
    parts,
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
Unpack = Callable[[U8, Floats, Workspace], None]


def row_bytes(kind: CacheKind, elements: int) -> int:
    """Raises ValueError unless they are whole blocks."""
    stored = cache_type(kind)
    if not stored.divides(elements):
        raise ValueError(f"{elements:,} numbers are not whole blocks of {kind}")
    return stored.row_bytes(elements)


def as_rows(cells: Bytes, rows: int, size_bytes: int) -> U8:
    """[rows, bytes] over the same memory. Raises ValueError for another size."""
    flat = np.frombuffer(cells, np.uint8)
    if flat.size != rows * size_bytes:
        raise ValueError(f"{flat.size:,} bytes are not {rows:,} rows of {size_bytes:,}")
    return flat.reshape(rows, size_bytes)


# ---- into cells


def store(kind: CacheKind, x: Floats, into: Bytes) -> None:
    rows = as_rows(into, len(x), row_bytes(kind, x.shape[1]))
    for some, columns in parts(*x.shape):
        numbers = x[some, columns]
        _refuse_not_finite(kind, x.shape[1], numbers, some.start, columns.start)
        first = row_bytes(kind, columns.start)
        PACK[kind](numbers, rows[some, first : first + row_bytes(kind, numbers.shape[1])])


def _refuse_not_finite(kind: CacheKind, width: int, numbers: Floats, row: int, column: int) -> None:
    """Raises BlockError for the first block, counted over whole rows."""
    fine = np.isfinite(numbers)
    if fine.all():
        return
    down, across = divmod(int(fine.argmin()), numbers.shape[1])
    raise BlockError(((row + down) * width + column + across) // cache_type(kind).block_elements)


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
    codes = np.clip(_round(numbers * inverse), -LARGEST_CODE, LARGEST_CODE)
    blocks[..., :2] = d.astype(np.float16).view(np.uint8)
    blocks[..., 2:] = codes.astype(np.int8).view(np.uint8)


def _round(x: Floats) -> Floats:
    """Half away from zero, as roundf; np.round goes to even."""
    size = np.abs(x)
    whole = np.floor(size)
    whole += size - whole >= np.float32(0.5)
    return np.copysign(whole, x)


PACK: Mapping[CacheKind, Pack] = {"f32": _pack_f32, "f16": _pack_f16, "q8_0": _pack_q8_0}


# ---- out of cells: [cells, bytes of a head] -> [cells, head_dim]


def _unpack_f32(packed: U8, out: Floats, work: Workspace) -> None:
    del work
    np.copyto(out.view(np.uint8), packed)


def _unpack_f16(packed: U8, out: Floats, work: Workspace) -> None:
    """As numpy_blocks.f16, but a value that is not finite becomes NaN instead of an error."""
    words = out.view(np.int32)
    np.copyto(words, packed.view(np.int16))  # keeps the sign on top
    np.left_shift(words, 13, out=words)
    np.bitwise_and(words, HALF_BITS, out=words)
    np.multiply(out, HALF_TO_FLOAT, out=out)
    if max(out.max(initial=0), -out.min(initial=0)) >= NOT_A_HALF:
        wrong = first_of(work.high, *out.shape).view(np.bool_)
        np.logical_or(out >= NOT_A_HALF, out <= -NOT_A_HALF, out=wrong)
        np.copyto(out, np.nan, where=wrong)


def _unpack_q8_0(packed: U8, out: Floats, work: Workspace) -> None:
    cells, blocks = len(packed), packed.shape[1] // 34
    table = packed.reshape(cells, blocks, 34)
    d = first_of(work.values, cells, blocks, 1)
    np.copyto(d, table[..., :2].view(np.float16))
    numbers = out.reshape(cells, blocks, 32)
    np.copyto(numbers, table[..., 2:].view(np.int8))
    np.multiply(numbers, d, out=numbers)


UNPACK: Mapping[CacheKind, Unpack] = {
    "f32": _unpack_f32,
    "f16": _unpack_f16,
    "q8_0": _unpack_q8_0,
}


# ---- a span


@dataclass(frozen=True, slots=True)
class QueryRows:
    """Queries, what they gather and their states; all [rows, ...]."""

    q: Floats
    out: Floats
    most: Floats
    sums: Floats


def cells_at_a_time(head_dim: int) -> int:
    return min(CELLS_TOGETHER, max(1, UNPACKED_FLOATS // head_dim))


def attend_floats(head_dim: int) -> int:
    """Keys and values of some cells; scores of some queries, their results, and ROW_FLOATS each."""
    cells = cells_at_a_time(head_dim)
    return 2 * cells * head_dim + QUERY_ROWS * (cells + head_dim + ROW_FLOATS)


def attend(span: CacheAttention, heads: range, scratch: Floats, work: Workspace) -> None:
    """Some cells at a time; queries that see the same part of these are computed together."""
    step, rows = cells_at_a_time(span.head_dim), span.cells * span.kv_heads
    k_bytes, v_bytes = (row_bytes(kind, span.head_dim) for kind in (span.k_kind, span.v_kind))
    all_k = as_rows(span.k, rows, k_bytes).reshape(span.cells, span.kv_heads, k_bytes)
    all_v = as_rows(span.v, rows, v_bytes).reshape(span.cells, span.kv_heads, v_bytes)
    with np.errstate(all="ignore"):  # what is not a number comes out as not a number
        for head, first in product(heads, range(0, span.cells, step)):
            cells = range(first, min(first + step, span.cells))
            views = [(seen, queries) for seen, queries in _views(span, cells) if seen]
            if not views:
                continue
            size, block = len(cells) * span.head_dim, slice(cells.start, cells.stop)
            k, v = scratch[: 2 * size].reshape(2, len(cells), span.head_dim)
            UNPACK[span.k_kind](all_k[block, head], k, work)
            UNPACK[span.v_kind](all_v[block, head], v, work)
            for seen, queries in views:
                these = slice(seen.start - first, seen.stop - first)
                for rows_of in _rows(span, head, queries):
                    _attend_rows(rows_of, k[these], v[these], span.scale, scratch[2 * size :])


def settle(out: Floats, state: Floats, *, heads: int, head_dim: int) -> None:
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


def _rows(span: CacheAttention, head: int, queries: range) -> Iterator[QueryRows]:
    """Some queries of a head, or some heads of a query, whichever makes fewer calls."""
    group = span.heads // span.kv_heads
    own = range(head * group, (head + 1) * group)
    if len(queries) >= group:
        for one in own:
            for first in range(queries.start, queries.stop, QUERY_ROWS):
                yield _rows_at(span, slice(first, min(first + QUERY_ROWS, queries.stop)), one, 1)
    else:
        for query in queries:
            for one in range(own.start, own.stop, QUERY_ROWS):
                count = min(QUERY_ROWS, own.stop - one)
                yield _rows_at(span, slice(query, query + 1), one, count)


def _rows_at(span: CacheAttention, queries: slice, head: int, heads: int) -> QueryRows:
    columns = slice(head * span.head_dim, (head + heads) * span.head_dim)
    state = span.state[queries, head : head + heads].reshape(-1, 2)
    return QueryRows(
        q=span.q[queries, columns].reshape(-1, span.head_dim),
        out=span.out[queries, columns].reshape(-1, span.head_dim),
        most=state[:, :1],
        sums=state[:, 1:],
    )


def _attend_rows(rows: QueryRows, k: Floats, v: Floats, scale: float, scratch: Floats) -> None:
    count = len(rows.q)
    most, sums, shrink = first_of(scratch, ROW_FLOATS, count, 1)
    added = first_of(scratch[ROW_FLOATS * count :], *rows.out.shape)
    scores = first_of(scratch[ROW_FLOATS * count + added.size :], count, len(k))
    np.matmul(rows.q, k.T, out=scores)
    np.multiply(scores, scale, out=scores)
    np.max(scores, axis=1, keepdims=True, out=most)
    np.maximum(most, rows.most, out=most)
    np.subtract(scores, most, out=scores)
    np.exp(scores, out=scores)
    np.sum(scores, axis=1, keepdims=True, out=sums)
    _shrink(rows, most, shrink)
    np.add(rows.sums, sums, out=rows.sums)
    np.matmul(scores, v, out=added)
    np.add(rows.out, added, out=rows.out)


def _shrink(rows: QueryRows, most: Floats, shrink: Floats) -> None:
    """Scale down what was gathered before, where a larger score was found."""
    np.subtract(rows.most, most, out=shrink)
    np.exp(shrink, out=shrink)
    np.copyto(shrink, 0, where=np.isneginf(rows.most))
    np.copyto(rows.most, most)
    np.multiply(rows.sums, shrink, out=rows.sums)
    np.multiply(rows.out, shrink, out=rows.out)
