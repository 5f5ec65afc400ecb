"""A budget and what a bill takes of it -> one bar: brackets hold the memory, what does not fit stands outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from edgekit.memory.types import MemoryEstimate
from edgekit.plan.types import Use
from edgekit.report.bill import column_of

MOST_CELLS = 64
PARTS = ("model", "context", "compute", "other")


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What an output can show."""

    parts: str  # one for each of PARTS
    free: str
    mark: str  # where a load is not tried any more
    between: str  # the words of a title


BLOCKS = Glyphs("█▓▒░", "·", "|", "·")
ASCII = Glyphs("#=+~", ".", "|", "-")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Blocks where the output can show them."""
    try:
        (BLOCKS.parts + BLOCKS.free).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def parts_of(use: Use, estimate: MemoryEstimate) -> dict[str, int]:
    """PARTS -> bytes of the bill in this budget."""
    sums = dict.fromkeys(PARTS, 0)
    for line in estimate.lines:
        if line.reserved and line.pool in use.budget.pools:
            sums[column_of(line)] += line.size_bytes
    return sums


def bar(use: Use, parts: Mapping[str, int], width: int, glyphs: Glyphs = BLOCKS) -> str:
    """`[███▓▓▒····|··]`. Cells are beyond the mark only if the load needs more than is usable."""
    cells = min(width - 3, MOST_CELLS)
    required, available = use.required_bytes, use.budget.available_bytes
    inside = cells if required <= available else available * cells // required
    mark = inside
    drawn = _filled(parts, _cells(use, inside, mark, cells), glyphs).ljust(cells, glyphs.free)
    return f"[{drawn[:mark]}{glyphs.mark}{drawn[mark:inside]}]{drawn[inside:]}"


def _cells(use: Use, inside: int, mark: int, cells: int) -> int:
    """How many are full. Rounded up, but for a load that fits not past the mark."""
    required, available = use.required_bytes, use.budget.available_bytes
    if required > available:
        return cells
    full = -(-required * inside // available) if available else 0
    return min(full, mark)


def _filled(parts: Mapping[str, int], cells: int, glyphs: Glyphs) -> str:
    """So many cells, divided as the parts are."""
    total = sum(parts.values())
    if not total:
        return ""
    ends = [(end * cells + total // 2) // total for end in accumulate(parts[p] for p in PARTS)]
    starts = [0, *ends]
    sizes = [end - start for start, end in zip(starts, ends, strict=False)]
    return "".join(glyph * size for glyph, size in zip(glyphs.parts, sizes, strict=True))
