"""Cells of a cache: stored bit for bit as GGML stores them, and attended to as in float64."""

from __future__ import annotations

import ctypes
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.embed_kernels import HAVE_NATIVE, KINDS, names, using
from tests.thoroughness import LONG

from edgekit.bill.types import cache_type
from edgekit.engines.native import stream_plan as bill
from edgekit.engines.native.kernels import choose_kernels
from edgekit.engines.native.kernels.types import (
    BlockError,
    CacheAttention,
    CacheKind,
    Floats,
    Kernels,
)
from edgekit.formats.dtype import by_name

U8 = NDArray[np.uint8]
Exact = NDArray[np.float64]

CACHE_KINDS: tuple[CacheKind, ...] = ("f32", "f16", "q8_0")
WIDTHS = (32, 40, 64, 80, 96, 128, 256)
GUARD = 64  # floats behind the scratch that nobody may touch


@pytest.fixture(params=names())
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    with using(request.param) as chosen:
        yield chosen


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


# ---- store


def stored(kernels: Kernels, kind: CacheKind, x: Floats) -> U8:
    into = np.full((len(x), cache_type(kind).row_bytes(x.shape[1])), 77, np.uint8)
    kernels.store(kind, x, into)
    return into


def scattered(rows: int, columns: int) -> Floats:
    """Blocks of every size that a float32 can have, subnormal ones as halves and as floats too."""
    draw = np.random.default_rng(5)
    sizes = np.exp2(draw.uniform(-126, 15, (rows, columns // 32, 1)))
    return (draw.standard_normal((rows, columns // 32, 32)) * sizes).astype(np.float32).reshape(
        rows, columns
    )  # fmt: skip


def test_f32_is_stored_as_it_is(kernels: Kernels) -> None:
    x = scattered(5, 96)
    assert stored(kernels, "f32", x).tobytes() == x.tobytes()


def test_f16_equals_numpy_bit_for_bit(kernels: Kernels) -> None:
    every_half = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (every_half[1:] + every_half[:-1]) / 2  # ties go to even
    near = np.nextafter(between, np.float32(0)), np.nextafter(between, np.float32(np.inf))
    x = np.concatenate([every_half, between, *near, -between, -every_half])[None]
    assert stored(kernels, "f16", x).tobytes() == x.astype(np.float16).tobytes()


def test_f16_clamps_to_the_largest_half(kernels: Kernels) -> None:
    x = np.array([[65504, 65519.99, 65520, 1e30, -65504, -65520, -3.4e38]], np.float32)
    halves = stored(kernels, "f16", x).view(np.float16)
    assert halves.tolist() == [[65504, 65504, 65504, 65504, -65504, -65504, -65504]]


def test_q8_0_equals_gguf_py_bit_for_bit(kernels: Kernels) -> None:
    x = np.concatenate([scattered(40, 256), normal(40, 256), np.zeros((1, 256), np.float32)])
    with np.errstate(all="ignore"):
        wanted = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0)
    assert stored(kernels, "q8_0", x).tobytes() == wanted.tobytes()


@pytest.mark.skipif(sys.platform == "win32", reason="the library shows its functions elsewhere")
def test_q8_0_equals_ggml_bit_for_bit(kernels: Kernels) -> None:
    x = np.concatenate([scattered(40, 256), normal(40, 256)])
    wanted = np.empty((len(x), 272), np.uint8)
    quantize = ggml_function("quantize_row_q8_0_ref")
    quantize(x.ctypes.data, wanted.ctypes.data, x.size)
    blocks, wanted = stored(kernels, "q8_0", x).reshape(-1, 34), wanted.reshape(-1, 34)
    # Of the least floats GGML takes infinity for an integer, which is another one on each kind of CPU: times a scale
    # of 0, it is 0 everywhere.
    answer = np.abs(x.reshape(-1, 32)).max(axis=1) > 127 / np.finfo(np.float32).max
    assert blocks[answer].tobytes() == wanted[answer].tobytes()
    assert blocks[:, :2].tobytes() == wanted[:, :2].tobytes()
    assert not blocks[~answer, :2].any()
    assert 0 < np.count_nonzero(~answer) < 20


def ggml_function(name: str) -> Callable[[int, int, int], None]:
    result = find_spec("xllamacpp")
    assert result is not None
    assert result.origin is not None
    (library,) = Path(result.origin).parent.glob("xllamacpp*.so")
    function = getattr(ctypes.CDLL(str(library)), name)
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    function.restype = None
    return function  # type: ignore[no-any-return]  # a foreign function is typed as Any


def test_codes_round_half_away_from_zero(kernels: Kernels) -> None:
    """d is 1 where the largest is 127, so that a number is its own code before it is rounded."""
    x = np.zeros((1, 32), np.float32)
    x[0, :9] = (127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 126.5)
    block = stored(kernels, "q8_0", x)
    assert block[0, :2].view(np.float16) == 1
    assert block[0, 2:11].view(np.int8).tolist() == [127, 1, 2, 3, -1, -2, -3, 0, 127]


def test_q8_0_scale_beyond_a_half(kernels: Kernels) -> None:
    """Too large: the largest there is. So small that it has no reciprocal: nothing."""
    x = np.zeros((2, 32), np.float32)
    x[0, :3] = (3e38, -3e38, 65504 * 12.7)
    x[1, :2] = (1e-44, -1e-40)
    blocks = stored(kernels, "q8_0", x)
    assert blocks[:, :2].view(np.float16).tolist() == [[65504], [0]]
    assert blocks[0, 2:5].view(np.int8).tolist() == [127, -127, 13]
    assert (blocks[1, 2:] == 0).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", CACHE_KINDS)
def test_store_refuses_numbers_that_are_not_finite(
    kernels: Kernels, kind: CacheKind, wrong: float
) -> None:
    x = normal(70, 9600)
    x[41, 9000] = x[41, 9500] = x[60, 0] = wrong
    with pytest.raises(BlockError) as raised:
        stored(kernels, kind, x)
    assert raised.value.block == (41 * 9600 + 9000) // cache_type(kind).block_elements


@pytest.mark.parametrize("kind", CACHE_KINDS)
def test_rows_that_lie_apart_are_stored_without_gaps(kernels: Kernels, kind: CacheKind) -> None:
    wide = normal(7, 200)
    x = wide[:, 3:163]
    assert (stored(kernels, kind, x) == stored(kernels, kind, x.copy())).all()


def test_nothing_is_written_outside(kernels: Kernels) -> None:
    room = np.full(2 * 3 * 34 + 8, 99, np.uint8)
    kernels.store("q8_0", normal(2, 96), room[3:-5])
    assert (room[:3] == 99).all()
    assert (room[-5:] == 99).all()


@pytest.mark.parametrize(
    ("kind", "columns", "size_bytes"),
    [("f32", 8, 63), ("f32", 8, 65), ("f16", 8, 0), ("q8_0", 32, 64), ("q8_0", 40, 84)],
)
def test_store_refuses_other_sizes(
    kernels: Kernels, kind: CacheKind, columns: int, size_bytes: int
) -> None:
    with pytest.raises(ValueError):
        kernels.store(kind, normal(2, columns), np.zeros(size_bytes, np.uint8))


def test_storing_nothing(kernels: Kernels) -> None:
    for kind in CACHE_KINDS:
        kernels.store(kind, normal(0, 64), np.zeros(0, np.uint8))


# ---- attend


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    k_kind: CacheKind = "f32"
    v_kind: CacheKind = "f32"
    kv_heads: int = 2
    group: int = 3
    head_dim: int = 64
    tokens: int = 5
    cells: int = 150
    first_position: int = 0
    query_position: int = 150
    reach: int | None = None
    seed: int = 0

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group


class Run:
    """Queries over cells, with all the memory that a caller holds."""

    def __init__(self, case: Case) -> None:
        self.case = case
        width = case.kv_heads * case.head_dim
        self.wide = normal(case.tokens, case.heads * case.head_dim + 3, seed=case.seed)
        self.q = self.wide[:, 2:-1]
        reference = choose_kernels("numpy")
        self.k = stored(reference, case.k_kind, normal(case.cells, width, seed=case.seed + 1))
        self.v = stored(reference, case.v_kind, normal(case.cells, width, seed=case.seed + 2))
        self.begin()

    def begin(self) -> None:
        case = self.case
        self.room = np.zeros((case.tokens, case.heads * case.head_dim + 5), np.float32)
        self.out = self.room[:, 1:-4]
        self.state = np.zeros((case.tokens, case.heads, 2), np.float32)
        self.state[..., 0] = -np.inf

    def attend(
        self,
        kernels: Kernels,
        cells: tuple[int, int] | None = None,
        queries: tuple[int, int] | None = None,
        heads: tuple[int, int] | None = None,
    ) -> None:
        case = self.case
        start, end = cells or (0, case.cells)
        one, other = queries or (0, case.tokens)
        first, last = heads or (0, case.kv_heads)
        floats = kernels.attend_floats(case.head_dim)
        room = np.full(floats + GUARD, -7, np.float32)
        span = CacheAttention(
            q=self.q[one:other], k=self.k[start:end], v=self.v[start:end], out=self.out[one:other],
            state=self.state[one:other], k_kind=case.k_kind, v_kind=case.v_kind, heads=case.heads,
            kv_heads=case.kv_heads, head_dim=case.head_dim, scale=case.head_dim**-0.5,
            cells=end - start, first_position=case.first_position + start,
            query_position=case.query_position + one, reach=case.reach,
        )  # fmt: skip
        kernels.attend(span, room[:floats], first, last)
        assert (room[floats:] == -7).all()

    def settled(self, kernels: Kernels) -> Floats:
        case = self.case
        kernels.settle(self.out, self.state, case.heads, case.head_dim)
        assert (self.room[:, :1] == 0).all()
        assert (self.room[:, -4:] == 0).all()
        out = self.out.copy()
        self.begin()
        return out

    def whole(self, kernels: Kernels) -> Floats:
        self.attend(kernels)
        return self.settled(kernels)

    def unpacked(self, kind: CacheKind, cells: U8) -> Exact:
        flat: Floats = gguf.quants.dequantize(cells, gguf.GGMLQuantizationType[kind.upper()])
        return flat.reshape(self.case.cells, self.case.kv_heads, self.case.head_dim).astype(
            np.float64
        )

    def exact(self) -> Exact:
        case = self.case
        k = np.repeat(self.unpacked(case.k_kind, self.k), case.group, axis=1)
        v = np.repeat(self.unpacked(case.v_kind, self.v), case.group, axis=1)
        q = self.q.reshape(case.tokens, case.heads, case.head_dim).astype(np.float64)
        scores = q.transpose(1, 0, 2) @ k.transpose(1, 2, 0) * case.head_dim**-0.5
        scores[:, ~self.seen()] = -np.inf
        shares = np.exp(scores - scores.max(2, keepdims=True, initial=-1e30))
        shares /= np.maximum(shares.sum(2, keepdims=True), 1e-300)
        mixed: Exact = shares @ v.transpose(1, 0, 2)
        return mixed.transpose(1, 0, 2).reshape(case.tokens, case.heads * case.head_dim)

    def seen(self) -> NDArray[np.bool_]:
        case = self.case
        positions = case.first_position + np.arange(case.cells)
        away = case.query_position + np.arange(case.tokens)[:, None] - positions
        return (away >= 0) & (away < (np.inf if case.reach is None else case.reach))


def close(one: Floats, other: Floats | Exact) -> bool:
    return one.shape == other.shape and bool(np.abs(one - other).max(initial=0) < 1e-5)


@pytest.mark.parametrize("head_dim", WIDTHS)
@pytest.mark.parametrize("v_kind", CACHE_KINDS)
@pytest.mark.parametrize("k_kind", CACHE_KINDS)
def test_every_kind_and_width(
    kernels: Kernels, k_kind: CacheKind, v_kind: CacheKind, head_dim: int
) -> None:
    if "q8_0" in (k_kind, v_kind) and head_dim % 32:
        return
    for tokens in (1, 6):
        case = Case(k_kind=k_kind, v_kind=v_kind, head_dim=head_dim, tokens=tokens)
        run = Run(case)
        assert close(run.whole(kernels), run.exact())


@pytest.mark.parametrize("tokens", [1, 2, 35])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 33])
def test_every_group(kernels: Kernels, group: int, tokens: int) -> None:
    case = Case(kv_heads=1, group=group, head_dim=32, tokens=tokens, cells=90, query_position=60)
    for k_kind, v_kind in pairwise(CACHE_KINDS):
        run = Run(replace(case, k_kind=k_kind, v_kind=v_kind))
        assert close(run.whole(kernels), run.exact())


def test_attention_widths_that_are_not_whole_vectors(kernels: Kernels) -> None:
    for head_dim in (1, 3, 5, 8, 15, 17, 33, 100):
        for kind in ("f32", "f16"):
            run = Run(Case(k_kind=kind, v_kind=kind, head_dim=head_dim, cells=70))
            assert close(run.whole(kernels), run.exact())


def test_many_cells(kernels: Kernels) -> None:
    """Sums of many small shares, one span at a time."""
    case = Case(k_kind="f16", v_kind="q8_0", tokens=1, cells=8_000, query_position=8_000)
    run = Run(case)
    for first, last in pairwise(range(0, 8_001, 1_000)):
        run.attend(kernels, (first, last))
    assert close(run.settled(kernels), run.exact())


def test_scores_far_apart(kernels: Kernels) -> None:
    """exp of the largest score would be infinite, and that of the others nothing."""
    run = Run(Case(cells=300, query_position=300))
    run.q *= 1000
    result = run.whole(kernels)
    assert np.isfinite(result).all()
    assert np.abs(result - run.exact()).max() < 1e-3  # scores of 1e4 have steps of 1e-3


# ---- laws

widths = st.sampled_from(WIDTHS)
kernel_names = st.sampled_from(names())


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kinds = draw(st.tuples(st.sampled_from(CACHE_KINDS), st.sampled_from(CACHE_KINDS)))
    head_dim = draw(widths.filter(lambda width: "q8_0" not in kinds or width % 32 == 0))
    first_position = draw(st.integers(0, 2**40))
    return Case(
        k_kind=kinds[0],
        v_kind=kinds[1],
        kv_heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 9)),
        head_dim=head_dim,
        tokens=draw(st.integers(0, 20)),
        cells=draw(st.integers(0, 200)),
        first_position=first_position,
        query_position=max(0, first_position + draw(st.integers(-30, 260))),
        reach=draw(st.none() | st.integers(0, 300) | st.just(2**50)),
        seed=draw(st.integers(0, 9)),
    )


