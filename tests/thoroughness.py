"""How much is tested: `make test` takes a fixed sample where many cases go the same way, `make test-all` all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pytest

LONG = os.environ.get("EDGEKIT_LONG") == "1"  # set by `make test-all`
RANDOM = os.environ.get("EDGEKIT_RANDOM") == "1"  # other random examples each time
wide = pytest.mark.skipif(not LONG, reason="a wide sweep: make test-all")
costly = pytest.mark.costly  # a table of which the normal run takes one case (tests/conftest.py)
Thing = TypeVar("Thing")
Row = dict[str, Any]


def sampled(things: Sequence[Thing], *, each: int, turn: int = 0) -> Sequence[Thing]:
    """All of them, or in the normal run every `each`-th from the one whose `turn` it is: turn by turn all are met."""
    return things if LONG else things[turn % each :: each]


def sampled_rows(
    models: Iterable[Sequence[Row]], *, each: int, always: Callable[[Row], bool] = lambda _: False
) -> Iterator[list[Row]]:
    """Of each model every `each`-th of its rows, of the next one others; and options that nobody had before, always."""
    met: set[str] = set()
    for turn, rows in enumerate(models):
        chosen = []
        for place, row in enumerate(rows):
            options = repr(sorted(row["options"].items()))
            if LONG or (place - turn) % each == 0 or options not in met or always(row):
                met.add(options)
                chosen.append(row)
        yield chosen
