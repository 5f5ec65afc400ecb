"""The plan of a tier -> one screen of text: the answer, the memory, why so, and how little of it is measured."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.bill.decisions import Lever
from edgekit.bill.types import Component, MemoryLine
from edgekit.catalog.tiers import WHAT_IF
from edgekit.engines.memo.types import MemoryKind, RamLevel, TierPlan
from edgekit.report.lines import figures
from edgekit.report.screen import folded, joined, placed, row_width, section, within
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
    tight = plan.ram.level is RamLevel.TIGHT
    verdict = ("Tight" if tight else "Fits") if plan.holds else "Does not fit"
    sizes = f"{format_bytes(plan.required_bytes)} of {format_bytes(plan.wish.memory.usable_bytes)}"
    each = f" for each of {plan.wish.windows}" if plan.wish.windows > 1 else ""
    drafter = f", {plan.drafter.name} as draft model" if plan.drafter is not None else ""
    many = f", {plan.parallel} sequences" if plan.parallel > 1 else ""
    what = f"{plan.tier.name} with {plan.context_tokens:,} tokens{each}, cache {plan.layout.name}"
    return f"{verdict}: {what}{drafter}{many}: {sizes}"


def _title(plan: TierPlan) -> tuple[str, ...]:
    engine = "what-if engine" if plan.wish.engine == WHAT_IF else plan.wish.engine
    return f"{plan.tier.line} ({plan.tier.base_model})", engine, plan.wish.memory.name


def _memory_lines(plan: TierPlan, width: int) -> list[str]:
    """A table where it fits the width; the arithmetic is left out where it does not."""
    rows = [
        (_name(line), format_bytes(line.size_bytes), line.because) for line in plan.estimate.lines
    ]
    rows.append(("total", format_bytes(plan.required_bytes), _total_because(plan)))
    left = plan.left_bytes
    rows.append(("free" if left >= 0 else "missing", format_bytes(abs(left)), ""))
    plain = figures(("", ""), [row[:2] for row in rows])[1:]
    full = [f"{line}  {row[2]}".rstrip() for line, row in zip(plain, rows, strict=True)]
    return full if all(len(line) <= width for line in full) else plain


def _name(line: MemoryLine) -> str:
    return f"{line.part} {_NAMES.get(line.component, line.component.value)}".strip()


def _total_because(plan: TierPlan) -> str:
    memory = plan.wish.memory
    usable = format_bytes(memory.usable_bytes)
    if memory.kind is MemoryKind.CARD:
        return f"of {usable} free on the card"
    free, reserve = format_bytes(memory.free_bytes), format_bytes(memory.reserve_bytes)
    if memory.usable_bytes == memory.limit_bytes:
        return f"of {usable}: all that the GPU may use of {format_bytes(memory.total_bytes)}"
    return f"of {usable}: {free} minus {reserve} for the system"


def _why_rows(plan: TierPlan) -> list[str]:
    steps = [f"{_LABELS[step.lever]}: {step.value}: {step.because}" for step in plan.steps]
    return [*plan.reasons, *steps]


def _guard_row(plan: TierPlan) -> str:
    budget = plan.ram.budget
    least, wanted = format_bytes(budget.min_bytes), format_bytes(budget.recommended_bytes)
    return (
        f"{plan.ram.level.value}: {plan.ram.because}; at least {least}, {wanted} recommended "
        f"({budget.source})"
    )


def _to_fit_rows(plan: TierPlan) -> list[str]:
    if plan.holds:
        return []
    return [f"add {format_bytes(plan.to_add_bytes)} of memory to {plan.wish.memory.name}"]


def _notes(plan: TierPlan) -> Iterator[str]:
    if plan.wish.engine == WHAT_IF:
        yield _WHAT_IF
    yield from plan.wish.memory.notes
