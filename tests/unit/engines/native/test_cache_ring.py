"""Ring: the cell of each token, and the cells that a query sees, compared with a plain list of written tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgekit.engines.native.cache import CellSpan, Ring


@st.composite
def rings(draw: st.DrawFn) -> Ring:
    """A full layer, a rolling one, or a sliding-window layer that has as many cells as its window or more."""
    cells = draw(st.integers(1, 12))
    kind = draw(st.sampled_from(["full", "rolling", "window"]))
    if kind == "full":
        return Ring(cells=cells, sinks=0, reach=None)
    if kind == "window":
        return Ring(cells=cells, sinks=0, reach=draw(st.integers(1, cells)))
    sinks = draw(st.integers(0, cells - 1))
    return Ring(cells=cells, sinks=sinks, reach=cells - sinks)


def visible_positions(ring: Ring, position: int) -> set[int]:
    """The positions that a query at `position` must see, its own included."""
    first = 0 if ring.reach is None else max(0, position + 1 - ring.reach)
    if position < ring.cells and ring.sinks:
        return set(range(position + 1))
    return {*range(min(ring.sinks, position + 1)), *range(first, position + 1)}


class PlainCache:
    """The position held by each cell."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.held: list[int | None] = [None] * ring.cells
        self.end = 0

    def store(self, tokens: int) -> None:
        for first, cell, count in self.ring.places(self.end, tokens):
            for offset in range(count):
                self.held[cell + offset] = self.end + first + offset
        self.end += tokens

    def positions_read(self, query: int, tokens: int) -> list[int]:
        """The positions that one query of a chunk of `tokens` reads: in its own chunk, and in the cells."""
        chunk = [CellSpan(0, tokens, self.end, self.ring.reach)]
        in_chunk = [position for position in _visible(chunk, query) if position >= self.end]
        spans = list(self.ring.spans(self.end, tokens))
        for span in spans:
            held = self.held[span.cell : span.cell + span.cells]
            assert held == list(range(span.position, span.position + span.cells))
        return in_chunk + _visible(spans, query)


def _visible(spans: list[CellSpan], query: int) -> list[int]:
    return [
        position
        for span in spans
        for position in range(span.position, min(span.position + span.cells, query + 1))
        if span.reach is None or position > query - span.reach
    ]


@given(rings(), st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_ring_holds_every_position_that_a_query_sees(ring: Ring, chunks: list[int]) -> None:
    cache = PlainCache(ring)
    for chunk_tokens in chunks:
        tokens = min(chunk_tokens, ring.cells - ring.sinks)
        if ring.reach is None:
            tokens = min(tokens, ring.cells - cache.end)
        for query in range(cache.end, cache.end + tokens):
            assert sorted(cache.positions_read(query, tokens)) == sorted(
                visible_positions(ring, query)
            )
        cache.store(tokens)


def test_ring_places_with_sinks() -> None:
    """Eight cells, two sinks: position 8 takes the cell of position 2."""
    ring = Ring(cells=8, sinks=2, reach=6)
    assert list(ring.places(0, 6)) == [(0, 0, 2), (2, 2, 4)]
    assert list(ring.places(8, 1)) == [(0, 2, 1)]
    assert list(ring.places(12, 4)) == [(0, 6, 2), (2, 2, 2)]


def test_ring_says_whether_a_chunk_overwrites_visible_cells() -> None:
    ring = Ring(cells=8, sinks=2, reach=6)
    assert [ring.is_written_over(0, 6), ring.is_written_over(2, 6)] == [False, False]
    assert [ring.is_written_over(7, 2), ring.is_written_over(8, 2)] == [True, True]
    assert [ring.is_written_over(7, 1), ring.is_written_over(8, 1)] == [False, False]
