"""Memory bars with a mark where the usable memory ends, and sizes and reserves in words."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from edgekit.bill.types import MemoryEstimate
from edgekit.bill.verdict import COMFORTABLE_PERCENT, Status, Usage, Verdict
from edgekit.machine.types import HOST, Budget, Machine, Pool, PoolKind
from edgekit.report.bill import PARTS, RAM, column_of
from edgekit.report.text import BLOCKS, Glyphs, Screen, folded, folded_rows, joined, painted
from edgekit.terminal import printable
from edgekit.units import GIB, MIB, format_bytes

MOST_CELLS = 64
UNIFIED = "unified memory"
_MIN_BAR = 23  # columns; a shorter bar is on a line of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One memory of a machine and how much of it a load takes. The GPU's share of unified memory (wired limit, GTT
    pages) is part of that memory, not a second one.
    """

    name: str  # "RTX 4090", "RTX 3090 #1", "RAM", "unified memory"
    use: Usage  # the one that decides the verdict
    whole_bytes: int  # free memory, reserve included
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
    """Every memory with a budget, in the order of the budgets."""
    names = budget_names(result.uses)
    found: list[Memory] = []
    for name, use in zip(names, result.uses, strict=True):
        pools = use.budget.pools
        if any(pools < other.budget.pools for other in result.uses):
            continue  # a limit within another memory
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
                parts=parts_in(decides.budget.pools, result.estimate),
            )
        )
    return tuple(found)


def parts_in(pools: Collection[Pool], estimate: MemoryEstimate) -> dict[str, int]:
    """PARTS -> bytes of the estimate in these pools."""
    sums = dict.fromkeys(PARTS, 0)
    for line in estimate.lines:
        if line.reserved and line.pool in pools:
            sums[column_of(line)] += line.size_bytes
    return sums


def bar(memory: Memory, width: int, glyphs: Glyphs = BLOCKS, *, in_parts: bool = False) -> str:
    """`[██████····|··]`: the brackets are the free memory, the mark is the end of its usable part.

    The bar passes the mark only if the load needs more than is usable, and the bracket only if it needs more than is
    free. `in_parts` draws the parts of the load.
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
    """Cells of the bar, in proportion to the parts."""
    total = sum(parts.values())
    if not total:
        return ""
    ends = [(end * cells + total // 2) // total for end in accumulate(parts[p] for p in PARTS)]
    starts = [0, *ends]
    sizes = [end - start for start, end in zip(starts, ends, strict=False)]
    return "".join(glyph * size for glyph, size in zip(glyphs, sizes, strict=True))


def bar_lines(found: Sequence[Memory], screen: Screen, *, in_parts: bool = False) -> list[str]:
    """Name, bar and sizes of each memory in columns; on a narrow screen the bar is below the text."""
    names = [printable(one.name) for one in found]
    sizes = [sizes_words(one.required_bytes, one.usable_bytes) for one in found]
    name_width, size_width = max(map(len, names)), max(map(len, sizes))
    bar_width = screen.width - name_width - size_width - 4
    is_wide = bar_width >= _MIN_BAR
    lines: list[str] = []
    for one, name, size in zip(found, names, sizes, strict=True):
        drawn = bar(one, bar_width if is_wide else screen.width, screen.glyphs, in_parts=in_parts)
        shown = painted(drawn, one.status) if screen.colour else drawn
        if is_wide:
            lines.append(f"{name:<{name_width}}  {shown}  {size:>{size_width}}")
        else:
            lines += [*folded(f"{name}: {size}", screen.width), shown]
    return lines


def memory_lines(result: Verdict, screen: Screen) -> Iterator[str]:
    """The bars with their parts, a legend, and how the usable memory is computed."""
    glyphs, width, estimate = screen.glyphs, screen.width, result.estimate
    yield from bar_lines(memories(result), screen, in_parts=True)
    sums = parts_in({pool for use in result.uses for pool in use.budget.pools}, estimate)
    legend = [
        f"{glyph} {part} {format_bytes(sums[part])}"
        for glyph, part in zip(glyphs.parts, PARTS, strict=True)
        if sums[part]
    ]
    yield from joined((*legend, f"{glyphs.mark} usable"), width, "  ")
    yield from folded_rows(_reserve_rows(result), width)
    in_ram = estimate.in_pool(PoolKind.HOST)
    if in_ram and result.machine.host is None:
        unknown = "goes to system RAM, whose size is unknown and was not checked (add --ram 32G)"
        yield from folded(f"{format_bytes(in_ram)} {unknown}", width)


def _reserve_rows(result: Verdict) -> Iterator[str]:
    """Free memory and reserves; cards with the same figures share a row."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, use in zip(budget_names(result.uses), result.uses, strict=True):
        words = reserve_words(use.budget, limit_on(use.budget, result.machine))
        if use.covered_bytes:
            words += f"; the first request takes {format_bytes(use.covered_bytes)} of the reserve"
        kind = RAM if use.budget.pools == {HOST} else use.budget.name
        found.setdefault((kind, words), []).append(name)
    kinds = [kind for kind, _ in found]
    for (kind, words), names in found.items():
        memory = kind if kinds.count(kind) == 1 else ", ".join(names)
        yield f"{memory}: {words}" if len(result.uses) > 1 else words


