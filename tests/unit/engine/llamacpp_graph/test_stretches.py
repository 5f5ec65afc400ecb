"""Which layers are built."""

from __future__ import annotations

import pytest

from edgekit.engine.llamacpp.graph.stretches import FEW, MORE, Stretch, keep_some


@pytest.mark.parametrize(
    ("keys", "layers", "stretches"),
    [
        ("a", [0], []),
        ("aaaa", [0, 1, 2, 3], []),
        ("aaaaaaaz", [0, 1, 2, 3, 7], [(0, 1, 7)]),
        ("daaaaaaaz", [0, 1, 2, 3, 4, 8], [(1, 1, 7)]),
        ("abababababz", [*range(8), 10], [(0, 2, 5)]),
        ("sssssf" * 5 + "sz", [*range(24), 30, 31], [(0, 6, 5)]),
        ("aaaaaabbbbbbz", [0, 1, 2, 3, 6, 7, 8, 9, 12], [(0, 1, 6), (4, 1, 6)]),
        ("abcdefgh", [*range(8)], []),
    ],
)
def test_kept(keys: str, layers: list[int], stretches: list[tuple[int, ...]]) -> None:
    kept = keep_some(keys, FEW)
    assert list(kept.layers) == layers
    assert list(kept.stretches) == [Stretch(*one) for one in stretches]


def test_one_more_period() -> None:
    assert keep_some("aaaaaaaz", MORE).layers == (0, 1, 2, 3, 4, 7)


def test_layers_that_are_all_different_are_all_built() -> None:
    assert keep_some(range(1024), FEW).layers == tuple(range(1024))
