"""`edgekit verify MODEL`: parse, call, print."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from edgekit.cli.options import (
    ENVIRONMENT,
    MODEL_FORMS,
    add_flags,
    add_reach_options,
    is_terminal,
    reach_of,
    seconds,
)
from edgekit.cli.parser import COMMANDS
from edgekit.engines import startable
from edgekit.engines.flags import COMMON, CONTEXT, QUANT, given_flags, read_flags
from edgekit.errors import EdgekitError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

    from edgekit.app.calibrate import Remembered
    from edgekit.app.verify import Verified
    from edgekit.engines.program import Verification

OUTSIDE = 1

_DESCRIPTION = """\
Compares the prediction for a model with what the real llama.cpp on this machine would allocate. Only the
model's header is read: the engine gets a sparse file of the same length without the weights, and computes its
buffer sizes without allocating them.
"""
_EXAMPLES = """
examples:
  edgekit verify model.gguf -c 32k
  edgekit verify unsloth/gemma-3-27b-it-GGUF:Q4_K_M -c 64k -ctk q8_0 -ctv q8_0
  edgekit verify model.gguf --load

The engine is xllamacpp (pip install 'edgekit-models[llama]'; --mode server, the default), or llama.cpp's
llama-fit-params on the PATH (--mode library, or if xllamacpp is not installed).

exit codes: 0 within bounds, 1 outside, 2 usage or refused by the engine's rules, 4 not found or no access,
5 damaged or unsupported model, no engine on this machine, or the engine crashed (its last output is shown)
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "verify",
        help=COMMANDS["verify"],
        usage="edgekit verify MODEL [-c N] [llama.cpp flags] [options]",
        description=_DESCRIPTION,
        epilog=MODEL_FORMS + _EXAMPLES + ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="path, hub id, URL or name of a GGUF model")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/verify.md)")
    parser.add_argument(
        "--load",
        action="store_true",
        help="also load the model, decode a few tokens, show the memory the process really "
        "used, and save llama.cpp's overhead for later estimates (edgekit calibrate)",
    )
    parser.add_argument(
        "--engine-timeout",
        metavar="SECONDS",
        type=seconds,
        help="time limit for the engine (default 60, with --load 600)",
    )
    add_reach_options(parser)
    add_flags(parser, COMMON, "every engine", (CONTEXT, QUANT))
    (engine, *_) = startable("verify")
    add_flags(parser, engine.name, engine.title, engine.verified_flags)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    """The answer as text, and 1 where the prediction is outside its bounds."""
    found, asked, saved = _verify(arguments)
    if saved is not None:
        from dataclasses import replace

        found = replace(found, notes=(*found.notes, *_saved_words(saved)))
    return _render(found, asked, arguments), 0 if found.within else OUTSIDE


def _saved_words(saved: Remembered | EdgekitError) -> tuple[str, ...]:
    """What a real load showed is saved for this machine; where it cannot be, a note says so."""
    if isinstance(saved, EdgekitError):
        return (f"not saved for later estimates: {saved}",)
    from edgekit.report.run import remembered_words

    return remembered_words(saved)


def _verify(arguments: argparse.Namespace) -> Verified:
    from edgekit.app.verify import verify
    from edgekit.request import Request, Session

    (engine, *_), given = startable("verify"), given_flags(arguments)
    common = given.get(COMMON, {})
    request = Request(
        engines=(engine.name,),
        flags={engine.name: read_flags(engine.verified_flags, given.get(engine.name, {}))},
        context=read_flags((CONTEXT,), common).get(CONTEXT.key),
        quant=common.get(QUANT.key),
    )
    with reach_of(arguments, quiet=arguments.json) as reach:
        return verify(
            arguments.model,
            request,
            Session(reach=reach),
            really=arguments.load,
            timeout_s=arguments.engine_timeout,
        )


def _render(found: Verification, asked: str, arguments: argparse.Namespace) -> str:
    if arguments.json:
        from edgekit.report.json import json_text
        from edgekit.report.run import verification_json

        return json_text(verification_json(found))
    from edgekit.report.run import verification_text
    from edgekit.report.text import Screen

    return verification_text(found, Screen(colour=is_terminal(sys.stdout)), load=asked)
