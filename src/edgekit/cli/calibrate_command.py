"""`edgekit calibrate [MODEL]`: parse, call, print."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from edgekit.cli.options import screen
from edgekit.cli.parser import COMMANDS
from edgekit.errors import UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

    from edgekit.report.run import CalibrationFile

_DESCRIPTION = """\
Measures this machine and saves the results: memory bandwidth, the speed of the disk for temporary files, llama.cpp's
memory overhead, and its speed. llama.cpp runs with MODEL, which must be on this machine, or else with a generated
test model of 409 MiB that is deleted afterwards. Takes about half a minute.
"""
_EXAMPLES = """
examples:
  edgekit calibrate
  edgekit calibrate model.gguf
  edgekit calibrate bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M
  edgekit calibrate --list
  edgekit calibrate --remove

Results are used for this machine from then on, never for another one given with --device: speeds use the measured
memory bandwidth, llama.cpp's estimates get a line for its measured overhead, and `edgekit hardware` shows both.
Close other programs first: speeds measured on a busy machine are shown but not saved. The engine is xllamacpp (pip
install 'edgekit-models[llama]'); memory and disk speed need numpy (pip install 'edgekit-models[embed]'). What is not
installed is skipped, and the report says so. llama.cpp's overhead is saved only for models with a vocabulary of 100,000
tokens or more; the generated model has one.

exit codes: 0 measured (notes say what could not be), 2 usage, 4 no such model on this machine, or the result cannot be
written, 5 MODEL is damaged, or llama.cpp is not installed or crashed (its last output is shown), 130 interrupted

environment: EDGEKIT_DATA is the folder for the results, TMPDIR the folder for temporary files
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "calibrate",
        help=COMMANDS["calibrate"],
        usage="edgekit calibrate [MODEL] [--json] | --list [--json] | --remove [--json]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="a GGUF model on this machine: path, hub id or name",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.add_argument(
        "--list", action="store_true", help="list everything that was measured, on every machine"
    )
    parser.add_argument("--remove", action="store_true", help="delete everything that was measured")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> str:
    """The answer as text."""
    if sum(map(bool, (arguments.model, arguments.list, arguments.remove))) > 1:
        raise UsageError("calibrate: give only one of MODEL, --list and --remove")
    if arguments.list or arguments.remove:
        return _told(arguments)
    return _measured(arguments)


def _measured(arguments: argparse.Namespace) -> str:
    from edgekit.app.calibrate import calibrate

    found = calibrate(arguments.model, tell=_say if not arguments.json else _quiet)
    if arguments.json:
        from edgekit.report.json import json_text
        from edgekit.report.run import calibrated_json

        return json_text(calibrated_json(found, _path()))
    from edgekit.report.run import calibrated_text

    return calibrated_text(found, _path(), screen())


def _quiet(_: str) -> None:
    """A program is told the answer alone."""


def _say(line: str) -> None:
    from edgekit.terminal import printable

    if sys.stderr is not None:
        print(f"edgekit: {printable(line)}", file=sys.stderr, flush=True)


def _told(arguments: argparse.Namespace) -> str:
    from edgekit.machine.calibration import forget_calibration, read_calibration
    from edgekit.report.run import CalibrationFile, list_text, removed_text

    stored = forget_calibration() if arguments.remove else read_calibration()
    kept = CalibrationFile(path=_path(), stored=stored)
    if arguments.json:
        return _json(kept, removed=arguments.remove)
    return removed_text(kept) if arguments.remove else list_text(kept, screen(colour=False))


def _json(kept: CalibrationFile, *, removed: bool) -> str:
    from edgekit.report.json import json_text
    from edgekit.report.run import list_json

    return json_text(list_json(kept, removed=removed))


def _path() -> str:
    from edgekit.machine.calibration import NAME
    from edgekit.sources.local import data_folder

    folder = data_folder()
    return NAME if folder is None else str(folder / NAME)
