"""Layers -> pipeline stages (distributed/utils.py get_pp_indices @ 0.32.0)."""

from __future__ import annotations


def stages(layers: int, count: int) -> tuple[range, ...]:
    """Layers that do not come out even go to stages before the last, from the back: it has the head to hold."""
    sizes = [layers // count] * count
    for i in range(2, layers % count + 2):
        sizes[-i] += 1
    starts = [sum(sizes[:i]) for i in range(count)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))
