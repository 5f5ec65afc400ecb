"""`edgekit estimate MODEL`: parse, call, print."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from edgekit.cli.options import (
    ENVIRONMENT,
    MODEL_FORMS,
    add_device_options,
    add_engine_flags,
    add_reach_options,
    add_users_option,
    has_flags,
    reach_of,
    screen,
)
from edgekit.cli.parser import COMMANDS
from edgekit.errors import UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

    from edgekit.app.answers import EstimateAnswer

_DESCRIPTION = (
    "How much memory an engine will allocate for the model: weights, KV cache and compute buffers, in each memory, and "
    "how each number is known. Does not judge whether it fits (edgekit check does)."
)
_EXAMPLES = """
examples:
  edgekit estimate qwen3-8b --quant Q4_K_M -c 32k -ngl all -ctk q8_0 -ctv q8_0
  edgekit estimate qwen3-8b --engine vllm --device "RTX 4090" -c 32k
  edgekit estimate --batch rows.jsonl > answers.jsonl

"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "estimate",
        help=COMMANDS["estimate"],
        usage="edgekit estimate MODEL [--quant NAME] [-c N] [--engine NAME] [options]",
        description=_DESCRIPTION,
        epilog=MODEL_FORMS + _EXAMPLES + ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="file, folder, hub id, URL or name"
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.add_argument("--explain", action="store_true", help="show the arithmetic of every line")
    parser.add_argument("--per-layer", action="store_true", help="show what each layer takes")
    parser.add_argument(
        "--batch",
        metavar="FILE",
        help="answer every row of a JSONL file (- is standard input): model, engine, quant, options",
    )
    parser.add_argument(
        "--assume",
        action="store_true",
        help="read no file: apply a rule of thumb to the name alone (Llama-3.1-70B:Q4_K_M)",
    )
    add_users_option(parser)
    add_device_options(parser, ram=False)
    add_reach_options(parser)
    add_engine_flags(parser, without=frozenset({"gpu"}))  # it is --device
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> str:
    """The answer as text; a batch writes its own as it goes."""
    if arguments.batch is not None:
        return _run_batch(arguments)
    if arguments.model is None:
        raise UsageError("give a MODEL, or --batch FILE")
    from edgekit.app.estimate import assume, estimate
    from edgekit.request import Request, Session

    request = Request.from_argv(arguments, one_engine=True)
    if arguments.assume:
        return _render(assume(arguments.model, request), arguments)
    with reach_of(arguments, quiet=arguments.json) as reach:
        bill = estimate(arguments.model, request, Session(reach=reach))
    return _render(bill, arguments)


def _run_batch(arguments: argparse.Namespace) -> str:
    from edgekit.cli.batch import run_batch

    if arguments.model is not None or has_flags(arguments):
        raise UsageError(
            "--batch takes model, engine and options from its rows, not from the command line"
        )
    with reach_of(arguments, quiet=True) as reach:
        run_batch(arguments.batch, reach)
    return ""


def _render(bill: EstimateAnswer, arguments: argparse.Namespace) -> str:
    if arguments.json:
        from edgekit.report.bill import bill_json
        from edgekit.report.json import json_text

        return json_text(bill_json(bill, layers=arguments.per_layer))
    return _render_text(bill, arguments)


def _render_text(bill: EstimateAnswer, arguments: argparse.Namespace) -> str:
    from edgekit.report.bill import bill_text, explain_text, layers_table

    parts = [bill_text(bill, screen())]
    if arguments.explain:
        parts.append(explain_text(bill))
    if arguments.per_layer:
        parts.append(layers_table(bill))
    return "\n".join(parts)
