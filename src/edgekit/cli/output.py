"""Standard output and the terminal: answers, the lines of a server, and the progress line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from edgekit.errors import OutputError

if TYPE_CHECKING:
    from edgekit.report.text import Screen

T = TypeVar("T")


class ReaderGoneError(Exception):
    """Standard output is closed, or its reader has seen enough: `| head`."""


def show(text: str) -> None:
    """Write and flush. Raises OutputError if that fails, for instance because the disk is full."""
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
    """Discard what is still buffered, so that the flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(line: str) -> None:
    """Print one line of a server, which continues when its reader is gone."""
    with suppress(ReaderGoneError):
        show(f"{line}\n")


def say_json(event: Mapping[str, Any]) -> None:
    import json  # not for --help

    say(json.dumps(dict(event)))


def is_terminal(stream: object) -> bool:
    """Whether the stream is a terminal with colour and cursor movement."""
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return not plain and bool(getattr(stream, "isatty", lambda: False)())


def screen_width() -> int:
    """Columns of the terminal, or COLUMNS; 100 if neither is known."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns


def screen(stream: object = None, *, colour: bool = True) -> Screen:
    """The width, colours and characters of the stream, standard output by default."""
    from edgekit.report.text import Screen, glyphs_for

    shown = sys.stdout if stream is None else stream
    return Screen(
        width=screen_width(),
        colour=colour and is_terminal(shown),
        glyphs=glyphs_for(getattr(shown, "encoding", None)),
    )


def show_progress(line: str) -> None:
    """Replace the progress line on standard error; '' clears it."""
    sys.stderr.write(f"\r\x1b[K{line[:100]}")
    sys.stderr.flush()


def counting(coming: Iterable[T], of: int, progress: Callable[[str], None] | None) -> Iterator[T]:
    """Yield the models and count them on the progress line, which is cleared while the caller has one."""
    show_line = progress or (lambda _: None)
    show_line(f"checked 0 of {of:,} models")
    for done, one in enumerate(coming, 1):
        show_line("")
        yield one
        show_line(f"checked {done:,} of {of:,} models")
    show_line("")
