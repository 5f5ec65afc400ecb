"""A program and a load's numbers -> the bytes a buffer needs: best fit in a sorted free list (ggml_dyn_tallocr).

ggml-alloc.c @ 0c1e570.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgekit.engines.llamacpp.graph.program import Program, Section
from edgekit.engines.llamacpp.graph.trace import Event
from edgekit.errors import RefusedError

ENDLESS = 2**63 - 1  # the last free block: SIZE_MAX / 2

_Snapshot = tuple[
    tuple[int, ...], tuple[int, ...], tuple[int, ...]
]  # the free blocks, and the blocks that a round allocated


def high_water(program: Program, values: Mapping[str, int]) -> int:
    align = program.alignment
    sizes = [-(-size // align) * align for size in program.sizes.at(values)]
    for i, size in program.fixed:
        sizes[i] = size
    heap = _Heap(sizes + [0] * program.own)
    places = [0] * program.slots
    for section in program.sections:
        if section.rounds:
            _repeat(heap, section, places)
        else:
            heap.play(section.events, places)
    return heap.top


def _repeat(heap: _Heap, section: Section, places: list[int]) -> None:
    """Runs a section once per round. Rounds with the same sizes and the same start state share their result."""
    slots, base = section.slots, section.base
    before = places[max(0, base - slots) : base]
    window = [0] * (slots - len(before)) + before + [0] * slots
    numbers = {_state(heap, section, window): 0}
    led: dict[tuple[int, tuple[int, ...]], tuple[int, _Snapshot]] = {}
    now = 0
    stale: _Snapshot | None = None
    for own in section.rounds:
        known = led.get((now, own))
        if known is None:
            if stale is not None:
                heap.starts, heap.lengths, window[:slots] = map(list, stale)
            for i, size in zip(section.own, own, strict=True):
                heap.sizes[i] = size
            heap.play(section.events, window)
            window[:slots] = window[slots:]
            after = numbers.setdefault(_state(heap, section, window), len(numbers))
            snapshot = tuple(heap.starts), tuple(heap.lengths), tuple(window[:slots])
            led[now, own] = after, snapshot
            now, stale = after, None
        else:
            now, stale = known
    if stale is not None:
        heap.starts, heap.lengths, window[:slots] = map(list, stale)
    places[base + slots : base + 2 * slots] = window[:slots]


def _state(heap: _Heap, section: Section, window: Sequence[int]) -> tuple[int, ...]:
    """Everything that the next round depends on: the free list, and the offsets of the blocks it will free."""
    return (*heap.starts, *heap.lengths, *(window[i] for i in section.carried))


class _Heap:
    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.starts = [0]
        self.lengths = [ENDLESS]
        self.top = 0

    def play(self, events: Sequence[Event], places: list[int]) -> None:
        starts, lengths, sizes, top = self.starts, self.lengths, self.sizes, self.top
        for kind, slot, index, tail in events:
            size = sizes[index]
            if kind:
                place = places[slot]
                if tail >= 0:
                    place += sizes[tail]
                    size -= sizes[tail]
                    if not size:
                        continue
                _free(starts, lengths, place, size)
                continue
            # If several blocks fit equally well, ggml takes the last.
            best, fit = 0, ENDLESS + 1
            for i, length in enumerate(lengths):
                if size <= length <= fit:
                    best, fit = i, length
            if fit > ENDLESS:
                raise RefusedError(
                    "the compute graph is too large for llama.cpp to count its bytes: "
                    "use a shorter context or smaller batches"
                )
            place = starts[best]
            places[slot] = place
            if fit == size:
                del starts[best], lengths[best]
            else:
                starts[best] = place + size
                lengths[best] = fit - size
            top = max(top, place + size)
        self.top = top


def _free(starts: list[int], lengths: list[int], place: int, size: int) -> None:
    """Merges the block with its neighbours in the free list, or inserts it in offset order."""
    end = place + size
    for i, start in enumerate(starts):
        stop = start + lengths[i]
        if stop == place:
            lengths[i] += size
            if i + 1 < len(starts) and starts[i + 1] == end:
                lengths[i] += lengths[i + 1]
                del starts[i + 1], lengths[i + 1]
            return
        if start == end:
            starts[i] = place
            lengths[i] += size
            if i and starts[i - 1] + lengths[i - 1] == place:
                lengths[i - 1] += lengths[i]
                del starts[i], lengths[i]
            return
    i = 0
    while i < len(starts) and starts[i] < place:
        i += 1
    starts.insert(i, place)
    lengths.insert(i, size)
