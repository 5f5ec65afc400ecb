"""The presets of llama-server's router: an INI file with a section for each model.

Keys are flags without their dashes (tools/server/README.md and common/preset.cpp @ b21e4de). The router starts a
llama-server for each model and unloads the one that was used least recently, by their number, not by their memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from edgekit.engines.protocol import PRESET_FILE
from edgekit.errors import UsageError

if TYPE_CHECKING:
    from edgekit.engines.commands import Command


def router_preset(
    commands: Mapping[str, Command], most_at_once: int
) -> tuple[str, tuple[str, ...]]:
    """The text of the file, and the words of the router's command."""
    environments = {tuple(sorted(command.environment.items())) for command in commands.values()}
    if len(environments) > 1:
        raise UsageError(
            "the models use different GPUs, which llama-server's router cannot set for each: use --for llama-swap"
        )
    lines = ["version = 1"]
    for name, command in commands.items():
        if "]" in name or not name.isprintable():
            raise UsageError(f"{name!r} cannot be the name of a preset: rename the model (no ])")
        lines += ["", f"[{name}]"]
        lines += [f"; {note}" for note in command.notes]
        lines += [f"{key} = {value}" for key, value in _options(command.words[1:])]
    words = ("llama-server", "--models-preset", PRESET_FILE, "--models-max", str(most_at_once))
    return "\n".join(lines) + "\n", words


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """'-c 8192 --no-mmap' -> ('c', '8192'), ('no-mmap', 'true')."""
    at = 0
    while at < len(words):
        key, value = words[at].lstrip("-"), "true"
        at += 1
        if at < len(words) and not _is_flag(words[at]):
            value = words[at]
            at += 1
        # the parser ends a value at a comment, and cuts blanks
        if any(mark in value for mark in ";#\r\n") or value != value.strip():
            raise UsageError(
                f"{value!r} cannot be written in a preset of llama-server's router: rename the file (no ; and no #)"
            )
        yield key, value


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit()
