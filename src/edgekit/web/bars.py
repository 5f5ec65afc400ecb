"""Uses and the bill behind them -> one stacked bar for each memory, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgekit.bill.types import Component, MemoryEstimate
from edgekit.bill.verdict import Usage
from edgekit.machine.types import Budget
from edgekit.report.bars import budget_names, share_words
from edgekit.report.check import use_json

_NUMBERS = (
    "total_bytes",
    "free_bytes",
    "reserve_bytes",
    "available_bytes",
    "required_bytes",
    "utilization",
    "status",
    "because",
    "blocked",
)


def bars_json(uses: Sequence[Usage], estimate: MemoryEstimate) -> list[dict[str, Any]]:
    """One for each memory, in their order; cards of one name are told apart by their number."""
    return [_bar(use, name, estimate) for use, name in zip(uses, budget_names(uses), strict=True)]


def _bar(use: Usage, name: str, estimate: MemoryEstimate) -> dict[str, Any]:
    told, budget = use_json(use), use.budget
    if budget.is_limited:  # what the GPU may not use is drawn like a reserve
        told["reserve_bytes"] = budget.free_bytes - budget.available_bytes
        told["because"] = budget.limit_because
    return {
        "memory": name,
        **{key: told[key] for key in _NUMBERS},
        "share": share_words(use) or None,
        "parts": _parts(budget, estimate),
    }


def _parts(budget: Budget, estimate: MemoryEstimate) -> list[dict[str, Any]]:
    """What each component takes of it, in the order of the components; together they are what is required."""
    sums = dict.fromkeys(Component, 0)
    for line in estimate.lines:
        if line.reserved and line.pool in budget.pools:
            sums[line.component] += line.size_bytes
    return [
        {"component": component.value, "bytes": size} for component, size in sums.items() if size
    ]
