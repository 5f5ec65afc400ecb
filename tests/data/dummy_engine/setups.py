"""The setup of the dummy engine."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.bill.types import Load, MemoryEstimate, Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class DummySetup(Setup):
    spare_bytes: int = 0


def default_setup() -> DummySetup:
    return DummySetup()


def describe(_load: Load, estimate: MemoryEstimate) -> str:
    return f"{dict(estimate.facts)['tokens']:,} dummy tokens"
