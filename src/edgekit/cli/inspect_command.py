"""`edgekit inspect MODEL`: parse, call, print."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from edgekit.cli.options import (
    ENVIRONMENT,
    MODEL_FORMS,
    add_reach_options,
    is_terminal,
    reach_of,
)
from edgekit.cli.parser import COMMANDS

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

    from edgekit.model.inspect import Inspection

_DESCRIPTION = (
    "Shows what a model is, from its header alone: layers, KV cache size, context "
    "length, and where its bytes are."
)
_EXAMPLES = """
examples:
  edgekit inspect Qwen/Qwen3-8B
  edgekit inspect unsloth/gemma-3-27b-it-GGUF:Q4_K_M --light
  edgekit inspect model.gguf --layers --tensors
  edgekit inspect model.gguf --json | jq .tensor_bytes

"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "inspect",
        help=COMMANDS["inspect"],
        usage="edgekit inspect MODEL [--quant NAME] [--layers] [--tensors] [--keys] [options]",
        description=_DESCRIPTION,
        epilog=MODEL_FORMS + _EXAMPLES + ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="file, folder, hub id, URL or name")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.add_argument("--layers", action="store_true", help="list every layer")
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--keys", action="store_true", help="list every key of the header")
    parser.add_argument(
        "--light",
        action="store_true",
        help="read only the architecture: one range request for a remote GGUF; config.json "
        "and the index for safetensors",
    )
    parser.add_argument(
        "--quant",
        metavar="NAME",
        help="show the file of a repository, or a catalog model, at this quantisation: Q4_K_M",
    )
    add_reach_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> str:
    """The answer as text."""
    from edgekit.app.inspect import inspect
    from edgekit.formats.types import Depth
    from edgekit.request import Session

    depth = Depth.ARCHITECTURE if arguments.light and not arguments.tensors else Depth.TENSORS
    with reach_of(arguments, quiet=arguments.json) as reach:
        found = inspect(arguments.model, Session(reach=reach), depth=depth, quant=arguments.quant)
    return _render(found, arguments)


def _render(found: Inspection, arguments: argparse.Namespace) -> str:
    if arguments.json:
        from edgekit.report.inspection import inspection_json
        from edgekit.report.json import json_text

        answer = inspection_json(
            found, tensors=arguments.tensors, layers=arguments.layers, keys=arguments.keys
        )
        return json_text(answer)
    return _render_text(found, arguments)


def _render_text(found: Inspection, arguments: argparse.Namespace) -> str:
    from edgekit.report import inspection

    parts = [inspection.inspection_text(found, bold=is_terminal(sys.stdout))]
    if arguments.layers and found.geometry is not None:
        parts.append(inspection.layers_text(found.geometry))
    if arguments.tensors:
        parts.append(inspection.tensors_text(found))
    if arguments.keys:
        parts.append(inspection.keys_text(found))
    return "\n".join(parts)
