"""The scale of `Entry.uses`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgekit.index.types import MAX_USES, uses_of_downloads


def test_uses_of_downloads_of_round_numbers() -> None:
    assert [uses_of_downloads(10**n) for n in (0, 3, 6, 18)] == [0.0, 4.49, 11.57, MAX_USES]


@given(st.integers(0, 2**70), st.integers(0, 2**70))
def test_uses_of_downloads_never_fall_with_more_downloads(one: int, other: int) -> None:
    fewer, more = sorted((one, other))
    assert 0 <= uses_of_downloads(fewer) <= uses_of_downloads(more) <= MAX_USES
