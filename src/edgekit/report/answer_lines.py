"""What the screens of check and plan share: the headline, one bar per memory, what would change the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgekit.bill.verdict import Change, ChangeKind, Verdict
from edgekit.engines import engine_named
from edgekit.errors import UsageError
from edgekit.machine.types import HOST, Machine
from edgekit.machine.what_if import IDLE
from edgekit.plan.verdict import download_bytes
from edgekit.report.bars import Glyphs, memories
from edgekit.report.check_memory import bar_lines, painted
from edgekit.report.check_words import range_words
from edgekit.report.headline import embeds, headline
from edgekit.report.screen import folded, joined, section
from edgekit.units import GIB, format_download

MOST_CHANGES = 3
LEAST_RAM_SHARE = 0.1
ALL_FREE = "counts all of its memory as free; leave more for the system and other programs with"
LEAVE_MORE = {"--reserve 4G": (4 * GIB, None), "--max-use 80%": (None, 0.8)}
MORE = "--why: the memory breakdown, the reasons, how each figure is known"
# What is asked of the user first: what is cheapest to do.
_FIRST = (
    ChangeKind.CONTEXT, ChangeKind.CACHE, ChangeKind.MEMORY, ChangeKind.WEIGHTS, ChangeKind.PLACEMENT,
    ChangeKind.DEVICE, ChangeKind.ENGINE,
)  # fmt: skip


def download_words(result: Verdict, *, is_remote: bool) -> tuple[str, ...]:
    """'18.6 GB download', of weights that are not on this machine."""
    size = download_bytes(result) if is_remote else None
    return () if size is None else (f"{format_download(size)} download",)


def assumed_of(machine: Machine, result: Verdict | None) -> Iterator[str]:
    """What is assumed of a machine that was only described, and decides how much of its memory counts."""
    if IDLE in machine.notes:
        flag = _leaves_more(result) if result is not None and _fills_ram(result) else None
        yield IDLE if flag is None else f"{ALL_FREE} {flag}"


def _leaves_more(result: Verdict) -> str | None:
    """The flag that makes the engine leave more memory free; None if it has none, or if --max-use was given."""
    for flag, limits in LEAVE_MORE.items():
        try:
            engine_named(result.engine).check_limits(*limits)
        except UsageError:
            continue
        return None if limits[1] and result.tightest.max_use else flag
    return None


def _fills_ram(result: Verdict) -> bool:
    """Whether a significant part of the model is in memory that the system and other programs use too."""
    needed = sum(use.required_bytes for use in result.uses)
    in_ram = (use for use in result.uses if HOST in use.budget.pools)
    return not result.machine.is_phone and any(
        use.budget.has_default_reserve and use.required_bytes >= needed * LEAST_RAM_SHARE
        for use in in_ram
    )


def headline_lines(
    result: Verdict, *, width: int, colour: bool, from_name: bool = False
) -> list[str]:
    lines = folded(headline(result, from_name=from_name), width)
    return [painted(line, result.status, "1;") for line in lines] if colour else lines


def top_lines(
    result: Verdict,
    title: Sequence[str],
    *,
    width: int,
    colour: bool,
    glyphs: Glyphs,
    from_name: bool = False,
) -> list[str]:
    """The headline, what it is about, the bars."""
    lines = headline_lines(result, width=width, colour=colour, from_name=from_name)
    lines += joined((*title, *_figures(result)), width, glyphs.between)
    return [*lines, "", *bar_lines(memories(result), width, glyphs, colour=colour)]


def change_lines(
    result: Verdict, changes: Sequence[Change], width: int, *, more: Sequence[str] = ()
) -> list[str]:
    """The first few things that would change the answer."""

    def order(change: Change) -> tuple[bool, bool, int]:
        """Dropping a cache flag first, then what puts all of the model on the GPU, also with another engine."""
        drops = result.failed and result.cache_asked and change.kind is ChangeKind.CACHE
        placement = None if change.result is None else change.result.way
        brings = (
            placement is not None
            and placement.whole
            and (
                not result.way.whole or (change.kind is ChangeKind.ENGINE and bool(placement.cards))
            )
        )
        return not drops, not brings, _FIRST.index(change.kind)

    by_use = sorted(changes, key=order)
    words = [*(change.told for change in by_use), *more][:MOST_CHANGES]
    return section("To fit" if result.failed else "Or", words, width)


def _figures(result: Verdict) -> Iterator[str]:
    """Figures that the headline leaves out: the longest context, the range of the speed."""
    if result.failed:
        return
    if result.max_context > result.context_tokens:
        each = " per user" if result.streams > 1 else ""
        yield f"max context {result.max_context // result.streams:,}{each}"
    if result.speed is not None and not embeds(result):
        between = range_words(result.speed.decode)
        yield f"{between} tokens/s" if between else ""
