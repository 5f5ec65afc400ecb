"""`together`: which models fit at the same time."""

from __future__ import annotations

import argparse
from dataclasses import replace

from edgekit.app.together import judge_together
from edgekit.cli.check import plain_name
from edgekit.cli.console import open_session, screen
from edgekit.engines.flags import COMMON, CONTEXT, read_flags
from edgekit.errors import HardwareError, UsageError
from edgekit.report.json import json_text
from edgekit.report.together import FORMATS, configuration, together_json, together_text
from edgekit.request import Request
from edgekit.sources.local import absolute_reference


def run_together(arguments: argparse.Namespace) -> tuple[str, int]:
    """The answer as text or JSON, with exit code 3 if not all models fit; or a configuration."""
    request = Request.from_argv(arguments)
    if len(request.engines) > 1:
        raise UsageError("--engine takes the name of one engine here")
    program = arguments.program
    if program is not None:
        program = next((name for name in FORMATS if plain_name(name) == plain_name(program)), None)
        if program is None:
            raise UsageError(f"--for takes {' or '.join(FORMATS)} (got {arguments.program[:40]!r})")
    contexts = contexts_of(arguments.ctx_size)
    names = tuple(map(absolute_reference, arguments.models))
    with open_session(arguments, quiet=arguments.json) as session:
        answer = judge_together(names, replace(request, context=None), session, contexts=contexts)
    if program is not None:
        return configuration(answer, program), 0
    code = 0 if answer.all_fit else HardwareError.exit_code
    if arguments.json:
        return json_text(together_json(answer)), code
    return together_text(answer, screen(), serve_flags=serve_flags(arguments)), code


def serve_flags(arguments: argparse.Namespace) -> tuple[str, ...] | None:
    """The same flags of `serve`; None if it has not all of them."""
    given = vars(arguments) | getattr(arguments, "engine_flags", {}).get(COMMON, {})
    if given["min_speed"] is not None or "," in (given["ctx_size"] or ""):
        return None
    names = {"ctx_size": "-c"} | {
        name: f"--{name.replace('_', '-')}"
        for name in ("users", "min_context", "max_use", "reserve", "engine", "quant")
    }
    return tuple(
        word
        for name, flag in names.items()
        if given.get(name) is not None
        for word in (flag, given[name])
    )


def contexts_of(text: str | None) -> tuple[int, ...]:
    """'32k' or '32k,8k' -> tokens. Raises UsageError."""
    if text is None:
        return ()
    return tuple(
        read_flags((CONTEXT,), {CONTEXT.key: part.strip()})[CONTEXT.key] for part in text.split(",")
    )
