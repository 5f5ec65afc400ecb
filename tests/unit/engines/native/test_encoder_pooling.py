"""Pooling of token rows into one vector, the choice of a pooling, and normalization."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit.engines.native.encoder import pool, scale_row
from edgekit.engines.native.encoder_plan import choose_pooling
from edgekit.engines.native.families import Pooling
from edgekit.errors import HeaderError, UnknownArchitectureError, UsageError, WeightsError
from edgekit.formats.types import Value

ROWS = np.array([[1, 2], [3, 4], [8, 3]], np.float32)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [(Pooling.MEAN, [4, 3]), (Pooling.CLS, [1, 2]), (Pooling.LAST, [8, 3])],
)
def test_pool_mean_cls_and_last(pooling: Pooling, expected: list[float]) -> None:
    into = np.empty(2, np.float32)
    pool(ROWS, pooling, into)
    assert into.tolist() == expected


def test_pool_mean_of_many_rows_is_within_1e_5() -> None:
    rows = np.random.default_rng(1).normal(3, 1, (4096, 8)).astype(np.float32)
    into = np.empty(8, np.float32)
    pool(rows, Pooling.MEAN, into)
    assert np.abs(into - rows.astype(np.float64).mean(0)).max() < 1e-5


@pytest.mark.parametrize("pooling_type", [1, 2, 3])
def test_choose_pooling_of_the_file_unless_one_is_requested(pooling_type: int) -> None:
    keys = {"bert.pooling_type": pooling_type}
    assert choose_pooling(keys, "bert", None).value == pooling_type
    assert choose_pooling(keys, "bert", Pooling.CLS) is Pooling.CLS


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, r"does not state a pooling: set pooling= \(--pooling\) mean, cls or last"),
        ({"bert.pooling_type": 0}, r"says no pooling \(bert.pooling_type is 0\): set"),
    ],
)
def test_choose_pooling_asks_if_the_file_has_none(keys: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose_pooling(keys, "bert", None)
    assert choose_pooling(keys, "bert", Pooling.LAST) is Pooling.LAST


@pytest.mark.parametrize("pooling_type", [9, True, "mean"])
def test_choose_pooling_refuses_an_unknown_type(pooling_type: Value) -> None:
    keys = {"bert.pooling_type": pooling_type}
    with pytest.raises(
        HeaderError, match=f"is {pooling_type!r}, which is not a known pooling: set"
    ) as caught:
        choose_pooling(keys, "bert", None)
    assert caught.value.exit_code == 5
    assert choose_pooling(keys, "bert", Pooling.LAST) is Pooling.LAST


@pytest.mark.parametrize("requested", [None, Pooling.MEAN])
def test_choose_pooling_refuses_rerankers(requested: Pooling | None) -> None:
    with pytest.raises(UnknownArchitectureError, match="reranker") as caught:
        choose_pooling({"qwen3.pooling_type": 4}, "qwen3", requested)
    assert caught.value.exit_code == 5


def test_scale_row_gives_length_one_unless_nearly_zero() -> None:
    rows = np.array([[3, 4], [0, 0], [1e-10, 0], [1e25, 0]], np.float32)
    for row in rows:
        scale_row(row)
    assert rows[0].tolist() == pytest.approx([0.6, 0.8])
    assert rows[1].tolist() == [0, 0]
    assert rows[2].tolist() == pytest.approx([1e-10, 0])
    assert rows[3].tolist() == pytest.approx([1, 0])


def test_scale_row_without_normalize_keeps_the_length() -> None:
    row = np.array([3, 4], np.float32)
    scale_row(row, normalize=False)
    assert row.tolist() == [3, 4]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("normalize", [True, False])
def test_scale_row_refuses_numbers_that_are_not_finite(bad: float, normalize: bool) -> None:  # noqa: FBT001 - pytest gives it by name
    with pytest.raises(WeightsError, match="not a finite number"):
        scale_row(np.array([1, bad], np.float32), normalize=normalize)
