"""`conversations`: list, show and delete what `run --save` has saved."""

from __future__ import annotations

import argparse

from edgekit.app.conversations import conversations, delete, load
from edgekit.cli.console import screen
from edgekit.errors import NotFoundError
from edgekit.report.conversations import (
    conversation_json,
    conversation_text,
    conversations_json,
    conversations_text,
)
from edgekit.report.json import SCHEMA, json_text


def run_list(arguments: argparse.Namespace) -> str:
    rows = conversations()
    return json_text(conversations_json(rows)) if arguments.json else conversations_text(rows)


def run_show(arguments: argparse.Namespace) -> str:
    conversation = load(arguments.name)
    if arguments.json:
        return json_text(conversation_json(conversation))
    return conversation_text(conversation, screen())


def run_delete(arguments: argparse.Namespace) -> str:
    """Delete all of the names, or none if there is an unknown one."""
    names = tuple(dict.fromkeys(arguments.names))
    known = {row.name for row in conversations()}
    for name in names:
        if name not in known:
            raise NotFoundError(f"there is no conversation {name!r} (edgekit conversations list)")
    deleted = [name for name in names if delete(name)]
    if arguments.json:
        return json_text({"schema": SCHEMA, "deleted": deleted})
    return "".join(f"deleted {name}\n" for name in deleted)
