"""Which layers are built."""

from __future__ import annotations

import pytest

from edgekit.engines.llamacpp.graph.plan import LayerStretch, sample_layers


@pytest.mark.parametrize(
    ("keys", "layers", "stretches"),
    [
        ("a", [0], []),
        ("aaaaa", [0, 1, 2, 3, 4], []),
        ("aaaaaaaz", [0, 1, 2, 3, 4, 7], [(2, 1, 5)]),
        ("daaaaaaaz", [0, 1, 2, 3, 4, 5, 8], [(3, 1, 5)]),
        ("abababababaz", [*range(9), 11], [(3, 2, 4)]),
        ("sssssf" * 5 + "ssz", [*range(25), 31, 32], [(7, 6, 4)]),
        ("aaaaaabbbbbbz", [*range(5), *range(6, 11), 12], [(2, 1, 4), (7, 1, 4)]),
        ("abcdefgh", [*range(8)], []),
    ],
)
def test_sampled_layers(keys: str, layers: list[int], stretches: list[tuple[int, ...]]) -> None:
    sample = sample_layers(keys)
    assert list(sample.layers) == layers
    assert list(sample.stretches) == [LayerStretch(*stretch) for stretch in stretches]


def test_layers_that_are_all_different_are_all_built() -> None:
    assert sample_layers(range(1024)).layers == tuple(range(1024))


def test_built_layers_after_a_stretch_stand_for_its_last_ones() -> None:
    """Of nine equal layers and a last one, 0 to 4 and the last are built; 3 and 4 stand for 7 and 8."""
    assert sample_layers("aaaaaaaaaz").final_numbers == [0, 1, 2, 7, 8, 9]


def test_a_longer_stretch_has_the_same_shape() -> None:
    short, long = "aaaaaaabbbbbbbz", "aaaaaaaaaaabbbbbbz"
    assert sample_layers(short).shape(short) == sample_layers(long).shape(long)
    assert sample_layers(short).shape(short) != sample_layers("aaaaabbbbbbbz").shape(
        "aaaaabbbbbbbz"
    )
