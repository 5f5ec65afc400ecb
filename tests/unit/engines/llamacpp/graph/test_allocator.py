"""The high-water mark of an allocator with best fit, for programs whose sections repeat."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.engines.llamacpp.graph.allocator import (
    ALLOCATE,
    FREE,
    WHOLE,
    Event,
    Program,
    Section,
    high_water,
)
from edgekit.errors import RefusedError

UNIT = 32


def program(text: str) -> Program:
    """A program like "a4 b2 -a": allocate 4 units for `a` and 2 for `b`, then free `a`."""
    sizes: list[int] = []
    slots: dict[str, int] = {}

    def events(text: str) -> tuple[Event, ...]:
        return tuple(map(event, text.split()))

    def event(word: str) -> Event:
        if word.startswith("-"):
            return (FREE, slots[word[1:]], slots[word[1:]], WHOLE)
        slots[word[0]] = len(slots)
        sizes.append(int(word[1:]) * UNIT)
        return (ALLOCATE, slots[word[0]], slots[word[0]], WHOLE)

    sections = (Section(events=events(text)),)
    return Program(alignment=UNIT, sections=sections, sizes=tuple(sizes), slots=len(slots))


def units(text: str) -> int:
    return high_water(program(text), {}) // UNIT


def test_blocks_in_use_do_not_overlap() -> None:
    assert units("a4 b2 c1") == 7


def test_best_fitting_hole_is_used() -> None:
    # a2 b1 c3 d1 leaves holes of 2 and 3; 2 fits the first, 3 the other
    assert units("a2 b1 c3 d1 -a -c e2 f3") == 7
    assert units("a2 b1 c3 d1 -a -c f3 e2") == 7
    assert units("a2 b1 c3 d1 -a -c e1 f3") == 7


def test_last_of_equal_holes_is_used() -> None:
    # holes of 2 at 0 and at 3; g goes to the second, so that b and the first make 3
    assert units("a2 b1 c2 d1 -a -c g2 -b h3") == 6


def test_adjacent_holes_merge() -> None:
    assert units("a1 b1 c1 d1 -a -c -b e3") == 4
    assert units("a1 b1 c1 d1 -b -a -c e3") == 4
    assert units("a1 b1 c1 -c -b d2") == 3


def test_buffer_grows_when_no_hole_fits() -> None:
    assert units("a2 b1 -a c3") == 6


def test_empty_blocks_take_no_space() -> None:
    assert units("a0 b2 -a c0 -b -c d2") == 2


class Reference:
    """A literal transcription of ggml_dyn_tallocr: one list of [start, length]."""

    def __init__(self) -> None:
        self.free = [[0, 2**62]]
        self.top = 0

    def allocate(self, size: int) -> int:
        best = len(self.free) - 1
        for i, (_, length) in enumerate(self.free[:-1]):
            if length >= size and (best == len(self.free) - 1 or length <= self.free[best][1]):
                best = i
        start = self.free[best][0]
        self.free[best][0] += size
        self.free[best][1] -= size
        if not self.free[best][1]:
            del self.free[best]
        self.top = max(self.top, start + size)
        return start

    def release(self, start: int, size: int) -> None:
        self.free.append([start, size])
        self.free.sort()
        merged = [self.free[0]]
        for block in self.free[1:]:
            if merged[-1][0] + merged[-1][1] == block[0]:
                merged[-1][1] += block[1]
            else:
                merged.append(block)
        self.free = merged


@st.composite
def bodies(draw: st.DrawFn) -> tuple[list[Event], int]:
    """Events of one round. Slots below `n` are blocks of the previous round, the next `n` those of this round."""
    n = draw(st.integers(1, 6))
    carried = draw(st.lists(st.integers(0, n - 1), unique=True, max_size=3))
    freed_here = [i for i in range(n) if i not in carried]
    events: list[Event] = [(ALLOCATE, n + i, i, WHOLE) for i in range(n)]
    for i in freed_here:
        after = draw(st.integers(events.index((ALLOCATE, n + i, i, WHOLE)) + 1, len(events)))
        events.insert(after, (FREE, n + i, i, WHOLE))
    for i in carried:
        # A block of the previous round, with the size it had there.
        events.insert(draw(st.integers(0, len(events))), (FREE, i, n + i, WHOLE))
    return events, n


block_sizes = st.integers(1, 9).map(lambda count: count * UNIT)


@given(bodies(), st.data(), st.integers(1, 40))
def test_high_water_of_repeated_rounds_equals_the_reference(
    body: tuple[list[Event], int], data: st.DataObject, rounds: int
) -> None:
    """Each round has one of a few sets of sizes, like layers whose weights have one of a few types."""
    events, n = body
    classes = data.draw(st.lists(st.tuples(*[block_sizes] * n), min_size=1, max_size=3))
    order = data.draw(st.lists(st.sampled_from(classes), min_size=rounds + 1, max_size=rounds + 1))
    carried = tuple(slot for _, slot, _, _ in events if slot < n)
    first = tuple((ALLOCATE, i, i, WHOLE) for i in range(n) if i in carried)
    again = Section(
        events=tuple(events),
        base=n,
        slots=n,
        carried=carried,
        round_sizes=tuple(range(2 * n)),
        rounds=tuple((*now, *before) for before, now in pairwise(order)),
    )
    folded = Program(
        alignment=UNIT,
        sections=(Section(events=first), again),
        sizes=order[0],
        round_sizes=n,
        slots=3 * n,
    )
    heap = Reference()
    starts = {slot: heap.allocate(order[0][size]) for _, slot, size, _ in first}
    for before, now in pairwise(order):
        sizes = (*now, *before)
        for kind, slot, size, _ in events:
            if kind == ALLOCATE:
                starts[slot] = heap.allocate(sizes[size])
            else:
                heap.release(starts[slot], sizes[size])
        starts = {slot - n: start for slot, start in starts.items() if slot >= n}
    assert high_water(folded, {}) == heap.top


def test_graph_beyond_64_bit_sizes_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"too large for llama\.cpp to count its bytes"):
        high_water(program(f"a{2**63}"), {})
