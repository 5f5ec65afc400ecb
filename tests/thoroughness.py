"""How many cases run: `make test` takes a fixed sample of tables of similar cases, `make test-all` all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pytest

LONG = os.environ.get("EDGEKIT_LONG") == "1"  # set by `make test-all`
RANDOM = os.environ.get("EDGEKIT_RANDOM") == "1"  # new random examples in each run
wide = pytest.mark.skipif(not LONG, reason="a wide sweep: make test-all")
costly = pytest.mark.costly  # `make test` runs one case of the table (tests/conftest.py)
Item = TypeVar("Item")
Row = dict[str, Any]


def sampled(items: Sequence[Item], *, each: int, turn: int = 0) -> Sequence[Item]:
    """All items; in the normal run every `each`-th, starting at `turn`. Consecutive turns cover all items."""
    return items if LONG else items[turn % each :: each]


def sampled_rows(
    models: Iterable[Sequence[Row]], *, each: int, always: Callable[[Row], bool] = lambda _: False
) -> Iterator[list[Row]]:
    """Every `each`-th row of each model, with another start per model, and every row with options not seen before."""
    seen_options: set[str] = set()
    for turn, rows in enumerate(models):
        chosen = []
        for index, row in enumerate(rows):
            options = repr(sorted(row["options"].items()))
            if LONG or (index - turn) % each == 0 or options not in seen_options or always(row):
                seen_options.add(options)
                chosen.append(row)
        yield chosen
