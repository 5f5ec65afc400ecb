"""`edgekit compare MODEL`: the engines side by side. Parse, call, print."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from edgekit.cli.asking import CONTEXT, OPTIONS, Asked, bill_of
from edgekit.cli.flags import COMMON, add_flags, given_flags, read_flags
from edgekit.cli.reach_options import ENVIRONMENT, MODEL_FORMS, add_reach_options, reach_of

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

    from edgekit.estimation import Opened
    from edgekit.report.compare import Answer
    from edgekit.source.types import Reach

UNKNOWN_CONTEXT = 32_768  # where a model does not say what it was made for
# The same load for all: one sequence, weights and cache on the GPU.
_SAME: dict[str, dict[str, Any]] = {"llama.cpp": {"parallel": "1", "backend": "cuda"}}
_EXAMPLES = """
examples:
  edgekit compare Qwen/Qwen3-8B -c 32k
  edgekit compare sample:gemma-3-27b --json

"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "compare",
        help="llama.cpp, vLLM and MLX side by side",
        description="What llama.cpp, vLLM and MLX take for the same model and context: one sequence, "
        "weights and cache on the GPU.",
        epilog=MODEL_FORMS + _EXAMPLES + ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="path, hub id, URL or name")
    parser.add_argument("--json", action="store_true", help="for programs (docs/json.md)")
    add_reach_options(parser)
    add_flags(parser, COMMON, "load", (CONTEXT,))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> str:
    """The answer as text. An engine that refuses is an answer; none at all is an error."""
    from edgekit.estimation import open_model
    from edgekit.report.compare import compare_json, compare_text

    asked = read_flags((CONTEXT,), given_flags(arguments).get(COMMON, {})).get("context")
    with reach_of(arguments, quiet=arguments.json) as reach:
        opened = open_model(arguments.model, reach=reach)
        context = asked or opened.model.geometry.native_context or UNKNOWN_CONTEXT
        answers = [_answer(engine, opened, context, reach) for engine in OPTIONS]
    if all(answer.error is not None for answer in answers):
        raise next(answer.error for answer in answers if answer.error is not None)
    if arguments.json:
        from edgekit.report.as_json import json_text

        return json_text(compare_json(opened.label, arguments.model, context, answers))
    return compare_text(opened.label, context, answers, _hint(opened))


def _hint(opened: Opened) -> str:
    from edgekit.source.types import Container

    if opened.model.header.container is not Container.GGUF:
        return ""
    return "For vLLM and MLX give the repository that this file was converted from."


def _answer(engine: str, opened: Opened, context: int, reach: Reach) -> Answer:
    from edgekit.errors import EdgekitError
    from edgekit.report.compare import Answer

    asked = Asked(engine, {"context": str(context), **_SAME.get(engine, {})})
    try:
        return Answer(engine=engine, bill=bill_of(opened, engine, asked, reach))
    except EdgekitError as error:
        return Answer(engine=engine, error=error)