def cut(data: st.DataObject, count: int) -> list[tuple[int, int]]:
    inner = data.draw(st.lists(st.integers(0, count), max_size=4))
    return list(pairwise(sorted([0, *inner, count])))


@given(kernel_names, cases(), st.data())
@settings(max_examples=80 if LONG else 20, deadline=None)
def test_spans_may_be_cut_and_come_in_any_order(name: str, case: Case, data: st.DataObject) -> None:
    run = Run(case)
    spans = data.draw(st.permutations(cut(data, case.cells)))
    with using(name) as kernels:
        whole = run.whole(kernels)
        for span in spans:
            run.attend(kernels, span)
        parts = run.settled(kernels)
    assert close(whole, run.exact())
    assert close(parts, whole)


@given(kernel_names, cases(), st.data())
@settings(max_examples=60 if LONG else 20, deadline=None)
def test_queries_may_come_in_chunks(name: str, case: Case, data: st.DataObject) -> None:
    run = Run(case)
    with using(name) as kernels:
        whole = run.whole(kernels)
        for queries in cut(data, case.tokens):
            run.attend(kernels, queries=queries)
        assert close(run.settled(kernels), whole)


@given(kernel_names, cases(), st.data())
@settings(max_examples=40 if LONG else 20, deadline=None)
def test_key_heads_may_be_shared_out(name: str, case: Case, data: st.DataObject) -> None:
    """To the bit: no head's sums depend on another's."""
    run = Run(case)
    with using(name) as kernels:
        whole = run.whole(kernels)
        for heads in cut(data, case.kv_heads):
            run.attend(kernels, heads=heads)
        assert (run.settled(kernels) == whole).all()


