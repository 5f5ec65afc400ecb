"""Which cell a token is in, and which cells a query sees: against a list of what was written where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.runtime.stream.ring import Ring


@st.composite
def rings(draw: st.DrawFn) -> Ring:
    """A full layer, a rolling one, and one with a window of its own, in as many cells or in more."""
    cells = draw(st.integers(1, 12))
    kind = draw(st.sampled_from(["full", "rolling", "window"]))
    if kind == "full":
        return Ring(cells=cells, sinks=0, reach=None)
    if kind == "window":
        return Ring(cells=cells, sinks=0, reach=draw(st.integers(1, cells)))
    sinks = draw(st.integers(0, cells - 1))
    return Ring(cells=cells, sinks=sinks, reach=cells - sinks)


def seen(ring: Ring, place: int) -> set[int]:
    """What a query at `place` must see, itself included."""
    first = 0 if ring.reach is None else max(0, place + 1 - ring.reach)
    if place < ring.cells and ring.sinks:
        return set(range(place + 1))
    return {*range(min(ring.sinks, place + 1)), *range(first, place + 1)}


@given(rings(), st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_every_query_finds_what_it_must_see_in_its_cells(ring: Ring, chunks: list[int]) -> None:
    written: list[int | None] = [None] * ring.cells
    end = 0
    for wish in chunks:
        tokens = min(wish, ring.cells - ring.sinks)
        if ring.reach is None:
            tokens = min(tokens, ring.cells - end)
        if not tokens:
            break
        for query in range(end, end + tokens):
            found = set(range(end, query + 1))  # of the chunk itself
            if ring.reach is not None:
                found = {place for place in found if place > query - ring.reach}
            for span in ring.spans(end, tokens):
                for offset in range(span.cells):
                    place = span.position + offset
                    assert written[span.cell + offset] == place
                    if span.reach is None or place > query - span.reach:
                        assert place not in found
                        found.add(place)
            assert found == seen(ring, query)
        for first, cell, count in ring.places(end, tokens):
            for offset in range(count):
                written[cell + offset] = end + first + offset
        end += tokens


def test_the_cells_of_a_window_with_sinks() -> None:
    """Eight cells, two sinks: position 8 takes the cell of position 2."""
    ring = Ring(cells=8, sinks=2, reach=6)
    assert list(ring.places(0, 6)) == [(0, 0, 2), (2, 2, 4)]
    assert list(ring.places(8, 1)) == [(0, 2, 1)]
    assert list(ring.places(12, 4)) == [(0, 6, 2), (2, 2, 2)]


@pytest.mark.parametrize(
    ("start", "tokens", "harmful"), [(0, 8, False), (7, 2, True), (8, 1, False), (8, 2, True)]
)
def test_one_token_takes_only_the_cell_of_what_it_does_not_see(
    start: int, tokens: int, harmful: bool
) -> None:
    assert Ring(cells=8, sinks=2, reach=6).is_written_over(start, tokens) is harmful
