"""The cache types of the built-in engine, the most accurate first."""

from __future__ import annotations

from edgekit.bill.task import CacheChoice
from edgekit.bill.types import Load
from edgekit.engines.cache_pairs import given_pair, pair_choices

PAIRS = (("f16", "f16"), ("q8_0", "q8_0"))


def cache_choices(load: Load) -> tuple[CacheChoice, ...]:
    both = given_pair(load)
    return tuple(pair_choices(load, PAIRS)) if both is None else (both,)
