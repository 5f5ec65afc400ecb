"""A bill and an engine that is up -> both side by side."""

from __future__ import annotations

from dataclasses import replace

from edgekit.bill.types import Component, MemoryEstimate
from edgekit.engines.llamacpp.run.engine import Running
from edgekit.engines.llamacpp.verify.check import compare
from edgekit.engines.program import NOTHING, ComparedRow, MeasuredBytes

_MAPPED = "_Mapped"
_UNTOLD = frozenset({"adapter", "projector"})


def compare_reported(estimate: MemoryEstimate, running: Running) -> tuple[ComparedRow, ...]:
    """With the bounds of `verify`. A line of the bill that is modelled may be off by what it says itself."""
    estimate = told_of(estimate)
    parts = dict(running.reported) | {Component.WEIGHTS: _weights(running)}
    return tuple(_allowed(row, estimate) for row in compare(estimate, parts))


def told_of(estimate: MemoryEstimate) -> MemoryEstimate:
    """The lines of which the engine's log tells: adapters and projectors are loaded later, in words of their own."""
    lines = tuple(line for line in estimate.lines if line.part not in _UNTOLD)
    return replace(estimate, lines=lines)


def _weights(running: Running) -> MeasuredBytes:
    """Of a mapped file the engine tells a range, from the first tensor that it needs to the last. Where the rest of
    them went to a device, or was rearranged, the range says no more than that the others lie in the file. On Metal
    the CPU and the GPU both map it, and their ranges may overlap.
    """
    told = running.held.weights
    mapped = [size for name, size in told if name.endswith(_MAPPED)]
    copied = [size for name, size in told if not name.endswith(_MAPPED)]
    if mapped and not copied:
        low = max(size.low_bytes for size in mapped)
        return replace(running.reported[Component.WEIGHTS], low_bytes=low)
    if not mapped:
        return running.reported[Component.WEIGHTS]
    least = sum(copied, NOTHING)
    return replace(least, high_bytes=least.high_bytes + running.files.size_bytes)


def _allowed(row: ComparedRow, estimate: MemoryEstimate) -> ComparedRow:
    slack = sum(
        int(line.size_bytes * line.within)
        for line in estimate.lines
        if line.component.value == row.part and line.within is not None and line.reserved
    )
    return replace(row, allowed_bytes=row.allowed_bytes + slack)
