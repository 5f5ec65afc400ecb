"""Writes to standard output: answers as they come, and the lines of a server."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from edgekit.errors import OutputError


class NobodyReadsError(Exception):
    """Standard output is closed, or its reader has seen enough: `| head`."""


def show(text: str) -> None:
    """Writes to standard output at once. OutputError where that fails, on a full disk for instance."""
    if sys.stdout is None:  # it was closed before we started
        raise NobodyReadsError
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)
        raise NobodyReadsError from None
    except OSError as error:
        drop(sys.stdout)
        raise OutputError(f"the answer could not be written: {error.strerror}") from error


def drop(stream: TextIO) -> None:
    """What is still in the buffer goes nowhere, so that the end of the process does not fail on it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say_json(told: Mapping[str, Any]) -> None:
    import json  # not for --help

    say(json.dumps(dict(told)))


def say(line: str) -> None:
    """A reader that has gone does not end the server. OutputError where there is no room for it."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)
    except OSError as error:
        drop(sys.stdout)
        raise OutputError(f"the answer could not be written: {error.strerror}") from error
