"""The columns and sums of a memory breakdown."""

from __future__ import annotations

from collections.abc import Iterable

from edgekit.basis import Basis
from edgekit.bill.types import CACHES, Component, MemoryEstimate, MemoryLine, weakest
from edgekit.machine.types import Pool, PoolKind

# The columns people know from the engines' own logs.
COLUMNS: tuple[tuple[str, frozenset[Component]], ...] = (
    ("model", frozenset({Component.WEIGHTS})),
    ("context", CACHES),
    ("compute", frozenset({Component.COMPUTE})),
)
RAM = "RAM"
_COLUMN_OF = {component: name for name, parts in COLUMNS for component in parts}


def column_of(line: MemoryLine) -> str:
    """model, context, compute, or other."""
    return _COLUMN_OF.get(line.component, "other")


def pool_sums(estimate: MemoryEstimate) -> dict[Pool, dict[str, int]]:
    """Pool -> column -> bytes of the reserved lines; pools in their order."""
    sums = {
        pool: dict.fromkeys(("model", "context", "compute", "other"), 0) for pool in estimate.pools
    }
    for line in estimate.lines:
        if line.reserved and line.size_bytes:
            sums[line.pool][column_of(line)] += line.size_bytes
    return {pool: row for pool, row in sums.items() if any(row.values())}


def pool_names(estimate: MemoryEstimate) -> dict[Pool, str]:
    """'GPU' and 'RAM'; 'GPU 0', 'GPU 1' if there are several."""
    devices = [pool for pool in estimate.pools if pool.kind is PoolKind.DEVICE]
    gpu = {pool: f"GPU {pool.index}" if len(devices) > 1 else "GPU" for pool in devices}
    return {pool: gpu.get(pool, RAM) for pool in estimate.pools}


def later_lines(estimate: MemoryEstimate) -> tuple[MemoryLine, ...]:
    """What is not taken at the start."""
    return tuple(line for line in estimate.lines if not line.reserved and line.size_bytes)


def how_known(lines: Iterable[MemoryLine]) -> tuple[Basis, float | None]:
    """The weakest basis, and how far the sum may be off as a share of it."""
    counted = [line for line in lines if line.size_bytes]
    basis = weakest(line.basis for line in counted)
    total = sum(line.size_bytes for line in counted)
    if not total or any(line.within is None and line.basis is not Basis.EXACT for line in counted):
        return basis, None
    off = sum(line.size_bytes * line.within for line in counted if line.within is not None)
    return basis, off / total if basis is not Basis.EXACT else None


def known_words(lines: Iterable[MemoryLine]) -> str:
    """'exact', 'modelled, within 3 %', 'assumed'."""
    basis, within = how_known(lines)
    if within is None or basis is Basis.EXACT:
        return basis.value
    return f"{basis.value}, within {percent(within)}"


def percent(part: float) -> str:
    return f"{part * 100:.1f} %" if part < 0.1 else f"{part * 100:.0f} %"


def basis_rows(estimate: MemoryEstimate) -> list[str]:
    """Parts that are known equally well, together."""
    parts: dict[str, list[str]] = {}
    for component in Component:
        lines = [one for one in estimate.lines if one.component is component and one.size_bytes]
        if lines:
            parts.setdefault(known_words(lines), []).append(component.value)
    return [f"{words}: {', '.join(names)}" for words, names in parts.items()]