@given(kernel_names, cases())
@settings(max_examples=30 if LONG else 20, deadline=None)
def test_attention_ignores_a_span_out_of_sight(name: str, case: Case) -> None:
    run = Run(replace(case, query_position=max(0, case.first_position - case.tokens)))
    if case.first_position < case.tokens:
        return
    behind = Run(replace(case, reach=9, query_position=case.first_position + case.cells + 8))
    with using(name) as kernels:
        for each in (run, behind):
            each.room[:] = 3
            each.state[:] = (0.5, 2)
            each.attend(kernels)
            assert (each.room == 3).all()
            assert (each.state == (0.5, 2)).all()


@pytest.mark.parametrize(
    ("position", "reach", "seen"),
    [
        (9, None, []),
        (10, None, [10]),
        (14, None, [10, 11, 12, 13, 14]),
        (99, None, [10, 11, 12, 13, 14]),
        (14, 0, []),
        (14, 1, [14]),
        (14, 2, [13, 14]),
        (16, 3, [14]),
        (16, 2, []),
        (12, 2, [11, 12]),
        (10, 5, [10]),
        (14, 5, [10, 11, 12, 13, 14]),
        (15, 5, [11, 12, 13, 14]),
    ],
)
def test_attention_visible_cells_of_a_query(
    kernels: Kernels, position: int, reach: int | None, seen: Sequence[int]
) -> None:
    """Keys are all the same, so that a query finds the mean of what it sees: 1, 2, 4, 8 and 16."""
    case = Case(kv_heads=1, group=1, head_dim=32, tokens=1, cells=5, first_position=10,
                query_position=position, reach=reach)  # fmt: skip
    run = Run(case)
    run.k[:] = 0
    kernels.store("f32", np.repeat(2.0 ** np.arange(5, dtype=np.float32)[:, None], 32, 1), run.v)
    wanted = sum(2.0 ** (cell - 10) for cell in seen) / max(1, len(seen))
    assert run.whole(kernels) == pytest.approx(wanted, rel=1e-6)


