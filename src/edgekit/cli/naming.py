"""Words on a command line -> the models that are meant."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence

from edgekit.errors import UsageError
from edgekit.sources.folders import models_in
from edgekit.terminal import printable

MAX_MODELS = 10_000  # of one call; a folder of so many is a mistake


def references(words: Sequence[str]) -> tuple[str, ...]:
    """The models that are meant: folders of them opened up, `-` read from standard input."""
    for word in dict.fromkeys(word for word in words if words.count(word) > 1):
        print(
            f"edgekit: {printable(word)} was given more than once and is shown once",
            file=sys.stderr,
        )
    found: dict[str, None] = {}  # in order, each once
    for word in words:
        for one in _stdin_lines() if word == "-" else (word,):
            # neither is a path: the first would be this folder, the second an error of the system
            names = models_in(one) if one and "\0" not in one else (one,)
            found |= dict.fromkeys(names)
            if len(found) > MAX_MODELS:
                raise UsageError(f"more than {MAX_MODELS:,} models at once")
    if not found:
        raise UsageError("no model given")
    return tuple(found)


def _stdin_lines() -> Iterator[str]:
    if sys.stdin is None:
        raise UsageError("standard input is closed")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # names of files may be any bytes
    for line in sys.stdin:
        name = line.strip().lstrip("\ufeff")  # Windows opens a text with it
        if name and not name.startswith("#"):
            yield name
