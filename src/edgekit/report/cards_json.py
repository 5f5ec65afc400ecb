"""A recommendation -> the documented JSON (docs/json.md): whole bytes, stable names, null for unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgekit.catalog.types import Entry
from edgekit.plan.recommending import Recommendation, Suggestion
from edgekit.report.bill_json import SCHEMA
from edgekit.report.hardware_json import machine_json
from edgekit.report.plan_json import plan_fields


def cards_json(found: Recommendation, *, problems: Sequence[str] = ()) -> dict[str, Any]:
    """The whole answer, the best first."""
    ask = found.ask
    return {
        "schema": SCHEMA,
        "task": ask.task.value,
        "engine": ask.engine,
        "context_tokens": ask.wanted_tokens,
        "users": ask.users,
        "min_context": ask.min_context,
        "prefer_accurate_cache": ask.prefer_accurate_cache,
        "machine": machine_json(ask.machine),
        "suggestions": [_suggestion(one) for one in found.suggestions],
        "nearest": None if found.nearest is None else _suggestion(found.nearest),
        "passed_over": [{"because": why, "count": count} for why, count in found.passed_over],
        "notes": [*ask.machine.notes, *problems],
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
