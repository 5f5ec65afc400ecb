"""A plan -> the documented JSON (docs/json.md): whole bytes, stable names, null for unknown."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgekit.bill.cache_types import CacheType
from edgekit.bill.types import Variant
from edgekit.bill.verdict import Decision, Verdict
from edgekit.engines import engine_named
from edgekit.plan.commands import main_command
from edgekit.plan.plan import Plan
from edgekit.plan.verdict import download_bytes
from edgekit.report.bill_json import SCHEMA, answer_json, bill_json
from edgekit.report.check_json import change_json, speed_json, use_json
from edgekit.report.hardware_json import machine_json
from edgekit.report.headline import headline
from edgekit.report.plan_bill import bill_of

if TYPE_CHECKING:
    from edgekit.engines.commands import Command


def plan_json(
    plan: Plan, *, ready: Sequence[Command] = (), notes: Sequence[str] = ()
) -> dict[str, Any]:
    """The whole plan, with every line of its bill."""
    result = plan.result
    shown = ready if plan.fits else ()
    return {
        "schema": SCHEMA,
        **plan_fields(plan),
        "machine": machine_json(plan.task.machine),
        "estimate": bill_json(bill_of(plan, main_command(shown))),
        "commands": [_ready(one) for one in shown],
        "notes": [*result.machine.notes, *notes, *result.estimate.notes],
    }


def plan_fields(plan: Plan) -> dict[str, Any]:
    """What a plan is, whatever it is part of; the bill in sums."""
    result, task = plan.result, plan.task
    return {
        "model": task.label,
        "headline": headline(result),
        "status": result.status.value,
        "can_load": plan.fits,
        "engine": {
            "name": task.engine,
            "version": engine_named(task.engine).version(result.way.setup),
        },
        "variant": _variant(plan.variant),
        "context_tokens": plan.context_tokens,
        "context_asked": result.asked,
        "native_context": result.native_context,
        "max_context": result.max_context,
        "step": result.step,
        **_together(plan),
        "cache": _cache(plan),
        "way": result.way.because,
        "nodes": task.nodes,
        "download_bytes": download_bytes(result) if task.is_remote else None,
        **_numbers(result),
        "budgets": [use_json(use) for use in result.uses],
        "decisions": [_decision(one) for one in plan.decisions],
        "drafter": _drafter(plan),
        "speed": plan_speed(plan),
        "reasons": list(result.reasons),
        "to_fit": [change_json(change) for change in plan.to_fit],
        "changes": [change_json(change) for change in plan.changes],
        "estimate": answer_json(result.estimate),
    }


def _together(plan: Plan) -> dict[str, Any]:
    """All users: the context that the engine is asked for, and how many sequences."""
    return {
        "users": plan.task.users,
        "sequences": plan.load.sequences,
        "total_context_tokens": plan.result.context_tokens,
    }


def _numbers(result: Verdict) -> dict[str, Any]:
    tightest = use_json(result.tightest)
    names = ("required_bytes", "available_bytes", "utilization")
    return {name: tightest[name] for name in names} | {"basis": result.estimate.basis.value}


def _variant(variant: Variant) -> dict[str, Any]:
    return {
        "name": variant.name,
        "reference": variant.reference or None,
        "is_good": variant.is_good,
    }


def _cache(plan: Plan) -> dict[str, Any]:
    """Types of keys and values are null where they are the engine's own."""
    return {
        "name": None if plan.choice is None else plan.choice.name,
        "type_k": _type(plan.load.cache_k),
        "type_v": _type(plan.load.cache_v),
    }


def _type(kind: CacheType | None) -> str | None:
    return None if kind is None else kind.name


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "lever": decision.lever.value,
        "value": decision.value,
        "because": decision.because,
        "tried": [
            {"value": one.value, "told": one.told, "taken": one.taken} for one in decision.tried
        ],
    }


def _drafter(plan: Plan) -> dict[str, Any] | None:
    """A draft model that would fit as well; it is not in the bill."""
    drafter = plan.drafter
    if drafter is None:
        return None
    return {
        "name": drafter.name,
        "reference": None,
        "own_blocks": drafter.model is None,
        "because": drafter.because,
        "flags": shlex.join(engine_named(plan.task.engine).draft_words(plan.result, drafter)),
    }


def plan_speed(plan: Plan) -> dict[str, Any] | None:
    """With the one number that plans are compared by."""
    speed, steady = plan.speed, plan.steady_tokens_per_s
    if speed is None:
        return None
    return {**speed_json(speed), "steady": None if steady is None else round(steady, 2)}


def _ready(one: Command) -> dict[str, Any]:
    return {
        "program": one.program,
        "name": one.name,
        "kind": one.kind,
        "text": one.text,
        "notes": list(one.notes),
    }
