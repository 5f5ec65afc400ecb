"""The resource limits of this process (ulimit -v, ulimit -d) -> what they leave; an engine inherits them."""

from __future__ import annotations

import re
from pathlib import Path

from edgekit.machine.tree import number_in, pairs_of, text_of
from edgekit.machine.types import MemoryLimit
from edgekit.units import KIB

ADDRESS_SPACE = "RLIMIT_AS (ulimit -v)"
# Name in /proc/self/limits, what counts against it in /proc/self/status, and how people set it.
# Both hold: a mapped file takes address space, what is allocated takes data too (Linux 4.7).
_LIMITS = (
    ("Max address space", "VmSize", ADDRESS_SPACE),
    ("Max data size", "VmData", "RLIMIT_DATA (ulimit -d; mapped files do not count)"),
)


def process_limits(root: Path, *, process: int | str = "self") -> tuple[MemoryLimit, ...]:
    """Empty where there are none, and where there is no /proc: macOS does not hold to its own."""
    written = text_of(root / f"proc/{process}/limits") or ""
    used = pairs_of(root / f"proc/{process}/status", ":")
    limits = []
    for title, key, name in _LIMITS:
        found = re.search(rf"^{title}\s+(\d+)\s", written, re.MULTILINE)
        limit_bytes = number_in(found[1]) if found else None
        if limit_bytes is not None:
            used_kib = number_in(used.get(key, "").removesuffix("kB")) or 0
            limit = MemoryLimit(name=name, limit_bytes=limit_bytes, used_bytes=used_kib * KIB)
            limits.append(limit)
    return tuple(limits)
