"""The only place where bytes become text and text becomes bytes."""

from __future__ import annotations

import re

from edgekit.errors import UsageError

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_STEPS = ((1024**4, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
_COUNTS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))
_SUFFIXES = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1024**4}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


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


def parse_size(text: str) -> int:
    """'64k' -> 65536, '24G', '24 GB' and '24GiB' -> 25769803776: people mean the binary unit."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size: write a number with k, M, G or T, such as 24G")
    return int(float(match[1]) * _SUFFIXES[match[2].lower()])
