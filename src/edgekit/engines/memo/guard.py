"""The tiers' RAM guard: whether a tier should run in a memory of a given size.

A download above 0.8 of the memory does not fit, above 0.65 it is tight; a machine below the tier's minimum RAM does
not run it, one below the recommended RAM is tight.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from pathlib import Path

from edgekit.catalog.tiers import Tier, layout_for
from edgekit.errors import NotFoundError, UsageError
from edgekit.machine.types import HOST, Budget
from edgekit.units import MIB, format_bytes

WONT_FIT_PERCENT = 80
TIGHT_PERCENT = 65
MANIFEST_BYTES = 1024 * 1024  # real ones have a few KiB
MOST_MB = 2**30  # a pebibyte


@dataclass(frozen=True, slots=True, kw_only=True)
class RamNeed:
    """The RAM needed to start a tier, and to run a long session with it."""

    min_bytes: int
    recommended_bytes: int
    source: str  # "manifest", or the figures it was computed from


class RamLevel(enum.Enum):
    FITS = "fits"
    TIGHT = "tight"
    WONT_FIT = "won't fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class RamFit:
    """The guard's answer: whether a machine of this size should run a tier at all."""

    level: RamLevel
    need: RamNeed
    because: str


def ram_need(tier: Tier, memory: Budget, manifest: RamNeed | None = None) -> RamNeed:
    """From the manifest; without one, the tier's minimum RAM, plus a compressed cache of the whole window."""
    if manifest is not None:
        return manifest
    if tier.min_ram_bytes is not None and HOST in memory.pools:
        least, source = tier.min_ram_bytes, "the tier's minimum RAM"
    else:
        least = tier.weights_bytes + tier.working_bytes + memory.reserve_bytes
        source = "weights, working set" if memory.reserve_bytes else "weights and working set"
        source += " and the system reserve" if memory.reserve_bytes else ""
    cache = tier.bytes_per_token(layout_for(tier.window)) * tier.window
    return RamNeed(
        min_bytes=least,
        recommended_bytes=least + cache,
        source=f"{source}; recommended with the compressed cache of {tier.window:,} tokens",
    )


def assess(tier: Tier, memory: Budget, manifest: RamNeed | None = None) -> RamFit:
    """Judges the size of the memory; free memory is compared with the bill elsewhere."""
    need = ram_need(tier, memory, manifest)
    weights, whole = tier.weights_bytes, max(0, memory.total_bytes - memory.reserve_bytes)
    share = f"{weights * 100 / whole:.1f} %" if whole else "more than all"
    size = f"the download of {format_bytes(weights)} is {share} of {format_bytes(whole)}"
    has = f"the machine has {format_bytes(memory.total_bytes)}"
    if weights * 100 > whole * WONT_FIT_PERCENT:
        level, why = RamLevel.WONT_FIT, f"{size}, more than {WONT_FIT_PERCENT} %"
    elif memory.total_bytes < need.min_bytes:
        level, why = RamLevel.WONT_FIT, f"{format_bytes(need.min_bytes)} is needed, {has}"
    elif weights * 100 > whole * TIGHT_PERCENT:
        level, why = RamLevel.TIGHT, f"{size}, more than {TIGHT_PERCENT} %"
    elif memory.total_bytes < need.recommended_bytes:
        level = RamLevel.TIGHT
        why = f"{format_bytes(need.recommended_bytes)} is recommended, {has}"
    else:
        level, why = RamLevel.FITS, f"{size}, at most {TIGHT_PERCENT} %"
    return RamFit(level=level, need=need, because=why)


def least_total_bytes(tier: Tier, memory: Budget, manifest: RamNeed | None = None) -> int:
    """The smallest memory of this kind in which the guard allows the tier."""
    least = ram_need(tier, memory, manifest).min_bytes
    return max(least, -(-tier.weights_bytes * 100 // WONT_FIT_PERCENT) + memory.reserve_bytes)


def read_manifest(path: Path) -> RamNeed:
    """The ramBudgetMb of an installed bundle's manifest. Raises NotFoundError or UsageError."""
    try:
        with path.open("rb") as file:
            text = file.read(MANIFEST_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"no such manifest: {path}") from error
    except OSError as error:
        raise NotFoundError(f"{path}: {error.strerror or error}") from error
    if len(text) > MANIFEST_BYTES:
        raise UsageError(f"{path}: the manifest is larger than {format_bytes(MANIFEST_BYTES)}")
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {str(error)[:80]}") from error
    found = read.get("ramBudgetMb") if isinstance(read, dict) else None
    if not isinstance(found, dict):
        raise UsageError(f"{path}: ramBudgetMb with min and recommended is missing")
    numbers = []
    for name in ("min", "recommended"):
        value = found.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_MB:
            raise UsageError(
                f"{path}: ramBudgetMb.{name} is {str(value)[:40]}, not a number of megabytes"
            )
        numbers.append(value)
    least, recommended = numbers
    if recommended < least:
        raise UsageError(
            f"{path}: ramBudgetMb recommends {recommended:,}, less than its min {least:,}"
        )
    return RamNeed(min_bytes=least * MIB, recommended_bytes=recommended * MIB, source="manifest")
