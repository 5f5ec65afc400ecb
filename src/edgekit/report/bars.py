"""A verdict -> its memories, each as one bar with one mark, where the usable memory ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from edgekit.bill.types import MemoryEstimate
from edgekit.bill.verdict import Status, Usage, Verdict
from edgekit.machine.types import HOST
from edgekit.report.bill import column_of
from edgekit.report.check_words import budget_names

MOST_CELLS = 64
PARTS = ("model", "context", "compute", "other")
RAM, UNIFIED = "RAM", "unified memory"


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What an output can show."""

    parts: str  # one for each of PARTS
    free: str
    mark: str  # where the usable memory ends
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One memory of a machine and what a load takes of it. What the system lets the GPU use of a unified memory
    (wired limit, GTT pages) is a part of that memory, not a second one.
    """

    name: str  # "RTX 4090", "RTX 3090 #1", "RAM", "unified memory"
    use: Usage  # that decides
    whole_bytes: int  # free, with what is held in reserve
    parts: Mapping[str, int] = field(default_factory=dict)  # PARTS -> bytes

    @property
    def required_bytes(self) -> int:
        return self.use.required_bytes

    @property
    def usable_bytes(self) -> int:
        return self.use.budget.available_bytes

    @property
    def status(self) -> Status:
        return self.use.status

    @property
    def is_ram(self) -> bool:
        return self.name == RAM


def memories(result: Verdict) -> tuple[Memory, ...]:
    """Every memory that is judged, in the order of the budgets."""
    names = budget_names(result.uses)
    found: list[Memory] = []
    for name, use in zip(names, result.uses, strict=True):
        pools = use.budget.pools
        if any(pools < other.budget.pools for other in result.uses):
            continue  # a limit inside of another memory
        limits = [other for other in result.uses if other.budget.pools < pools]
        decides = max((use, *limits), key=lambda one: one.fullness)
        label = name
        if HOST in pools:
            label = UNIFIED if len(pools) > 1 else RAM
        found.append(
            Memory(
                name=label,
                use=decides,
                whole_bytes=use.budget.free_bytes,
                parts=parts_of(decides, result.estimate),
            )
        )
    return tuple(found)


def parts_of(use: Usage, estimate: MemoryEstimate) -> dict[str, int]:
    """PARTS -> bytes of the bill in this budget."""
    sums = dict.fromkeys(PARTS, 0)
    for line in estimate.lines:
        if line.reserved and line.pool in use.budget.pools:
            sums[column_of(line)] += line.size_bytes
    return sums


def bar(memory: Memory, width: int, glyphs: Glyphs = BLOCKS, *, in_parts: bool = False) -> str:
    """`[██████····|··]`: brackets hold the free memory, the mark ends what is usable of it.

    Cells are beyond the mark only if the load needs more than is usable, and beyond the bracket only if it needs more
    than is free. `in_parts` draws what the load consists of.
    """
    cells = min(width - 3, MOST_CELLS)
    required, usable, whole = memory.required_bytes, memory.usable_bytes, memory.whole_bytes
    scale = max(required, whole, 1)
    inside, mark = whole * cells // scale, usable * cells // scale
    full = -(-required * cells // scale)
    full = min(full, mark) if required <= usable else max(full, mark + 1)
    filled = _filled(memory.parts, full, glyphs.parts) if in_parts else glyphs.parts[0] * full
    drawn = filled.ljust(cells, glyphs.free)
    return f"[{drawn[:mark]}{glyphs.mark}{drawn[mark:inside]}]{drawn[inside:]}"


def _filled(parts: Mapping[str, int], cells: int, glyphs: Sequence[str]) -> str:
    """The cells, divided as the parts are."""
    total = sum(parts.values())
    if not total:
        return ""
    ends = [(end * cells + total // 2) // total for end in accumulate(parts[p] for p in PARTS)]
    starts = [0, *ends]
    sizes = [end - start for start, end in zip(starts, ends, strict=False)]
    return "".join(glyph * size for glyph, size in zip(glyphs, sizes, strict=True))
