"""The plan of a tier -> JSON (docs/tiers.md): whole bytes, stable names, null for unknown."""

from __future__ import annotations

from typing import Any

from edgekit.bill.spill import Spill
from edgekit.bill.verdict import Decision
from edgekit.catalog.tiers import Layout, Tier
from edgekit.engines.memo.placements import memory_notes
from edgekit.engines.memo.types import DRAFT_MAX, RamFit, TierPlan, windows_of
from edgekit.report.json import SCHEMA
from edgekit.report.tier_text import ASSUMED


def tier_json(plan: TierPlan) -> dict[str, Any]:
    """The whole answer, with its bill and its reasons."""
    found, drafter, spill = plan.verdict, plan.setup.drafter, plan.setup.spill
    return {
        "schema": SCHEMA,
        "tier": _tier(plan.tier),
        "holds": found.can_load,
        "context_tokens": found.context_tokens,
        "context_asked": found.asked,
        "windows": windows_of(found.load),
        "layout": _layout(plan.layout, plan.tier),
        "drafter": None if drafter is None else drafter.name,
        "draft_max": 0 if drafter is None else DRAFT_MAX,
        "parallel": plan.parallel,
        "spill": None if spill is None else _spill(spill),
        "required_bytes": plan.required_bytes,
        "memory": _memory(plan),
        "ram": _ram(plan.ram),
        "reasons": list(found.reasons),
        "to_add_bytes": plan.to_add_bytes,
        "steps": [_step(step) for step in plan.steps],
        "lines": [
            {
                "component": line.component.value,
                "part": line.part or None,
                "pool": line.pool.label,
                "size_bytes": line.size_bytes,
                "basis": line.basis.value,
                "because": line.because,
            }
            for line in found.estimate.lines
        ],
        "engine": plan.setup.engine,
        "basis": found.estimate.basis.value,
        "notes": [ASSUMED, *memory_notes(found.machine, plan.budget)],
    }


def _tier(tier: Tier) -> dict[str, Any]:
    return {
        "name": tier.name,
        "line": tier.line,
        "base_model": tier.base_model,
        "native_window": tier.native_window,
        "catalog_window": tier.catalog_window,
        "sources": dict(tier.sources),
    }


def _layout(layout: Layout, tier: Tier) -> dict[str, Any]:
    return {
        "name": layout.name,
        "keys": layout.keys.name,
        "values": layout.values.name,
        "bytes_per_token": tier.bytes_per_token(layout),
    }


def _spill(spill: Spill) -> dict[str, Any]:
    return {
        "store": spill.store.value,
        "purpose": spill.purpose.value,
        "resident_tokens": spill.resident_tokens,
        "resident_bytes": spill.resident_bytes,
        "spilled_pages": spill.spilled_pages,
        "spilled_bytes": spill.spilled_bytes,
        "page_bytes": spill.page_bytes,
        "restore_ms": spill.restore_ms,
        "limit_ms": spill.purpose.limit_ms,
    }


def _memory(plan: TierPlan) -> dict[str, Any]:
    memory = plan.budget
    return {
        "name": memory.name,
        "kind": plan.verdict.estimate.backend,
        "total_bytes": memory.total_bytes,
        "free_bytes": memory.free_bytes,
        "reserve_bytes": memory.reserve_bytes,
        "limit_bytes": memory.limit_bytes,
        "usable_bytes": memory.available_bytes,
    }


def _ram(ram: RamFit) -> dict[str, Any]:
    return {
        "level": ram.level.name.lower(),
        "min_bytes": ram.need.min_bytes,
        "recommended_bytes": ram.need.recommended_bytes,
        "source": ram.need.source,
        "because": ram.because,
    }


def _step(step: Decision) -> dict[str, Any]:
    return {
        "lever": step.lever.value,
        "value": step.value,
        "because": step.because,
        "tried": [{"value": one.value, "told": one.told, "taken": one.taken} for one in step.tried],
    }
