"""The cache types that llama.cpp is offered, the most accurate first."""

from __future__ import annotations

from edgekit.bill.task import CacheChoice, Placement, Task
from edgekit.bill.types import Load
from edgekit.engines import cache_pairs
from edgekit.engines.cache_pairs import F16_PAIR, Q8_PAIR, Pairs, given_pair, pair_choices
from edgekit.engines.llamacpp.placements import placements
from edgekit.engines.llamacpp.types import LlamaCppSetup

# K needs a little more accuracy than V. For unequal pairs release builds of CUDA and Metal have no flash attention
# kernel, and would compute on the CPU: fattn.cu @ 0c1e570.
EQUAL_PAIRS = (F16_PAIR, Q8_PAIR, ("q4_0", "q4_0"))
CPU_PAIRS = (F16_PAIR, Q8_PAIR, ("q8_0", "q5_1"), ("q8_0", "q4_0"), ("q4_0", "q4_0"))


def cache_choices(task: Task, placement: Placement | None = None) -> tuple[CacheChoice, ...]:
    """`placement` says where attention is computed; None: as the task is first placed."""
    load = task.load
    both = given_pair(load)
    if both is not None:
        return (both,)
    placement = placement or next(placements(task))
    given = load.cache_k or load.cache_v
    pairs: Pairs = EQUAL_PAIRS if placement.cards else CPU_PAIRS
    if given is not None and placement.cards:
        pairs = ((given.name, given.name),)
    return tuple(pair_choices(load, pairs))


def cache_name(load: Load, _setup: LlamaCppSetup) -> str:
    """By the name that choices have."""
    return cache_pairs.cache_name(load)
