"""The text renderer: folding, tables, labelled sections, colours, shell commands and memory bars for a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from edgekit.bill.types import (
    CACHES,
    COMFORTABLE_PERCENT,
    Component,
    MemoryLine,
    Status,
    Usage,
    Verdict,
)
from edgekit.errors import printable
from edgekit.machine.types import HOST, Budget, Machine, PoolKind
from edgekit.units import GIB, MIB, format_bytes

MIN_WIDTH = 20
MAX_WIDTH = 100  # longer lines are hard to read even on a wide screen
_LABEL_COLUMN_FROM = 50  # columns; on a narrower screen labels are above their rows
LABEL_WIDTH = 9
_COLOURS = {Status.PASSED: 32, Status.WARNING: 33, Status.FAILED: 31}  # green, yellow, red
_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])+""")  # a quoted part is never split


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of bars and titles."""

    parts: str  # one character for each of PARTS
    free: str
    mark: str  # the end of the usable memory
    separator: str  # between the parts of a title


BLOCKS = Glyphs("█▓▒░", "·", "|", "·")
ASCII = Glyphs("#=+~", ".", "|", "-")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Blocks if the encoding has them, else ASCII."""
    try:
        (BLOCKS.parts + BLOCKS.free).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The capabilities of the output."""

    width: int = MAX_WIDTH
    colour: bool = False  # the text is the same without it
    glyphs: Glyphs = BLOCKS


# Sentences to fold, or a function that returns lines no wider than the screen.
Body = Iterable[str] | Callable[[Screen], Iterable[str]]
Section = tuple[str | None, Body]
Sections = Iterable[Section]


PLAIN = Screen()
FROM_INDEX = "from EdgeKit's index: the repository was not read"


def render(
    headline: str,
    sections: Sections,
    screen: Screen = PLAIN,
    *,
    title: Iterable[str] = (),
    status: Status | None = None,
) -> str:
    """An answer from top to bottom. `status` colours the headline.

    A section has a label and a body and is left out if the body is empty. With the label "" the body takes the full
    width; with None no empty line precedes it. On a narrow screen labels are above their rows.
    """
    width = clamp_width(screen.width)
    indent = " " * (LABEL_WIDTH if width >= _LABEL_COLUMN_FROM else 2)
    lines = fold(headline, width)
    if screen.colour:
        lines = [paint(line, status, bold=True) for line in lines]
    lines += join_parts(title, width, f"  {screen.glyphs.separator}  ")
    for label, body in sections:
        inner = replace(screen, width=width - len(indent) if label else width)
        rows = list(body(inner) if callable(body) else body)
        if not callable(body):  # a hanging indent shows where each of several rows begins
            fold_row = fold_hanging if label and len(rows) > 1 else fold
            rows = [line for row in rows for line in fold_row(row, inner.width)]
        if not rows:
            continue
        lines += [""] if label is not None else []
        if label and len(label) < len(indent):
            lines.append(f"{label:<{len(indent)}}{rows.pop(0)}".rstrip())
        elif label:
            lines += fold(label, width)
        lines += [f"{indent}{row}".rstrip() for row in rows] if label else rows
    return "\n".join(lines) + "\n"


def paint(text: str, status: Status | None = None, *, bold: bool = False) -> str:
    """The text in the terminal colour of the status."""
    codes = (["1"] if bold else []) + ([str(_COLOURS[status])] if status is not None else [])
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m"


def clamp_width(width: int) -> int:
    return min(max(width, MIN_WIDTH), MAX_WIDTH)


def fold(text: str, width: int) -> list[str]:
    """Lines of at most `width`, without control characters. URLs are not split, so that they can be clicked."""
    words = printable(text)
    breaks = "https://" not in words
    return textwrap.wrap(words, width, break_on_hyphens=False, break_long_words=breaks) or [""]


def fold_rows(rows: Iterable[str], width: int) -> list[str]:
    return [line for row in rows for line in fold(row, width)]


def fold_hanging(row: str, width: int) -> list[str]:
    """A folded row with its second and later lines indented."""
    first, *continuation = fold(row, width - 2)
    return [first, *(f"  {line}" for line in continuation)]


def join_parts(parts: Iterable[str], width: int, separator: str) -> list[str]:
    """Parts joined to lines, each as full as the width allows."""
    lines: list[str] = []
    for part in map(printable, filter(None, parts)):
        if lines and len(lines[-1]) + len(separator) + len(part) <= width:
            lines[-1] += f"{separator}{part}"
        else:
            lines += fold(part, width)
    return lines


def with_count(count: int, noun: str) -> str:
    """'1 row', '2,400 rows'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] = (0,)
) -> list[str]:
    """Columns as wide as their cells; those in `left` are aligned to the left, the others to the right."""
    cells = [tuple(head), *(tuple(map(printable, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if i in left else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def fitted_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int, left: Collection[int] = (0,)
) -> list[str]:
    """A table without its last columns if the screen is too narrow for them."""
    for count in range(len(head), 0, -1):
        lines = table(head[:count], [row[:count] for row in rows], left)
        if max(map(len, lines)) <= width:
            break
    return lines


def command_lines(command: str, width: int, continuation: str = "\\") -> list[str]:
    """A command folded with line continuations; `continuation` ends all lines but the last.

    Words are never split, so a line may be wider; a flag and its value stay together.
    """
    command = printable(command)
    words = _WORD.findall(command)
    if " ".join(words) != command:
        return [command]  # folding would change it: a quote is not closed, or spaces are doubled
    groups: list[str] = []
    for previous, word in zip(("", *words), words, strict=False):
        if previous.startswith("-") and not word.startswith("-"):
            groups[-1] += f" {word}"
        else:
            groups.append(word)
    lines: list[str] = []
    for group in groups:
        if lines and len(lines[-1]) + len(group) + 1 <= width - 2:
            lines[-1] += f" {group}"
        else:
            lines.append(group)
    return [f"{line} {continuation}" for line in lines[:-1]] + lines[-1:]


# -- memory bars, and sizes and reserves in words ---------------------------------------------------

MOST_CELLS = 64
RAM, UNIFIED = "RAM", "unified memory"
PARTS = ("model", "context", "compute", "other")  # llama.cpp's memory breakdown has the first three
_PART_OF = {
    Component.WEIGHTS: "model",
    Component.COMPUTE: "compute",
    **dict.fromkeys(CACHES, "context"),
}
_MIN_BAR = 23  # columns; a shorter bar is on a line of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One memory of a machine and how much of it a load takes. The GPU's share of unified memory (wired limit, GTT
    pages) is part of that memory, not a second one.
    """

    name: str  # "RTX 4090", "RTX 3090 #1", "RAM", "unified memory"
    use: Usage  # of this memory, or of the limit within it that is fuller
    whole_bytes: int  # free memory, including the reserve
    parts: Mapping[str, int] = field(default_factory=dict)  # PARTS -> bytes

    @property
    def required_bytes(self) -> int:
        return self.use.required_bytes

    @property
    def usable_bytes(self) -> int:
        return self.use.budget.available_bytes

    @property
    def is_ram(self) -> bool:
        return self.name == RAM


def memories(result: Verdict) -> tuple[Memory, ...]:
    """Every memory with a budget, in the order of the budgets."""
    names = budget_names(result.uses)
    all_memories: list[Memory] = []
    for name, use in zip(names, result.uses, strict=True):
        pools = use.budget.pools
        if any(pools < other.budget.pools for other in result.uses):
            continue  # not a separate memory, but a limit within another one
        limits = [other for other in result.uses if other.budget.pools < pools]
        decides = max((use, *limits), key=lambda usage: usage.fullness)
        label = name
        if HOST in pools:
            label = UNIFIED if len(pools) > 1 else RAM
        counted_pools = decides.budget.pools
        parts = bytes_by_part(line for line in result.estimate.lines if line.pool in counted_pools)
        whole_bytes = use.budget.free_bytes
        all_memories.append(Memory(name=label, use=decides, whole_bytes=whole_bytes, parts=parts))
    return tuple(all_memories)


def fullest(all_memories: Iterable[Memory]) -> Memory:
    """The memory of which the largest share is used; of equally full ones, the one that is used most."""
    return max(all_memories, key=lambda memory: (memory.use.fullness, memory.required_bytes))


def column_of(line: MemoryLine) -> str:
    """The part of a bar that the line is counted in, one of PARTS."""
    return _PART_OF.get(line.component, "other")


def bytes_by_part(lines: Iterable[MemoryLine]) -> dict[str, int]:
    """PARTS -> bytes of the reserved lines."""
    sums = dict.fromkeys(PARTS, 0)
    for line in lines:
        if line.reserved:
            sums[column_of(line)] += line.size_bytes
    return sums


def bar(memory: Memory, width: int, glyphs: Glyphs = BLOCKS, *, in_parts: bool = False) -> str:
    """`[██████····|··]`: the brackets are the free memory, the mark is the end of its usable part.

    The bar passes the mark only if the load needs more than is usable, and the bracket only if it needs more than is
    free. `in_parts` draws the parts of the load.
    """
    cells = min(width - 3, MOST_CELLS)
    required, usable, free = memory.required_bytes, memory.usable_bytes, memory.whole_bytes
    scale = max(required, free, 1)
    inside, mark = free * cells // scale, usable * cells // scale
    full = -(-required * cells // scale)
    full = min(full, mark) if required <= usable else max(full, mark + 1)
    filled = glyphs.parts[0] * full
    if in_parts:
        total = sum(memory.parts.values()) or 1
        sums = accumulate((memory.parts.get(part, 0) for part in PARTS), initial=0)
        ends = pairwise((end * full + total // 2) // total for end in sums)
        filled = "".join(
            glyph * (end - start) for glyph, (start, end) in zip(glyphs.parts, ends, strict=True)
        )
    drawn = filled.ljust(cells, glyphs.free)
    return f"[{drawn[:mark]}{glyphs.mark}{drawn[mark:inside]}]{drawn[inside:]}"


def bar_lines(
    shown_memories: Sequence[Memory], screen: Screen, *, in_parts: bool = False
) -> list[str]:
    """Name, bar and sizes of each memory in columns; on a narrow screen the bar is below the text."""
    names = [printable(memory.name) for memory in shown_memories]
    sizes = [sizes_words(memory.required_bytes, memory.usable_bytes) for memory in shown_memories]
    name_width, size_width = max(map(len, names)), max(map(len, sizes))
    bar_width = screen.width - name_width - size_width - 4
    is_wide = bar_width >= _MIN_BAR
    lines: list[str] = []
    for memory, name, size in zip(shown_memories, names, sizes, strict=True):
        drawn = bar(
            memory, bar_width if is_wide else screen.width, screen.glyphs, in_parts=in_parts
        )
        coloured = paint(drawn, memory.use.status) if screen.colour else drawn
        if is_wide:
            lines.append(f"{name:<{name_width}}  {coloured}  {size:>{size_width}}")
        else:
            lines += [*fold(f"{name}: {size}", screen.width), coloured]
    return lines


def memory_lines(result: Verdict, screen: Screen) -> Iterator[str]:
    """The bars with their parts, a legend, and how the usable memory is computed."""
    glyphs, width, estimate = screen.glyphs, screen.width, result.estimate
    yield from bar_lines(memories(result), screen, in_parts=True)
    pools = {pool for use in result.uses for pool in use.budget.pools}
    sums = bytes_by_part(line for line in estimate.lines if line.pool in pools)
    legend = [
        f"{glyph} {part} {format_bytes(sums[part])}"
        for glyph, part in zip(glyphs.parts, PARTS, strict=True)
        if sums[part]
    ]
    yield from join_parts((*legend, f"{glyphs.mark} usable"), width, "  ")
    # (kind of memory, its reserve) -> names: cards with the same figures share a row
    reserves: dict[tuple[str, str], list[str]] = {}
    for name, use in zip(budget_names(result.uses), result.uses, strict=True):
        words = reserve_words(use.budget, limit_on(use.budget, result.machine))
        if use.covered_bytes:
            words += f"; the first request takes {format_bytes(use.covered_bytes)} of the reserve"
        kind = RAM if use.budget.pools == {HOST} else use.budget.name
        reserves.setdefault((kind, words), []).append(name)
    kinds = [kind for kind, _ in reserves]
    for (kind, words), names in reserves.items():
        memory = kind if kinds.count(kind) == 1 else ", ".join(names)
        yield from fold(f"{memory}: {words}" if len(result.uses) > 1 else words, width)
    in_ram = estimate.in_pool(PoolKind.HOST)
    if in_ram and result.machine.host is None:
        unknown = "goes to system RAM, whose size is unknown and was not checked (add --ram 32G)"
        yield from fold(f"{format_bytes(in_ram)} {unknown}", width)


def budget_names(uses: Sequence[Usage]) -> list[str]:
    """Names of the memories; cards of the same name get a number."""
    names = [use.budget.name for use in uses]
    numbered = []
    for name, use in zip(names, uses, strict=True):
        indices = [pool.index for pool in use.budget.pools if pool.kind is PoolKind.DEVICE]
        numbered.append(f"{name} #{min(indices, default=0)}" if names.count(name) > 1 else name)
    return numbered


def sizes_words(part_bytes: int, whole_bytes: int) -> str:
    """'6.1 of 11.5 GiB'; an amount that would round to 0.0 gets its own unit: '52 MiB of 11.5 GiB'."""
    step, unit = (GIB, "GiB") if max(part_bytes, whole_bytes) >= GIB else (MIB, "MiB")
    total = f"{whole_bytes / step:,.1f} {unit}"
    if 0 < part_bytes * 10 < step:
        digits = 1 if part_bytes < MIB else 0
        return f"{max(part_bytes / MIB, 0.1):.{digits}f} MiB of {total}"
    return f"{part_bytes / step:,.1f} of {total}"


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
    within = f" within {limit}," if limit else ""
    return f"{free} free{within} minus {amount}{because}"


def limit_on(budget: Budget, machine: Machine) -> str:
    """The name of the limit that keeps a process below the machine's memory; '' if there is none."""
    limit = machine.host.tightest if machine.host is not None and HOST in budget.pools else None
    return "" if limit is None else limit.name
