"""The cache layouts of the context-scaling document, the most accurate first."""

from __future__ import annotations

from edgekit.bill.types import CacheChoice, Load, Placement, Task
from edgekit.catalog.tiers import find_layout, layout_for, tiers
from edgekit.engines.memo.estimate import layout_of, tier_of


def cache_choices(task: Task, _placement: Placement | None = None) -> tuple[CacheChoice, ...]:
    """f16, q8_0 and the compressed layout for the context; only the requested one, if one was requested."""
    given = layout_of(task.load)
    tokens = task.load.context_tokens or tier_of(task.model).window
    usual = (find_layout("f16"), find_layout("q8_0"), layout_for(tokens))
    return tuple(
        CacheChoice(
            name=layout.name,
            place=place,
            flags="",
            is_given=given is not None,
            is_eight_bit=layout.name == "q8_0",
            load={"cache_k": layout.keys, "cache_v": layout.values},
        )
        for place, layout in enumerate(usual if given is None else (given,))
    )


def cache_name(load: Load, _setup: object = None) -> str:
    """The name of the cache layout; without a context, that of the longest window."""
    longest = max(tier.window for tier in tiers())
    return (layout_of(load) or layout_for(load.context_tokens or longest)).name
