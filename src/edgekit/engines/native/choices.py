"""The cache types that the built-in engine is offered, the most accurate first."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.bill.types import CacheChoice, Load, Placement, Task
from edgekit.engines.choices import F16_PAIR, Q8_PAIR, pair_cache_name, pair_choices
from edgekit.engines.native.stream_plan import StreamSetup


def cache_choices(task: Task, _placement: Placement | None = None) -> Iterator[CacheChoice]:
    return pair_choices(task.load, (F16_PAIR, Q8_PAIR))


def cache_name(load: Load, _setup: StreamSetup) -> str:
    """By the name that choices have."""
    return pair_cache_name(load)
