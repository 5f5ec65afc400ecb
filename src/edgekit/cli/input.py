"""Models and prompts from the command line, a file or standard input."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from edgekit.errors import SourceError, UsageError
from edgekit.sources.local import models_in
from edgekit.terminal import printable

if TYPE_CHECKING:
    from edgekit.engines.chat import Prompt


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


MOST_PROMPT_BYTES = 64 * 2**20


def read_prompt(arguments: argparse.Namespace) -> Prompt | None:
    """None: a conversation. UsageError or SourceError for what cannot be read."""
    text = arguments.prompt
    if arguments.file is not None:
        text = _from_file(arguments.file)
    elif text is None and not _is_person():
        text = _from_file("-")
    if text is None:
        if arguments.raw:
            raise UsageError("--raw needs a prompt: -p TEXT or -f FILE")
        return None
    if not text.strip():
        raise UsageError("the prompt is empty")
    check_unicode("the prompt", text)
    check_unicode("--system", arguments.system or "")
    from edgekit.engines.chat import Message, Prompt

    if arguments.raw:
        if arguments.system is not None:
            raise UsageError("--system is part of the chat template, which --raw leaves out")
        return Prompt(text=text)
    before = () if arguments.system is None else (Message(role="system", content=arguments.system),)
    return Prompt(messages=(*before, Message(role="user", content=text)))


def check_unicode(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{what}: character {error.start:,} is not valid Unicode (UTF-8)"
        ) from error


def _is_person() -> bool:
    return bool(getattr(sys.stdin, "isatty", lambda: False)())


def _from_file(name: str) -> str:
    try:
        if name == "-":
            raw = b"" if sys.stdin is None else sys.stdin.buffer.read(MOST_PROMPT_BYTES + 1)
        else:
            with open(name, "rb") as file:  # noqa: PTH123 - pathlib costs what --help takes
                raw = file.read(MOST_PROMPT_BYTES + 1)
    except OSError as error:
        raise SourceError(f"{name}: {error.strerror or error}") from error
    if len(raw) > MOST_PROMPT_BYTES:
        raise UsageError(f"{name}: the prompt is larger than {MOST_PROMPT_BYTES // 2**20} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: byte {error.start:,} is not UTF-8 text") from error
