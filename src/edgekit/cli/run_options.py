"""Flags that `run` and `serve` share."""

from __future__ import annotations

import argparse

from edgekit.cli.engine_flags import add_flags, add_flags_of
from edgekit.cli.reach_options import add_reach_options
from edgekit.cli.request_options import (
    add_limit_options,
    add_min_context_option,
    add_window_budget_option,
)
from edgekit.engines import machine_keys, startable
from edgekit.engines.flags import COMMON, CONTEXT, QUANT

DEFAULT_NEW_TOKENS = 512  # of one question
# What run has for both engines, or settles itself.
SHARED = frozenset(
    {
        "ctx_shift",
        "sinks",
        "rolling",
        "threads",
        "max_tokens",
        "mode",
        "mix",
        "embeddings",
        "llama_version",
    }
)

_CONTEXT = "context in tokens: 8192, 32k, 0 for the native context (default: what the job needs)"


def add_shared(parser: argparse.ArgumentParser, verb: str) -> None:
    """The window, the engine and its flags."""
    engines = [engine.name for engine in startable(verb)]
    parser.add_argument(
        "--engine", metavar="NAME", help=f"{' or '.join(engines)} (default {engines[0]})"
    )
    _add_run_options(parser)
    add_reach_options(parser)
    add_flags(parser, COMMON, "every engine", (CONTEXT._replace(help=_CONTEXT), QUANT))
    add_flags_of(parser, tuple(engines), without=machine_keys() | SHARED)


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the context")
    group.add_argument(
        "--sinks", metavar="N", help="first tokens that a rolling context never drops (default 0)"
    )
    group.add_argument(
        "--rolling",
        "--context-shift",
        action="store_true",
        help="drop the oldest tokens of a full context and continue",
    )
    add_min_context_option(group)
    add_window_budget_option(group)
    add_limit_options(parser)
    group = parser.add_argument_group("before it starts")
    group.add_argument(
        "--download-up-to",
        metavar="SIZE",
        help="largest download to make (default: anything that fits)",
    )
    group.add_argument("--no-download", action="store_true", help="never download")
    group.add_argument(
        "-y", "--yes", action="store_true", help="download a model of the catalog without asking"
    )
    group.add_argument("-t", "--threads", metavar="N", help="CPU threads (default: one per core)")
    group.add_argument(
        "--force",
        action="store_true",
        help="start even if the model does not fit (it may swap, or be killed)",
    )
