"""The flag of the dummy engine."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.bill.types import Load, MemoryEstimate
from edgekit.engines import flags as common
from edgekit.engines.flags import Control, Flag, number

FLAGS = (
    Flag(
        ("--dummy-spare",),
        "dummy_spare",
        "memory to allocate for nothing: 512M",
        "SIZE",
        common.size,
        field="spare_bytes",
        row=number,
        control=Control("Spare memory"),
    ),
)
TABLE = (common.CONTEXT, *FLAGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DummySetup:
    spare_bytes: int = 0


def default_setup() -> DummySetup:
    return DummySetup()


def describe(_load: Load, estimate: MemoryEstimate) -> str:
    return f"{dict(estimate.facts)['tokens']:,} dummy tokens"