# ---- what is not a number


@pytest.mark.parametrize("tokens", [1, 12])
def test_attention_nan_query_affects_only_itself(kernels: Kernels, tokens: int) -> None:
    run = Run(Case(tokens=tokens))
    fine = run.whole(kernels)
    run.q[0, 5] = np.nan
    result = run.whole(kernels)
    head = run.case.head_dim
    assert np.isnan(result[0, :head]).all()
    assert (result[:, head:] == fine[:, head:]).all()
    assert (result[1:] == fine[1:]).all()


@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize("kind", CACHE_KINDS)
def test_attention_nan_cell_affects_only_queries_that_see_it(
    kernels: Kernels, kind: CacheKind, which: str
) -> None:
    case = Case(k_kind=kind, v_kind=kind, tokens=40, cells=60, query_position=20)
    run = Run(case)
    fine = run.whole(kernels)
    cell = getattr(run, which)[31]
    cell[:4] = np.array([np.nan], "<f4").view(np.uint8)  # of key head 0
    if kind != "f32":
        cell[:2] = np.array([np.nan], "<f2").view(np.uint8)
    result = run.whole(kernels)
    before, own = slice(0, 31 - 20), slice(0, case.group * case.head_dim)
    assert (result[before] == fine[before]).all()
    assert not np.isfinite(result[11:, own]).all(axis=1).any()
    assert (result[:, own.stop :] == fine[:, own.stop :]).all()


