"""A command line -> one command and its exit code."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TextIO

from edgekit.cli.parser import UsageExit, build_parser
from edgekit.errors import EdgekitError, OutputError, printable

INTERRUPTED = 130  # 128 + SIGINT, as shells count
_DEVICE_FLAGS = ("--device", "--gpu")
_COUNT = re.compile("[0-9]+[xX*\N{MULTIPLICATION SIGN}]")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code: `--help` lists them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal that cannot show a character shows a question mark, not a traceback
            stream.reconfigure(errors="replace")
    words = join_counts(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:  # `edgekit help check` is `edgekit check --help`
        words = [*words[1:], "--help"]
    try:
        arguments, unparsed = build_parser(words[0] if words else None).parse_known_args(words)
        # argparse leaves the second model of `check a.gguf --ram 8G b.gguf` unparsed
        several: list[str] | None = getattr(arguments, "models", None) or getattr(
            arguments, "words", None
        )
        if unparsed and (several is None or any(word.startswith("-") for word in unparsed)):
            arguments.parser.reject(unparsed)
        if several is not None:
            several += unparsed
    except UsageExit as wrong:
        words_before_dashes = words[: (*words, "--").index("--")]  # after "--" there are no flags
        if "--json" in words_before_dashes:
            _write(_error_json("UsageError", wrong.message, in_one_line=wrong.in_one_line), 2)
        raise
    try:
        module, _, function = arguments.run.partition(":")
        answer = getattr(import_module(f"edgekit.cli.{module}"), function)(arguments)
        text, code = (answer, 0) if isinstance(answer, str) else answer
        return _write(text, code)
    except EdgekitError as error:
        warn(str(error))
        if not getattr(arguments, "json", False):
            return error.exit_code
        lines = getattr(arguments, "json_lines", False)
        text = _error_json(type(error).__name__, str(error), in_one_line=lines)
        return _write(text, error.exit_code)
    except KeyboardInterrupt:
        warn("interrupted")
        return INTERRUPTED


def join_counts(argv: Sequence[str]) -> list[str]:
    """`--device 2x "RTX 3090"` -> `--device "2x RTX 3090"`: people quote the name, not the count."""
    words: list[str] = []
    options_ended = False
    for word in argv:
        options_ended = options_ended or word == "--"
        flag, equals, count = words[-1].partition("=") if words else ("", "", "")
        if not equals and len(words) > 1:
            flag, count = words[-2:]
        needs_name = flag in _DEVICE_FLAGS and _COUNT.fullmatch(count)
        if needs_name and not options_ended and not word.startswith("-"):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


def _error_json(kind: str, message: str, *, in_one_line: bool) -> str:
    import json  # only for errors: --help must be instant

    from edgekit.report.json import json_text

    error = {"error": {"type": kind, "message": message}}
    return json.dumps(error) + "\n" if in_one_line else json_text(error)


def _write(answer: str, code: int) -> int:
    """Print the answer and return the exit code. A closed pipe (`| head`) is not an error, but a full disk is."""
    try:
        show(answer)
    except ReaderGoneError:
        return code
    except OutputError as error:
        warn(str(error))
        return error.exit_code
    return code


class ReaderGoneError(Exception):
    """Standard output is closed, or its reader has seen enough: `| head`."""


def show(text: str) -> None:
    """Write and flush. Raises OutputError if that fails, for instance because the disk is full."""
    if sys.stdout is None:  # standard output was closed before the start
        raise ReaderGoneError
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop(sys.stdout)
        raise ReaderGoneError from None
    except OSError as error:
        _drop(sys.stdout)
        raise OutputError(f"the answer could not be written: {error.strerror}") from error


def _drop(stream: TextIO) -> None:
    """Discard what is still buffered, so that the flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def warn(sentence: str) -> None:
    """Print one line, which may quote an engine, on standard error, after "edgekit: ", unless it is closed."""
    if sys.stderr is None:
        return
    try:
        print(f"edgekit: {printable(sentence)}", file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)