def budget_names(uses: Sequence[Usage]) -> list[str]:
    """Names of the memories; cards of the same name get a number."""
    names = [use.budget.name for use in uses]
    found = []
    for name, use in zip(names, uses, strict=True):
        indices = [pool.index for pool in use.budget.pools if pool.kind is PoolKind.DEVICE]
        found.append(f"{name} #{min(indices, default=0)}" if names.count(name) > 1 else name)
    return found


def sizes_words(part_bytes: int, whole_bytes: int) -> str:
    """'6.1 of 11.5 GiB'; an amount that would round to 0.0 gets its own unit: '52 MiB of 11.5 GiB'."""
    step, unit = (GIB, "GiB") if max(part_bytes, whole_bytes) >= GIB else (MIB, "MiB")
    whole = f"{whole_bytes / step:,.1f} {unit}"
    if 0 < part_bytes * 10 < step:
        return f"{max(part_bytes / MIB, 0.1):.{1 if part_bytes < MIB else 0}f} MiB of {whole}"
    return f"{part_bytes / step:,.1f} of {whole}"


def share_words(use: Usage) -> str:
    """'53 %', rounded so that it never contradicts the verdict; '' if nothing is available."""
    if use.utilization == float("inf"):
        return ""
    percent = use.utilization * 100
    if 0 < percent < 1:
        return "<1 %"
    rounded = round(percent)
    if (rounded == COMFORTABLE_PERCENT and use.status is Status.WARNING) or (
        rounded == 100 and percent > 100
    ):
        finer = round(percent, 1)
        return f"just over {rounded} %" if finer == rounded else f"{percent:.1f} %"
    return f"{rounded:,} %"


def reserve_words(budget: Budget, limit: str = "") -> str:
    """'23.50 GiB free minus 1 GiB reserve'. `limit` names the limit that applies."""
    free, because = format_bytes(budget.free_bytes), budget.because
    if budget.blocked:
        return f"{free} of {format_bytes(budget.total_bytes)} free"
    if budget.is_limited:
        on_cpu = f", plus {format_bytes(budget.cpu_bytes)} on the CPU" if budget.cpu_bytes else ""
        return f"{free} free; {budget.limit_because or 'the system limits the GPU'}{on_cpu}"
    if not budget.reserve_bytes:
        return because or f"{free} free"
    # some reasons already start with the amount: '20 % of 36.00 GiB for macOS'
    amount = "" if because[:1].isdigit() else f"{format_bytes(budget.reserve_bytes)} "
    return f"{free} free{f' within {limit},' if limit else ''} minus {amount}{because}"


def limit_on(budget: Budget, machine: Machine) -> str:
    """The name of the limit that keeps a process below the machine's memory; '' if there is none."""
    limit = machine.host.tightest if machine.host is not None and HOST in budget.pools else None
    return "" if limit is None else limit.name
