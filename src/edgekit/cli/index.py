"""`index`: list, show, add, remove and update; the answer as text or JSON."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from edgekit.app.index import add, update
from edgekit.app.index_update import (
    ADDRESS_VARIABLE,
    IndexUpdate,
    Published,
    is_address,
    is_copy_outdated,
    update_index,
)
from edgekit.cli.console import open_session, screen
from edgekit.engines.flags import read_number
from edgekit.errors import EdgekitError, NotFoundError, UsageError
from edgekit.index import entry_with_id, index_problems, most_used, read_index
from edgekit.index.filters import Filters, select
from edgekit.index.names import find_entry, find_model
from edgekit.index.records import is_id
from edgekit.index.store import forget_entry
from edgekit.index.types import Index, ModelPurpose
from edgekit.report.index import (
    added_text,
    changes_text,
    entry_json,
    entry_text,
    index_json,
    index_text,
    lines_text,
    merged_json,
    merged_text,
    outcomes_json,
)
from edgekit.report.json import json_text
from edgekit.sources.local import path_of_flag

if TYPE_CHECKING:
    from edgekit.index.types import Entry

LISTED = 40  # models, unless --limit or --all is given


def run_list(arguments: argparse.Namespace) -> str:
    """`index list`: the models that match the filters, the most used first. JSON has all of them without --limit."""
    limit = read_number("--limit", arguments.limit, 1)
    index = read_index()
    filters = Filters(
        words=arguments.text or "",
        kind=None if arguments.kind is None else ModelPurpose(arguments.kind),
        family=arguments.family,
        publisher=arguments.publisher,
        licence=arguments.licence,
        exact=arguments.exact,
    )
    entries = [
        entry
        for entry in most_used(select(index.entries, filters.conditions()).entries)
        if not (arguments.packaged if entry.is_users else arguments.user)
    ]
    if limit is None and not arguments.all and not arguments.json:
        limit = LISTED
    shown = entries[:limit]
    if arguments.json:
        return json_text(index_json(shown, index))
    return index_text(shown, len(entries), index, screen())


def run_show(arguments: argparse.Namespace) -> str:
    """`index show`: everything about one model."""
    match = find_model(arguments.id)
    if arguments.json:
        return json_text(entry_json(match.entry, whole=True))
    return entry_text(
        match.entry, screen(), notes=(*filter(None, (match.note,)), *index_problems())
    )


def run_add(arguments: argparse.Namespace) -> tuple[str, int]:
    """`index add`: a model that cannot be read does not stop the others."""
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
            with open_session(arguments, quiet=arguments.json) as session:
                added.append(add(reference, session.reach, name=arguments.id))
        except EdgekitError as error:
            failed.append((reference, error))
    if failed and not added and len(failed) == 1:
        raise failed[0][1]
    code = failed[0][1].exit_code if failed else 0
    if arguments.json:
        rows = (entry_json(entry) for entry, _ in added)
        return json_text(outcomes_json("added", rows, failed)), code
    lines = [
        added_text(entry, new=new, shadows=entry_with_id(entry.id) is not None)
        for entry, new in added
    ]
    lines += [f"not added: {name}: {error}" for name, error in failed]
    return lines_text(lines, screen(colour=False)), code


def run_remove(arguments: argparse.Namespace) -> str:
    """`index remove`: delete a model that the user added."""
    name = arguments.id
    if not forget_entry(name):  # first as typed: a damaged row has no other name
        entries = read_index().entries
        added = tuple(entry for entry in entries if entry.is_users)
        typed, name = name, next((each.id for each in added if each.id.lower() == name.lower()), "")
        if not name and any(typed.lower() == entry.id for entry in entries):
            raise UsageError(f"{typed} is built in: only models that you added can be removed")
        if not name:  # similar names are only suggested: what is removed is gone
            near: tuple[str, ...]
            try:
                near = (find_entry(typed, Index(entries=added)).id,)
            except NotFoundError as error:
                near = error.candidates
            message = f"you have not added a model named {typed[:80]!r}"
            raise NotFoundError(message, candidates=near)
        forget_entry(name)
    if arguments.json:
        return json_text(outcomes_json("removed", [{"id": name}], ()))
    return f"removed: {name}\n"


def run_update(arguments: argparse.Namespace) -> tuple[str, int]:
    """`index update`: a published index is merged, and the models that the user added are read again.

    A model that cannot be read stays as it is.
    """
    named, address = arguments.address, getattr(arguments, "from")
    if named is not None and is_address(named):
        if address is not None:
            raise UsageError(f"{named} and --from {address} name two indexes: give one")
        named, address = None, named
    entries = tuple(entry for entry in read_index().entries if entry.is_users)
    if named is not None:
        entries = (find_entry(named, Index(entries=entries)),)
    elif address is None:
        address = os.environ.get(ADDRESS_VARIABLE)
    published = None
    if address is not None:
        signers = (
            None if arguments.signers is None else path_of_flag(arguments.signers, "--signers")
        )
        published = Published(address=address, sha256=arguments.sha256, signers=signers)
    elif arguments.sha256 or arguments.signers:
        raise UsageError("--sha256 and --signers need the address of an index")
    merged: IndexUpdate | None = None
    if published is not None or (named is None and is_copy_outdated()):
        with open_session(arguments, quiet=arguments.json) as session:
            merged = update_index(published, session.reach)
    changed: list[tuple[str, Mapping[str, tuple[object, object]]]] = []
    failed: list[tuple[str, EdgekitError]] = []
    for entry in entries:
        try:
            with open_session(arguments, quiet=arguments.json) as session:
                changed.append((entry.id, update(entry, session.reach)))
        except EdgekitError as error:
            failed.append((entry.id, error))
    code = failed[0][1].exit_code if failed else 0
    if arguments.json:
        rows = ({"id": name, "changed": sorted(changes)} for name, changes in changed)
        answer = {**outcomes_json("read", rows, failed), "index": merged_json(merged)}
        return json_text(answer), code
    lines = [*index_problems()] if merged is None else [*index_problems(), merged_text(merged)]
    lines += [changes_text(name, changes) for name, changes in changed]
    lines += [f"{name}: not updated: {error}" for name, error in failed]
    return lines_text(lines or ["you have not added any models yet"], screen(colour=False)), code
