"""The plan of a tier as one screen of text and as JSON (docs/tiers.md)."""

from __future__ import annotations

from edgekit.bill.types import Component, Lever
from edgekit.engines.memo.policy import DRAFT_MAX, TierPlan, for_each
from edgekit.engines.memo.rules import memory_notes, windows_of
from edgekit.index.tiers import WHAT_IF
from edgekit.machine.types import HOST
from edgekit.report.check import VERDICTS
from edgekit.report.json import SCHEMA, Json, fields
from edgekit.report.plan import decision_json
from edgekit.report.text import PLAIN, Screen, Section, render, table
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
_SPILL_FIELDS = (
    "store purpose resident_tokens resident_bytes spilled_pages spilled_bytes page_bytes restore_ms "
    "limit_ms=purpose.limit_ms"
)
_NAMES = {Component.COMPUTE: "working set", Component.KV_CACHE: "cache", Component.STATE: "state"}


def tier_text(plan: TierPlan, screen: Screen = PLAIN) -> str:
    """The screen of `plan tier:NAME`."""
    is_what_if = plan.setup.engine == WHAT_IF
    engine = "what-if engine" if is_what_if else plan.setup.engine
    steps = [f"{_LABELS[step.lever]}: {step.value}: {step.because}" for step in plan.steps]
    need = plan.ram.need
    least, recommended = format_bytes(need.min_bytes), format_bytes(need.recommended_bytes)
    sizes = f"at least {least}, {recommended} recommended ({need.source})"
    missing = f"add {format_bytes(plan.to_add_bytes)} of memory to {plan.budget.name}"
    notes = memory_notes(plan.verdict.machine, plan.budget)
    sections: list[Section] = [
        ("Memory", lambda screen: _memory_lines(plan, screen.width)),
        ("Why", [*plan.verdict.reasons, *steps]),
        ("Guard", [f"{plan.ram.level.value}: {plan.ram.because}; {sizes}"]),
        ("To fit", [] if plan.verdict.can_load else [missing]),
        ("Basis", [ASSUMED]),
        ("Note", [_WHAT_IF, *notes] if is_what_if else notes),
    ]
    title = (f"{plan.tier.line} ({plan.tier.base_model})", engine, plan.budget.name)
    return render(tier_headline(plan), sections, screen, title=title)


def tier_headline(plan: TierPlan) -> str:
    """The plan in one line."""
    verdict, drafter = plan.verdict, plan.setup.drafter
    sizes = f"{format_bytes(plan.required_bytes)} of {format_bytes(plan.budget.available_bytes)}"
    drafting = f", {drafter.name} as draft model" if drafter is not None else ""
    sequences = f", {plan.parallel} sequences" if plan.parallel > 1 else ""
    context = f"{verdict.context_tokens:,} tokens{for_each(verdict.load)}"
    setting = f"{plan.tier.name} with {context}, cache {plan.layout.name}"
    return f"{VERDICTS[verdict.status]}: {setting}{drafting}{sequences}: {sizes}"


def _memory_lines(plan: TierPlan, width: int) -> list[str]:
    """A table, without the arithmetic if that does not fit the width."""
    memory = plan.budget
    rows = [
        (
            f"{line.part} {_NAMES.get(line.component, line.component.value)}".strip(),
            format_bytes(line.size_bytes),
            line.because,
        )
        for line in plan.verdict.estimate.lines
    ]
    usable = format_bytes(memory.available_bytes)
    if HOST not in memory.pools:
        why = f"of {usable} free on the card"
    elif memory.available_bytes == memory.limit_bytes:
        why = f"of {usable}: all that the GPU may use of {format_bytes(memory.total_bytes)}"
    else:
        free, reserve = format_bytes(memory.free_bytes), format_bytes(memory.reserve_bytes)
        why = f"of {usable}: {free} minus {reserve} for the system"
    rows.append(("total", format_bytes(plan.required_bytes), why))
    left = memory.available_bytes - plan.required_bytes
    rows.append(("free" if left >= 0 else "missing", format_bytes(abs(left)), ""))
    plain = table(("", ""), [row[:2] for row in rows])[1:]
    full = [f"{line}  {row[2]}".rstrip() for line, row in zip(plain, rows, strict=True)]
    return full if all(len(line) <= width for line in full) else plain


def tier_json(plan: TierPlan) -> Json:
    """The whole answer, with the bill and the reasons."""
    verdict, tier, layout, memory, ram = plan.verdict, plan.tier, plan.layout, plan.budget, plan.ram
    drafter, spill = plan.setup.drafter, plan.setup.spill
    return {
        "schema": SCHEMA,
        "tier": {
            **fields(tier, "name line base_model native_window catalog_window"),
            "sources": dict(tier.sources),
        },
        **fields(verdict, "holds=can_load context_tokens context_asked=asked"),
        "windows": windows_of(verdict.load),
        "layout": {
            **fields(layout, "name keys=keys.name values=values.name"),
            "bytes_per_token": tier.bytes_per_token(layout),
        },
        **fields(plan, "drafter=setup.drafter.name"),
        "draft_max": 0 if drafter is None else DRAFT_MAX,
        "parallel": plan.parallel,
        "spill": None if spill is None else fields(spill, _SPILL_FIELDS),
        "required_bytes": plan.required_bytes,
        "memory": {
            "name": memory.name,
            "kind": verdict.estimate.backend,
            **fields(
                memory,
                "total_bytes free_bytes reserve_bytes limit_bytes usable_bytes=available_bytes",
            ),
        },
        "ram": {
            "level": ram.level.name.lower(),
            **fields(ram.need, "min_bytes recommended_bytes source"),
            "because": ram.because,
        },
        "reasons": list(verdict.reasons),
        "to_add_bytes": plan.to_add_bytes,
        "steps": [decision_json(step) for step in plan.steps],
        "lines": [
            fields(line, "component part? pool=pool.label size_bytes basis because")
            for line in verdict.estimate.lines
        ],
        **fields(plan, "engine=setup.engine basis=verdict.estimate.basis"),
        "notes": [ASSUMED, *memory_notes(verdict.machine, memory)],
    }
