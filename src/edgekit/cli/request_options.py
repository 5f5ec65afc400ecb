"""Flags about the load itself, the same in every command that has them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _ArgumentGroup

    Options = argparse.ArgumentParser | _ArgumentGroup


def add_users_option(parser: Options) -> None:
    parser.add_argument(
        "--users", metavar="N", help="number of users at the same time, each with a full context: 4"
    )


def add_min_context_option(parser: Options) -> None:
    parser.add_argument(
        "--min-context",
        metavar="N",
        help="shortest context to accept (default 16k, or the native context if that is shorter)",
    )


def add_job_option(parser: Options) -> None:
    parser.add_argument(
        "--job",
        metavar="P+N",
        help="size the context for a prompt of P tokens and an answer of N: 6000+800",
    )


def add_window_budget_option(parser: Options) -> None:
    parser.add_argument(
        "--window-budget",
        metavar="SIZE",
        help="without -c, the longest context whose KV cache fits in this size: 4G",
    )


def add_limit_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how full the memory may be")
    group.add_argument(
        "--max-use",
        metavar="SHARE",
        help="fail if the model needs more than this share of the usable memory: 85%%",
    )
    group.add_argument(
        "--reserve",
        metavar="SIZE",
        help="memory to leave free on every GPU and in RAM (llama.cpp: 1G, 2G on Windows): 512M, 0",
    )


def add_plan_options(parser: Options) -> None:
    """What `plan` asks of one model and `recommend` of all."""
    add_users_option(parser)
    add_min_context_option(parser)
    add_job_option(parser)
    parser.add_argument(
        "--prefer-accurate-kv",
        action="store_true",
        help="without -c, prefer an accurate KV cache to a longer context",
    )
    parser.add_argument(
        "--latency",
        metavar="FOR",
        help="tiers only: longest wait for spilled cache pages, text (1.5 s, default) or voice (0.2 s)",
    )
