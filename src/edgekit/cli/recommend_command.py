"""`edgekit recommend`: parse, call, print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgekit.cli.options import (
    CHOSEN_CONTEXT,
    add_device_options,
    add_flags,
    add_limit_options,
    add_plan_options,
    is_terminal,
    screen,
    show_progress,
)
from edgekit.cli.parser import COMMANDS
from edgekit.cli.plan_command import check_latency, tier_answer
from edgekit.engines import default_engine, either, planned_engines
from edgekit.engines.flags import COMMON, CONTEXT, given_flags
from edgekit.errors import HardwareError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

    from edgekit.app.answers import Recommendation


_EXAMPLES = """
examples:
  edgekit recommend
  edgekit recommend --device "RTX 4090" --ram 64G --users 4 -c 16k
  edgekit recommend --task code --device m4-max-64 --engine mlx

Chooses among the models of the catalog (edgekit catalog list; edgekit catalog add MODEL adds one). Needs no network.
exit codes: 0 something fits, 3 nothing fits or the engine cannot run there, 2 wrong usage
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "recommend",
        help=COMMANDS["recommend"],
        usage="edgekit recommend [--task NAME] [-c N] [--users N] [--device NAME] [--engine NAME] [options]",
        description="Which models run best on this machine, or on another? Lists the best models of the catalog with "
        "quantisation, context, KV cache, expected speed and memory.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--task",
        metavar="NAME",
        default="chat",
        help="what the model is for: chat (default), code, reasoning, vision or embed",
    )
    parser.add_argument(
        "--engine",
        metavar="NAME",
        help=f"engine to run it with: {default_engine().name} (default), {either(planned_engines()[1:])}",
    )
    parser.add_argument("--limit", metavar="N", help="number of models to show (default 5)")
    parser.add_argument(
        "--all-sizes",
        action="store_true",
        help="allow several models of one family instead of the best of each",
    )
    parser.add_argument(
        "--tiers",
        action="store_true",
        help="choose among the five tiers of the context-scaling memo (docs/tiers.md)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.add_argument(
        "--why", action="store_true", help="add each model's headline, bars, release and licence"
    )
    parser.add_argument(
        "--offline", action="store_true", help="no effect: recommend never uses the network"
    )
    add_plan_options(parser)
    add_flags(parser, COMMON, "every engine", (CONTEXT._replace(help=CHOSEN_CONTEXT),))
    add_device_options(parser)
    add_limit_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    """The best few as text; that nothing fits is an exit code."""
    from edgekit.request import Request, Session

    if arguments.tiers:
        from edgekit.app.tiers import recommend_tier

        return tier_answer(recommend_tier(Request.from_argv(arguments)), arguments)
    from edgekit.app.recommend import recommend
    from edgekit.sources.types import Reach

    arguments.engine = arguments.engine or default_engine().name
    request = Request.from_argv(arguments, one_engine=True)
    check_latency(request)
    shows = is_terminal(sys.stderr) and not arguments.json
    try:
        best = recommend(request, Session(reach=Reach(progress=show_progress if shows else None)))
    finally:
        if shows:
            show_progress("")
    code = 0 if best.suggestions else HardwareError.exit_code
    return _told(best, arguments), code


def _told(best: Recommendation, arguments: argparse.Namespace) -> str:
    if arguments.json:
        from edgekit.report.cards import cards_json
        from edgekit.report.json import json_text

        return json_text(cards_json(best))
    import shlex

    from edgekit.report.cards import cards_text

    return cards_text(
        best,
        words=shlex.join(_same_words(arguments)),
        screen=screen(),
        why=arguments.why,
    )


def _same_words(arguments: argparse.Namespace) -> Iterator[str]:
    """The flags with which `edgekit plan` plans for the same."""
    for device in arguments.device:
        yield from ("--device", device)
    for name in ("ram", "vram", "users", "min_context", "job"):
        value = getattr(arguments, name)
        if value is not None:
            yield from (f"--{name.replace('_', '-')}", value)
    context = given_flags(arguments).get(COMMON, {}).get("context")
    if context is not None:
        yield from ("-c", context)
    if arguments.engine != default_engine().name:
        yield from ("--engine", arguments.engine)
    if arguments.prefer_accurate_kv:
        yield "--prefer-accurate-kv"
