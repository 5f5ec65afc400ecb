"""A verdict -> one screen of text: the answer, a bar per memory, what to run, what would change it."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.app.answers import Check
from edgekit.bill.verdict import Verdict
from edgekit.engines import engine_named
from edgekit.report.answer_lines import (
    MORE,
    assumed_of,
    change_lines,
    download_words,
    headline_lines,
    top_lines,
)
from edgekit.report.bars import BLOCKS, Glyphs
from edgekit.report.bill import basis_rows
from edgekit.report.check_memory import memory_lines
from edgekit.report.check_words import is_beyond, speed_row
from edgekit.report.headline import embeds, headline
from edgekit.report.screen import (
    command_rows,
    folded,
    joined,
    placed,
    row_width,
    section,
    within,
)

_UNCHECKED = "tensors were not checked"  # preflight.py: only the first range of a file was read


def check_text(
    check: Check,
    *,
    width: int = 100,
    colour: bool = False,
    glyphs: Glyphs = BLOCKS,
    why: bool = False,
) -> str:
    """The screen. `why` adds the breakdown, the reasons and the notes; `colour` only decorates."""
    width = within(width)
    run = placed("Run", command_rows(check.bill.command, width), width)
    if not check.result.can_load or not check.bill.command:
        run = []
    lines = _why_lines(check, width, glyphs, run, colour=colour) if why else []
    if not why:
        size = download_words(check.result, is_remote=check.is_remote)
        lines = top_lines(
            check.result,
            (check.bill.label, check.result.engine, *size),
            width=width,
            colour=colour,
            glyphs=glyphs,
            from_name=check.is_assumed,
        )
        lines += [*run, *section("Note", list(_short_notes(check)), width)]
        lines += change_lines(check.result, check.changes, width)
        lines += section("More", [MORE], width)
    return "\n".join(lines) + "\n"


def quiet_text(check: Check) -> str:
    """The answer alone."""
    return f"{headline(check.result, from_name=check.is_assumed)}\n"


def _short_notes(check: Check) -> Iterator[str]:
    """What has to be known to trust the answer; notes on how it was worked out are left to `why`."""
    yield from check.bill.notes
    yield from (note for note in check.bill.estimate.notes if note.startswith(_UNCHECKED))
    yield from assumed_of(check.result.machine, check.result)


def _why_lines(
    check: Check, width: int, glyphs: Glyphs, run: list[str], *, colour: bool
) -> list[str]:
    result = check.result
    lines = headline_lines(result, width=width, colour=colour, from_name=check.is_assumed)
    way, machine = result.way.because, result.machine.name
    where = way if machine in way else f"{machine}, {way}"
    size = download_words(result, is_remote=check.is_remote)
    title = (check.bill.label, check.bill.engine_title, *size, where)
    lines += joined(title, width, glyphs.between)
    lines += folded(check.bill.asked, width)
    lines += section("Context", _context_rows(result), width)
    shown = memory_lines(result, row_width(width), glyphs, colour=colour)
    lines += placed("Memory", list(shown), width)
    for label, rows in _sections(check):
        lines += section(label, rows, width)
    return [*lines, *run]


def _context_rows(result: Verdict) -> Iterator[str]:
    """Of one user, like -c."""
    users = f" for each of {result.streams} users" if result.streams > 1 else ""
    each = result.context_tokens // result.streams
    yield f"checked at {each:,} tokens{users}: {result.window or 'as requested'}"
    native = result.native_context
    trained = f"native context {native:,}" if native else "native context unknown"
    yield f"{_longest(result)}; {trained}"


def _longest(result: Verdict) -> str:
    recommended = f"recommended {result.recommended_context // result.streams:,}"
    if is_beyond(result):
        return recommended
    if not result.max_context:
        return "no context fits"
    return f"max context {result.max_context // result.streams:,}, {recommended}"


def _sections(check: Check) -> Iterator[tuple[str, list[str]]]:
    result, bill = check.result, check.bill
    yield "Why", list(result.reasons)
    speed = speed_row(result.speed, embeds=embeds(result))
    yield "Speed", [speed] if result.speed is not None else []
    yield "Later", list(engine_named(result.engine).later_rows(result)) if result.can_load else []
    yield "To fit" if result.failed else "Or", [change.told for change in check.changes]
    yield "Basis", basis_rows(result.estimate)
    yield "Note", [*result.machine.notes, *bill.notes, *bill.estimate.notes]
