"""A verdict -> its memories: a bar for each, what the parts weigh, and how much of each may be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgekit.memory.types import MemoryLine, PoolKind
from edgekit.plan.types import PreflightResult, Status, Use
from edgekit.report.bars import PARTS, Glyphs, bar, parts_of
from edgekit.report.bill import column_of
from edgekit.report.check_words import budget_names, share_words, sizes_words
from edgekit.report.lines import printable
from edgekit.report.screen import folded
from edgekit.report.usable import limit_on, reserve_words
from edgekit.units import format_bytes

_COLOURS = {Status.PASSED: 32, Status.WARNING: 33, Status.FAILED: 31}  # green, yellow, red
_LEAST_BESIDE = 23  # columns; a shorter bar stands on a line of its own


def memory_lines(
    result: PreflightResult, width: int, glyphs: Glyphs, *, colour: bool
) -> Iterator[str]:
    """Lines of at most `width`."""
    yield from bar_lines([result], width, glyphs, colour=colour)[0]
    yield from _legend(result, width, glyphs)
    for sentence in (*_reserve_rows(result), *_not_judged(result)):
        yield from folded(sentence, width)


def painted(text: str, status: Status, weight: str = "") -> str:
    return f"\x1b[{weight}{_COLOURS[status]}m{text}\x1b[0m"


def bar_lines(
    results: Sequence[PreflightResult], width: int, glyphs: Glyphs, *, colour: bool
) -> list[list[str]]:
    """For each verdict its lines: name, bar, sizes and share beside each other, in columns over all of them.

    Where there is no room, the bar stands below the words.
    """
    uses = [use for result in results for use in result.uses]
    named = [printable(name) for result in results for name in budget_names(result.uses)]
    names = _aligned(named, "<")
    sizes = _aligned([sizes_words(u.required_bytes, u.budget.available_bytes) for u in uses], ">")
    shares = _aligned([share_words(use) for use in uses], ">")
    room = width - len(names[0]) - len(sizes[0]) - len(shares[0]) - 6
    words = iter(zip(names, sizes, shares, strict=True))
    return [
        [
            line
            for use in result.uses
            for line in _bar(use, result, next(words), (room, width), glyphs, colour=colour)
        ]
        for result in results
    ]


def _bar(
    use: Use,
    result: PreflightResult,
    words: tuple[str, str, str],
    widths: tuple[int, int],
    glyphs: Glyphs,
    *,
    colour: bool,
) -> Iterator[str]:
    (name, size, share), (room, width) = words, widths
    beside = room >= _LEAST_BESIDE
    drawn = bar(use, parts_of(use, result.estimate), room if beside else width, glyphs)
    shown = painted(drawn, use.status) if colour else drawn
    if beside:
        yield f"{name}  {shown}  {size}  {share}"
    else:
        yield from folded(f"{name.strip()}: {size.strip()}, {share.strip()}".rstrip(", "), width)
        yield shown


def _aligned(words: Sequence[str], side: str) -> list[str]:
    width = max(map(len, words))
    return [f"{word:{side}{width}}" for word in words]


def _legend(result: PreflightResult, width: int, glyphs: Glyphs) -> Iterator[str]:
    """What the parts weigh in all the memories together, as many to a line as it holds."""
    sums = dict.fromkeys(PARTS, 0)
    for line in _judged_lines(result):
        sums[column_of(line)] += line.size_bytes
    drawn = zip(glyphs.parts, PARTS, strict=True)
    told = [f"{glyph} {part} {format_bytes(sums[part])}" for glyph, part in drawn if sums[part]]
    row = ""
    for one in (*told, f"{glyphs.mark} usable"):
        if row and len(row) + len(one) + 2 > width:
            yield from folded(row, width)
            row = ""
        row += f"  {one}" if row else one
    yield from folded(row, width)


def _judged_lines(result: PreflightResult) -> list[MemoryLine]:
    pools = {pool for use in result.uses for pool in use.budget.pools}
    return [line for line in result.estimate.lines if line.reserved and line.pool in pools]


def _reserve_rows(result: PreflightResult) -> Iterator[str]:
    """Cards of one name of which the same is to be said, together."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, use in zip(budget_names(result.uses), result.uses, strict=True):
        told = reserve_words(use.budget, limit_on(use.budget, result.machine))
        found.setdefault((use.budget.name, told), []).append(name)
    kinds = [kind for kind, _ in found]
    for (kind, told), names in found.items():
        who = kind if kinds.count(kind) == 1 else ", ".join(names)
        yield f"{who}: {told}" if len(result.uses) > 1 else told


def _not_judged(result: PreflightResult) -> Iterator[str]:
    """What lies where the memory is not known."""
    size = result.estimate.in_pool(PoolKind.HOST)
    if size and result.machine.host is None:
        yield f"{format_bytes(size)} on the host are not judged: its memory is not known (--ram)"
