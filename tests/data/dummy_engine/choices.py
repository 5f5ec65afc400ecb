"""The only cache of the dummy engine."""

from __future__ import annotations

from tests.data.dummy_engine.setups import DummySetup

from edgekit.bill.types import CacheChoice, Load, Placement, Task


def cache_choices(_task: Task, _placement: Placement | None = None) -> tuple[CacheChoice, ...]:
    return (CacheChoice(name="f16", place=0, flags=""),)


def cache_name(_load: Load, _setup: DummySetup) -> str:
    return "f16"
