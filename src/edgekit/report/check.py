"""A verdict as one screen of text and as JSON (docs/json.md); parts that check, plan and recommend share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from edgekit.app.answers import (
    Check,
)
from edgekit.bill.verdict import Change, ChangeKind, Speed, Usage, Verdict
from edgekit.engines import engine_named
from edgekit.errors import UsageError
from edgekit.machine.types import HOST, Machine
from edgekit.machine.what_if import IDLE
from edgekit.plan.verdict import download_bytes
from edgekit.report.bars import BLOCKS, Glyphs, bar_lines, memories, memory_lines, painted
from edgekit.report.bill import basis_rows, bill_json
from edgekit.report.hardware import budget_json, machine_json
from edgekit.report.headline import embeds, headline, is_beyond, range_words, speed_row
from edgekit.report.json import SCHEMA
from edgekit.report.text import (
    command_rows,
    folded,
    joined,
    placed,
    row_width,
    section,
    within,
)
from edgekit.units import GIB, format_download

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


def check_json(check: Check) -> dict[str, Any]:
    """The whole answer, with the bill it rests on."""
    result, bill = check.result, check.bill
    return {
        "schema": SCHEMA,
        "model": bill.label,
        "reference": bill.reference,
        "headline": headline(result, from_name=check.is_assumed),
        "status": result.status.value,
        "can_load": result.can_load,
        "context_tokens": result.context_tokens,
        "context_asked": result.asked,
        "context_because": result.window or None,
        "max_context": result.max_context,
        "way_context": result.max_context,
        "recommended_context": result.recommended_context,
        "native_context": result.native_context,
        "quantization": result.quantization or None,
        "cache": result.cache or None,
        "download_bytes": download_bytes(result) if check.is_remote else None,
        "step": result.step,
        "speed": None if result.speed is None else speed_json(result.speed),
        "required_bytes": result.required_bytes,
        "available_bytes": result.available_bytes,
        "utilization": _share(result.utilization),
        "engine": {"name": result.engine, "version": bill.version or None},
        "machine": machine_json(result.machine),
        "budgets": [use_json(use) for use in result.uses],
        "way": result.way.because,
        "flags": dict(check.flags),
        "reasons": list(result.reasons),
        "changes": [change_json(change) for change in check.changes],
        "basis": result.estimate.basis.value,
        "estimate": bill_json(bill),
        "command": (bill.command or None) if result.can_load else None,
        "notes": [*result.machine.notes, *bill.notes, *bill.estimate.notes],
    }


def _share(utilization: float) -> float | None:
    return utilization if math.isfinite(utilization) else None


def use_json(use: Usage) -> dict[str, Any]:
    return {
        **budget_json(use.budget),
        "required_bytes": use.required_bytes,
        "covered_bytes": use.covered_bytes,
        "utilization": _share(use.utilization),
        "status": use.status.value,
    }


def change_json(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind.value,
        "value": change.value,
        "told": change.told,
        "flags": dict(change.flags),
        "max_context": change.max_context,
    }


def speed_json(speed: Speed) -> dict[str, Any]:
    """Tokens per second: a typical value, and the ranges from slow to fast."""
    prefill = speed.prefill
    return {
        "typical": round(speed.typical, 2),
        "decode": [round(rate, 2) for rate in speed.decode],
        "prefill": None if prefill is None else [round(rate, 2) for rate in prefill],
        "basis": speed.basis.value,
        "because": speed.because,
    }
