"""`verify` and `calibrate`: measure with the real engine, and print what was found."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from edgekit.app.calibrate import calibrate
from edgekit.app.verify import verify
from edgekit.cli.options import (
    is_terminal,
    reach_of,
    screen,
)
from edgekit.engines import startable
from edgekit.engines.flags import COMMON, CONTEXT, QUANT, given_flags, read_flags
from edgekit.errors import EdgekitError, UsageError
from edgekit.machine.calibration import NAME, forget_calibration, read_calibration
from edgekit.report.json import json_text
from edgekit.report.run import (
    CalibrationFile,
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
from edgekit.request import Request, Session
from edgekit.sources.local import data_folder
from edgekit.terminal import printable

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.app.calibrate import Remembered
    from edgekit.app.verify import Verified
    from edgekit.engines.program import Verification


OUTSIDE = 1


def run_verify(arguments: argparse.Namespace) -> tuple[str, int]:
    """The answer as text, and 1 where the prediction is outside its bounds."""
    found, asked, saved = _verify(arguments)
    if saved is not None:
        found = replace(found, notes=(*found.notes, *_saved_words(saved)))
    return _render(found, asked, arguments), 0 if found.within else OUTSIDE


def _saved_words(saved: Remembered | EdgekitError) -> tuple[str, ...]:
    """What a real load showed is saved for this machine; where it cannot be, a note says so."""
    if isinstance(saved, EdgekitError):
        return (f"not saved for later estimates: {saved}",)

    return remembered_words(saved)


def _verify(arguments: argparse.Namespace) -> Verified:

    (engine, *_), given = startable("verify"), given_flags(arguments)
    common = given.get(COMMON, {})
    request = Request(
        engines=(engine.name,),
        flags={engine.name: read_flags(engine.verified_flags, given.get(engine.name, {}))},
        context=read_flags((CONTEXT,), common).get(CONTEXT.key),
        quant=common.get(QUANT.key),
    )
    with reach_of(arguments, quiet=arguments.json) as reach:
        return verify(
            arguments.model,
            request,
            Session(reach=reach),
            really=arguments.load,
            timeout_s=arguments.engine_timeout,
        )


def _render(found: Verification, asked: str, arguments: argparse.Namespace) -> str:
    if arguments.json:
        return json_text(verification_json(found))

    return verification_text(found, Screen(colour=is_terminal(sys.stdout)), load=asked)


def run_calibrate(arguments: argparse.Namespace) -> str:
    """The answer as text."""
    if sum(map(bool, (arguments.model, arguments.list, arguments.remove))) > 1:
        raise UsageError("calibrate: give only one of MODEL, --list and --remove")
    if arguments.list or arguments.remove:
        return _told(arguments)
    return _measured(arguments)


def _measured(arguments: argparse.Namespace) -> str:

    found = calibrate(arguments.model, tell=_say if not arguments.json else _quiet)
    if arguments.json:
        return json_text(calibrated_json(found, _path()))

    return calibrated_text(found, _path(), screen())


def _quiet(_: str) -> None:
    """A program is told the answer alone."""


def _say(line: str) -> None:

    if sys.stderr is not None:
        print(f"edgekit: {printable(line)}", file=sys.stderr, flush=True)


def _told(arguments: argparse.Namespace) -> str:

    stored = forget_calibration() if arguments.remove else read_calibration()
    kept = CalibrationFile(path=_path(), stored=stored)
    if arguments.json:
        return _json(kept, removed=arguments.remove)
    return removed_text(kept) if arguments.remove else list_text(kept, screen(colour=False))


def _json(kept: CalibrationFile, *, removed: bool) -> str:

    return json_text(list_json(kept, removed=removed))


def _path() -> str:

    folder = data_folder()
    return NAME if folder is None else str(folder / NAME)
