"""What `run` asks the model: the prompt with its images and tools, the sampling, and the conversation it continues."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgekit.app.attachments import MAX_IMAGES, read_image, read_tools
from edgekit.app.conversations import Transcript, check_name, load, require_new
from edgekit.cli.commands import SAMPLING_FLAGS
from edgekit.engines.chat import Image, Message, Prompt, Sampling
from edgekit.errors import SourceError, UsageError

MAX_PROMPT_BYTES = 64 * 2**20


def open_transcript(arguments: argparse.Namespace) -> Transcript:
    """The conversation that --resume continues, or a new one. Raises UsageError, SourceError or HeaderError."""
    check_unicode("--system", arguments.system or "")
    for flag, name in (("--save", arguments.save), ("--resume", arguments.resume)):
        if name is None:
            continue
        if arguments.raw:
            raise UsageError(
                f"--raw has no messages that {flag} could save or continue: leave out one of them"
            )
        check_name(name)
    if arguments.save is not None:
        require_new(arguments.save)
    if arguments.resume is None:
        system = arguments.system
        first = () if system is None else (Message(role="system", content=system),)
        return Transcript(messages=first, name=arguments.save)
    saved = load(arguments.resume)
    if arguments.system is not None:
        raise UsageError("--system begins a conversation: leave it out with --resume")
    is_copy = arguments.save is not None
    return Transcript(
        model=saved.model,
        messages=saved.messages,
        name=arguments.save if is_copy else saved.name,
        saved_count=0 if is_copy else len(saved.messages),
    )


def images_of(arguments: argparse.Namespace) -> tuple[Image, ...]:
    """The files that --image names. Raises UsageError or SourceError."""
    if len(arguments.image) > MAX_IMAGES:
        raise UsageError(f"--image can be given up to {MAX_IMAGES} times")
    if arguments.image and arguments.raw:
        raise UsageError("--raw cannot be combined with --image: leave out one of them")
    return tuple(map(read_image, arguments.image))


def tools_of(arguments: argparse.Namespace) -> tuple[Mapping[str, Any], ...]:
    """The tools of --tools. Raises UsageError or SourceError."""
    if arguments.tools is None:
        return ()
    if arguments.raw:
        raise UsageError("--tools are part of the chat template, which --raw leaves out")
    return read_tools(arguments.tools)


def read_prompt(
    arguments: argparse.Namespace,
    history: tuple[Message, ...],
    images: tuple[Image, ...],
    tools: tuple[Mapping[str, Any], ...],
) -> Prompt | None:
    """The prompt, or None for a chat. Raises UsageError or SourceError if it cannot be read."""
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
    if arguments.raw:
        if arguments.system is not None:
            raise UsageError("--system is part of the chat template, which --raw leaves out")
        return Prompt(text=text)
    question = Message(role="user", content=text, images=images)
    return Prompt(messages=(*history, question), tools=tools)


def check_unicode(subject: str, text: str) -> None:
    """Raises UsageError for text that cannot be encoded, such as half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{subject}: character {error.start:,} is not valid Unicode (UTF-8)"
        ) from error


def _from_file(name: str) -> str:
    """The text of a file, or of standard input for "-". Raises SourceError or UsageError."""
    try:
        if name == "-":
            raw = b"" if sys.stdin is None else sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                raw = file.read(MAX_PROMPT_BYTES + 1)
    except OSError as error:
        raise SourceError(f"{name}: {error.strerror or error}") from error
    if len(raw) > MAX_PROMPT_BYTES:
        raise UsageError(f"{name}: the prompt is larger than {MAX_PROMPT_BYTES // 2**20} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: byte {error.start:,} is not UTF-8 text") from error


def sampling_of(arguments: argparse.Namespace) -> Sampling:
    """The sampling options. Raises UsageError with the name of the flag."""
    values: dict[str, Any] = {"stop": tuple(arguments.stop)}
    for text in arguments.stop:
        check_unicode("--stop", text)
    for field, (names, _, parse, _) in SAMPLING_FLAGS.items():
        text = getattr(arguments, field)
        if text is None:
            continue
        try:
            values[field] = parse(text)
        except UsageError as error:
            raise UsageError(f"{names[-1]}: {error}") from error
    return Sampling(**values)
