"""Which layers of a model a plan builds, and which layers each of them represents."""

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
def test_sample_layers(keys: str, layers: list[int], stretches: list[tuple[int, ...]]) -> None:
    sample = sample_layers(keys)
    assert list(sample.layers) == layers
    assert list(sample.stretches) == [LayerStretch(*stretch) for stretch in stretches]


def test_sample_layers_that_are_all_different() -> None:
    assert sample_layers(range(1024)).layers == tuple(range(1024))


def test_final_numbers_of_layers_after_a_stretch() -> None:
    """Of nine equal layers and a last one, 0 to 4 and the last are built; 3 and 4 represent 7 and 8."""
    assert sample_layers("aaaaaaaaaz").final_numbers == [0, 1, 2, 7, 8, 9]


def test_shape_of_a_longer_stretch_is_the_same() -> None:
    shorter, longer = "aaaaaaabbbbbbbz", "aaaaaaaaaaabbbbbbz"
    too_short = "aaaaabbbbbbbz"  # five a's are built without a stretch
    assert sample_layers(shorter).shape(shorter) == sample_layers(longer).shape(longer)
    assert sample_layers(shorter).shape(shorter) != sample_layers(too_short).shape(too_short)