@pytest.mark.parametrize("kind", CACHE_KINDS)
def test_any_bits_at_all(kernels: Kernels, kind: CacheKind) -> None:
    """Neither an error nor a warning, and settling is as calm."""
    run = Run(Case(k_kind=kind, v_kind=kind, tokens=9))
    draw = np.random.default_rng(3)
    for cells in (run.k, run.v):
        cells[:] = draw.integers(0, 256, cells.shape, np.uint8)
    run.wide.view(np.uint32)[:] = draw.integers(0, 2**32, run.wide.shape, np.uint32)
    run.whole(kernels)
    run.state[:] = (np.inf, np.nan)
    run.room[:, 1:-4] = np.inf
    run.whole(kernels)


def test_settling_nothing_gives_zeros(kernels: Kernels) -> None:
    run = Run(Case())
    run.out[:] = 5
    run.state[..., 1] = 2
    run.state[1, 2] = (-np.inf, 0)
    out = run.settled(kernels).reshape(5, 6, 64)
    assert (out[1, 2] == 0).all()
    assert (np.delete(out.reshape(30, 64), 8, 0) == 2.5).all()


# ---- sizes


def call(kernels: Kernels, **changed: Any) -> None:
    wanted: dict[str, Any] = {
        "q": normal(5, 128), "k": np.zeros((9, 128), np.uint8), "v": np.zeros((9, 68), np.uint8),
        "out": normal(5, 128), "state": np.zeros((5, 4, 2), np.float32),
        "k_kind": "f16", "v_kind": "q8_0", "heads": 4, "kv_heads": 2, "head_dim": 32, "scale": 1.0,
        "cells": 9, "first_position": 0, "query_position": 9, "reach": None,
    }  # fmt: skip
    scratch = changed.pop("scratch", np.zeros(kernels.attend_floats(32), np.float32))
    first, last = changed.pop("first", 0), changed.pop("last", 2)
    kernels.attend(CacheAttention(**(wanted | changed)), scratch, first, last)


