"""Verification -> the documented JSON (docs/verify.md): whole numbers, stable names, null for unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # only to name them: others use a row of this report
    from edgekit.engines.comparison import ComparedRow, Resident, Verification

SCHEMA = 1


def verification_json(found: Verification) -> dict[str, Any]:
    answer = found.answer
    return {
        "schema": SCHEMA,
        "model": found.label,
        "within": found.within,
        "rules_version": found.rules_version,
        "engine": {
            "through": answer.through,
            "version": answer.version,
            "mode": found.mode,
            "backend": found.backend,
            "devices": list(answer.devices),
            "resolved": dict(answer.resolved),
            "seconds": round(answer.seconds, 3),
        },
        "facts": dict(found.estimate.facts),
        "parts": [row_json(row) for row in found.rows],
        "total": row_json(found.total),
        "resident": [_resident(one) for one in found.resident],
        "beside_bytes": found.beside_bytes,
        "notes": list(found.notes),
    }


def row_json(row: ComparedRow) -> dict[str, Any]:
    return {
        "part": row.part,
        "predicted_bytes": row.predicted_bytes,
        "engine_bytes": row.measured.middle_bytes,
        "engine_low_bytes": row.measured.low_bytes,
        "engine_high_bytes": row.measured.high_bytes,
        "difference_bytes": row.difference_bytes,
        "difference_share": round(row.difference_share, 6),
        "allowed_bytes": row.allowed_bytes,
        "within": row.within,
    }


def _resident(one: Resident) -> dict[str, Any]:
    return {
        "when": one.when,
        "resident_bytes": one.resident_bytes,
        "anonymous_bytes": one.anonymous_bytes,
        "file_bytes": one.file_bytes,
        "model_bytes": one.model_bytes,
        "swapped_bytes": one.swapped_bytes,
    }
