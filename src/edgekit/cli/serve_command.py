"""`edgekit serve MODEL`: parse, call, and stay until somebody ends it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from edgekit.cli.reach_options import ENVIRONMENT, MODEL_FORMS
from edgekit.cli.request_options import add_users_option
from edgekit.cli.run_command import add_shared

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

DEFAULT_PORT = 8080

_DESCRIPTION = """\
Serves a model with llama.cpp's own OpenAI-compatible server, started from exactly the plan that was judged: context,
cache types, layers, slots, drafter, sinks. Requests beyond its slots wait; memory is watched, and the server is stopped
with a reason before the system would kill it.
"""
_EXAMPLES = """
examples:
  edgekit serve model.gguf
  edgekit serve unsloth/gemma-3-4b-it-GGUF:Q4_K_M --port 9000 -np 4 -c 32k
  edgekit serve model.gguf -c 4k --rolling --sinks 4 -ctk q8_0 -ctv q8_0
  edgekit serve model.gguf --host 0.0.0.0 --api-key SECRET

endpoints: /v1/chat/completions, /v1/completions, /v1/models, /health (503 while it loads, then 200)
The engine comes with pip install 'edgekit-models[llama]'. LLAMA_API_KEY is honoured.

exit codes: 0 ended by Ctrl-C or SIGTERM once it is up, 2 usage, a port that is taken, no engine installed, or refused
by it, 3 does not fit or stopped before memory ran out, 4 not found or no access, 5 unreadable, or the engine died
(with its last words), 130 interrupted before it was up
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "serve",
        help="an OpenAI-compatible server inside the memory it was promised",
        usage="edgekit serve MODEL [--port N] [-c N] [-np N] [flags of llama.cpp] [options]",
        description=_DESCRIPTION,
        epilog=MODEL_FORMS + _EXAMPLES + "\n" + ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="path, hub id or name of a GGUF model")
    parser.add_argument(
        "--json",
        action="store_true",
        help="events as lines of JSON on standard output (docs/run.md)",
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="only the address, and why it ended"
    )
    group = parser.add_argument_group("the server")
    group.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="default 127.0.0.1: this machine alone; any other needs --api-key",
    )
    group.add_argument("--port", metavar="N", help=f"default {DEFAULT_PORT}; 0: any that is free")
    group.add_argument("--api-key", metavar="KEY", help="what clients must send (LLAMA_API_KEY)")
    group.add_argument(
        "--insecure",
        action="store_true",
        help="serve other machines (--host) without a key",
    )
    group.add_argument("-a", "--alias", metavar="NAME", help="the model's name for clients")
    add_users_option(parser)
    add_shared(parser, "llama.cpp")
    parser.set_defaults(run=run, json_lines=True)


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    from edgekit.cli.serving import serve

    return serve(arguments)
