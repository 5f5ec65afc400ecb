"""What was measured on a machine -> the documented JSON (docs/json.md): whole bytes, stable names, null for unknown."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edgekit.machine.types import Measured
from edgekit.report.calibrate_text import CalibrationFile
from edgekit.report.verify_json import row_json

if TYPE_CHECKING:  # only to name it: a report of what is kept needs nothing that measures
    from edgekit.runtime.calibrating import Calibrated

SCHEMA = 1


def calibrated_json(found: Calibrated, path: str) -> dict[str, Any]:
    verified = found.verification
    paced = None if verified is None else verified.paced
    return {
        "schema": SCHEMA,
        "path": path,
        "host": asdict(found.host),
        "engine": None if found.engine is None else asdict(found.engine),
        "timed": None if paced is None else asdict(paced),
        "within": None if verified is None else verified.within,
        "parts": [] if verified is None else [row_json(row) for row in verified.rows],
        "notes": list(found.notes),
    }


def list_json(kept: CalibrationFile, *, removed: bool = False) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "path": kept.path,
        "removed": removed and not kept.is_empty,
        **asdict(kept.stored.calibration),
        "problem": kept.stored.problem or None,
    }


def measured_json(measured: Measured | None) -> dict[str, Any] | None:
    """For `edgekit hardware --json`."""
    return None if measured is None else asdict(measured)
