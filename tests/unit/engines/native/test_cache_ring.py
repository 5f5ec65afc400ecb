"""Which cell a token is in, and which cells a query sees: against a list of what was written where."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgekit.engines.native.cache import CellSpan, Ring


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


class Cells:
    """Which token each cell holds."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.held: list[int | None] = [None] * ring.cells
        self.end = 0

    def keep(self, tokens: int) -> None:
        for first, cell, count in self.ring.places(self.end, tokens):
            for offset in range(count):
                self.held[cell + offset] = self.end + first + offset
        self.end += tokens

    def found(self, query: int, tokens: int) -> list[int]:
        """By one of so many queries: in its own chunk, and in the cells."""
        own = [CellSpan(0, tokens, self.end, self.ring.reach)]
        found = [place for place in _places(own, query) if place >= self.end]
        spans = list(self.ring.spans(self.end, tokens))
        for span in spans:
            held = self.held[span.cell : span.cell + span.cells]
            assert held == list(range(span.position, span.position + span.cells))
        return found + _places(spans, query)


def _places(spans: list[CellSpan], query: int) -> list[int]:
    return [
        place
        for span in spans
        for place in range(span.position, min(span.position + span.cells, query + 1))
        if span.reach is None or place > query - span.reach
    ]


@given(rings(), st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_ring_holds_every_cell_that_a_query_sees(ring: Ring, chunks: list[int]) -> None:
    cells = Cells(ring)
    for wish in chunks:
        tokens = min(wish, ring.cells - ring.sinks)
        if ring.reach is None:
            tokens = min(tokens, ring.cells - cells.end)
        for query in range(cells.end, cells.end + tokens):
            assert sorted(cells.found(query, tokens)) == sorted(seen(ring, query))
        cells.keep(tokens)


def test_the_cells_of_a_window_with_sinks() -> None:
    """Eight cells, two sinks: position 8 takes the cell of position 2."""
    ring = Ring(cells=8, sinks=2, reach=6)
    assert list(ring.places(0, 6)) == [(0, 0, 2), (2, 2, 4)]
    assert list(ring.places(8, 1)) == [(0, 2, 1)]
    assert list(ring.places(12, 4)) == [(0, 6, 2), (2, 2, 2)]


def test_ring_replaces_only_a_cell_out_of_sight() -> None:
    ring = Ring(cells=8, sinks=2, reach=6)
    assert [ring.is_written_over(0, 6), ring.is_written_over(2, 6)] == [False, False]
    assert [ring.is_written_over(7, 2), ring.is_written_over(8, 2)] == [True, True]
    assert [ring.is_written_over(7, 1), ring.is_written_over(8, 1)] == [False, False]