@pytest.mark.parametrize(
    "changed",
    [
        {"q": normal(4, 128)},
        {"q": normal(5, 96)},
        {"out": normal(5, 160)},
        {"out": normal(6, 128)},
        {"k": np.zeros((8, 128), np.uint8)},
        {"k": np.zeros((9, 127), np.uint8)},
        {"v": np.zeros((10, 68), np.uint8)},
        {"k_kind": "f32"},
        {"v_kind": "f16"},
        {"state": np.zeros((4, 4, 2), np.float32)},
        {"state": np.zeros((5, 2, 2), np.float32)},
        {"state": np.zeros((5, 4, 3), np.float32)},
        {"heads": 0},
        {"heads": 3},
        {"heads": -4},
        {"kv_heads": 0},
        {"kv_heads": 3},
        {"kv_heads": 4},
        {"kv_heads": -2},
        {"head_dim": 0},
        {"head_dim": 16},
        {"head_dim": 31},
        {"head_dim": -32},
        {"cells": 8},
        {"cells": -1},
        {"first_position": -1},
        {"query_position": -1},
        {"reach": -1},
        {"first": -1},
        {"first": 2, "last": 1},
        {"last": 3},
        {"scratch": np.zeros(7, np.float32)},
    ],
    ids=lambda changed: " ".join(f"{name}={getattr(v, 'shape', v)}" for name, v in changed.items()),
)
def test_attention_refuses_mismatched_shapes(kernels: Kernels, changed: dict[str, Any]) -> None:
    call(kernels)
    with pytest.raises(ValueError):
        call(kernels, **changed)


@pytest.mark.skipif(not HAVE_NATIVE, reason="the extension was not built here")
@pytest.mark.parametrize(
    "changed",
    [
        {"q": np.broadcast_to(normal(1, 128), (5, 128))},
        {"q": normal(128, 5).T},
        {"q": normal(5, 256)[:, ::2]},
        {"q": normal(5, 128).astype(np.float64)},
        {"q": normal(1, 5, 128)},
        {"out": np.broadcast_to(normal(1, 128), (5, 128))},
        {"out": normal(5, 128)[::-1]},
        {"k": np.zeros((18, 128), np.uint8)[::2]},
        {"k": np.zeros((9, 256), np.uint8)[:, ::2]},
        {"v": np.zeros((68, 9), np.uint8).T},
        {"state": np.zeros((5, 8, 2), np.float32)[:, ::2]},
        {"state": np.zeros((5, 8), np.float32)},
        {"state": np.zeros((5, 4, 2))},
        {"state": np.frombuffer(bytearray(161), np.float32, 40, offset=1).reshape(5, 4, 2)},
        {"state": np.frombuffer(bytes(160), np.float32).reshape(5, 4, 2)},
        {"out": np.frombuffer(bytes(2560), np.float32).reshape(5, 128)},
        {"scratch": np.zeros(5000, np.float32)[::2]},
        {"scratch": np.zeros((2, 5000), np.float32)},
        {"cells": 2**63 - 1},
        {"first_position": 2**62},
        {"query_position": 2**62},
        {"reach": 2**62},
        {"head_dim": 2**62},
        {"heads": 2**62},
    ],
    ids=lambda changed: " ".join(f"{name}={getattr(v, 'shape', v)}" for name, v in changed.items()),
)
def test_c_refuses_invalid_arrays(changed: dict[str, Any]) -> None:
    with pytest.raises((ValueError, BufferError, OverflowError)):
        call(choose_kernels("native"), **changed)


