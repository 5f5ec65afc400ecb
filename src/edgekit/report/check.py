"""A verdict as one screen of text and as JSON (docs/json.md); parts that check, plan and recommend share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from edgekit.bill.types import Component, MemoryEstimate
from edgekit.bill.verdict import Change, ChangeKind, Speed, Status, Usage, Verdict
from edgekit.engines import engine_named
from edgekit.engines.flags import typed
from edgekit.errors import UsageError
from edgekit.machine.types import HOST, Machine
from edgekit.machine.what_if import IDLE
from edgekit.plan.choice import download_bytes
from edgekit.report.bars import bar_lines, budget_names, memories, memory_lines, share_words
from edgekit.report.bill import basis_rows, bill_json
from edgekit.report.hardware import budget_json, machine_json
from edgekit.report.headline import VERDICTS, embeds, headline, is_beyond, range_words, speed_row
from edgekit.report.json import SCHEMA, fields
from edgekit.report.text import PLAIN, Screen, Sections, View, command_lines, render
from edgekit.units import GIB, format_download

if TYPE_CHECKING:
    from edgekit.app.check import Check
    from edgekit.app.fit import Fit

MAX_CHANGES = 3
MIN_RAM_SHARE = 0.1
ALL_FREE = "counts all of its memory as free; leave more for the system and other programs with"
LEAVE_MORE = {"--reserve 4G": (4 * GIB, None), "--max-use 80%": (None, 0.8)}
MORE = "--why: the memory breakdown, the reasons, how each figure is known"
_UNCHECKED = "tensors were not checked"  # preflight.py: only the first range of a file was read
# Changes in the order of their cost to the user, the cheapest first.
_CHEAPEST_FIRST = (
    ChangeKind.CONTEXT, ChangeKind.CACHE, ChangeKind.MEMORY, ChangeKind.WEIGHTS, ChangeKind.PLACEMENT,
    ChangeKind.DEVICE, ChangeKind.ENGINE,
)  # fmt: skip


def check_text(check: Check, screen: Screen = PLAIN, *, why: bool = False) -> str:
    """The screen. `why` adds the breakdown, the reasons and the notes."""
    result, bill = check.result, check.bill
    engine = bill.engine_title if why else result.engine
    size = download_words(result, is_remote=check.is_remote)
    placement, machine = result.way.because, result.machine.name
    where = placement if machine in placement else f"{machine}, {placement}"
    details = (where,) if why else tuple(result_figures(result))
    view = View(
        headline=headline(result, from_name=check.is_assumed),
        status=result.status,
        title=(bill.label, engine, *size, *details),
        sections=_why_sections(check) if why else _short_sections(check),
    )
    return render(view, screen)


def quiet_text(check: Check) -> str:
    """Only the headline."""
    return f"{headline(check.result, from_name=check.is_assumed)}\n"


def _short_sections(check: Check) -> Sections:
    result, bill = check.result, check.bill
    yield "", lambda screen: bar_lines(memories(result), screen)
    yield from _run_section(check)
    unchecked = (note for note in bill.estimate.notes if note.startswith(_UNCHECKED))
    yield "Note", [*bill.notes, *unchecked, *assumed_of(result.machine, result)]
    yield changes_section(result, check.changes)
    yield "More", [MORE]


def _why_sections(check: Check) -> Sections:
    result, bill = check.result, check.bill
    yield None, [bill.asked]
    yield "Context", _context_rows(result)
    yield "Memory", lambda screen: memory_lines(result, screen)
    yield "Why", result.reasons
    if result.speed is not None:
        yield "Speed", [speed_row(result.speed, embeds=embeds(result))]
    if result.can_load:
        yield "Later", engine_named(result.engine).later_rows(result)
    yield "To fit" if result.failed else "Or", [change.told for change in check.changes]
    yield "Basis", basis_rows(result.estimate)
    yield "Note", [*result.machine.notes, *bill.notes, *bill.estimate.notes]
    yield from _run_section(check)


def _run_section(check: Check) -> Sections:
    if check.result.can_load:
        yield "Run", lambda screen: command_lines(check.bill.command.strip(), screen.width)


def _context_rows(result: Verdict) -> Iterator[str]:
    """The context and its maximum, per user as in -c."""
    users = f" for each of {result.streams} users" if result.streams > 1 else ""
    each = result.context_tokens // result.streams
    yield f"checked at {each:,} tokens{users}: {result.window or 'as requested'}"
    longest = f"recommended {result.recommended_context // result.streams:,}"
    if not is_beyond(result):
        most = f"max context {result.max_context // result.streams:,}, {longest}"
        longest = most if result.max_context else "no context fits"
    native = result.native_context
    trained = f"native context {native:,}" if native else "native context unknown"
    yield f"{longest}; {trained}"


def download_words(result: Verdict, *, is_remote: bool) -> tuple[str, ...]:
    """'18.6 GB download', if the weights are not on this machine."""
    size = download_bytes(result) if is_remote else None
    return () if size is None else (f"{format_download(size)} download",)


def result_figures(result: Verdict) -> Iterator[str]:
    """Figures that the headline leaves out: the longest context, the range of the speed."""
    if result.failed:
        return
    if result.max_context > result.context_tokens:
        each = " per user" if result.streams > 1 else ""
        yield f"max context {result.max_context // result.streams:,}{each}"
    if result.speed is not None and not embeds(result):
        between = range_words(result.speed.decode)
        yield f"{between} tokens/s" if between else ""


def assumed_of(machine: Machine, result: Verdict | None) -> Iterator[str]:
    """Assumptions about the free memory of a machine that was only described."""
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
    """Whether a significant part of the model is in memory shared with the system and other programs."""
    needed = sum(use.required_bytes for use in result.uses)
    in_ram = (use for use in result.uses if HOST in use.budget.pools)
    return not result.machine.is_phone and any(
        use.budget.has_default_reserve and use.required_bytes >= needed * MIN_RAM_SHARE
        for use in in_ram
    )


def changes_section(
    result: Verdict, changes: Sequence[Change], more: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """The first few things that would change the answer."""

    def order(change: Change) -> tuple[bool, bool, int]:
        """Dropping a cache flag first, then changes that put the whole model on the GPU, even with another engine."""
        drops = result.failed and result.cache_asked and change.kind is ChangeKind.CACHE
        placement = None if change.result is None else change.result.way
        brings = (
            placement is not None
            and placement.whole
            and (
                not result.way.whole or (change.kind is ChangeKind.ENGINE and bool(placement.cards))
            )
        )
        return not drops, not brings, _CHEAPEST_FIRST.index(change.kind)

    rows = [*(change.told for change in sorted(changes, key=order)), *more][:MAX_CHANGES]
    return "To fit" if result.failed else "Or", rows


def check_json(check: Check) -> dict[str, Any]:
    """The whole answer, with the estimate that it is based on."""
    result, bill = check.result, check.bill
    return {
        "schema": SCHEMA,
        "model": bill.label,
        "reference": bill.reference,
        "headline": headline(result, from_name=check.is_assumed),
        **fields(result, "status can_load context_tokens"),
        "context_asked": result.asked,
        "context_because": result.window or None,
        "max_context": result.max_context,
        "way_context": result.max_context,
        **fields(result, "recommended_context native_context quantization? cache?"),
        "download_bytes": download_bytes(result) if check.is_remote else None,
        "step": result.step,
        "speed": None if result.speed is None else speed_json(result.speed),
        **fields(result, "required_bytes available_bytes"),
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
        **fields(use, "required_bytes covered_bytes"),
        "utilization": _share(use.utilization),
        "status": use.status.value,
    }


def bars_json(uses: Sequence[Usage], estimate: MemoryEstimate) -> list[dict[str, Any]]:
    """One stacked bar per memory, for the page; the parts by component add up to the required bytes."""
    names = (
        "total_bytes", "free_bytes", "reserve_bytes", "available_bytes", "required_bytes", "utilization",
        "status", "because", "blocked",
    )  # fmt: skip
    bars = []
    for use, memory in zip(uses, budget_names(uses), strict=True):
        found, budget = use_json(use), use.budget
        if budget.is_limited:  # memory that the GPU may not use is drawn like a reserve
            found["reserve_bytes"] = budget.free_bytes - budget.available_bytes
            found["because"] = budget.limit_because
        sums = dict.fromkeys(Component, 0)
        for line in estimate.lines:
            if line.reserved and line.pool in budget.pools:
                sums[line.component] += line.size_bytes
        parts = [{"component": one.value, "bytes": size} for one, size in sums.items() if size]
        bars.append(
            {
                "memory": memory,
                **{name: found[name] for name in names},
                "share": share_words(use) or None,
                "parts": parts,
            }
        )
    return bars


def change_json(change: Change) -> dict[str, Any]:
    return {
        **fields(change, "kind value told"),
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


def fit_json(found: Fit) -> dict[str, Any]:
    """The answer to a change of the page's controls: this exact load, without a search."""
    result, bill = found.result, found.bill
    if result is None:
        sentence = f"Cannot run: {found.refused}"
    elif found.refused:
        sentence = f"{VERDICTS[result.status]}: {found.refused}"
    else:
        sentence = headline(result)
    return {
        "schema": SCHEMA,
        "model": found.label,
        **fields(found, "reference engine"),
        "status": (Status.FAILED if result is None else result.status).value,
        "told": sentence,
        "can_load": result is not None and result.can_load,
        **fields(found, "context_tokens native_context"),
        "streams": 1 if result is None else result.streams,
        "quantization": None if result is None else result.quantization,
        "cache": None if result is None else result.cache,
        "bars": [] if result is None else bars_json(result.uses, result.estimate),
        "flags": typed(found.flags),
        "estimate": None if bill is None else bill_json(bill, layers=True),
        **fields(found, "estimate_command command? refused? refused_about? notes"),
    }
