"""The cache layouts of the context-scaling document, the most accurate first."""

from __future__ import annotations

from dataclasses import replace

from edgekit.bill.types import CacheChoice, Load, Placement, Task
from edgekit.catalog.tiers import Layout, find_layout, layout_for, layouts, tiers
from edgekit.engines.memo.models import tier_of
from edgekit.errors import UsageError


def cache_choices(task: Task, _placement: Placement | None = None) -> tuple[CacheChoice, ...]:
    """f16, q8_0 and the compressed one for the context; only the one that was given."""
    given = layout_of(task.load)
    tokens = task.load.context_tokens or tier_of(task.model).window
    usual = (find_layout("f16"), find_layout("q8_0"), layout_for(tokens))
    return tuple(
        CacheChoice(
            name=layout.name,
            place=place,
            flags="",
            asked=given is not None,
            is_eight_bit=layout.name == "q8_0",
            load={"cache_k": layout.keys, "cache_v": layout.values},
        )
        for place, layout in enumerate(usual if given is None else (given,))
    )


def cache_name(load: Load, _setup: object = None) -> str:
    """Without a context it is that of a tier's whole window."""
    longest = max(tier.window for tier in tiers())
    return (layout_of(load) or layout_for(load.context_tokens or longest)).name


def layout_of(load: Load) -> Layout | None:
    """None where the load leaves it open. Raises UsageError for two types that do not belong together."""
    if load.cache_k is None and load.cache_v is None:
        return None
    for layout in layouts():
        if (layout.keys, layout.values) == (load.cache_k, load.cache_v):
            return layout
    names = ", ".join(layout.name for layout in layouts())
    raise UsageError(f"the types of K and V are not those of a cache layout: {names}")


def with_layout(load: Load, layout: Layout) -> Load:
    return replace(load, cache_k=layout.keys, cache_v=layout.values)
