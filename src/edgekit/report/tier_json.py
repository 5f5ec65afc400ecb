"""The plan of a tier -> JSON (docs/tiers.md): whole bytes, stable names, null for unknown."""

from __future__ import annotations

from typing import Any

from edgekit.bill.decisions import Decision
from edgekit.catalog.tiers import Layout, Tier
from edgekit.engines.memo.types import RamFit, TierMemory, TierPlan
from edgekit.engines.spill import Spill
from edgekit.report.tier_text import ASSUMED

SCHEMA = 1


def tier_json(plan: TierPlan) -> dict[str, Any]:
    """The whole answer, with its bill and its reasons."""
    return {
        "schema": SCHEMA,
        "tier": _tier(plan.tier),
        "holds": plan.holds,
        "context_tokens": plan.context_tokens,
        "context_asked": plan.asked,
        "windows": plan.wish.windows,
        "layout": _layout(plan.layout, plan.tier),
        "drafter": None if plan.drafter is None else plan.drafter.name,
        "draft_max": plan.draft_max,
        "parallel": plan.parallel,
        "spill": None if plan.spill is None else _spill(plan.spill),
        "required_bytes": plan.required_bytes,
        "memory": _memory(plan.wish.memory),
        "ram": _ram(plan.ram),
        "reasons": list(plan.reasons),
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
            for line in plan.estimate.lines
        ],
        "engine": plan.wish.engine,
        "basis": plan.basis.value,
        "notes": [ASSUMED, *plan.wish.memory.notes],
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


def _memory(memory: TierMemory) -> dict[str, Any]:
    return {
        "name": memory.name,
        "kind": memory.kind.value,
        "total_bytes": memory.total_bytes,
        "free_bytes": memory.free_bytes,
        "reserve_bytes": memory.reserve_bytes,
        "limit_bytes": memory.limit_bytes,
        "usable_bytes": memory.usable_bytes,
    }


def _ram(ram: RamFit) -> dict[str, Any]:
    return {
        "level": ram.level.name.lower(),
        "min_bytes": ram.budget.min_bytes,
        "recommended_bytes": ram.budget.recommended_bytes,
        "source": ram.budget.source,
        "because": ram.because,
    }


def _step(step: Decision) -> dict[str, Any]:
    return {
        "lever": step.lever.value,
        "value": step.value,
        "because": step.because,
        "tried": [{"value": one.value, "told": one.told, "taken": one.taken} for one in step.tried],
    }
