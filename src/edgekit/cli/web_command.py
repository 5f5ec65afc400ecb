"""`edgekit web [MODEL]`: parse, serve the page, and stay until somebody ends it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from edgekit.cli.reach_options import ENVIRONMENT, seconds

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

_DESCRIPTION = """\
The page: which models this machine runs, what each needs and why, before anything is downloaded. Opens the browser.
The REST API is on the same port, under /api/v1; /api/docs tells about it. Only this machine can reach either, unless
--host says otherwise: then a token is needed.
"""
_EXAMPLES = """\
examples:
  edgekit web
  edgekit web Qwen/Qwen3-8B-GGUF:Q4_K_M
  edgekit web model.gguf
  edgekit web --models-dir ~/models --offline
  edgekit web --host 0.0.0.0 --port 8421 --no-browser

Files are read only where --models-dir says so (and the one that is named). Addresses of this machine and of private
networks are asked for only with --allow-private. docs/web.md has the rest.

environment: EDGEKIT_WEB_TOKEN (better than --token: other users see the words of a command), BROWSER, and
what follows.
"""
_CODES = """
exit codes: 0 ended by Ctrl-C or SIGTERM, 1 the address could not be written, 2 usage, a port that is taken, or
edgekit-models[web] is not installed, 4 a file or folder that is not there or may not be read
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "web",
        help="the page: see the fit before you load; and the REST API",
        usage="edgekit web [MODEL] [--port N] [--no-browser] [--models-dir DIR] [options]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES + ENVIRONMENT + _CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help="opens its page at once")
    parser.add_argument(
        "--json", action="store_true", help="one line of JSON when it answers (docs/web.md)"
    )
    parser.add_argument("--no-browser", action="store_true", help="only tell the address")
    _add_server(parser.add_argument_group("the server"))
    _add_reach(parser.add_argument_group("what it may read"))
    parser.set_defaults(run=run, json_lines=True)


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help="default 127.0.0.1")
    group.add_argument(
        "--port", metavar="N", help="default 8421, or the next that is free; 0: any that is free"
    )
    group.add_argument(
        "--token",
        metavar="TOKEN",
        help="what clients must know (EDGEKIT_WEB_TOKEN); made up where others can reach the port",
    )
    group.add_argument(
        "--rate", metavar="N", help="requests a second that one client may make (default 400)"
    )


def _add_reach(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--models-dir",
        metavar="DIR",
        action="append",
        default=[],
        help="a folder whose files may be named (may be said again)",
    )
    group.add_argument(
        "--allow-private",
        action="store_true",
        help="ask servers of this machine and of private networks too",
    )
    group.add_argument("--offline", action="store_true", help="local files and caches only")
    group.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=60.0,
        help="how long the network may take for one model (default 60)",
    )
    group.add_argument(
        "--no-cache", action="store_true", help="neither use nor keep header bytes on disk"
    )


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    from edgekit.cli.web_serving import serve

    return serve(arguments)
