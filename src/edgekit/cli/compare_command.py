"""`edgekit compare MODEL ...`: the engines for one model, or several models, side by side. Parse, call, print."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from edgekit.asking.bills import OF_THE_MACHINE, Asked, bill_named
from edgekit.cli.device_options import DEVICE_FORMS, add_device_options
from edgekit.cli.engine_flags import add_engine_flags
from edgekit.cli.reach_options import (
    ENVIRONMENT,
    MODEL_FORMS,
    add_reach_options,
    counting,
    reach_of,
    screen_width,
)
from edgekit.cli.request_options import (
    add_job_option,
    add_limit_options,
    add_min_context_option,
    add_users_option,
)
from edgekit.cli.typed import words_of
from edgekit.engines import every_engine
from edgekit.engines.flags import read_number

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

    from edgekit.asking.words import EngineFlags, Words
    from edgekit.model.open import Opened
    from edgekit.report.check import Check, Unanswered
    from edgekit.report.compare import EngineAnswer
    from edgekit.resolver import ResolvedModel
    from edgekit.sources.types import Reach

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
        help="models, or the engines for one model, side by side",
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
        engine_help="llama.cpp, vllm, mlx, stream, auto or all (default: all for one model, auto for several)",
        context_help="context in tokens: 8192, 32k (default: chosen for the machine, or 32k if none is given)",
        without=OF_THE_MACHINE,
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> str:
    """The answer as text. A model or an engine that fails is a row; where all do, an error."""
    from edgekit.asking.words import engine_flags
    from edgekit.cli.naming import references

    words = words_of(arguments)
    _, flags = engine_flags(words)  # errors in flags come before anything is read
    names = references(arguments.models)
    machine = bool(words.devices or words.ram or words.vram or words.job)
    if len(names) == 1 and not machine and arguments.engine is None:
        return _engines(names[0], words, flags, arguments)
    return _models(names, words, arguments)


def _engines(name: str, words: Words, flags: EngineFlags, arguments: argparse.Namespace) -> str:
    from edgekit.plan.context import DEFAULT_TOKENS
    from edgekit.report.compare import compare_json, compare_text
    from edgekit.resolver import resolve_model

    with reach_of(arguments, quiet=arguments.json) as reach:
        named = resolve_model(name, reach=reach, quant=words.quant)
        opened = named.as_file(named.first_engine)
        native = opened.model.geometry.native_context or DEFAULT_TOKENS
        context = words.context or min(native, DEFAULT_TOKENS)
        users = read_number("--users", words.users, least=1)
        same = {"context": str(context), "users": words.users}
        answers = []
        for engine in every_engine():
            alone = engine.one_sequence if users is None else {}
            given = {**engine.on_gpu, **alone, **flags[engine.name], **same}
            answer = _answer(engine.name, named, given, reach)
            if answer.error is None or engine.page.is_compared:
                answers.append(answer)
    if all(answer.error is not None for answer in answers):
        raise next(answer.error for answer in answers if answer.error is not None)
    if arguments.json:
        from edgekit.report.as_json import json_text

        return json_text(compare_json(opened.label, name, context, answers, users=users or 1))
    hint = _hint(opened) if named.found else ""
    return compare_text(
        opened.label, context, answers, hint, users=users or 1, width=screen_width()
    )


def _hint(opened: Opened) -> str:
    from edgekit.sources.types import Container

    if opened.model.header.container is not Container.GGUF:
        return ""
    return "For vLLM and MLX give the repository that this file was converted from."


def _answer(engine: str, named: ResolvedModel, given: dict[str, Any], reach: Reach) -> EngineAnswer:
    from edgekit.errors import EdgekitError
    from edgekit.report.compare import EngineAnswer

    try:
        return EngineAnswer(engine=engine, bill=bill_named(named, Asked(engine, given), reach))
    except EdgekitError as error:
        return EngineAnswer(engine=engine, error=error)


def _models(names: tuple[str, ...], words: Words, arguments: argparse.Namespace) -> str:
    """Judged as `check` judges them; one model by every engine."""
    from dataclasses import replace

    from edgekit.asking.checks import check_all
    from edgekit.asking.words import ALL, asking_of
    from edgekit.report.check import Check, Unanswered
    from edgekit.sources.types import Traffic

    if len(names) == 1 and words.engine is None:
        words = replace(words, engine=ALL)
    with reach_of(arguments, quiet=arguments.json) as reach:
        each = replace(reach, progress=None)
        asking = asking_of(
            words, reach=lambda: replace(each, traffic=Traffic()), with_changes=False
        )
        found = counting(check_all(names, asking), len(names), reach.progress)
        rows = [row for answers in found for row in answers]
    if not any(isinstance(row, Check) for row in rows):
        raise next(row.error for row in rows if isinstance(row, Unanswered))
    return _rendered(rows, arguments)


def _rendered(rows: list[Check | Unanswered], arguments: argparse.Namespace) -> str:
    if arguments.json:
        from edgekit.report.as_json import json_text
        from edgekit.report.compare import models_json

        return json_text(models_json(rows))
    from edgekit.cli.check_command import glyphs
    from edgekit.report.check_table import check_table

    return check_table(rows, width=screen_width(), glyphs=glyphs(), sizes=True)
