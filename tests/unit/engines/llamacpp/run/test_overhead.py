"""`beside_bytes`: the memory of a process beyond its estimate."""

from __future__ import annotations

import pytest

from edgekit.bill.types import Component, MemoryEstimate, MemoryLine
from edgekit.engines.llamacpp.run.verification import beside_bytes
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.engines.program import Resident
from edgekit.machine.types import HOST
from edgekit.units import MIB


def estimate_of(**sizes: int) -> MemoryEstimate:
    lines = (
        MemoryLine(component=Component[name.upper()], size_bytes=size * MIB, pool=HOST)
        for name, size in sizes.items()
    )
    return MemoryEstimate(engine="llama.cpp", backend="cpu", lines=tuple(lines))


def process_memory(resident: int, model: int | None, swapped: int = 0) -> Resident:
    return Resident(
        when="then",
        resident_bytes=resident * MIB,
        model_bytes=None if model is None else model * MIB,
        swapped_bytes=swapped * MIB,
    )


ESTIMATE = estimate_of(weights=400, kv_cache=64, state=6, output=2, compute=70)


@pytest.mark.parametrize(
    ("resident", "mapped", "expected_mib"),
    [
        ([], True, None),
        ([process_memory(999, None)], True, None),  # before anything was decoded
        ([process_memory(560, 400)], True, 560 - 400 - 64 - 6),
        ([process_memory(460, 300)], True, 460 - 300 - 64 - 6),  # some weights are not read yet
        ([process_memory(560, 400, 20)], True, 560 + 20 - 400 - 64 - 6),  # swapped memory counts
        ([process_memory(560, 0)], False, 560 - 400 - 64 - 6),  # weights that are not mapped
        # 560 - 400 - 64 - 6, more than 620 - 400 - 70 - 72
        ([process_memory(560, 400), process_memory(620, 400)], True, 90),
        ([process_memory(560, 400), process_memory(660, 400)], True, 660 - 400 - 70 - 72),
        ([process_memory(60, 0)], True, 0),  # never negative
    ],
)
def test_beside_bytes(resident: list[Resident], mapped: bool, expected_mib: int | None) -> None:  # noqa: FBT001 - a table
    result = beside_bytes(resident, ESTIMATE, LlamaCppSetup(use_mmap=mapped))
    assert result == (None if expected_mib is None else expected_mib * MIB)


def test_beside_bytes_of_repacked_weights_is_unknown() -> None:
    assert beside_bytes([process_memory(560, 400)], ESTIMATE, LlamaCppSetup(repack=True)) is None
