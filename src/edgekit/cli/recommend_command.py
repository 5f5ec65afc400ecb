"""`edgekit recommend`: parse, call, print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgekit.cli.asking import CONTEXT
from edgekit.cli.check_command import read_number
from edgekit.cli.device_options import add_device_options, machine_of_arguments
from edgekit.cli.flags import COMMON, add_flags, given_flags, read_flags
from edgekit.cli.plan_command import add_wishes
from edgekit.cli.reach_options import is_terminal, screen_width, show_progress
from edgekit.cli.tiers import check_latency, run_tiers
from edgekit.errors import HardwareError, UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

    from edgekit.catalog.types import Catalog, Kind
    from edgekit.plan.recommending import Ask, Recommendation

LLAMACPP = "llama.cpp"
MOST_SHOWN = 100
_EVERY_FAMILY = 10**6
_OTHER_NAMES = {
    "embed": "embedding",
    "embeddings": "embedding",
    "coding": "code",
    "reason": "reasoning",
}

_EXAMPLES = """
examples:
  edgekit recommend
  edgekit recommend --task code --ctx 32k
  edgekit recommend --device "RTX 4090" --ram 64G --users 4 -c 16k
  edgekit recommend --device m4-max-64 --engine mlx
  edgekit recommend --task embed --ram 8G --json

the models are those of the catalog (edgekit catalog list; edgekit catalog add MODEL adds one). No network is needed.
exit codes: 0 something fits, 3 nothing does or the engine cannot run there, 2 usage
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "recommend",
        help="the best models for this machine, or for another",
        description="Which models run best on this machine? The best few of the catalog, each with its quantisation, "
        "window, cache, expected speed and memory.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--task",
        metavar="NAME",
        default="chat",
        help="chat (default), code, reasoning, vision or embed",
    )
    parser.add_argument(
        "--engine", metavar="NAME", default=LLAMACPP, help="llama.cpp (default), vllm or mlx"
    )
    parser.add_argument("--limit", metavar="N", help="how many to show (default 5)")
    parser.add_argument(
        "--all-sizes",
        action="store_true",
        help="several models of one family, not the best of each",
    )
    parser.add_argument(
        "--tiers",
        action="store_true",
        help="among the five tiers of the context-scaling memo (docs/tiers.md)",
    )
    parser.add_argument("--json", action="store_true", help="for programs (docs/json.md)")
    add_wishes(parser)
    add_flags(parser, COMMON, "load", (CONTEXT,))
    add_device_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    """The best few as text; that nothing fits is an exit code."""
    if arguments.tiers:
        return run_tiers(arguments)
    check_latency(arguments)
    from edgekit.catalog import read_catalog
    from edgekit.plan.recommending import SHOWN
    from edgekit.planning import recommended

    ask = _ask(arguments)
    catalog = read_catalog()
    limit = read_number("--limit", arguments.limit, least=1) or SHOWN
    shows = is_terminal(sys.stderr) and not arguments.json
    try:
        found = recommended(
            catalog,
            ask,
            most=min(limit, MOST_SHOWN),
            of_a_family=_EVERY_FAMILY if arguments.all_sizes else 1,
            tell=show_progress if shows else None,
        )
    finally:
        if shows:
            show_progress("")
    code = 0 if found.suggestions else HardwareError.exit_code
    return _told(found, catalog, arguments), code


def _ask(arguments: argparse.Namespace) -> Ask:
    from edgekit.engine import engine_name
    from edgekit.plan.making import check_planned
    from edgekit.plan.recommending import Ask

    check_planned(engine_name(arguments.engine))
    values = read_flags((CONTEXT,), given_flags(arguments).get(COMMON, {}))
    return Ask(
        machine=machine_of_arguments(arguments),
        task=_task(arguments.task),
        engine=engine_name(arguments.engine),
        context_tokens=values.get("context") or None,
        users=read_number("--users", arguments.users, least=1),
        min_context=read_number("--min-context", arguments.min_context),
        prefer_accurate_cache=arguments.prefer_accurate_kv,
    )


def _task(word: str) -> Kind:
    from edgekit.catalog.types import Kind

    name = word.lower()
    try:
        return Kind(_OTHER_NAMES.get(name, name))
    except ValueError as error:
        known = ", ".join(kind.value for kind in Kind)
        raise UsageError(f"--task: {word[:40]!r} is not one of {known}") from error


def _told(found: Recommendation, catalog: Catalog, arguments: argparse.Namespace) -> str:
    from edgekit.planning import base_note

    base = (base_note(one.entry) for one in found.suggestions)
    notes = (*catalog.problems, *(note for some in base for note in some))
    if arguments.json:
        from edgekit.report.as_json import json_text
        from edgekit.report.cards_json import cards_json

        return json_text(cards_json(found, problems=notes))
    import shlex

    from edgekit.report.bars import glyphs_for
    from edgekit.report.cards import cards_text

    return cards_text(
        found,
        problems=notes,
        words=shlex.join(_same_words(arguments)),
        width=screen_width(),
        colour=is_terminal(sys.stdout),
        glyphs=glyphs_for(getattr(sys.stdout, "encoding", None)),
    )


def _same_words(arguments: argparse.Namespace) -> Iterator[str]:
    """What `edgekit plan` has to be told to plan for the same."""
    for device in arguments.device:
        yield from ("--device", device)
    for name in ("ram", "vram", "users", "min_context"):
        value = getattr(arguments, name)
        if value is not None:
            yield from (f"--{name.replace('_', '-')}", value)
    context = given_flags(arguments).get(COMMON, {}).get("context")
    if context is not None:
        yield from ("-c", context)
    if arguments.engine != LLAMACPP:
        yield from ("--engine", arguments.engine)
    if arguments.prefer_accurate_kv:
        yield "--prefer-accurate-kv"
