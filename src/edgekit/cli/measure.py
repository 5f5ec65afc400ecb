"""`verify` and `calibrate`: what the real engine uses, as text or JSON."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from edgekit.app.calibrate import calibrate
from edgekit.app.shared_speed import (
    Record,
    add_records,
    as_line,
    saved_records,
    shared_lines,
    speed_record,
)
from edgekit.app.verify import verify
from edgekit.cli import warn
from edgekit.cli.console import is_terminal, open_session, screen
from edgekit.engines import startable
from edgekit.engines.flags import COMMON, CONTEXT, QUANT, given_flags, read_flags
from edgekit.errors import EdgekitError, UsageError
from edgekit.machine.calibration import NAME, forget_calibration, read_calibration
from edgekit.machine.probes import detect
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
from edgekit.report.text import Screen, with_count
from edgekit.request import Request
from edgekit.sources.folders import data_folder
from edgekit.sources.local import path_of_flag

OUTSIDE = 1  # exit code if a figure is outside its bounds
_HOW_TO_GIVE = "to give the record to the project, attach it to an issue of EdgeKit"


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


def run_calibrate(arguments: argparse.Namespace) -> str | tuple[str, int]:
    """Measure this machine, or list or remove what was measured."""
    if sum(map(bool, (arguments.model, arguments.list, arguments.remove))) > 1:
        raise UsageError("calibrate: give only one of MODEL, --list and --remove")
    share = arguments.share
    if share is not None and arguments.remove:
        raise UsageError("calibrate: --remove has nothing to share: leave out --share")
    if share == "-" and arguments.json:
        raise UsageError("calibrate: --json and --share - both write to standard output")
    shared_path = None if share in {None, "-"} else path_of_flag(share, "--share")
    if shared_path is not None:
        shared_lines(shared_path)  # an unsuitable file is an error before anything is measured
    folder = data_folder()
    path = NAME if folder is None else str(folder / NAME)
    if arguments.list or arguments.remove:
        stored = forget_calibration() if arguments.remove else read_calibration()
        if arguments.json:
            text = json_text(list_json(stored, path, removed=arguments.remove))
        elif arguments.remove:
            text = removed_text(stored, path)
        else:
            text = list_text(stored, path, screen(colour=False))
        if share is None:
            return text
        records, reasons = saved_records(detect(), stored.calibration)
        for reason in reasons:
            warn(f"not shared: {reason}")
        return _shared(records, shared_path, "" if shared_path is None else text)

    def show_step(line: str) -> None:
        if not arguments.json:
            warn(line)

    machine = detect()
    calibrated = calibrate(arguments.model, machine=machine, tell=show_step)
    if arguments.json:
        text = json_text(calibrated_json(calibrated, path))
    else:
        text = calibrated_text(calibrated, path, screen())
    if share is None:
        return text
    try:
        record = speed_record(machine, calibrated.host, calibrated.engine)
    except UsageError as error:
        warn(f"nothing to share: {error}")
        return text, error.exit_code
    if shared_path is None:
        sys.stderr.write(text)
    return _shared((record,), shared_path, text)


def _shared(records: tuple[Record, ...], path: Path | None, text: str) -> str:
    """Shows the records and adds them to the file. Returns what goes to standard output: `text`, or without a file the
    records.
    """
    if path is None:
        warn(f"nothing was sent anywhere: {_HOW_TO_GIVE}")
        return "".join(f"{as_line(record)}\n" for record in records)
    for record in records:
        warn(f"record: {as_line(record)}")
    added = add_records(path, records)
    known = "" if added == len(records) else f" ({len(records) - added} already there)"
    warn(f"{with_count(added, 'record')} added to {path}{known}")
    warn(f"nothing was sent anywhere: {_HOW_TO_GIVE}")
    return text
