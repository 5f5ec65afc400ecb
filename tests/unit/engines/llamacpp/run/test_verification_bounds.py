"""How far a prediction may be from what the engine reports: the same for verify, calibrate, run and serve."""

from __future__ import annotations

import pytest

from edgekit.bill.types import Component, MemoryEstimate, MemoryLine
from edgekit.engines.llamacpp.run.verification import (
    COMPUTE_FLOOR_BYTES,
    compare,
)
from edgekit.engines.program import ComparedRow, MeasuredBytes
from edgekit.machine.types import HOST
from edgekit.units import MIB


def row(component: Component, predicted: int, measured: int) -> ComparedRow:
    line = MemoryLine(component=component, size_bytes=predicted, pool=HOST)
    bill = MemoryEstimate(engine="llama.cpp", backend="cpu", lines=(line,))
    reported = MeasuredBytes(low_bytes=measured, high_bytes=measured)
    return next(
        item for item in compare(bill, {component: reported}) if item.part == component.value
    )


@pytest.mark.parametrize(
    ("measured", "allowed"),
    [
        (0, 4 * MIB),
        (5 * MIB, 4 * MIB),
        (40 * MIB, 4 * MIB),
        (50 * MIB, 5 * MIB),
        (1000 * MIB, 100 * MIB),
    ],
)
def test_compare_allows_compute_a_tenth_or_4_mib(measured: int, allowed: int) -> None:
    assert COMPUTE_FLOOR_BYTES == 4 * MIB
    assert row(Component.COMPUTE, measured + allowed, measured).within
    assert not row(Component.COMPUTE, measured + allowed + 1, measured).within
    if measured > allowed:
        assert row(Component.COMPUTE, measured - allowed, measured).within
        assert not row(Component.COMPUTE, measured - allowed - 1, measured).within


@pytest.mark.parametrize(
    "component", [Component.WEIGHTS, Component.KV_CACHE, Component.STATE, Component.OUTPUT]
)
def test_compare_allows_other_parts_no_difference(component: Component) -> None:
    assert row(component, 10 * MIB, 10 * MIB).within
    assert not row(component, 10 * MIB - 1, 10 * MIB).within
    assert not row(component, 10 * MIB + 1, 10 * MIB).within
