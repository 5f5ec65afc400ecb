"""The only place where bytes become text."""

from __future__ import annotations

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_STEPS = ((1024**4, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
_COUNTS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


def format_bytes(size_bytes: int) -> str:
    """4703649792 -> '4.38 GiB'. Binary units with their names."""
    for step, name in _STEPS:
        if size_bytes >= step:
            return f"{size_bytes / step:.2f} {name}"
    return f"{size_bytes} B"


def format_count(count: int) -> str:
    """8030261312 -> '8.03 B' (parameters are counted in thousands of thousands)."""
    for step, name in _COUNTS:
        if count >= step:
            return f"{count / step:.2f} {name}"
    return str(count)
