"""A fit and curves as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgekit.app.answers import Fit
from edgekit.bill.verdict import Status
from edgekit.engines.flags import typed
from edgekit.plan.curve import Curve
from edgekit.report.bill import bill_json
from edgekit.report.check import bars_json
from edgekit.report.headline import VERDICTS, headline
from edgekit.report.json import SCHEMA

Json = dict[str, Any]


def fit_json(found: Fit) -> Json:
    result, bill = found.result, found.bill
    if result is None:
        told = f"Cannot run: {found.refused}"
    elif found.refused:
        told = f"{VERDICTS[result.status]}: {found.refused}"
    else:
        told = headline(result)
    return {
        "schema": SCHEMA,
        "model": found.label,
        "reference": found.reference,
        "engine": found.engine,
        "status": (Status.FAILED if result is None else result.status).value,
        "told": told,
        "can_load": result is not None and result.can_load,
        "context_tokens": found.context_tokens,
        "native_context": found.native_context,
        "streams": 1 if result is None else result.streams,
        "quantization": None if result is None else result.quantization,
        "cache": None if result is None else result.cache,
        "bars": [] if result is None else bars_json(result.uses, result.estimate),
        "flags": typed(found.flags),
        "estimate": None if bill is None else bill_json(bill, layers=True),
        "estimate_command": found.estimate_command,
        "command": found.command or None,
        "refused": found.refused or None,
        "refused_about": found.refused_about or None,
        "notes": list(found.notes),
    }


def curves_json(found: Sequence[Curve]) -> Json:
    return {
        "schema": SCHEMA,
        "curves": [
            {
                "cache": curve.cache,
                "memory": curve.memory,
                "budget_bytes": curve.budget_bytes,
                "longest": curve.longest,
                "native": curve.native,
                "points": [[point.tokens, point.required_bytes] for point in curve.points],
            }
            for curve in found
        ],
    }
