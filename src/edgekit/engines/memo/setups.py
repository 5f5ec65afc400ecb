"""A tier's default setup, and its load as text."""

from __future__ import annotations

from typing import Any

from edgekit.bill.types import Load, MemoryEstimate
from edgekit.engines.memo.estimate import MemoSetup


def default_setup() -> MemoSetup:
    return MemoSetup()


def describe(load: Load, estimate: MemoryEstimate) -> str:
    """The resolved load as text."""
    facts: dict[str, Any] = dict(estimate.facts)
    each = f" for each of {facts['windows']}" if facts["windows"] > 1 else ""
    many = f", {load.sequences} sequences" if (load.sequences or 1) > 1 else ""
    return f"{facts['context_tokens']:,} tokens of context{each}, cache {facts['layout']}{many}"
