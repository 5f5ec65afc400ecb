"""`edgekit hardware`: what this machine has, or one that is only wished for. Parse, call, print."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from edgekit.cli.options import (
    DEVICE_FORMS,
    add_device_options,
    machine_of_arguments,
    screen,
)
from edgekit.cli.parser import COMMANDS
from edgekit.errors import UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

_DESCRIPTION = (
    "Shows the memory and GPUs of this machine, what limits and uses them, and how much "
    "llama.cpp, vLLM and MLX may use: what is free, minus a reserve."
)
_EXAMPLES = """
examples:
  edgekit hardware
  edgekit hardware --json
  edgekit hardware --device 2x "RTX 3090" --ram 64G
  edgekit hardware --device m3-max-64
  edgekit hardware --devices

"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "hardware",
        help=COMMANDS["hardware"],
        usage="edgekit hardware [--device NAME] [--ram SIZE] [--vram SIZES] [--devices] [--json]",
        description=_DESCRIPTION,
        epilog=DEVICE_FORMS + _EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.add_argument(
        "--devices", action="store_true", help="list all devices that --device knows"
    )
    add_device_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> str:
    """The answer as text. What could not be asked is a note, not an error."""
    if arguments.devices:
        return _devices(arguments)
    machine = machine_of_arguments(arguments)
    if arguments.json:
        from edgekit.report.hardware import hardware_json
        from edgekit.report.json import json_text

        return json_text(hardware_json(machine))
    from edgekit.report.hardware import hardware_text

    return hardware_text(machine, screen())


def _devices(arguments: argparse.Namespace) -> str:
    """All that are known, whatever this machine has."""
    if arguments.device or arguments.ram or arguments.vram:
        raise UsageError(
            "--devices lists all known devices; it cannot be combined with --device, "
            "--ram or --vram"
        )
    if arguments.json:
        from edgekit.report.hardware import devices_json
        from edgekit.report.json import json_text

        return json_text(devices_json())
    from edgekit.report.hardware import devices_text

    return devices_text(screen())
