"""A verdict -> its memories: a bar for each, what the parts weigh, and how much of each may be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgekit.bill.verdict import Status, Verdict
from edgekit.machine.types import HOST, PoolKind
from edgekit.report.bars import PARTS, RAM, Glyphs, Memory, bar, memories
from edgekit.report.bill import column_of
from edgekit.report.check_words import budget_names, limit_on, reserve_words, sizes_words
from edgekit.report.screen import folded
from edgekit.terminal import printable
from edgekit.units import format_bytes

_COLOURS = {Status.PASSED: 32, Status.WARNING: 33, Status.FAILED: 31}  # green, yellow, red
_LEAST_BESIDE = 23  # columns; a shorter bar gets a line of its own


def painted(text: str, status: Status, weight: str = "") -> str:
    return f"\x1b[{weight}{_COLOURS[status]}m{text}\x1b[0m"


def bar_lines(
    found: Sequence[Memory], width: int, glyphs: Glyphs, *, colour: bool, in_parts: bool = False
) -> list[str]:
    """Name, bar and sizes of each in columns; on a narrow screen the bar is below the words."""
    names = [printable(one.name) for one in found]
    sizes = [sizes_words(one.required_bytes, one.usable_bytes) for one in found]
    name_width, size_width = max(map(len, names)), max(map(len, sizes))
    room = width - name_width - size_width - 4
    is_wide = room >= _LEAST_BESIDE
    lines: list[str] = []
    for one, name, size in zip(found, names, sizes, strict=True):
        drawn = bar(one, room if is_wide else width, glyphs, in_parts=in_parts)
        shown = painted(drawn, one.status) if colour else drawn
        if is_wide:
            lines.append(f"{name:<{name_width}}  {shown}  {size:>{size_width}}")
        else:
            lines += [*folded(f"{name}: {size}", width), shown]
    return lines


def memory_lines(result: Verdict, width: int, glyphs: Glyphs, *, colour: bool) -> Iterator[str]:
    """The bars with their parts, and where the usable memory comes from. Lines of at most `width`."""
    yield from bar_lines(memories(result), width, glyphs, colour=colour, in_parts=True)
    yield from _legend(result, width, glyphs)
    for sentence in (*_reserve_rows(result), *_not_judged(result)):
        yield from folded(sentence, width)


def _legend(result: Verdict, width: int, glyphs: Glyphs) -> Iterator[str]:
    """What the parts weigh in all the memories together, as many to a line as fit."""
    pools = {pool for use in result.uses for pool in use.budget.pools}
    sums = dict.fromkeys(PARTS, 0)
    for line in result.estimate.lines:
        if line.reserved and line.pool in pools:
            sums[column_of(line)] += line.size_bytes
    drawn = zip(glyphs.parts, PARTS, strict=True)
    words = [f"{glyph} {part} {format_bytes(sums[part])}" for glyph, part in drawn if sums[part]]
    row = ""
    for one in (*words, f"{glyphs.mark} usable"):
        if row and len(row) + len(one) + 2 > width:
            yield from folded(row, width)
            row = ""
        row += f"  {one}" if row else one
    yield from folded(row, width)


def _reserve_rows(result: Verdict) -> Iterator[str]:
    """What is free and what is held back; cards with the same figures in one row."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, use in zip(budget_names(result.uses), result.uses, strict=True):
        words = reserve_words(use.budget, limit_on(use.budget, result.machine))
        if use.covered_bytes:
            words += f"; the first request takes {format_bytes(use.covered_bytes)} of the reserve"
        kind = RAM if use.budget.pools == {HOST} else use.budget.name
        found.setdefault((kind, words), []).append(name)
    kinds = [kind for kind, _ in found]
    for (kind, words), names in found.items():
        who = kind if kinds.count(kind) == 1 else ", ".join(names)
        yield f"{who}: {words}" if len(result.uses) > 1 else words


def _not_judged(result: Verdict) -> Iterator[str]:
    """What is kept in RAM of unknown size."""
    size = result.estimate.in_pool(PoolKind.HOST)
    if size and result.machine.host is None:
        yield f"{format_bytes(size)} goes to system RAM, whose size is unknown and was not checked (add --ram 32G)"
