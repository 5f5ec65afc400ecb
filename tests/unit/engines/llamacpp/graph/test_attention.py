"""engines/llamacpp/graph/attention.py: widths of attention heads."""

from __future__ import annotations

import pytest

from edgekit.engines.llamacpp.graph.attention import widest_rotation
from edgekit.engines.llamacpp.graph.tensor import NoGraphError


def test_widest_rotation() -> None:
    assert [widest_rotation(width) for width in (64, 80, 192, 256, 512)] == [64, 64, 64, 256, 512]


def test_widest_rotation_of_no_width_gives_up_the_graph() -> None:
    with pytest.raises(NoGraphError):
        widest_rotation(0)
