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
        if is_described or arguments.measure or arguments.upgrades:
            raise UsageError(
                "--devices lists all known devices; it cannot be combined with --device, "
                "--ram, --vram, --cpu, --measure or --upgrades"
            )
        return json_text(devices_json()) if arguments.json else devices_text(screen())
    if is_described and arguments.measure:
        raise UsageError(
            "--measure measures this machine: leave out --device, --ram, --vram, --cpu"
        )
    if arguments.upgrades:
        if arguments.measure:
            raise UsageError("--upgrades and --measure are two questions: give one")
        return _show_upgrades(arguments)
    if arguments.task is not None:
        raise UsageError("--task is for --upgrades: add it, or leave out --task")
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


def _show_upgrades(arguments: argparse.Namespace) -> str:
    """How many models run fully on the GPU at each size of its memory."""
    from edgekit.app.upgrades import upgrades
    from edgekit.cli.console import show_progress
    from edgekit.report.upgrades import upgrades_json, upgrades_text
    from edgekit.request import Session
    from edgekit.sources.types import Reach

    shows = is_terminal(sys.stderr) and not arguments.json
    reach = Reach(network=False, progress=show_progress if shows else None)
    try:
        answer = upgrades(Request.from_argv(arguments), Session(reach=reach))
    finally:
        if shows:
            show_progress("")
    return json_text(upgrades_json(answer)) if arguments.json else upgrades_text(answer, screen())
