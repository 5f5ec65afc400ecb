"""`inspect`, `hardware` and `catalog`: ask, and print the answer as text or JSON."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from edgekit.app.catalog import add, update
from edgekit.app.inspect import inspect
from edgekit.catalog import listed, read_catalog
from edgekit.catalog.names import find_entry
from edgekit.catalog.records import is_id
from edgekit.catalog.store import forget_entry, packaged_entries
from edgekit.catalog.types import Catalog
from edgekit.cli.options import (
    is_terminal,
    machine_of_arguments,
    reach_of,
    screen,
)
from edgekit.errors import EdgekitError, NotFoundError, UsageError
from edgekit.formats.types import Depth
from edgekit.report import inspection
from edgekit.report.catalog import (
    added_text,
    catalog_json,
    catalog_text,
    changes_json,
    changes_text,
    done_json,
    entry_json,
    entry_text,
    lines_text,
)
from edgekit.report.hardware import devices_json, devices_text, hardware_json, hardware_text
from edgekit.report.inspection import inspection_json
from edgekit.report.json import json_text
from edgekit.request import Session

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.catalog.types import Entry
    from edgekit.model.inspect import Inspection


def run_inspect(arguments: argparse.Namespace) -> str:
    """The answer as text."""
    depth = Depth.ARCHITECTURE if arguments.light and not arguments.tensors else Depth.TENSORS
    with reach_of(arguments, quiet=arguments.json) as reach:
        found = inspect(arguments.model, Session(reach=reach), depth=depth, quant=arguments.quant)
    return _render(found, arguments)


def _render(found: Inspection, arguments: argparse.Namespace) -> str:
    if arguments.json:
        answer = inspection_json(
            found, tensors=arguments.tensors, layers=arguments.layers, keys=arguments.keys
        )
        return json_text(answer)
    return _render_text(found, arguments)


def _render_text(found: Inspection, arguments: argparse.Namespace) -> str:

    parts = [inspection.inspection_text(found, bold=is_terminal(sys.stdout))]
    if arguments.layers and found.geometry is not None:
        parts.append(inspection.layers_text(found.geometry))
    if arguments.tensors:
        parts.append(inspection.tensors_text(found))
    if arguments.keys:
        parts.append(inspection.keys_text(found))
    return "\n".join(parts)


def run_hardware(arguments: argparse.Namespace) -> str:
    """The answer as text. What could not be asked is a note, not an error."""
    if arguments.devices:
        return _devices(arguments)
    machine = machine_of_arguments(arguments)
    if arguments.json:
        return json_text(hardware_json(machine))

    return hardware_text(machine, screen())


def _devices(arguments: argparse.Namespace) -> str:
    """All that are known, whatever this machine has."""
    if arguments.device or arguments.ram or arguments.vram:
        raise UsageError(
            "--devices lists all known devices; it cannot be combined with --device, "
            "--ram or --vram"
        )
    if arguments.json:
        return json_text(devices_json())

    return devices_text(screen())


def run_list(arguments: argparse.Namespace) -> str:

    catalog = read_catalog()
    known = listed(catalog, kind=arguments.kind, family=arguments.family)
    entries = [entry for entry in known if _whose(entry, arguments)]
    if arguments.json:
        return json_text(catalog_json(entries, catalog))

    return catalog_text(entries, catalog, screen())


def _whose(entry: Entry, arguments: argparse.Namespace) -> bool:
    return not (arguments.user and not entry.is_users) and not (
        arguments.packaged and entry.is_users
    )


def run_show(arguments: argparse.Namespace) -> str:

    entry = find_entry(arguments.id)
    if arguments.json:
        return json_text(entry_json(entry, whole=True))

    return entry_text(entry, screen())


def run_add(arguments: argparse.Namespace) -> tuple[str, int]:
    """What became of each. One that cannot be read does not keep the others out."""
    if arguments.id is not None and len(arguments.models) > 1:
        raise UsageError("--id works with one model only")
    if arguments.id is not None and not is_id(arguments.id):
        raise UsageError(
            f"{arguments.id[:60]!r}: an id may contain letters, digits and . _ : + @ -"
        )
    added: list[tuple[Entry, bool]] = []
    failed: list[tuple[str, EdgekitError]] = []
    for reference in arguments.models:
        try:
            with reach_of(arguments, quiet=arguments.json) as reach:
                added.append(add(reference, reach, name=arguments.id))
        except EdgekitError as error:
            failed.append((reference, error))
    if failed and not added and len(failed) == 1:
        raise failed[0][1]
    return _told_added(added, failed, arguments)


def _told_added(
    added: list[tuple[Entry, bool]],
    failed: list[tuple[str, EdgekitError]],
    arguments: argparse.Namespace,
) -> tuple[str, int]:
    code = failed[0][1].exit_code if failed else 0
    if arguments.json:
        return json_text(done_json("added", (entry_json(one) for one, _ in added), failed)), code

    packaged = {one.id for one in packaged_entries() if not isinstance(one, str)}
    lines = [added_text(one, new=new, shadows=one.id in packaged) for one, new in added]
    lines += [f"not added: {name}: {error}" for name, error in failed]
    return lines_text(lines, screen(colour=False)), code


def run_remove(arguments: argparse.Namespace) -> str:

    name = arguments.id
    if not forget_entry(name):  # by the letter first: a damaged row has nothing but its id
        catalog = read_catalog()
        own = Catalog(entries=tuple(one for one in catalog.entries if one.is_users))
        if any(name.lower() == one.id for one in catalog.entries if not one.is_users):
            raise UsageError(f"{name} is built in: only models that you added can be removed")
        try:
            name = find_entry(name, own).id
        except NotFoundError as error:
            told = f"you have not added a model named {name[:80]!r}"
            raise NotFoundError(told, candidates=error.candidates) from error
        forget_entry(name)
    if arguments.json:
        return json_text(done_json("removed", [{"id": name}], ()))
    return f"removed: {name}\n"


def run_update(arguments: argparse.Namespace) -> tuple[str, int]:
    """What changed, of each. One that cannot be read again stays as it is."""
    own = Catalog(entries=tuple(one for one in read_catalog().entries if one.is_users))
    entries = own.entries if arguments.id is None else (find_entry(arguments.id, own),)
    changed: list[tuple[str, Any]] = []
    failed: list[tuple[str, EdgekitError]] = []
    for entry in entries:
        try:
            with reach_of(arguments, quiet=arguments.json) as reach:
                changed.append((entry.id, update(entry, reach)))
        except EdgekitError as error:
            failed.append((entry.id, error))
    return _told_changes(changed, failed, arguments)


def _told_changes(
    changed: list[tuple[str, Any]],
    failed: list[tuple[str, EdgekitError]],
    arguments: argparse.Namespace,
) -> tuple[str, int]:
    code = failed[0][1].exit_code if failed else 0
    if arguments.json:
        told = (changes_json(name, changes) for name, changes in changed)
        return json_text(done_json("read", told, failed)), code

    lines = [changes_text(name, changes) for name, changes in changed]
    lines += [f"{name}: not updated: {error}" for name, error in failed]
    return lines_text(lines or ["you have not added any models yet"], screen(colour=False)), code
