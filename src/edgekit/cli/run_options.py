"""Flags that `run` and `serve` share."""

from __future__ import annotations

import argparse

from edgekit.cli.request_options import add_min_context_option, add_window_budget_option

DEFAULT_NEW_TOKENS = 512  # of one question


def add_run_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the window")
    group.add_argument(
        "--sinks", metavar="N", help="first tokens that never leave the window (default 0)"
    )
    group.add_argument(
        "--rolling",
        "--context-shift",
        action="store_true",
        help="a full window drops its oldest tokens and goes on",
    )
    add_min_context_option(group)
    add_window_budget_option(group)
    group = parser.add_argument_group("before it starts")
    group.add_argument(
        "--download-up-to", metavar="SIZE", help="refuse to download more (default: whatever fits)"
    )
    group.add_argument("--no-download", action="store_true", help="never download")
    group.add_argument(
        "-y", "--yes", action="store_true", help="download a model of the catalog without asking"
    )
    group.add_argument("-t", "--threads", metavar="N", help="of the processor (default: its cores)")
    group.add_argument(
        "--force",
        action="store_true",
        help="start it although it does not fit: it may swap, or be killed",
    )
