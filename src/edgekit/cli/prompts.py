"""The prompt of `edgekit run`, from the command line, a file or standard input."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from edgekit.errors import SourceError, UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.engines.chat import Prompt

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
    check_text("the prompt", text)
    check_text("--system", arguments.system or "")
    from edgekit.engines.chat import Message, Prompt

    if arguments.raw:
        if arguments.system is not None:
            raise UsageError("--system is part of the chat template, which --raw leaves out")
        return Prompt(text=text)
    before = () if arguments.system is None else (Message(role="system", content=arguments.system),)
    return Prompt(messages=(*before, Message(role="user", content=text)))


def check_text(what: str, text: str) -> None:
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
