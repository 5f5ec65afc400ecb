"""Standard output: whole answers, and the lines of a server."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

from edgekit.errors import OutputError


class ReaderGoneError(Exception):
    """Standard output is closed, or its reader has seen enough: `| head`."""


def show(text: str) -> None:
    """Writes and flushes. Raises OutputError if that fails, on a full disk for instance."""
    if sys.stdout is None:  # it was closed before we started
        raise ReaderGoneError
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)
        raise ReaderGoneError from None
    except OSError as error:
        drop(sys.stdout)
        raise OutputError(f"the answer could not be written: {error.strerror}") from error


def drop(stream: TextIO) -> None:
    """Discards what is still buffered, so that the flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(line: str) -> None:
    """The same for a server, which goes on when its reader is gone."""
    with suppress(ReaderGoneError):
        show(f"{line}\n")


def say_json(event: Mapping[str, Any]) -> None:
    import json  # not for --help

    say(json.dumps(dict(event)))
