"""Cache types, and the basis of a bill."""

from __future__ import annotations

import pytest

from edgekit.bill.types import (
    TABLE,
    Component,
    MemoryEstimate,
    MemoryLine,
    cache_type,
)
from edgekit.errors import UsageError
from edgekit.machine.types import HOST
from edgekit.units import Basis


def test_basis_of_a_bill_is_that_of_its_weakest_line() -> None:
    lines = tuple(
        MemoryLine(component=Component.WEIGHTS, size_bytes=1, pool=HOST, basis=basis)
        for basis in (Basis.EXACT, Basis.ASSUMED, Basis.MODELLED)
    )
    assert MemoryEstimate(engine="x", backend="cpu", lines=lines).basis is Basis.ASSUMED
    assert MemoryEstimate(engine="x", backend="cpu", lines=()).basis is Basis.EXACT


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("f32", 32),
        ("f16", 16),
        ("q8_0", 8.5),
        ("q5_1", 6),
        ("q4_0", 4.5),
        ("iq4_nl", 4.5),
        ("qjl1_256", 2.125),
        ("turbo3_0", 3.5),
        ("q4_polar", 4.5),
    ],
)
def test_bits_of_a_cache_type(name: str, bits: float) -> None:
    assert cache_type(name).bits == bits


def test_unknown_cache_type_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown cache type 'q3_7'; choose one of f32, f16, bf16"):
        cache_type("q3_7")


def test_cache_type_names_are_unique() -> None:
    assert len({row.name for row in TABLE}) == len(TABLE)
