"""The KV cache of each layer: packed rows in a ring of cells.

A cell is overwritten when its token has left the window. The first tokens may be pinned (sinks); the others rotate
through the cells after them. Keys stay as they were stored, rotated to their own positions. Only the distance to the
sinks would grow without end, so queries see them from the window's last position (StreamingLLM).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.stream_plan import StreamPlan

Packed = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class CacheRun:
    """Rows of keys and values of consecutive tokens."""

    keys: Packed
    values: Packed
    position: int  # of the first
    reach: int | None = None
    is_sink: bool = False


class LayerCache(Protocol):
    @property
    def ring(self) -> Ring: ...

    @property
    def size_bytes(self) -> int:
        """In memory."""
        ...

    def stretches(self, own: CacheRun) -> Iterator[list[CacheRun]]:
        """What the tokens of `own` attend to: themselves, and the cached tokens before them.

        A list is valid until the next one is requested.
        """
        ...

    def keep(self, own: CacheRun) -> None:
        """Copies the tokens into their cells."""
        ...

    def forget(self) -> None:
        """All of it."""
        ...


class WholeCache:
    """All cells in memory."""

    def __init__(self, ring: Ring, k_row_bytes: int, v_row_bytes: int) -> None:
        self.ring = ring
        self._keys = touched(ring.cells, k_row_bytes)
        self._values = touched(ring.cells, v_row_bytes)

    @property
    def size_bytes(self) -> int:
        return self._keys.nbytes + self._values.nbytes

    def stretches(self, own: CacheRun) -> Iterator[list[CacheRun]]:
        found = [own]
        for span in self.ring.spans(own.position, len(own.keys)):
            cells = slice(span.cell, span.cell + span.cells)
            found.append(
                CacheRun(
                    self._keys[cells], self._values[cells], span.position, span.reach, span.is_sink
                )
            )
        yield found

    def keep(self, own: CacheRun) -> None:
        for first, cell, count in self.ring.places(own.position, len(own.keys)):
            self._keys[cell : cell + count] = own.keys[first : first + count]
            self._values[cell : cell + count] = own.values[first : first + count]

    def forget(self) -> None:
        """Cells that are not read need not be erased."""


def touched(rows: int, row_bytes: int) -> Packed:
    """An array whose memory is really allocated: the system may only have promised it."""
    made = np.empty((rows, row_bytes), np.uint8)
    made.fill(0)
    return made


@dataclass(frozen=True, slots=True)
class CellSpan:
    """Consecutive cells of consecutive tokens."""

    cell: int
    cells: int
    position: int  # of the first
    reach: int | None = None  # how many positions a query sees, including its own
    is_sink: bool = False  # for the query at the window's last position


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The cells of one layer."""

    cells: int
    sinks: int
    reach: int | None  # of the tokens after the sinks; None: all of them

    def spans(self, end: int, queries: int) -> Iterator[CellSpan]:
        """The tokens before `end` that the queries from `end` on may see."""
        if self.sinks and end + queries <= self.cells:  # no token leaves the window
            if end:
                yield CellSpan(0, end, 0)
            return
        if self.sinks:
            yield CellSpan(0, min(self.sinks, end), 0, is_sink=True)
        for position, cell, cells in self._runs(self._oldest(end), end):
            yield CellSpan(cell, cells, position, self.reach)

    def places(self, start: int, tokens: int) -> Iterator[tuple[int, int, int]]:
        """Where the tokens from `start` on are stored, if they are: (the first of them, its cell, how many)."""
        end = start + tokens
        if start < self.sinks:
            yield 0, start, min(tokens, self.sinks - start)
        first = max(start, self.sinks, end - self._rotating)
        for position, cell, cells in self._runs(first, end):
            yield position - start, cell, cells

    def is_written_over(self, start: int, tokens: int) -> bool:
        """Whether storing these tokens overwrites cells that the first of them may still see."""
        return tokens > 1 and start + tokens > self.cells

    @property
    def _rotating(self) -> int:
        return self.cells - self.sinks

    def _oldest(self, end: int) -> int:
        """The oldest position after the sinks that a query at `end` sees."""
        seen = self._rotating if self.reach is None else min(self.reach, self._rotating)
        return max(self.sinks, end + 1 - seen)

    def _runs(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(position, cell, how many) of consecutive cells after the sinks."""
        while first < end:
            cell = self.sinks + (first - self.sinks) % self._rotating
            cells = min(end - first, self.cells - cell)
            yield first, cell, cells
            first += cells


def layer_ring(plan: StreamPlan, layer: int) -> Ring:
    """A layer with its own shorter window has no sinks: it was not trained to see that far back."""
    cells, window = plan.cells[layer], plan.model.windows[layer]
    if plan.slides(layer):
        return Ring(cells=cells, sinks=0, reach=window)
    if not plan.rolling:
        return Ring(cells=cells, sinks=0, reach=None)
    return Ring(cells=cells, sinks=plan.sinks, reach=cells - plan.sinks)
