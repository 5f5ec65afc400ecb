"""A recommendation -> the documented JSON (docs/json.md): whole bytes, stable names, null for unknown."""

from __future__ import annotations

from typing import Any

from edgekit.app.answers import Recommendation
from edgekit.catalog.types import Entry
from edgekit.plan.recommend import Suggestion
from edgekit.report.bill_json import SCHEMA
from edgekit.report.hardware_json import machine_json
from edgekit.report.plan_json import plan_fields


def cards_json(found: Recommendation) -> dict[str, Any]:
    """The whole answer, the best first."""
    request, machine = found.request, found.request.find_machine()
    return {
        "schema": SCHEMA,
        "task": found.purpose.value,
        "engine": request.engine,
        "context_tokens": request.wanted_tokens,
        "users": request.users,
        "min_context": request.min_context,
        "prefer_accurate_cache": request.prefer_accurate_kv,
        "machine": machine_json(machine),
        "suggestions": [_suggestion(one) for one in found.suggestions],
        "nearest": None if found.nearest is None else _suggestion(found.nearest),
        "passed_over": [{"because": why, "count": count} for why, count in found.passed_over],
        "notes": [*machine.notes, *found.notes],
    }


def _suggestion(one: Suggestion) -> dict[str, Any]:
    return {
        "id": one.entry.id,
        "entry": card_entry_json(one.entry),
        "rank": one.rank,
        "worth": one.worth,
        "is_quick": one.is_quick,
        "is_preferred": one.is_preferred,
        "plan": plan_fields(one.plan),
    }


def card_entry_json(entry: Entry) -> dict[str, Any]:
    """What a card says of the model; the rest is in the catalog."""
    return {
        "repository": entry.repository,
        "family": entry.family,
        "architecture": entry.architecture,
        "parameters": entry.parameters,
        "active_parameters": entry.active_parameters,
        "native_context": entry.native_context,
        "kinds": [kind.value for kind in entry.kinds],
        "licence": entry.licence,
        "released": entry.released,
    }
