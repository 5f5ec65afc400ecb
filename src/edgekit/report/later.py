"""A verdict -> what may grow in RAM after the start, and the flags that keep it within what is left."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.bill.verdict import Verdict
from edgekit.engines.llamacpp.growth import growing_lines, growth_limits, left_on_host
from edgekit.units import format_bytes

_FLAGS = {"cache_ram": "--cache-ram", "ctx_checkpoints": "--ctx-checkpoints"}


def later_rows(result: Verdict) -> Iterator[str]:
    """One row where something may grow: what is left, and the flags that limit it where that is too little."""
    lines = growing_lines(result)
    if not lines:
        return
    parts = [f"{format_bytes(line.size_bytes)} of {line.component.value}" for line in lines]
    grows, left = f"RAM use may grow by up to {' and '.join(parts)}", left_on_host(result)
    limits = growth_limits(result)
    if left is None:
        yield f"{grows}, and the size of the RAM is unknown"
    elif not limits:
        yield f"{grows}; {format_bytes(left)} is left"
    else:
        words = " ".join(f"{_FLAGS[name]} {number}" for name, number in limits.items())
        yield f"{grows}, but only {format_bytes(left)} is left: {words} limits it"
