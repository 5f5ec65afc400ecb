"""Verdicts -> the documented JSON (docs/json.md): whole bytes, stable names, null for unknown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from edgekit.app.answers import Answer, Check, Unanswered
from edgekit.bill.verdict import Change, Speed, Usage
from edgekit.plan.verdict import download_bytes
from edgekit.report.bill_json import SCHEMA, bill_json
from edgekit.report.check_table import counts
from edgekit.report.hardware_json import budget_json, machine_json
from edgekit.report.headline import headline


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


def unanswered_json(found: Unanswered) -> dict[str, Any]:
    return {
        "reference": found.reference,
        "engine": found.engine,
        "error": {"type": type(found.error).__name__, "message": str(found.error)},
    }


def checks_json(rows: Sequence[Check | Unanswered]) -> dict[str, Any]:
    """Many models, or all engines of one, in the order in which they were asked for."""
    told = {outcome.replace(" ", "_"): count for outcome, count in counts(rows).items()}
    return {
        "schema": SCHEMA,
        "models": [
            check_json(row) if isinstance(row, Check) else unanswered_json(row) for row in rows
        ],
        "summary": told,
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


def answers_json(answers: Sequence[Answer]) -> dict[str, Any]:
    """One model and one engine as they are, else a list. Raises the error if the only answer is one."""
    if len(answers) > 1:
        return checks_json(answers)
    if isinstance(answers[0], Unanswered):
        raise answers[0].error
    return check_json(answers[0])
