"""`download`: fetch a model, and say what and how much."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from edgekit.app.download import download
from edgekit.cli.console import open_session
from edgekit.cli.launch import quant_of
from edgekit.engines.flags import read
from edgekit.errors import UsageError
from edgekit.report.json import SCHEMA, json_text
from edgekit.units import format_download, parse_size

if TYPE_CHECKING:
    from edgekit.sources.download import Download


def run_download(arguments: argparse.Namespace) -> str:
    """Where the files are; what is fetched is said on standard error before it starts."""
    text = arguments.limit
    limit = None if text is None else read("--limit", parse_size, text)

    def announce(planned: Download) -> bool:
        size = format_download(planned.size_bytes)
        if limit is not None and planned.size_bytes > limit:
            raise UsageError(f"{planned.label} is a download of {size}, more than --limit")
        if not arguments.json:
            line = f"downloading {planned.label}, {size}, to {planned.folder}"
            print(line, file=sys.stderr, flush=True)
        return True

    def show(note: object) -> None:
        print(f"edgekit: {note}", file=sys.stderr, flush=True)

    with open_session(arguments, quiet=arguments.json, confirm=announce, notify=show) as session:
        done = download(
            arguments.model,
            session,
            quant=quant_of(arguments.model, arguments.quant),
            projector=not arguments.no_mmproj,
        )
    if arguments.json:
        return json_text(
            {
                "schema": SCHEMA,
                "model": done.label,
                "files": [str(path) for path in done.files],
                "size_bytes": done.size_bytes,
                "downloaded_bytes": done.downloaded_bytes,
            }
        )
    how = "downloaded" if done.downloaded_bytes else "on this machine already"
    lines = [f"{done.label}, {format_download(done.size_bytes)}, {how}", *map(str, done.files)]
    return "\n".join(lines) + "\n"
