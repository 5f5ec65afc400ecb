"""The report of `index build` as text and as JSON."""

from __future__ import annotations

from edgekit.app.crawl.types import BuildReport, Status
from edgekit.report.json import SCHEMA, Json, fields
from edgekit.units import format_bytes

_FIELDS = "folder files repositories models geometries rows problems requests received_bytes faults seconds"


def build_json(report: BuildReport) -> Json:
    return {
        "schema": SCHEMA,
        **fields(report, _FIELDS),
        "folder": str(report.folder),
        "rows": dict(report.rows),
        "problems": dict(report.problems),
        "faults": dict(report.faults),
        "seconds": round(report.seconds, 1),
    }


def build_text(report: BuildReport) -> str:
    """What was built, what is missing, and what it took."""
    received, folder = format_bytes(report.received_bytes), report.folder
    lines = [
        f"{folder}: {report.models:,} models, {report.geometries:,} geometries",
        f"{report.repositories:,} repositories, {report.requests:,} requests, {received}, {report.seconds:,.0f} s",
    ]
    if report.problems:
        counts = ", ".join(f"{count:,} {status}" for status, count in report.problems.items())
        lines.append(f"left out, or without a geometry: {counts} (problems.parquet says why)")
    if report.faults:
        counts = ", ".join(f"{count:,} x {kind}" for kind, count in report.faults.items())
        lines.append(f"failed requests that were repeated: {counts}")
    if Status.UNREACHABLE.value in report.problems:
        lines.append("run the command again to read what could not be reached")
    return "\n".join(lines) + "\n"
