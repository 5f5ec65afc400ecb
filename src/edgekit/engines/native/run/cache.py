"""The cache of each layer: keys and values as packed rows, in the cells that the plan counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.run.ring import Ring

Packed = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class CacheRun:
    """Rows of keys and values, of tokens that stand together."""

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
        """What the tokens of `own` look at: themselves, and what is kept of those before them.

        A list is good until the next one is asked for.
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
        """What is not looked at need not be erased."""


def touched(rows: int, row_bytes: int) -> Packed:
    """An array whose memory is there, not only promised: later it might be somebody else's."""
    made = np.empty((rows, row_bytes), np.uint8)
    made.fill(0)
    return made
