"""`inspect` and `hardware`: the answer as text or JSON."""

from __future__ import annotations

import argparse
import sys

from edgekit.app.inspect import inspect
from edgekit.cli.console import is_terminal, open_session, screen
from edgekit.errors import UsageError
from edgekit.formats.types import Depth
from edgekit.report.hardware import devices_json, devices_text, hardware_json, hardware_text
from edgekit.report.inspection import inspection_json, inspection_text
from edgekit.report.json import json_text
from edgekit.request import Request


def run_inspect(arguments: argparse.Namespace) -> str:
    """What a model is, with its layers, tensors and keys if they are requested."""
    depth = Depth.ARCHITECTURE if arguments.light and not arguments.tensors else Depth.TENSORS
    with open_session(arguments, quiet=arguments.json) as session:
        inspection = inspect(arguments.model, session, depth=depth, quant=arguments.quant)
    lists = {name: getattr(arguments, name) for name in ("tensors", "layers", "keys")}
    if arguments.json:
        return json_text(inspection_json(inspection, **lists))
    return inspection_text(inspection, **lists, bold=is_terminal(sys.stdout))


def run_hardware(arguments: argparse.Namespace) -> str:
    """The machine, or with --devices all known devices. A failed probe is a note, not an error."""
    is_described = bool(arguments.device or arguments.ram or arguments.vram or arguments.cpu)
    if arguments.devices:
        if is_described or arguments.measure:
            raise UsageError(
                "--devices lists all known devices; it cannot be combined with --device, "
                "--ram, --vram, --cpu or --measure"
            )
        return json_text(devices_json()) if arguments.json else devices_text(screen())
    if is_described and arguments.measure:
        raise UsageError(
            "--measure measures this machine: leave out --device, --ram, --vram, --cpu"
        )
    machine = Request.from_argv(arguments).find_machine()
    if arguments.measure:
        from edgekit.app.calibrate import measure_memory

        machine = measure_memory(machine)
    programs = None
    if not machine.what_if:
        from edgekit.app.programs import installed_programs

        programs = installed_programs()
    if arguments.json:
        return json_text(hardware_json(machine, programs))
    return hardware_text(machine, screen(), programs)
