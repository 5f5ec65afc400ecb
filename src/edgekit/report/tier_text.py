"""The plan of a tier -> one screen of text: the answer, the memory, why so, and how little of it is measured."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.bill.types import Component, MemoryLine
from edgekit.bill.verdict import Lever, Status
from edgekit.catalog.tiers import WHAT_IF
from edgekit.engines.memo.levers import for_each
from edgekit.engines.memo.placements import memory_notes
from edgekit.engines.memo.types import TierPlan
from edgekit.machine.types import HOST
from edgekit.report.text import figures, folded, joined, placed, row_width, section, within
from edgekit.units import format_bytes

ASSUMED = (
    "assumed: the figures of a tier come from elizaOS's memo on context scaling (docs/tiers.md), "
    "not from a measurement or a header"
)
_WHAT_IF = (
    "the compressed cache layouts exist only in a what-if engine, not in llama.cpp, vLLM or MLX"
)
_LABELS = {
    Lever.WEIGHTS: "model",
    Lever.CONTEXT: "context",
    Lever.CACHE: "cache",
    Lever.PLACEMENT: "spill",
    Lever.DRAFTER: "draft model",
    Lever.SEQUENCES: "sequences",
}
_WORDS = {Status.PASSED: "Fits", Status.WARNING: "Tight", Status.FAILED: "Does not fit"}
_NAMES = {Component.COMPUTE: "working set", Component.KV_CACHE: "cache", Component.STATE: "state"}


def tier_text(plan: TierPlan, *, width: int = 100, bold: bool = False) -> str:
    """The screen. `bold` marks the answer for terminals."""
    width = within(width)
    answer = folded(tier_answer(plan), width)
    lines = [f"\x1b[1m{line}\x1b[0m" for line in answer] if bold else answer
    lines += joined(_title(plan), width)
    lines += placed("Memory", _memory_lines(plan, row_width(width)), width)
    lines += section("Why", _why_rows(plan), width)
    lines += section("Guard", [_guard_row(plan)], width)
    lines += section("To fit", _to_fit_rows(plan), width)
    lines += section("Basis", [ASSUMED], width)
    return "\n".join([*lines, *section("Note", _notes(plan), width)]) + "\n"


def tier_answer(plan: TierPlan) -> str:
    """The whole plan in one line."""
    found, drafter = plan.verdict, plan.setup.drafter
    sizes = f"{format_bytes(plan.required_bytes)} of {format_bytes(plan.budget.available_bytes)}"
    drafting = f", {drafter.name} as draft model" if drafter is not None else ""
    many = f", {plan.parallel} sequences" if plan.parallel > 1 else ""
    context = f"{found.context_tokens:,} tokens{for_each(found.load)}"
    what = f"{plan.tier.name} with {context}, cache {plan.layout.name}"
    return f"{_WORDS[found.status]}: {what}{drafting}{many}: {sizes}"


def _title(plan: TierPlan) -> tuple[str, ...]:
    engine = "what-if engine" if plan.setup.engine == WHAT_IF else plan.setup.engine
    return f"{plan.tier.line} ({plan.tier.base_model})", engine, plan.budget.name


def _memory_lines(plan: TierPlan, width: int) -> list[str]:
    """A table where it fits the width; the arithmetic is left out where it does not."""
    rows = [
        (_name(line), format_bytes(line.size_bytes), line.because)
        for line in plan.verdict.estimate.lines
    ]
    rows.append(("total", format_bytes(plan.required_bytes), _total_because(plan)))
    left = plan.budget.available_bytes - plan.required_bytes
    rows.append(("free" if left >= 0 else "missing", format_bytes(abs(left)), ""))
    plain = figures(("", ""), [row[:2] for row in rows])[1:]
    full = [f"{line}  {row[2]}".rstrip() for line, row in zip(plain, rows, strict=True)]
    return full if all(len(line) <= width for line in full) else plain


def _name(line: MemoryLine) -> str:
    return f"{line.part} {_NAMES.get(line.component, line.component.value)}".strip()


def _total_because(plan: TierPlan) -> str:
    memory = plan.budget
    usable = format_bytes(memory.available_bytes)
    if HOST not in memory.pools:
        return f"of {usable} free on the card"
    free, reserve = format_bytes(memory.free_bytes), format_bytes(memory.reserve_bytes)
    if memory.available_bytes == memory.limit_bytes:
        return f"of {usable}: all that the GPU may use of {format_bytes(memory.total_bytes)}"
    return f"of {usable}: {free} minus {reserve} for the system"


def _why_rows(plan: TierPlan) -> list[str]:
    steps = [f"{_LABELS[step.lever]}: {step.value}: {step.because}" for step in plan.steps]
    return [*plan.verdict.reasons, *steps]


def _guard_row(plan: TierPlan) -> str:
    need = plan.ram.need
    least, wanted = format_bytes(need.min_bytes), format_bytes(need.recommended_bytes)
    return (
        f"{plan.ram.level.value}: {plan.ram.because}; at least {least}, {wanted} recommended "
        f"({need.source})"
    )


def _to_fit_rows(plan: TierPlan) -> list[str]:
    if plan.verdict.can_load:
        return []
    return [f"add {format_bytes(plan.to_add_bytes)} of memory to {plan.budget.name}"]


def _notes(plan: TierPlan) -> Iterator[str]:
    if plan.setup.engine == WHAT_IF:
        yield _WHAT_IF
    yield from memory_notes(plan.verdict.machine, plan.budget)
