"""What argparse found -> the words that were said."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from edgekit.cli.engine_flags import given_flags

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.asking.words import Words

_PLAIN = (
    "engine", "ram", "vram", "job", "min_context", "window_budget", "max_use", "reserve", "users", "nodes", "task",
)  # fmt: skip
_SWITCHES = ("prefer_accurate_kv",)


def words_of(arguments: argparse.Namespace) -> Words:
    """A command has some of them: what it does not have was not said."""
    from edgekit.asking.words import Words

    said = {
        name: getattr(arguments, name)
        for name in (*_PLAIN, *_SWITCHES)
        if getattr(arguments, name, None) is not None
    }
    return Words(
        given=given_flags(arguments),
        devices=tuple(getattr(arguments, "device", ())),
        drafter=not getattr(arguments, "no_drafter", False),
        **said,
    )
