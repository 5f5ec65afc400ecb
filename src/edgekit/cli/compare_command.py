"""`edgekit compare MODEL ...`: the engines for one model, or several models, side by side. Parse, call, print."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from edgekit.cli.options import (
    DEVICE_FORMS,
    ENVIRONMENT,
    MODEL_FORMS,
    add_device_options,
    add_engine_flags,
    add_job_option,
    add_limit_options,
    add_min_context_option,
    add_reach_options,
    add_users_option,
    counting,
    reach_of,
    screen,
)
from edgekit.cli.parser import COMMANDS
from edgekit.engines import either, engine_names, machine_keys

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

    from edgekit.app.answers import Check, Unanswered
    from edgekit.request import Request

_DESCRIPTION = (
    "One model: what llama.cpp, vLLM and MLX need for the same context, with weights and KV cache on the GPU. Several "
    "models, or a machine: one row each, with a verdict for this machine or the one that is named."
)
_EXAMPLES = """
examples:
  edgekit compare qwen3-8b -c 32k
  edgekit compare qwen3-8b llama-3.1-8b phi-4 --device "RTX 4090" --ram 64G
  edgekit compare ~/models --json

exit codes: 0 if at least one could be checked, whatever the verdict; otherwise the code of the first
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "compare",
        help=COMMANDS["compare"],
        usage="edgekit compare MODEL ... [--quant NAME] [-c N] [--device NAME] [--engine NAME] [options]",
        description=_DESCRIPTION,
        epilog=MODEL_FORMS + DEVICE_FORMS + _EXAMPLES + ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="file, folder, hub id, URL or name; - reads names from standard input",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    add_users_option(parser)
    add_min_context_option(parser)
    add_job_option(parser)
    add_device_options(parser)
    add_limit_options(parser)
    add_reach_options(parser)
    add_engine_flags(
        parser,
        several=True,
        engine_help=f"{either((*engine_names(), 'auto', 'all'))} (default: all for one model, auto for several)",
        context_help="context in tokens: 8192, 32k (default: chosen for the machine, or 32k if none is given)",
        without=machine_keys(),
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> str:
    """The answer as text. A model or an engine that fails is a row; where all do, an error."""
    from dataclasses import replace

    from edgekit.cli.input import references
    from edgekit.request import Request

    request = Request.from_argv(arguments)  # errors in flags come before anything is read
    names = references(arguments.models)
    if len(names) > 1 or arguments.engine is not None:
        return _models(names, request, arguments)
    if request.devices or request.ram or request.vram or request.job:
        return _models(names, replace(request, engines=engine_names()), arguments)
    return _engines(names[0], request, arguments)


def _engines(name: str, request: Request, arguments: argparse.Namespace) -> str:
    from edgekit.app.compare import compare
    from edgekit.request import Session

    with reach_of(arguments, quiet=arguments.json) as reach:
        found = compare(name, request, Session(reach=reach))
    if arguments.json:
        from edgekit.report.bill import compare_json
        from edgekit.report.json import json_text

        return json_text(compare_json(found, name))
    from edgekit.report.bill import compare_text

    return compare_text(found, screen(colour=False))


def _models(names: tuple[str, ...], request: Request, arguments: argparse.Namespace) -> str:
    """Judged as `check` judges them; one model by every engine."""
    from edgekit.app.answers import Check, Unanswered
    from edgekit.app.check import check_all
    from edgekit.request import Session

    with reach_of(arguments, quiet=arguments.json) as reach:
        answers = check_all(names, request, Session(reach=reach))
        found = counting(answers, len(names), reach.progress)
        rows = [row for answers in found for row in answers]
    if not any(isinstance(row, Check) for row in rows):
        raise next(row.error for row in rows if isinstance(row, Unanswered))
    return _rendered(rows, arguments)


def _rendered(rows: list[Check | Unanswered], arguments: argparse.Namespace) -> str:
    if arguments.json:
        from edgekit.report.json import json_text
        from edgekit.report.tables import models_json

        return json_text(models_json(rows))
    from edgekit.report.tables import check_table

    return check_table(rows, screen(), sizes=True)
