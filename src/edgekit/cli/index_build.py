"""`index build`: crawl a hub into an index of one's own."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from datetime import UTC, datetime

from edgekit.cli import warn
from edgekit.cli.console import is_terminal, show_progress
from edgekit.errors import RemoteInspectError, UsageError

HUB = "hub"
SOURCE_EXIT = RemoteInspectError.exit_code


def run_build(arguments: argparse.Namespace) -> tuple[str, int]:
    """Build the index; exit code 4 if part of the hub could not be reached."""
    from edgekit.app.crawl.build import build
    from edgekit.app.crawl.types import AT_ONCE, BuildOptions, Status
    from edgekit.engines.flags import read_number
    from edgekit.report.index_build import build_json, build_text
    from edgekit.report.json import json_text
    from edgekit.sources.address import hub_at
    from edgekit.sources.local import path_of_flag

    if arguments.out is None:
        raise UsageError("index build needs --out DIR, a folder for the index")
    source = getattr(arguments, "from") or HUB
    if source != HUB and "://" not in source:
        raise UsageError(f"--from must be hub or an address with https:// (got {source[:60]!r})")
    shows = is_terminal(sys.stderr) and not arguments.json

    def notify(line: str) -> None:
        if shows:
            show_progress("")
        warn(line)

    options = BuildOptions(
        folder=path_of_flag(arguments.out, "--out"),
        date=_date(arguments.date),
        author=arguments.author,
        search=arguments.search,
        filters=tuple(arguments.filter),
        limit=read_number("--limit", arguments.limit, 1),
        sizes=not arguments.no_sizes,
        restart=arguments.restart,
        rate=_rate(arguments.rate),
        at_once=read_number("--at-once", arguments.at_once, 1, 256) or AT_ONCE,
        ray=arguments.ray,
        workers=read_number("--workers", arguments.workers, 1, 4096),
        progress=show_progress if shows else None,
        notify=notify,
    )
    try:
        with contextlib.nullcontext() if source == HUB else hub_at(source):
            report = build(options)
    finally:
        if shows:
            show_progress("")
    code = SOURCE_EXIT if Status.UNREACHABLE.value in report.problems else 0
    return (json_text(build_json(report)) if arguments.json else build_text(report)), code


def _date(text: str | None) -> str:
    from edgekit.index.merge import is_day

    if text is None:
        return datetime.now(tz=UTC).date().isoformat()
    if not is_day(text):
        raise UsageError(f"--date must be like 2026-11-18 (got {text[:40]!r})")
    return text


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not (rate > 0 and math.isfinite(rate)):
        raise UsageError(f"--rate must be a number of requests per second (got {text[:40]!r})")
    return rate
