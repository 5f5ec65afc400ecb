"""`edgekit serve MODEL`: parse, call, and stay until somebody ends it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from edgekit.cli.options import ENVIRONMENT, MODEL_FORMS, add_shared, add_users_option
from edgekit.cli.parser import COMMANDS

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

DEFAULT_PORT = 8080

_DESCRIPTION = """\
Serves a model with llama.cpp's OpenAI-compatible server, started with exactly the settings that were checked: context,
KV cache, layers on the GPU, slots, draft model. Requests beyond the slots wait. Memory is watched: the server is
stopped, with a reason, before the system would kill it.
"""
_EXAMPLES = """
examples:
  edgekit serve model.gguf
  edgekit serve unsloth/gemma-3-4b-it-GGUF --quant Q4_K_M --port 9000 --users 4 -c 8k
  edgekit serve model.gguf --host 0.0.0.0 --api-key SECRET

endpoints: /v1/chat/completions, /v1/completions, /v1/models, /health (503 while it loads, then 200)
The engine is installed with pip install 'edgekit-models[llama]'. LLAMA_API_KEY sets the key.

exit codes: 0 ended by Ctrl-C or SIGTERM after it was up, 2 wrong usage, port in use, no engine installed, or refused
by it, 3 does not fit or stopped before memory ran out, 4 not found or no access, 5 unreadable, or the engine died
(with its last output), 130 interrupted before it was up
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "serve",
        help=COMMANDS["serve"],
        usage="edgekit serve MODEL [--quant NAME] [--port N] [-c N] [--users N] [options]",
        description=_DESCRIPTION,
        epilog=MODEL_FORMS + _EXAMPLES + "\n" + ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="GGUF file, hub id or name")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print events as lines of JSON (docs/run.md)",
    )
    parser.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="print only the address, and why the server ended",
    )
    group = parser.add_argument_group("the server")
    group.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address to listen on (default 127.0.0.1, this machine only); any other needs --api-key",
    )
    group.add_argument(
        "--port",
        metavar="N",
        help=f"port to listen on (default {DEFAULT_PORT}); 0 takes any free port",
    )
    group.add_argument(
        "--api-key", metavar="KEY", help="key that clients must send (or LLAMA_API_KEY)"
    )
    group.add_argument(
        "--insecure",
        action="store_true",
        help="serve other machines (--host) without --api-key",
    )
    group.add_argument("-a", "--alias", metavar="NAME", help="name of the model for clients")
    add_users_option(parser)
    add_shared(parser, "serve")
    parser.set_defaults(run=run, json_lines=True)


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    from edgekit.cli.launch import serve

    return serve(arguments, default_port=DEFAULT_PORT)
