"""Kernels of the KV cache: store is bit for bit like GGML, attend and settle equal float64."""

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
from tests.embed_kernels import HAVE_NATIVE, KINDS, kernel_names, use_kernels
from tests.thoroughness import LONG

from edgekit.bill.types import cache_type
from edgekit.engines.native import stream_plan
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
GUARD = 64  # floats after the scratch that must not change


@pytest.fixture(params=kernel_names())
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    with use_kernels(request.param) as chosen:
        yield chosen


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


# ---- store


def store(kernels: Kernels, kind: CacheKind, x: Floats) -> U8:
    into = np.full((len(x), cache_type(kind).row_bytes(x.shape[1])), 77, np.uint8)
    kernels.store(kind, x, into)
    return into


def of_all_magnitudes(rows: int, columns: int) -> Floats:
    """Blocks of every magnitude of a float32, including those that are subnormal as halves and as floats."""
    draw = np.random.default_rng(5)
    magnitudes = np.exp2(draw.uniform(-126, 15, (rows, columns // 32, 1)))
    return (draw.standard_normal((rows, columns // 32, 32)) * magnitudes).astype(np.float32).reshape(
        rows, columns
    )  # fmt: skip


def test_store_f32_is_unchanged(kernels: Kernels) -> None:
    x = of_all_magnitudes(5, 96)
    assert store(kernels, "f32", x).tobytes() == x.tobytes()


def test_store_f16_equals_numpy(kernels: Kernels) -> None:
    every_half = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (every_half[1:] + every_half[:-1]) / 2  # ties go to even
    near = np.nextafter(between, np.float32(0)), np.nextafter(between, np.float32(np.inf))
    x = np.concatenate([every_half, between, *near, -between, -every_half])[None]
    assert store(kernels, "f16", x).tobytes() == x.astype(np.float16).tobytes()


def test_store_f16_clamps_to_the_largest_half(kernels: Kernels) -> None:
    x = np.array([[65504, 65519.99, 65520, 1e30, -65504, -65520, -3.4e38]], np.float32)
    halves = store(kernels, "f16", x).view(np.float16)
    assert halves.tolist() == [[65504, 65504, 65504, 65504, -65504, -65504, -65504]]


def test_store_q8_0_equals_gguf_py(kernels: Kernels) -> None:
    x = np.concatenate(
        [of_all_magnitudes(40, 256), normal(40, 256), np.zeros((1, 256), np.float32)]
    )
    with np.errstate(all="ignore"):
        expected = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0)
    assert store(kernels, "q8_0", x).tobytes() == expected.tobytes()


@pytest.mark.skipif(sys.platform == "win32", reason="the library exports its functions elsewhere")
def test_store_q8_0_equals_ggml(kernels: Kernels) -> None:
    x = np.concatenate([of_all_magnitudes(40, 256), normal(40, 256)])
    expected = np.empty((len(x), 272), np.uint8)
    quantize = ggml_function("quantize_row_q8_0_ref")
    quantize(x.ctypes.data, expected.ctypes.data, x.size)
    blocks, expected = store(kernels, "q8_0", x).reshape(-1, 34), expected.reshape(-1, 34)
    # For the smallest floats GGML converts infinity to an integer, which gives different codes on different CPUs. The
    # scale is 0, so the values are 0 everywhere.
    has_scale = np.abs(x.reshape(-1, 32)).max(axis=1) > 127 / np.finfo(np.float32).max
    assert blocks[has_scale].tobytes() == expected[has_scale].tobytes()
    assert blocks[:, :2].tobytes() == expected[:, :2].tobytes()
    assert not blocks[~has_scale, :2].any()
    assert 0 < np.count_nonzero(~has_scale) < 20


def ggml_function(name: str) -> Callable[[int, int, int], None]:
    result = find_spec("xllamacpp")
    assert result is not None
    assert result.origin is not None
    (library,) = Path(result.origin).parent.glob("xllamacpp*.so")
    function = getattr(ctypes.CDLL(str(library)), name)
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    function.restype = None
    return function  # type: ignore[no-any-return]  # a foreign function is typed as Any


def test_store_q8_0_rounds_half_away_from_zero(kernels: Kernels) -> None:
    """With 127 as the largest number the scale is 1, so each number is rounded to its own code."""
    x = np.zeros((1, 32), np.float32)
    x[0, :9] = (127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 126.5)
    block = store(kernels, "q8_0", x)
    assert block[0, :2].view(np.float16) == 1
    assert block[0, 2:11].view(np.int8).tolist() == [127, 1, 2, 3, -1, -2, -3, 0, 127]


def test_store_q8_0_scale_outside_the_range_of_a_half(kernels: Kernels) -> None:
    """A scale that is too large becomes the largest half; one too small for a reciprocal becomes 0."""
    x = np.zeros((2, 32), np.float32)
    x[0, :3] = (3e38, -3e38, 65504 * 12.7)
    x[1, :2] = (1e-44, -1e-40)
    blocks = store(kernels, "q8_0", x)
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
        store(kernels, kind, x)
    assert raised.value.block == (41 * 9600 + 9000) // cache_type(kind).block_elements


@pytest.mark.parametrize("kind", CACHE_KINDS)
def test_store_accepts_rows_with_gaps(kernels: Kernels, kind: CacheKind) -> None:
    wide = normal(7, 200)
    x = wide[:, 3:163]
    assert (store(kernels, kind, x) == store(kernels, kind, x.copy())).all()


def test_store_writes_only_its_cells(kernels: Kernels) -> None:
    buffer = np.full(2 * 3 * 34 + 8, 99, np.uint8)
    kernels.store("q8_0", normal(2, 96), buffer[3:-5])
    assert (buffer[:3] == 99).all()
    assert (buffer[-5:] == 99).all()


@pytest.mark.parametrize(
    ("kind", "columns", "size_bytes"),
    [("f32", 8, 63), ("f32", 8, 65), ("f16", 8, 0), ("q8_0", 32, 64), ("q8_0", 40, 84)],
)
def test_store_refuses_other_sizes(
    kernels: Kernels, kind: CacheKind, columns: int, size_bytes: int
) -> None:
    with pytest.raises(ValueError):
        kernels.store(kind, normal(2, columns), np.zeros(size_bytes, np.uint8))


def test_store_without_rows(kernels: Kernels) -> None:
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
    """Queries over cells, with all the arrays that a caller holds."""

    def __init__(self, case: Case) -> None:
        self.case = case
        width = case.kv_heads * case.head_dim
        self.wide = normal(case.tokens, case.heads * case.head_dim + 3, seed=case.seed)
        self.q = self.wide[:, 2:-1]
        reference = choose_kernels("numpy")
        self.k = store(reference, case.k_kind, normal(case.cells, width, seed=case.seed + 1))
        self.v = store(reference, case.v_kind, normal(case.cells, width, seed=case.seed + 2))
        self.begin()

    def begin(self) -> None:
        case = self.case
        self.padded_out = np.zeros((case.tokens, case.heads * case.head_dim + 5), np.float32)
        self.out = self.padded_out[:, 1:-4]
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
        first_query, last_query = queries or (0, case.tokens)
        first, last = heads or (0, case.kv_heads)
        floats = kernels.attend_floats(case.head_dim)
        scratch = np.full(floats + GUARD, -7, np.float32)
        span = CacheAttention(
            q=self.q[first_query:last_query], k=self.k[start:end], v=self.v[start:end],
            out=self.out[first_query:last_query], state=self.state[first_query:last_query],
            k_kind=case.k_kind, v_kind=case.v_kind, heads=case.heads, kv_heads=case.kv_heads,
            head_dim=case.head_dim, scale=case.head_dim**-0.5, cells=end - start,
            first_position=case.first_position + start,
            query_position=case.query_position + first_query, reach=case.reach,
        )  # fmt: skip
        kernels.attend(span, scratch[:floats], first, last)
        assert (scratch[floats:] == -7).all()

    def settle(self, kernels: Kernels) -> Floats:
        case = self.case
        kernels.settle(self.out, self.state, case.heads, case.head_dim)
        assert (self.padded_out[:, :1] == 0).all()
        assert (self.padded_out[:, -4:] == 0).all()
        out = self.out.copy()
        self.begin()
        return out

    def attend_all(self, kernels: Kernels) -> Floats:
        self.attend(kernels)
        return self.settle(kernels)

    def unpack(self, kind: CacheKind, cells: U8) -> Exact:
        flat: Floats = gguf.quants.dequantize(cells, gguf.GGMLQuantizationType[kind.upper()])
        return flat.reshape(self.case.cells, self.case.kv_heads, self.case.head_dim).astype(
            np.float64
        )

    def exact(self) -> Exact:
        case = self.case
        k = np.repeat(self.unpack(case.k_kind, self.k), case.group, axis=1)
        v = np.repeat(self.unpack(case.v_kind, self.v), case.group, axis=1)
        q = self.q.reshape(case.tokens, case.heads, case.head_dim).astype(np.float64)
        scores = q.transpose(1, 0, 2) @ k.transpose(1, 2, 0) * case.head_dim**-0.5
        scores[:, ~self.visible()] = -np.inf
        shares = np.exp(scores - scores.max(2, keepdims=True, initial=-1e30))
        shares /= np.maximum(shares.sum(2, keepdims=True), 1e-300)
        mixed: Exact = shares @ v.transpose(1, 0, 2)
        return mixed.transpose(1, 0, 2).reshape(case.tokens, case.heads * case.head_dim)

    def visible(self) -> NDArray[np.bool_]:
        case = self.case
        positions = case.first_position + np.arange(case.cells)
        away = case.query_position + np.arange(case.tokens)[:, None] - positions
        return (away >= 0) & (away < (np.inf if case.reach is None else case.reach))


def close(a: Floats, b: Floats | Exact) -> bool:
    return a.shape == b.shape and bool(np.abs(a - b).max(initial=0) < 1e-5)


@pytest.mark.parametrize("head_dim", WIDTHS)
@pytest.mark.parametrize("v_kind", CACHE_KINDS)
@pytest.mark.parametrize("k_kind", CACHE_KINDS)
def test_attention_every_cache_type_and_head_size(
    kernels: Kernels, k_kind: CacheKind, v_kind: CacheKind, head_dim: int
) -> None:
    if "q8_0" in (k_kind, v_kind) and head_dim % 32:
        return
    for tokens in (1, 6):
        case = Case(k_kind=k_kind, v_kind=v_kind, head_dim=head_dim, tokens=tokens)
        run = Run(case)
        assert close(run.attend_all(kernels), run.exact())


@pytest.mark.parametrize("tokens", [1, 2, 35])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 33])
def test_attention_every_group_size(kernels: Kernels, group: int, tokens: int) -> None:
    case = Case(kv_heads=1, group=group, head_dim=32, tokens=tokens, cells=90, query_position=60)
    for k_kind, v_kind in pairwise(CACHE_KINDS):
        run = Run(replace(case, k_kind=k_kind, v_kind=v_kind))
        assert close(run.attend_all(kernels), run.exact())


def test_attention_head_sizes_that_are_not_whole_vectors(kernels: Kernels) -> None:
    for head_dim in (1, 3, 5, 8, 15, 17, 33, 100):
        for kind in ("f32", "f16"):
            run = Run(Case(k_kind=kind, v_kind=kind, head_dim=head_dim, cells=70))
            assert close(run.attend_all(kernels), run.exact())


def test_attention_over_8000_cells_in_spans(kernels: Kernels) -> None:
    """Each cell has a small share of the sum."""
    case = Case(k_kind="f16", v_kind="q8_0", tokens=1, cells=8_000, query_position=8_000)
    run = Run(case)
    for first, last in pairwise(range(0, 8_001, 1_000)):
        run.attend(kernels, (first, last))
    assert close(run.settle(kernels), run.exact())


def test_attention_with_scores_that_overflow_exp(kernels: Kernels) -> None:
    """exp of the largest score is infinite, that of the others 0."""
    run = Run(Case(cells=300, query_position=300))
    run.q *= 1000
    result = run.attend_all(kernels)
    assert np.isfinite(result).all()
    assert np.abs(result - run.exact()).max() < 1e-3  # scores of 1e4 have steps of 1e-3


# ---- laws

widths = st.sampled_from(WIDTHS)
any_kernels = st.sampled_from(kernel_names())


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


def split(data: st.DataObject, count: int) -> list[tuple[int, int]]:
    bounds = data.draw(st.lists(st.integers(0, count), max_size=4))
    return list(pairwise(sorted([0, *bounds, count])))


@given(any_kernels, cases(), st.data())
@settings(max_examples=80 if LONG else 20, deadline=None)
def test_attention_over_spans_in_any_order(name: str, case: Case, data: st.DataObject) -> None:
    run = Run(case)
    spans = data.draw(st.permutations(split(data, case.cells)))
    with use_kernels(name) as kernels:
        expected = run.attend_all(kernels)
        for span in spans:
            run.attend(kernels, span)
        parts = run.settle(kernels)
    assert close(expected, run.exact())
    assert close(parts, expected)


@given(any_kernels, cases(), st.data())
@settings(max_examples=60 if LONG else 20, deadline=None)
def test_attention_of_queries_in_chunks(name: str, case: Case, data: st.DataObject) -> None:
    run = Run(case)
    with use_kernels(name) as kernels:
        expected = run.attend_all(kernels)
        for queries in split(data, case.tokens):
            run.attend(kernels, queries=queries)
        assert close(run.settle(kernels), expected)


@given(any_kernels, cases(), st.data())
@settings(max_examples=40 if LONG else 20, deadline=None)
def test_attention_of_key_heads_one_after_another(
    name: str, case: Case, data: st.DataObject
) -> None:
    """Bit for bit: no head's sums depend on another's."""
    run = Run(case)
    with use_kernels(name) as kernels:
        expected = run.attend_all(kernels)
        for heads in split(data, case.kv_heads):
            run.attend(kernels, heads=heads)
        assert (run.settle(kernels) == expected).all()


@given(any_kernels, cases())
@settings(max_examples=30 if LONG else 20, deadline=None)
def test_attention_ignores_a_span_out_of_sight(name: str, case: Case) -> None:
    run = Run(replace(case, query_position=max(0, case.first_position - case.tokens)))
    if case.first_position < case.tokens:
        return
    beyond_reach = Run(replace(case, reach=9, query_position=case.first_position + case.cells + 8))
    with use_kernels(name) as kernels:
        for item in (run, beyond_reach):
            item.padded_out[:] = 3
            item.state[:] = (0.5, 2)
            item.attend(kernels)
            assert (item.padded_out == 3).all()
            assert (item.state == (0.5, 2)).all()


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
    """All keys are equal, so the result is the mean of the visible values, which are 1, 2, 4, 8 and 16."""
    case = Case(kv_heads=1, group=1, head_dim=32, tokens=1, cells=5, first_position=10,
                query_position=position, reach=reach)  # fmt: skip
    run = Run(case)
    run.k[:] = 0
    kernels.store("f32", np.repeat(2.0 ** np.arange(5, dtype=np.float32)[:, None], 32, 1), run.v)
    expected = sum(2.0 ** (cell - 10) for cell in seen) / max(1, len(seen))
    assert run.attend_all(kernels) == pytest.approx(expected, rel=1e-6)


# ---- NaN and infinity


@pytest.mark.parametrize("tokens", [1, 12])
def test_attention_nan_query_affects_only_itself(kernels: Kernels, tokens: int) -> None:
    run = Run(Case(tokens=tokens))
    expected = run.attend_all(kernels)
    run.q[0, 5] = np.nan
    result = run.attend_all(kernels)
    head = run.case.head_dim
    assert np.isnan(result[0, :head]).all()
    assert (result[:, head:] == expected[:, head:]).all()
    assert (result[1:] == expected[1:]).all()


@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize("kind", CACHE_KINDS)
def test_attention_nan_cell_affects_only_queries_that_see_it(
    kernels: Kernels, kind: CacheKind, which: str
) -> None:
    case = Case(k_kind=kind, v_kind=kind, tokens=40, cells=60, query_position=20)
    run = Run(case)
    expected = run.attend_all(kernels)
    cell = getattr(run, which)[31]
    cell[:4] = np.array([np.nan], "<f4").view(np.uint8)  # of key head 0
    if kind != "f32":
        cell[:2] = np.array([np.nan], "<f2").view(np.uint8)
    result = run.attend_all(kernels)
    before, heads = slice(0, 31 - 20), slice(0, case.group * case.head_dim)
    assert (result[before] == expected[before]).all()
    assert not np.isfinite(result[11:, heads]).all(axis=1).any()
    assert (result[:, heads.stop :] == expected[:, heads.stop :]).all()


@pytest.mark.parametrize("kind", CACHE_KINDS)
def test_attention_accepts_any_bits(kernels: Kernels, kind: CacheKind) -> None:
    """attend and settle give neither an error nor a warning."""
    run = Run(Case(k_kind=kind, v_kind=kind, tokens=9))
    draw = np.random.default_rng(3)
    for cells in (run.k, run.v):
        cells[:] = draw.integers(0, 256, cells.shape, np.uint8)
    run.wide.view(np.uint32)[:] = draw.integers(0, 2**32, run.wide.shape, np.uint32)
    run.attend_all(kernels)
    run.state[:] = (np.inf, np.nan)
    run.padded_out[:, 1:-4] = np.inf
    run.attend_all(kernels)


def test_settle_of_a_head_that_saw_nothing_gives_zeros(kernels: Kernels) -> None:
    run = Run(Case())
    run.out[:] = 5
    run.state[..., 1] = 2
    run.state[1, 2] = (-np.inf, 0)
    out = run.settle(kernels).reshape(5, 6, 64)
    assert (out[1, 2] == 0).all()
    assert (np.delete(out.reshape(30, 64), 8, 0) == 2.5).all()


# ---- shapes


def call(kernels: Kernels, **changed: Any) -> None:
    arguments: dict[str, Any] = {
        "q": normal(5, 128), "k": np.zeros((9, 128), np.uint8), "v": np.zeros((9, 68), np.uint8),
        "out": normal(5, 128), "state": np.zeros((5, 4, 2), np.float32),
        "k_kind": "f16", "v_kind": "q8_0", "heads": 4, "kv_heads": 2, "head_dim": 32, "scale": 1.0,
        "cells": 9, "first_position": 0, "query_position": 9, "reach": None,
    }  # fmt: skip
    scratch = changed.pop("scratch", np.zeros(kernels.attend_floats(32), np.float32))
    first, last = changed.pop("first", 0), changed.pop("last", 2)
    kernels.attend(CacheAttention(**(arguments | changed)), scratch, first, last)


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
def test_attend_in_c_refuses_invalid_arrays(changed: dict[str, Any]) -> None:
    with pytest.raises((ValueError, BufferError, OverflowError)):
        call(choose_kernels("native"), **changed)


@pytest.mark.skipif(not HAVE_NATIVE, reason="the extension was not built here")
@pytest.mark.parametrize("name", ["store", "attend", "settle"])
def test_cache_kernels_refuse_a_wrong_number_of_arguments(name: str) -> None:
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
def test_settle_refuses_mismatched_shapes(
    kernels: Kernels, out: tuple[int, int], state: tuple[int, ...], heads: int, head_dim: int
) -> None:
    with pytest.raises(ValueError):
        kernels.settle(normal(*out), np.zeros(state, np.float32), heads, head_dim)


# ---- memory


@pytest.mark.parametrize("kind", CACHE_KINDS)
def test_attend_memory_does_not_grow_with_the_cells(kernels: Kernels, kind: CacheKind) -> None:
    peaks = []
    for cells in (400, 4_000):
        case = Case(k_kind=kind, v_kind=kind, tokens=3, cells=cells, query_position=cells - 2)
        run = Run(case)
        scratch = np.empty(kernels.attend_floats(64), np.float32)
        run.attend_all(kernels)  # allocate what is created on first use
        tracemalloc.start()
        span = CacheAttention(
            q=run.q, k=run.k, v=run.v, out=run.out, state=run.state, k_kind=kind, v_kind=kind,
            heads=6, kv_heads=2, head_dim=64, scale=0.125, cells=cells, first_position=0,
            query_position=cells - 2, reach=None,
        )  # fmt: skip
        kernels.attend(span, scratch, 0, 2)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < (4 if kernels.name == "native" else 48) * 1024


@pytest.mark.parametrize("kind", CACHE_KINDS)
def test_store_memory_does_not_grow_with_the_rows(kernels: Kernels, kind: CacheKind) -> None:
    x = normal(300, 1024)
    into = store(kernels, kind, x)
    tracemalloc.start()
    kernels.store(kind, x, into)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (4 if kernels.name == "native" else 256) * 1024


def test_scratch_of_every_kernel_is_within_the_plan(kernels: Kernels) -> None:
    """The plan is the same for all kernels."""
    for head_dim in (1, 2, *range(8, 520, 8), 1000, 20_000):
        assert kernels.attend_floats(head_dim) <= stream_plan.attend_floats(head_dim)
    for name in KINDS:
        kind = by_name(name)
        for blocks in (1, 8, 500):
            columns = blocks * kind.block_elements
            planned = stream_plan.multiply_floats(kind, columns)
            assert kernels.scratch_floats(kind, columns) <= planned


def test_attention_needs_no_more_scratch_than_multiply() -> None:
    """A thread's scratch is sized for multiply; attention must fit in it for every head size."""
    for head_dim in range(1, 257):
        assert stream_plan.attend_floats(head_dim) <= stream_plan.multiply_floats(by_name("F16"), 1)


def test_attention_with_one_thread_per_key_head(kernels: Kernels) -> None:
    case = Case(k_kind="q8_0", v_kind="f16", kv_heads=4, cells=700, query_position=700)
    run = Run(case)
    expected = run.attend_all(kernels)
    for _ in range(5):
        threads = [
            threading.Thread(target=run.attend, args=(kernels,), kwargs={"heads": (head, head + 1)})
            for head in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (run.settle(kernels) == expected).all()
