"""`verify` and `calibrate`: what the real engine uses, as text or JSON."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from edgekit.app.calibrate import calibrate
from edgekit.app.verify import verify
from edgekit.cli import warn
from edgekit.cli.console import is_terminal, open_session, screen
from edgekit.engines import startable
from edgekit.engines.flags import COMMON, CONTEXT, QUANT, given_flags, read_flags
from edgekit.errors import EdgekitError, UsageError, printable
from edgekit.machine.calibration import NAME, forget_calibration, read_calibration
from edgekit.report.json import json_text
from edgekit.report.run import (
    calibrated_json,
    calibrated_text,
    list_json,
    list_text,
    remembered_words,
    removed_text,
    verification_json,
    verification_text,
)
from edgekit.report.text import Screen
from edgekit.request import Request
from edgekit.sources.folders import data_folder

OUTSIDE = 1  # exit code if a figure is outside its bounds


def run_verify(arguments: argparse.Namespace) -> tuple[str, int]:
    """The prediction next to what the engine reports."""
    (engine, *_), flags = startable("verify"), given_flags(arguments)
    common = flags.get(COMMON, {})
    request = Request(
        engines=(engine.name,),
        flags={engine.name: read_flags(engine.verified_flags, flags.get(engine.name, {}))},
        context=read_flags((CONTEXT,), common).get(CONTEXT.key),
        quant=common.get(QUANT.key),
    )
    with open_session(arguments, quiet=arguments.json) as session:
        verification, load, saved, from_index = verify(
            arguments.model,
            request,
            session,
            really=arguments.load,
            timeout_s=arguments.engine_timeout,
        )
    if isinstance(saved, EdgekitError):
        note = f"not saved for later estimates: {saved}"
        verification = replace(verification, notes=(*verification.notes, note))
    elif saved is not None:
        verification = replace(verification, notes=(*verification.notes, *remembered_words(saved)))
    code = 0 if verification.within else OUTSIDE
    if arguments.json:
        return json_text(verification_json(verification)), code
    shown = Screen(colour=is_terminal(sys.stdout))
    return verification_text(verification, shown, load=load, from_index=from_index), code


def run_calibrate(arguments: argparse.Namespace) -> str:
    """Measure this machine, or list or remove what was measured."""
    if sum(map(bool, (arguments.model, arguments.list, arguments.remove))) > 1:
        raise UsageError("calibrate: give only one of MODEL, --list and --remove")
    folder = data_folder()
    path = NAME if folder is None else str(folder / NAME)
    if arguments.list or arguments.remove:
        stored = forget_calibration() if arguments.remove else read_calibration()
        if arguments.json:
            return json_text(list_json(stored, path, removed=arguments.remove))
        if arguments.remove:
            return removed_text(stored, path)
        return list_text(stored, path, screen(colour=False))

    def show_step(line: str) -> None:
        if not arguments.json:
            warn(printable(line))

    calibrated = calibrate(arguments.model, tell=show_step)
    if arguments.json:
        return json_text(calibrated_json(calibrated, path))
    return calibrated_text(calibrated, path, screen())
