"""Nouns of the fifth room: what an engine is asked about."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from edgekit.geometry.types import ModelGeometry
from edgekit.header.types import ModelHeader

T = TypeVar("T")

MOST_KEPT = 2048  # a search over placements of a large model; the oldest go first


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """A header and what it means. Engines keep with it what they worked out, so that a second question is cheap."""

    header: ModelHeader
    geometry: ModelGeometry = field(repr=False)
    _kept: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gave when it was first asked for under this key. Threads may ask side by side."""
        try:
            kept: T = self._kept[key]
        except KeyError:
            while len(self._kept) >= MOST_KEPT:
                with suppress(KeyError, RuntimeError, StopIteration):  # another thread was quicker
                    del self._kept[next(iter(self._kept))]
            kept = self._kept[key] = make()
        return kept

    def forget(self) -> None:
        """What engines worked out for it takes no memory any more."""
        self._kept.clear()
