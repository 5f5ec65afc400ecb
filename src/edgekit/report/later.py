"""A verdict -> what may grow on the host after the start, and what keeps it within what is left there."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.plan.growth import growing_lines, growth_limits, left_on_host
from edgekit.plan.types import PreflightResult
from edgekit.units import format_bytes

_FLAGS = {"cache_ram": "--cache-ram", "ctx_checkpoints": "--ctx-checkpoints"}


def later_rows(result: PreflightResult) -> Iterator[str]:
    """A line where something may grow: with what is left, and where that is too little, the flags that hold it."""
    lines = growing_lines(result)
    if not lines:
        return
    parts = [f"{format_bytes(line.size_bytes)} of {line.component.value}" for line in lines]
    grows, left = f"up to {' and '.join(parts)} may grow", left_on_host(result)
    limits = growth_limits(result)
    if left is None:
        yield f"{grows} on the host, whose memory is not known"
    elif not limits:
        yield f"{grows} on the host, where {format_bytes(left)} are left"
    else:
        words = " ".join(f"{_FLAGS[name]} {number}" for name, number in limits.items())
        yield f"{grows} on the host, where only {format_bytes(left)} are left: {words} to stay within that"
