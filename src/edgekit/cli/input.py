"""What a command is given: its session, and models and prompts from arguments, files or standard input."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edgekit.cli.output import is_terminal, show_progress
from edgekit.errors import SourceError, UsageError
from edgekit.request import Session
from edgekit.sources.local import models_in
from edgekit.sources.types import Reach
from edgekit.terminal import printable

if TYPE_CHECKING:
    from edgekit.engines.chat import Prompt
    from edgekit.sources.download import Download

MAX_MODELS = 10_000  # in one call: a folder with more is a mistake


@contextmanager
def open_session(
    arguments: argparse.Namespace,
    *,
    quiet: bool,
    confirm: Callable[[Download], bool] | None = None,
    notify: Callable[[object], None] = lambda _event: None,
) -> Iterator[Session]:
    """A session with the network options of the command. Clears its progress line at the end."""
    reach = Reach(
        network=not arguments.offline,
        cache=not arguments.no_cache,
        total_timeout_s=arguments.timeout,
        progress=show_progress if is_terminal(sys.stderr) and not quiet else None,
    )
    try:
        yield Session(reach=reach, confirm=confirm, notify=notify)
    finally:
        if reach.progress is not None:
            show_progress("")


def references(words: Sequence[str]) -> tuple[str, ...]:
    """The models to check: folders replaced by the models in them, `-` by the names on standard input."""
    for word in dict.fromkeys(word for word in words if words.count(word) > 1):
        print(
            f"edgekit: {printable(word)} was given more than once and is shown once",
            file=sys.stderr,
        )
    found: dict[str, None] = {}  # in order, each once
    for word in words:
        for one in _stdin_lines() if word == "-" else (word,):
            # "" would be the current folder, and a NUL an error of the operating system
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
        sys.stdin.reconfigure(errors="surrogateescape")  # file names may be any bytes
    for line in sys.stdin:
        name = line.strip().lstrip("\ufeff")  # a BOM, as Windows writes it
        if name and not name.startswith("#"):
            yield name


MAX_PROMPT_BYTES = 64 * 2**20


def read_prompt(arguments: argparse.Namespace) -> Prompt | None:
    """The prompt, or None for a chat. Raises UsageError or SourceError if it cannot be read."""
    from edgekit.engines.chat import Message, Prompt  # not for check, which reads names here

    text = arguments.prompt
    if arguments.file is not None:
        text = _from_file(arguments.file)
    elif text is None and not getattr(sys.stdin, "isatty", lambda: False)():
        text = _from_file("-")
    if text is None:
        if arguments.raw:
            raise UsageError("--raw needs a prompt: -p TEXT or -f FILE")
        return None
    if not text.strip():
        raise UsageError("the prompt is empty")
    check_unicode("the prompt", text)
    check_unicode("--system", arguments.system or "")
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


def _from_file(name: str) -> str:
    try:
        if name == "-":
            raw = b"" if sys.stdin is None else sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
        else:
            with open(name, "rb") as file:  # noqa: PTH123 - pathlib costs what --help takes
                raw = file.read(MAX_PROMPT_BYTES + 1)
    except OSError as error:
        raise SourceError(f"{name}: {error.strerror or error}") from error
    if len(raw) > MAX_PROMPT_BYTES:
        raise UsageError(f"{name}: the prompt is larger than {MAX_PROMPT_BYTES // 2**20} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: byte {error.start:,} is not UTF-8 text") from error
