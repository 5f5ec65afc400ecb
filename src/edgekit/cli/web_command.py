"""`edgekit web [MODEL]`: parse, serve the page, and stay until somebody ends it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from edgekit.cli.options import ENVIRONMENT, seconds
from edgekit.cli.parser import COMMANDS

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

_DESCRIPTION = """\
Opens a web page that shows which models this machine can run and what each one needs, before you download anything.
The REST API is on the same port, under /api/v1, with documentation at /api/docs. Only this machine can reach them,
unless you set --host; then clients need a token.
"""
_EXAMPLES = """\
examples:
  edgekit web
  edgekit web Qwen/Qwen3-8B-GGUF:Q4_K_M
  edgekit web model.gguf
  edgekit web --models-dir ~/models --offline
  edgekit web --host 0.0.0.0 --port 8421 --no-browser

The server only reads files in --models-dir (and MODEL), and only contacts servers on this machine or in private
networks with --allow-private. Details: docs/web.md.

environment: EDGEKIT_WEB_TOKEN (safer than --token, because other users can see command lines), BROWSER and those below.
"""
_CODES = """
exit codes: 0 ended by Ctrl-C or SIGTERM, 1 the address could not be printed, 2 usage, port in use, or
edgekit-models[web] is not installed, 4 a file or folder does not exist or cannot be read
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "web",
        help=COMMANDS["web"],
        usage="edgekit web [MODEL] [--port N] [--no-browser] [--models-dir DIR] [options]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES + ENVIRONMENT + _CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help="open the page of this model")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one line of JSON when the server is ready (docs/web.md)",
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="print the address instead of opening the browser"
    )
    _add_server(parser.add_argument_group("server"))
    _add_reach(parser.add_argument_group("what it may read"))
    parser.set_defaults(run=run, json_lines=True)


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address to listen on (default 127.0.0.1)",
    )
    group.add_argument(
        "--port",
        metavar="N",
        help="port to listen on (default 8421, or the next free one; 0 for any free port)",
    )
    group.add_argument(
        "--token",
        metavar="TOKEN",
        help=(
            "token that clients must send (or EDGEKIT_WEB_TOKEN); a random one is generated "
            "if other machines can reach the port"
        ),
    )
    group.add_argument(
        "--rate", metavar="N", help="requests per second allowed for one client (default 400)"
    )


def _add_reach(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--models-dir",
        metavar="DIR",
        action="append",
        default=[],
        help="folder whose model files may be opened (repeatable)",
    )
    group.add_argument(
        "--allow-private",
        action="store_true",
        help="also allow servers on this machine and in private networks",
    )
    group.add_argument("--offline", action="store_true", help="use local files and caches only")
    group.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=60.0,
        help="network time limit for one model (default 60)",
    )
    group.add_argument(
        "--no-cache", action="store_true", help="do not read or write the header cache on disk"
    )


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    from edgekit.cli.web_serving import serve

    return serve(arguments)
