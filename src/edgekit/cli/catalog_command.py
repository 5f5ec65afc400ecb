"""`edgekit catalog`: the known models, and yours among them. Parse, call, print."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edgekit.cli.options import (
    ENVIRONMENT,
    MODEL_FORMS,
    add_reach_options,
    reach_of,
    screen,
)
from edgekit.cli.parser import COMMANDS
from edgekit.errors import EdgekitError, NotFoundError, UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

    from edgekit.catalog.types import Entry

KINDS = ("chat", "code", "reasoning", "embedding", "vision")
_DESCRIPTION = (
    "The models that EdgeKit knows without downloading anything, with the source of "
    "every fact, and the models that you add. Yours are stored in your data folder, or "
    "in EDGEKIT_DATA."
)
_EXAMPLES = """\
examples:
  edgekit catalog list --kind code
  edgekit catalog list --family qwen3 --json
  edgekit catalog show qwen3-8b
  edgekit catalog add unsloth/Qwen3-8B-GGUF:Q4_K_M ./model.gguf
  edgekit catalog add sample:gemma-3-27b --id my-gemma
  edgekit catalog update
  edgekit catalog remove my-gemma
"""
_ADD_EXAMPLES = """
examples:
  edgekit catalog add unsloth/Qwen3-8B-GGUF:Q4_K_M
  edgekit catalog add ./model.gguf --id mine

"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "catalog",
        help=COMMANDS["catalog"],
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_list(actions)
    _add_show(actions)
    _add_add(actions)
    _add_remove(actions)
    _add_update(actions)


def _action(
    actions: _SubParsersAction[argparse.ArgumentParser],
    name: str,
    told: str,
    run: Callable[[argparse.Namespace], Any],
    epilog: str = "",
) -> argparse.ArgumentParser:
    parser = actions.add_parser(
        name,
        help=told,
        description=f"{told[0].upper()}{told[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/catalog.md)")
    parser.set_defaults(run=run)
    return parser


def _add_list(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _action(actions, "list", "list the models, one per line", run_list)
    parser.add_argument("--kind", choices=KINDS, help="only models for this purpose")
    parser.add_argument(
        "--family", metavar="NAME", help="only models of this family, e.g. qwen3, llama-3.1, gemma"
    )
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--user", action="store_true", help="only models that you added")
    whose.add_argument("--packaged", action="store_true", help="only built-in models")


def _add_show(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _action(actions, "show", "show everything about one model, with sources", run_show)
    parser.add_argument(
        "id", metavar="ID", help="id of the model, or its repository on Hugging Face"
    )


def _add_add(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    told = "add models to the catalog, from their headers"
    epilog = MODEL_FORMS + _ADD_EXAMPLES + ENVIRONMENT
    parser = _action(actions, "add", told, run_add, epilog)
    parser.add_argument(
        "models", metavar="MODEL", nargs="+", help="models to add: path, hub id, URL or name"
    )
    parser.add_argument("--id", metavar="NAME", help="id for the model (one model only)")
    add_reach_options(parser)


def _add_remove(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _action(actions, "remove", "remove a model that you added", run_remove)
    parser.add_argument("id", metavar="ID")


def _add_update(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    told = "read the headers of the models that you added again, and show what changed"
    parser = _action(actions, "update", told, run_update)
    parser.add_argument("id", metavar="ID", nargs="?", help="update only this model")
    add_reach_options(parser)


def run_list(arguments: argparse.Namespace) -> str:
    from edgekit.catalog import listed, read_catalog

    catalog = read_catalog()
    known = listed(catalog, kind=arguments.kind, family=arguments.family)
    entries = [entry for entry in known if _whose(entry, arguments)]
    if arguments.json:
        from edgekit.report.catalog import catalog_json
        from edgekit.report.json import json_text

        return json_text(catalog_json(entries, catalog))
    from edgekit.report.catalog import catalog_text

    return catalog_text(entries, catalog, screen())


def _whose(entry: Entry, arguments: argparse.Namespace) -> bool:
    return not (arguments.user and not entry.is_users) and not (
        arguments.packaged and entry.is_users
    )


def run_show(arguments: argparse.Namespace) -> str:
    from edgekit.catalog.names import find_entry

    entry = find_entry(arguments.id)
    if arguments.json:
        from edgekit.report.catalog import entry_json
        from edgekit.report.json import json_text

        return json_text(entry_json(entry, whole=True))
    from edgekit.report.catalog import entry_text

    return entry_text(entry, screen())


def run_add(arguments: argparse.Namespace) -> tuple[str, int]:
    """What became of each. One that cannot be read does not keep the others out."""
    from edgekit.app.catalog import add
    from edgekit.catalog.records import is_id

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
        from edgekit.report.catalog import done_json, entry_json
        from edgekit.report.json import json_text

        return json_text(done_json("added", (entry_json(one) for one, _ in added), failed)), code
    from edgekit.catalog.store import packaged_entries
    from edgekit.report.catalog import added_text, lines_text

    packaged = {one.id for one in packaged_entries() if not isinstance(one, str)}
    lines = [added_text(one, new=new, shadows=one.id in packaged) for one, new in added]
    lines += [f"not added: {name}: {error}" for name, error in failed]
    return lines_text(lines, screen(colour=False)), code


def run_remove(arguments: argparse.Namespace) -> str:
    from edgekit.catalog import read_catalog
    from edgekit.catalog.names import find_entry
    from edgekit.catalog.store import forget_entry
    from edgekit.catalog.types import Catalog

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
        from edgekit.report.catalog import done_json
        from edgekit.report.json import json_text

        return json_text(done_json("removed", [{"id": name}], ()))
    return f"removed: {name}\n"


def run_update(arguments: argparse.Namespace) -> tuple[str, int]:
    """What changed, of each. One that cannot be read again stays as it is."""
    from edgekit.app.catalog import update
    from edgekit.catalog import read_catalog
    from edgekit.catalog.names import find_entry
    from edgekit.catalog.types import Catalog

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
        from edgekit.report.catalog import changes_json, done_json
        from edgekit.report.json import json_text

        told = (changes_json(name, changes) for name, changes in changed)
        return json_text(done_json("read", told, failed)), code
    from edgekit.report.catalog import changes_text, lines_text

    lines = [changes_text(name, changes) for name, changes in changed]
    lines += [f"{name}: not updated: {error}" for name, error in failed]
    return lines_text(lines or ["you have not added any models yet"], screen(colour=False)), code