@pytest.mark.skipif(not HAVE_NATIVE, reason="the extension was not built here")
@pytest.mark.parametrize("name", ["store", "attend", "settle"])
def test_wrong_numbers_of_arguments(name: str) -> None:
    from edgekit.engines.native.kernels import _native

    with pytest.raises(TypeError, match="arguments"):
        getattr(_native, name)(1, 2)


@pytest.mark.parametrize(
    ("out", "state", "heads", "head_dim"),
    [
        ((5, 127), (5, 4, 2), 4, 32),
        ((5, 128), (4, 4, 2), 4, 32),
        ((5, 128), (5, 4, 2), 2, 64),
        ((5, 128), (5, 4, 1), 4, 32),
        ((5, 128), (5, 4, 2), 4, 16),
        ((5, 128), (5, 0, 2), 0, 32),
    ],
)
def test_settle_refuses_too(
    kernels: Kernels, out: tuple[int, int], state: tuple[int, ...], heads: int, head_dim: int
) -> None:
    with pytest.raises(ValueError):
        kernels.settle(normal(*out), np.zeros(state, np.float32), heads, head_dim)


# ---- memory


@pytest.mark.parametrize("kind", CACHE_KINDS)
def test_nothing_is_allocated_that_grows_with_the_cells(kernels: Kernels, kind: CacheKind) -> None:
    peaks = []
    for cells in (400, 4_000):
        case = Case(k_kind=kind, v_kind=kind, tokens=3, cells=cells, query_position=cells - 2)
        run = Run(case)
        room = np.empty(kernels.attend_floats(64), np.float32)
        run.whole(kernels)  # what is made once is made now
        tracemalloc.start()
        span = CacheAttention(
            q=run.q, k=run.k, v=run.v, out=run.out, state=run.state, k_kind=kind, v_kind=kind,
            heads=6, kv_heads=2, head_dim=64, scale=0.125, cells=cells, first_position=0,
            query_position=cells - 2, reach=None,
        )  # fmt: skip
        kernels.attend(span, room, 0, 2)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < (4 if kernels.name == "native" else 48) * 1024


@pytest.mark.parametrize("kind", CACHE_KINDS)
def test_storing_allocates_little_however_much_there_is(kernels: Kernels, kind: CacheKind) -> None:
    x = normal(300, 1024)
    into = stored(kernels, kind, x)
    tracemalloc.start()
    kernels.store(kind, x, into)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (4 if kernels.name == "native" else 256) * 1024


def test_scratch_is_within_the_bill(kernels: Kernels) -> None:
    """The bill does not ask which kernels are installed."""
    for head_dim in (1, 2, *range(8, 520, 8), 1000, 20_000):
        assert kernels.attend_floats(head_dim) <= bill.attend_floats(head_dim)
    for name in KINDS:
        kind = by_name(name)
        for blocks in (1, 8, 500):
            columns = blocks * kind.block_elements
            most = bill.multiply_floats(kind, columns)
            assert kernels.scratch_floats(kind, columns) <= most


def test_attention_needs_no_more_scratch_than_products() -> None:
    """So that a thread's scratch is what a product needs, for every head there is."""
    for head_dim in range(1, 257):
        assert bill.attend_floats(head_dim) <= bill.multiply_floats(by_name("F16"), 1)


def test_threads_share_out_the_heads(kernels: Kernels) -> None:
    case = Case(k_kind="q8_0", v_kind="f16", kv_heads=4, cells=700, query_position=700)
    run = Run(case)
    whole = run.whole(kernels)
    for _ in range(5):
        threads = [
            threading.Thread(target=run.attend, args=(kernels,), kwargs={"heads": (head, head + 1)})
            for head in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (run.settled(kernels) == whole).all()
